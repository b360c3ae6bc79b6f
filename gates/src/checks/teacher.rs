//! Every op of a designed run on the run's own inputs, each statistic over its calibrated limit.
//!
//! bf16: the digits of surprise of the misrounds, and the largest error in units of an ulp plus
//! what legal f32 sums may differ by. f32: the largest error in units of u times the terms' sizes.
//! Ops with one right answer may not differ at all. The invariant: sites are never pooled.

use samebits_defects::Defect;
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::Context;
use crate::engine::defect;
use crate::limits::LimitError;
use crate::manifest::Plant;
use crate::probe::{
    MODEL_SEED, Probe, SiteResidual, Stage, family, legal_units, limit_name, rate_name,
};
use crate::sites::{keyed, op_of};

/// The name of the limit of surprise.
pub const SURPRISE: &str = "legal-surprise-bf16";

/// The worst statistic of a site over its limit, and what to say of it.
pub fn over_limit(
    ctx: &Context,
    stage: &Stage,
    found: &SiteResidual,
) -> Result<(f64, String), LimitError> {
    let (op, residual) = (op_of(&found.site), &found.residual);
    if family(op) == "exact" {
        let wrong = residual.misrounds as f64;
        let over = if residual.misrounds > 0 { 1.0 + wrong } else { 0.0 };
        return Ok((over, format!("{wrong} elements differ where one answer is right")));
    }
    let terms = stage.terms(op);
    let limit = ctx.limits.get(&limit_name(op, stage.dtype(), terms))?.value;
    if limit == 0.0 {
        // Calibration saw one right answer only.
        let wrong = residual.misrounds as f64;
        let over = if residual.misrounds > 0 { 1.0 + wrong } else { 0.0 };
        return Ok((over, format!("{wrong} elements differ where legal orders never do")));
    }
    let by_max = residual.max / limit;
    let say = format!("largest error {:e} of {limit:e} units", residual.max);
    if stage.dtype() == samebits::contract::Dtype::F32 {
        return Ok((by_max, say));
    }
    let rate = ctx.limits.get(&rate_name(op, terms))?.value;
    let digits = residual.surprise(rate);
    let by_count = digits / ctx.limits.get(SURPRISE)?.value;
    if by_count > by_max {
        let (count, of) = (residual.misrounds, residual.elements);
        return Ok((by_count, format!("{count} of {of} misrounded at a legal rate of {rate:e}")));
    }
    Ok((by_max, say))
}

/// Measures a designed run.
pub fn prepare<'c>(ctx: &'c Context, probe: &Probe) -> Result<Measure<'c>, CheckError> {
    let stage = Stage::new(probe, MODEL_SEED)?;
    let expected = stage.expected();
    let argmax = probe.ops.is_empty() || probe.ops.iter().any(|op| op == "argmax");
    let rows: usize = probe.pieces.iter().sum();
    let batch = probe.batch;
    let judged = probe.ops.is_empty();
    let keys = probe.past + rows;
    Ok(Box::new(move |plant: Option<&Plant>| {
        let planted = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
        let ran = stage.run(ctx.seed, planted)?;
        let mut outcome = Outcome {
            statistic: "worst_over_limit",
            measured: 0.0,
            compared: 0,
            expected,
            first: None,
            paths: Vec::new(),
            hits: Some(ran.hits),
            alarm: None,
        };
        let mut misrounds = 0;
        let units = legal_units(ctx, &stage);
        for found in stage.measure(&ran, &units) {
            let (over, text) = over_limit(ctx, &stage, &found)?;
            outcome.compared += found.residual.elements;
            misrounds += found.residual.misrounds;
            if over.is_nan() || over > outcome.measured {
                // A NaN stays: nothing is larger than infinity.
                outcome.measured = if over.is_nan() { f64::INFINITY } else { over };
                outcome.first = Some(place(&found, (rows, keys), text));
            }
        }
        if argmax {
            let wrong = stage.wrong_argmax(&ran);
            outcome.compared += (stage.kept() * batch) as u64;
            if let Some((sequence, row)) = wrong.first() {
                outcome.measured = outcome.measured.max(1.0 + wrong.len() as f64);
                let mut first = at("argmax", Some(*row));
                first.text = format!("sequence {sequence}: not the lowest of the largest logits");
                outcome.first.get_or_insert(first);
            }
        }
        let bf16 = stage.dtype() == samebits::contract::Dtype::Bf16;
        if bf16 && judged && misrounds == 0 && plant.is_none() {
            outcome.alarm = Some("too good: no op rounds unlike exact arithmetic".to_owned());
        }
        Ok(outcome)
    }))
}

fn place(
    found: &SiteResidual,
    (rows, keys): (usize, usize),
    text: String,
) -> samebits_reports::Divergence {
    let width = found.residual.elements as usize / rows;
    let worst = found.residual.worst;
    let row = if keyed(&found.site) { worst / keys % rows } else { worst / width.max(1) };
    let mut first = at(&found.site, Some(row));
    first.element = Some((worst % width.max(1)) as u64);
    (first.want, first.got) = (Some(Num(found.want)), Some(Num(found.got)));
    first.text = format!("sequence {}: {text}", found.sequence);
    first
}

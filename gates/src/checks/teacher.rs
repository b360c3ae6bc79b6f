//! Every op of a designed run on the run's own inputs, each statistic over its calibrated limit.
//!
//! Absent: the statistics and their units, which the ruler has. The invariant: sites are never
//! pooled.

use samebits_defects::Defect;
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::Context;
use crate::engine::defect;
use crate::manifest::Plant;
use crate::probe::{Known, MODEL_SEED, Probe, SiteResidual, Stage};
use crate::sites::keyed;

/// Measures a designed run.
pub fn prepare<'c>(ctx: &'c Context, probe: &Probe) -> Result<Measure<'c>, CheckError> {
    let stage = Stage::new(probe, MODEL_SEED)?;
    let expected = stage.expected();
    let argmax = probe.ops.is_empty() || probe.ops.iter().any(|op| op == "argmax");
    let rows: usize = probe.pieces.iter().sum();
    let batch = probe.batch;
    let judged = probe.ops.is_empty();
    let keys = probe.past + rows;
    let mut known = None;
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
        let ruler = stage.ruler();
        let units = |op: &str| ruler.legal_units(&ctx.limits, op);
        let sites = stage.measure(&ran, known.as_ref(), &units);
        if plant.is_none() {
            known = Some(Known::new(&ran, &sites));
        }
        for found in sites {
            let (over, text) = ruler.over_limit(&ctx.limits, &found.site, &found.residual)?;
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

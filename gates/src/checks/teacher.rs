//! Every op of a designed run on the run's own inputs, against what legal sums may do.
//!
//! Absent: the law itself. The invariant: sites are never pooled.

use samebits_defects::Defect;
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::Context;
use crate::engine::defect;
use crate::law::Law;
use crate::manifest::Plant;
use crate::probe::{Known, MODEL_SEED, Probe, SiteVerdict, Stage};
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
        let sites = stage.measure(&ran, known.as_ref(), &Law::of(&ctx.limits)?)?;
        if plant.is_none() {
            known = Some(Known::new(&ran, &sites));
        }
        for found in sites {
            outcome.compared += found.found.elements;
            misrounds += found.found.misrounds;
            if found.found.over > outcome.measured {
                outcome.measured = found.found.over;
                outcome.first = Some(place(&found, (rows, keys)));
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

fn place(found: &SiteVerdict, (rows, keys): (usize, usize)) -> samebits_reports::Divergence {
    let SiteVerdict { site, sequence, found, got } = found;
    let width = found.elements as usize / rows;
    let row = if keyed(site) { found.worst / keys % rows } else { found.worst / width.max(1) };
    let mut first = at(site, Some(row));
    first.element = Some((found.worst % width.max(1)) as u64);
    (first.want, first.got) = (Some(Num(found.want)), Some(Num(*got)));
    first.text = format!("sequence {sequence}: {}", found.text);
    first
}

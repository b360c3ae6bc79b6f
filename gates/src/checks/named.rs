//! The localiser on the catalogue: how many of the defects that designed runs must show are traced
//! to another op than the one they were planted in.
//!
//! Absent: faults beyond a threshold and the runs that are as large; they act at the same ops. The
//! invariant: a defect that changes no designed run is work left undone, and no pass.

use samebits_defects::{Defect, Fault};

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::{Context, data};
use crate::kill::is_of_thresholds;
use crate::localize::{Found, localize};
use crate::manifest::{Check, Gate, Plant};
use crate::probe::{MODEL_SEED, Stage};
use crate::sites::{Sites, op_of};

/// Designed runs with the clean traces of each.
fn stages(ctx: &Context) -> Result<Vec<(Stage, Vec<Sites>)>, CheckError> {
    let gates = Gate::all(&data("manifest"))?;
    let null = Defect::find("null")?;
    let mut all = Vec::new();
    for gate in gates.iter().filter(|gate| !is_of_thresholds(gate)) {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        if probe.ops.is_empty() {
            let stage = Stage::new(probe, MODEL_SEED)?;
            let clean = stage.run(ctx.seed, null)?.sequences;
            all.push((stage, clean));
        }
    }
    Ok(all)
}

/// The defects that a designed run must show, in a tensor: argmax writes none.
fn faults() -> impl Iterator<Item = &'static Defect> {
    let host = |d: &Defect| matches!(d.fault, Fault::Host { .. }) || d.site.op == "argmax";
    let asked = |d: &Defect| d.class > 0 && !d.is_threshold();
    let shown = move |d: &&Defect| asked(d) && d.gates.iter().any(|kind| kind == "residual");
    Defect::all().iter().filter(shown).filter(move |d| !host(d))
}

/// Where a defect shows first, in the first designed run that it changes.
fn shown(
    ctx: &Context,
    stages: &[(Stage, Vec<Sites>)],
    defect: &Defect,
) -> Result<Option<Found>, CheckError> {
    for (stage, clean) in stages {
        let ran = stage.run(ctx.seed, defect)?;
        let both = clean.iter().zip(&ran.sequences);
        let found = both.filter_map(|(clean, got)| localize(clean, got).ok()).next();
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The op that a defect is planted in, as its first trace.
fn planted(defect: &Defect) -> &str {
    match defect.site.op.as_str() {
        "kept" => "lm_head",
        op => op,
    }
}

/// Measures the share of the defects whose first op is another.
pub fn prepare<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let stages = stages(ctx)?;
    let place = |defect: &'static Defect| Ok((defect, shown(ctx, &stages, defect)?));
    let places: Vec<_> = faults().map(place).collect::<Result<_, CheckError>>()?;
    Ok(Box::new(move |plant| {
        let lying = match plant {
            None => false,
            Some(Plant::Material(what)) if what == "last-op" => true,
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let (mut caught, mut wrong, mut first) = (0u64, 0u64, None);
        for (defect, found) in &places {
            let Some(found) = found else { continue };
            caught += 1;
            // A localiser that names what differs last is what the control plants.
            let op = if lying { "lm_head" } else { op_of(&found.site) };
            if op != planted(defect) {
                wrong += 1;
                first.get_or_insert_with(|| {
                    let mut first = at(&found.site, Some(found.spot.position));
                    first.text = format!("{} was planted in {}", defect.id, defect.site);
                    first
                });
            }
        }
        Ok(Outcome {
            statistic: "share_misnamed",
            measured: wrong as f64 / caught.max(1) as f64,
            compared: caught,
            expected: places.len() as u64,
            first,
            paths: Vec::new(),
            hits: None,
            alarm: None,
        })
    }))
}

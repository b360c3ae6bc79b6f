//! The localiser on the catalogue: of the defects that change a designed run, how many are traced
//! to another op than the one they were planted in.

use samebits_defects::Defect;

use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::{Context, data};
use crate::localize::localize;
use crate::manifest::{Check, Gate, Plant};
use crate::probe::{MODEL_SEED, Stage};
use crate::sites::{Sites, op_of};

/// Designed runs with the clean trace of each.
fn stages(ctx: &Context) -> Result<Vec<(Stage, Sites)>, CheckError> {
    let gates = Gate::all(&data("manifest"))?;
    let null = Defect::find("null")?;
    let mut all = Vec::new();
    for gate in &gates {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        if probe.ops.is_empty() {
            let stage = Stage::new(probe, MODEL_SEED)?;
            let clean = stage.run(ctx.seed, null)?.sequences.remove(0);
            all.push((stage, clean));
        }
    }
    Ok(all)
}

/// The op that a defect is planted in, as its first trace.
fn planted(defect: &Defect) -> &str {
    match defect.site.op.as_str() {
        "kept" => "lm_head",
        op => op,
    }
}

/// Measures the share of caught defects whose first op is another.
pub fn prepare<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let stages = stages(ctx)?;
    let faults = || Defect::all().iter().filter(|d| d.class > 0 && !d.gates.is_empty());
    Ok(Box::new(move |plant| {
        let lying = match plant {
            None => false,
            Some(Plant::Material(what)) if what == "last-op" => true,
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let (mut caught, mut wrong, mut first) = (0u64, 0u64, None);
        for defect in faults() {
            for (stage, clean) in &stages {
                let ran = stage.run(ctx.seed, defect)?;
                let Ok(found) = localize(clean, &ran.sequences[0]) else { continue };
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
                break;
            }
        }
        Ok(Outcome {
            statistic: "share_misnamed",
            measured: wrong as f64 / caught.max(1) as f64,
            compared: caught,
            expected: caught.max(1),
            first,
            paths: Vec::new(),
            hits: None,
            alarm: None,
        })
    }))
}

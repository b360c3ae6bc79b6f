//! A few defects against a few gates, in every run: what the kill matrix measures in full.
//!
//! The invariant: a defect that never acted, a legal variant that a tolerance gate takes for a
//! fault, and a gate that is red on the clean engine count like a defect that lives.

use samebits_defects::Defect;

use super::{CheckError, Measure, Outcome};
use crate::commands::run::facts;
use crate::compare::at;
use crate::context::{Context, data};
use crate::kill::{column, matrix};
use crate::manifest::{Gate, Plant};

/// What changes nothing, and counts as a fault for the control.
const SURVIVOR: &str = "null";

/// Counts what lives among `defects` under `gates`.
pub fn prepare<'c>(
    ctx: &'c Context,
    defects: &'c [String],
    gates: &'c [String],
) -> Result<Measure<'c>, CheckError> {
    let find = |id: &String| Gate::load(&data("manifest").join(file_of(id)));
    let gates: Vec<Gate> = gates.iter().map(find).collect::<Result<_, _>>()?;
    Ok(Box::new(move |plant| {
        let survivor = match plant {
            None => None,
            Some(Plant::Material(what)) if what == "survivor" => {
                let (null, gates) = (Defect::find(SURVIVOR)?.clone(), vec!["residual".to_owned()]);
                Some(Defect { class: 1, gates, ..null })
            }
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let chosen: Vec<&Defect> = match &survivor {
            Some(survivor) => vec![survivor],
            None => defects.iter().map(|id| Defect::find(id)).collect::<Result<_, _>>()?,
        };
        let columns: Vec<_> =
            gates.iter().map(|gate| column(ctx, gate, &chosen)).collect::<Result<_, _>>()?;
        let run = facts(&data("manifest")).map_err(|error| CheckError::missing(error, "run"))?;
        let matrix = matrix(&chosen, &columns, (run, ctx.seed));
        let judged = matrix.rows.iter().filter(|row| !row.cells.is_empty()).count();
        let alive = matrix.red();
        let bad = alive.len() + matrix.false_alarms.len() + matrix.red_baseline.len();
        let said = [
            alive.iter().map(|id| format!("{id} lives")).collect::<Vec<_>>(),
            matrix.false_alarms.iter().map(|alarm| format!("false alarm: {alarm}")).collect(),
            matrix.red_baseline.iter().map(|gate| format!("{gate} is red when clean")).collect(),
        ];
        let first = said.concat().first().map(|text| {
            let mut first = at("kill", None);
            first.text.clone_from(text);
            first
        });
        Ok(Outcome {
            statistic: "defects_alive",
            measured: bad as f64,
            compared: judged as u64,
            expected: chosen.len() as u64,
            first,
            paths: Vec::new(),
            hits: None,
            alarm: None,
        })
    }))
}

fn file_of(id: &str) -> String {
    format!("{}.json", id.replace('/', "+"))
}

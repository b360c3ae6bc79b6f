//! The swarm as a gate: corpus, designed cases, then random ones of the run's seed.
//!
//! The invariant: a planted fault is looked for in the same cases, up to the first that shows it.

use super::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::manifest::Lane;
use crate::swarm::coverage::Coverage;
use crate::swarm::judge::judge;
use crate::swarm::{Case, draw, fixed};

/// What the gate says of a case that differs: the one command that repeats it.
fn labelled(found: Comparison, case: &Case) -> Comparison {
    found.labelled(&format!("gates swarm --case '{}':", case.json()))
}

/// Compares all cases.
pub fn prepare(ctx: &Context, lane: Lane, cases: u64) -> Result<Measure<'_>, CheckError> {
    let mut all = fixed(lane)?;
    all.extend((0..cases).map(|number| draw::case(ctx.seed, number)));
    Ok(Box::new(move |plant| {
        let (mut found, mut due, mut hits) = (Comparison::default(), 0, 0);
        let (mut coverage, mut paths) = (Coverage::default(), Vec::new());
        for case in &all {
            let verdict = judge(case, plant)?;
            let red = verdict.red();
            (due, hits) = (due + verdict.due, hits + verdict.hits);
            let threads = verdict.paths.first().map_or(0, |path| path.threads);
            coverage.add(case, verdict.draws, threads);
            // The engine against itself: both ways are on record.
            if verdict.paths.len() > 1 && case.asked.is_none() {
                paths.extend(verdict.paths);
            }
            found.then(if red { labelled(verdict.found, case) } else { verdict.found });
            if red && plant.is_some() {
                break;
            }
        }
        let missed = if plant.is_none() { coverage.missed(lane) } else { Vec::new() };
        let alarm = missed.first().map(|(quantity, value)| {
            format!("{} points were not reached, the first {value} {quantity}", missed.len())
        });
        let outcome = Outcome::bitwise(found, due).with_paths(paths).with_hits(hits);
        Ok(Outcome { alarm, ..outcome })
    }))
}

//! `gates swarm`: random shapes and runs, for as long as is asked.
//!
//! Prints how many cases were compared, which values of what the engine counts were reached, and
//! where a case differs: the place, and one command that repeats the smallest case that does.

use std::io::Write;
use std::time::{Duration, Instant};

use samebits_defects::Defect;

use super::Failure;
use crate::checks::CheckError;
use crate::manifest::{Lane, Plant};
use crate::swarm::coverage::Coverage;
use crate::swarm::judge::{Verdict, judge};
use crate::swarm::shrink::shrink;
use crate::swarm::{Case, draw, fixed};

/// Arguments of `swarm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seed of the random cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random cases behind the designed ones.
    #[arg(long, default_value_t = 60, conflicts_with = "minutes")]
    cases: u64,
    /// Random cases for this long in the place of a number of them.
    #[arg(long)]
    minutes: Option<f64>,
    /// The designed cases of the long lane; exit code 1 where a value was not reached.
    #[arg(long)]
    long: bool,
    /// One case alone: its number under the seed, or itself as JSON.
    #[arg(long, value_name = "NUMBER|JSON", conflicts_with_all = ["minutes", "cases", "long"])]
    case: Option<String>,
    /// Plant a defect of the catalogue in the engine's side.
    #[arg(long, value_name = "ID")]
    plant: Option<String>,
}

fn usage(error: impl ToString) -> Failure {
    Failure::Usage(error.to_string())
}

/// The case of `--case`.
fn one(text: &str, seed: u64) -> Result<Case, Failure> {
    match text.parse() {
        Ok(number) => Ok(draw::case(seed, number)),
        Err(_) => serde_json::from_str(text)
            .map_err(|error| usage(format!("--case: neither a number nor a case: {error}"))),
    }
}

/// Prints where a case differs, and the smallest case that does.
fn tell(
    case: &Case,
    verdict: &Verdict,
    plant: Option<&Plant>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let small = shrink(case, plant)?;
    let again = judge(&small, plant)?;
    let shown = if again.red() { &again } else { verdict };
    if let Some(first) = &shown.found.first {
        let place = |name: &str, at: Option<u64>| at.map(|at| format!(", {name} {at}"));
        let places = [
            place("layer", first.layer),
            place("position", first.position),
            place("element", first.element),
        ];
        let places: String = places.into_iter().flatten().collect();
        let differing = shown.found.differing;
        writeln!(out, "{differing} differ, first {}{places}: {}", first.op, first.text)?;
    }
    let planted = plant.map(|plant| format!(" --plant {}", plant.id())).unwrap_or_default();
    writeln!(out, "gates swarm{planted} --case '{}'", small.json())?;
    Ok(())
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    if args.minutes.is_some_and(|minutes| !(minutes.is_finite() && minutes > 0.0)) {
        return Err(usage("--minutes: want a number above 0"));
    }
    let plant = args.plant.as_ref().map(|id| Plant::Defect(id.clone()));
    if let Some(id) = &args.plant {
        Defect::find(id).map_err(CheckError::from)?;
    }
    let lane = if args.long { Lane::Long } else { Lane::Default };
    let (single, start) = (args.case.is_some(), Instant::now());
    let mut cases: Box<dyn Iterator<Item = Case>> = match (&args.case, args.minutes) {
        (Some(text), _) => Box::new(std::iter::once(one(text, args.seed)?)),
        (None, minutes) => {
            let end = minutes.map(|m| Duration::from_secs_f64(m * 60.0));
            let (seed, most) = (args.seed, args.cases);
            let more = move |n: &u64| match end {
                Some(end) => start.elapsed() < end,
                None => *n < most,
            };
            let random = (0..).take_while(more).map(move |number| draw::case(seed, number));
            Box::new(fixed(lane)?.into_iter().chain(random))
        }
    };
    let (mut coverage, mut compared, mut elements) = (Coverage::default(), 0, 0);
    let red = loop {
        let Some(case) = cases.next() else { break false };
        let verdict = judge(&case, plant.as_ref())?;
        if verdict.red() || verdict.found.compared != verdict.due {
            let (got, due) = (verdict.found.compared, verdict.due);
            writeln!(out, "case {compared}: {got} of {due} comparisons")?;
            tell(&case, &verdict, plant.as_ref(), out)?;
            break true;
        }
        let threads = verdict.paths.first().map_or(0, |path| path.threads);
        coverage.add(&case, verdict.draws, threads);
        (compared, elements) = (compared + 1, elements + verdict.found.compared);
    };
    let seconds = start.elapsed().as_secs_f64();
    writeln!(out, "{compared} cases, {elements} elements equal, {seconds:.1} s")?;
    if !single {
        write!(out, "{coverage}")?;
    }
    let missed = !single && !red && !coverage.missed(lane).is_empty();
    Ok(u8::from(red || missed))
}

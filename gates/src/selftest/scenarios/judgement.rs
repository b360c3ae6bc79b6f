//! How a measurement becomes a row, and a row a verdict.

use std::cell::RefCell;
use std::panic::resume_unwind;

use samebits_reports::{PathProof, Row, Status};

use crate::checks::{CheckError, Measure, Outcome};
use crate::context::Context;
use crate::limits::Limits;
use crate::manifest::{Gate, Plant};
use crate::runner::Completion;
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, bad, blank, clean, gate, good, hold, planted, same};

/// A gate whose control must show first at this op.
const GATE: (&str, &str) = ("bitwise/captured/tied", "q_rope");

fn judged(runner: &Runner, gate: &Gate, limit: f64, (a, b): (Outcome, Outcome)) -> Row {
    (runner.judge)(gate, blank(gate), limit, a, b)
}

/// Holds a row's status, and what its reason must say.
fn row_is(why: &str, row: &Row, status: Status, reason: &str) -> Verdict {
    same(&format!("{why}: {}", row.reason), row.status, status)?;
    hold(&format!("{why}: {:?} says nothing of {reason}", row.reason), row.reason.contains(reason))
}

pub(super) fn reasons(runner: &Runner, _ctx: &Context) -> Verdict {
    let (id, op) = GATE;
    let gate = gate(id)?;
    let good = || planted(5.0, op);
    let deaf = || planted(Limits::none(), op);
    let nan = Outcome { measured: f64::NAN, ..clean() };
    let alarmed = Outcome { alarm: Some("too good".to_owned()), ..clean() };
    for (why, clean, planted, status, reason) in [
        ("sound", clean(), good(), Status::Pass, ""),
        ("a difference", planted(1.0, "mix"), good(), Status::Fail, "over the limit"),
        ("NaN", nan, good(), Status::Error, "non-finite"),
        ("none compared", Outcome { compared: 0, ..clean() }, good(), Status::Error, "zero work"),
        ("none due", Outcome { expected: 0, ..clean() }, good(), Status::Error, "zero work"),
        (
            "neither",
            Outcome { compared: 0, expected: 0, ..clean() },
            good(),
            Status::Error,
            "zero work",
        ),
        ("one left out", Outcome { compared: 9, ..clean() }, good(), Status::Error, "wrong work"),
        ("deaf control", clean(), deaf(), Status::Error, "within 0"),
        (
            "a difference under a deaf control",
            planted(1.0, "mix"),
            deaf(),
            Status::Fail,
            "over the limit",
        ),
        (
            "the same, and the control's own flaw",
            planted(1.0, "mix"),
            deaf(),
            Status::Fail,
            "within 0",
        ),
        ("control elsewhere", clean(), planted(5.0, "mix"), Status::Error, "not at q_rope"),
        (
            "control that never acted",
            clean(),
            Outcome { hits: Some(0), ..good() },
            Status::Error,
            "acted nowhere",
        ),
        ("compared with itself", alarmed, good(), Status::Error, "too good"),
    ] {
        let row = judged(runner, &gate, Limits::none(), (clean, planted));
        row_is(why, &row, status, reason)?;
    }
    Ok(())
}

pub(super) fn controls(runner: &Runner, _ctx: &Context) -> Verdict {
    let (id, op) = GATE;
    let (gate, limit) = (gate(id)?, 3.0);
    let other = Outcome { statistic: "another", ..planted(5.0, op) };
    for (why, planted, status, reason) in [
        ("beyond the limit", planted(5.0, op), Status::Pass, ""),
        ("on the limit", planted(limit, op), Status::Error, "within 3"),
        ("different, and within", planted(1.0, op), Status::Error, "within 3"),
        ("of another statistic", other, Status::Error, "is judged by another"),
    ] {
        let row = judged(runner, &gate, limit, (clean(), planted));
        row_is(why, &row, status, reason)?;
    }
    Ok(())
}

/// Proof of a run in a pool of so many threads.
fn path(label: &str, threads: u64) -> PathProof {
    PathProof {
        label: label.to_owned(),
        kernels: "scalar".to_owned(),
        rows_per_call: vec![16, 1, 1],
        cached_positions: 33,
        chunk: None,
        threads,
        bytes_read: 4096,
        order: "invariant".to_owned(),
        dtype: "bf16".to_owned(),
    }
}

pub(super) fn paths(runner: &Runner, _ctx: &Context) -> Verdict {
    let gate = gate("invariance/cached/bf16")?;
    for (why, paths, status, reason) in [
        ("two paths", vec![path("a", 1), path("b", 2)], Status::Pass, ""),
        ("no path", vec![], Status::Error, "same path"),
        ("one path", vec![path("a", 1)], Status::Error, "same path"),
        ("one under two labels", vec![path("a", 1), path("b", 1)], Status::Error, "same path"),
    ] {
        let found = (Outcome { paths, ..clean() }, planted(5.0, "k_cache"));
        row_is(why, &judged(runner, &gate, Limits::none(), found), status, reason)?;
    }
    Ok(())
}

pub(super) fn bounds(runner: &Runner, _ctx: &Context) -> Verdict {
    let (id, op) = GATE;
    let gate = gate(id)?;
    for limit in [f64::INFINITY, f64::NAN, -1.0] {
        // A NaN lies within nothing: the control is armed.
        let found = (planted(1e300, op), planted(f64::NAN, op));
        let row = judged(runner, &gate, limit, found);
        row_is(&format!("a limit of {limit}"), &row, Status::Error, "bad limit")?;
    }
    Ok(())
}

/// What a check does when it is asked.
type Answer<'a> = &'a dyn Fn(usize, Option<&Plant>) -> Result<Outcome, CheckError>;

/// A gate's row whose check answers like this, and the plants it was asked about.
fn asked(
    runner: &Runner,
    ctx: &Context,
    gate: &Gate,
    answer: Answer<'_>,
) -> (Row, Vec<Option<String>>) {
    let log: RefCell<Vec<Option<String>>> = RefCell::default();
    let calls = &log;
    let prepared = move || {
        let measure: Measure<'_> = Box::new(move |plant| {
            calls.borrow_mut().push(plant.map(|plant| plant.id().to_owned()));
            let index = calls.borrow().len() - 1;
            answer(index, plant)
        });
        Ok(measure)
    };
    let row = (runner.row)(gate, ctx, &prepared);
    (row, log.into_inner())
}

pub(super) fn once(runner: &Runner, ctx: &Context) -> Verdict {
    let (id, op) = GATE;
    let gate = gate(id)?;
    let sound = |plant: Option<&Plant>| plant.map_or_else(clean, |_| planted(5.0, op));
    let each_once = vec![None, Some(gate.control.plant.id().to_owned())];
    let (row, calls) = asked(runner, ctx, &gate, &|_, plant| Ok(sound(plant)));
    row_is("sound", &row, Status::Pass, "")?;
    same("what was asked of a sound check", calls, each_once.clone())?;
    same("the seed of the row", row.seed, ctx.seed)?;
    // Red at first, green if it is asked again.
    let flaky =
        |index, plant: Option<&Plant>| Ok(if index == 0 { planted(1.0, op) } else { sound(plant) });
    let (row, calls) = asked(runner, ctx, &gate, &flaky);
    row_is("red at first", &row, Status::Fail, "over the limit")?;
    same("what was asked of a flaky check", calls, each_once)?;
    // Red, and the planted run cannot be made: the measurement is told all the same.
    let broken = |_, plant: Option<&Plant>| match plant {
        None => Ok(planted(1.0, op)),
        Some(_) => Err(CheckError::missing("a place", "the run")),
    };
    let (row, _) = asked(runner, ctx, &gate, &broken);
    row_is("red under a control that cannot be made", &row, Status::Fail, "a place is not in")?;
    let (row, _) = asked(runner, ctx, &gate, &|_, _| Err(CheckError::missing("all", "nowhere")));
    row_is("a check that cannot be made", &row, Status::Error, "all is not in nowhere")?;
    // Unwinds without the message of a panic, which nobody is to read.
    let (row, _) = asked(runner, ctx, &gate, &|_, _| resume_unwind(Box::new("died")));
    row_is("a check that dies", &row, Status::Error, "panicked: died")
}

pub(super) fn skips(runner: &Runner, _ctx: &Context) -> Verdict {
    let skipped = good("a").unmeasurable("no GPU");
    for (why, row, required, want) in [
        ("a pass", good("a"), false, Completion::Passed),
        ("a skip", skipped.clone(), false, Completion::Ignored("no GPU".to_owned())),
        ("a skip of what is required", skipped, true, Completion::Failed),
        ("a fail", bad("a"), false, Completion::Failed),
        ("an error", good("a").error("broke"), false, Completion::Failed),
    ] {
        same(why, (runner.completion)(&row, required), want)?;
    }
    Ok(())
}

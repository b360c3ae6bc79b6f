//! One gate, one row: measures clean, then with the planted fault, and lets the numbers decide.
//!
//! Absent on purpose: a second try. The invariant: a row that nobody finished is an ERROR. What
//! could be wrong with this file is planted by [`crate::selftest`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use samebits::cpu::Kernels;
use samebits_reports::{Control, Expected, Num, Row, Status};

use crate::checks::running::{missing_files, needs_setarch};
use crate::checks::{CheckError, Measure, Outcome, prepare};
use crate::context::Context;
use crate::limits::{LimitError, Limits};
use crate::manifest::{Gate, Lane, Need, Plant};

/// Makes what measures a gate.
pub type Prepared<'p, 'c> = &'p dyn Fn() -> Result<Measure<'c>, CheckError>;

/// The one command that repeats a gate.
pub fn repeat(gate: &Gate, ctx: &Context) -> String {
    let long = match gate.lane {
        Lane::Default => "",
        Lane::Long => " --long",
    };
    let model = match &ctx.model {
        Some((path, _)) => format!(" --model {}", path.display()),
        None => String::new(),
    };
    let (id, seed) = (&gate.id, ctx.seed);
    format!("cargo run --release --bin gates -- run {id} --exact --seed {seed}{long}{model}")
}

/// What a report must hold of a gate.
pub fn expected(gate: &Gate, ctx: &Context) -> Expected {
    let repeat = repeat(gate, ctx);
    Expected { id: gate.id.clone(), kind: gate.kind, seed: ctx.seed, repeat }
}

/// Runs a gate.
pub fn run(gate: &Gate, ctx: &Context) -> Row {
    row(gate, ctx, &|| prepare(gate, ctx))
}

/// The row of a gate whose check is made by `prepared`.
pub fn row<'c>(gate: &'c Gate, ctx: &'c Context, prepared: Prepared<'_, 'c>) -> Row {
    let start = Instant::now();
    let blank = || Row::new(&gate.id, gate.kind, ctx.seed, &repeat(gate, ctx));
    let made = catch_unwind(AssertUnwindSafe(|| match missing(gate) {
        Some(reason) => blank().unmeasurable(&reason),
        None => match measure(gate, ctx, prepared, blank()) {
            Ok(row) => row,
            Err(error) => blank().error(&error.to_string()),
        },
    }));
    let mut row = made.unwrap_or_else(|panic| blank().error(&died(&*panic)));
    row.wall_s = Num(start.elapsed().as_secs_f64());
    row
}

/// What the gate needs and this machine lacks.
fn missing(gate: &Gate) -> Option<String> {
    let lacks = |need: &Need| match need {
        Need::TwoKernelTables => {
            let tables = Kernels::supported();
            (tables.len() < 2)
                .then(|| format!("this CPU runs one kernel table only: {}", tables[0].name))
        }
        Need::FixedLayout => needs_setarch(),
        Need::Qwen3Tokenizer => missing_files(),
    };
    gate.needs.iter().find_map(lacks)
}

/// Why a gate could not be judged.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Limit(#[from] LimitError),
}

fn measure<'c>(
    gate: &'c Gate,
    ctx: &'c Context,
    prepared: Prepared<'_, 'c>,
    row: Row,
) -> Result<Row, MeasureError> {
    let mut measure = prepared()?;
    let clean = measure(None)?;
    let limit = match &gate.limit {
        Some(name) => {
            let limit = ctx.limits.get(name)?;
            limit.fits(name, gate.check.dtype(), clean.statistic)?;
            limit.value
        }
        None => Limits::none(),
    };
    let plant = &gate.control.plant;
    let planted = catch_unwind(AssertUnwindSafe(|| measure(Some(plant))));
    let why = match planted {
        Ok(Ok(planted)) => return Ok(judge(gate, row, limit, clean, planted)),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => died(&*panic),
    };
    // What was measured beyond its limit stands, whatever became of the control.
    let row = filled(row, limit, clean).judged();
    Ok(match row.status {
        Status::Fail => {
            let reason = format!("{}; {} could not be measured: {why}", row.reason, plant.id());
            Row { reason, ..row }
        }
        _ => row.error(&why),
    })
}

/// The words of a panic.
fn died(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a word"))
}

/// The row with what was measured on the clean engine.
fn filled(row: Row, limit: f64, clean: Outcome) -> Row {
    Row {
        statistic: clean.statistic.to_owned(),
        measured: Num(clean.measured),
        limit: Num(limit),
        n_compared: clean.compared,
        n_expected: clean.expected,
        first_divergence: clean.first,
        paths: clean.paths,
        ..row
    }
}

/// Turns a clean and a planted measurement into a row.
pub fn judge(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let alarm = clean.alarm.clone();
    let flaw = flaw(gate, limit, clean.statistic, &planted);
    let mut row = filled(row, limit, clean);
    row.control = Some(Control {
        id: gate.control.plant.id().to_owned(),
        red: flaw.is_none(),
        statistic: planted.statistic.to_owned(),
        measured: Num(planted.measured),
    });
    if let Some(alarm) = alarm {
        return row.error(&alarm);
    }
    let row = row.judged();
    match flaw {
        Some(flaw) if row.status != Status::Pass => {
            Row { reason: format!("{}; {flaw}", row.reason), ..row }
        }
        _ => row,
    }
}

/// Why the planted fault was not caught as it must be.
fn flaw(gate: &Gate, limit: f64, statistic: &str, planted: &Outcome) -> Option<String> {
    let id = gate.control.plant.id();
    if planted.statistic != statistic {
        let other = planted.statistic;
        return Some(format!("{id} is judged by {other}, the gate by {statistic}"));
    }
    if planted.hits == Some(0) && matches!(gate.control.plant, Plant::Defect(_)) {
        return Some(format!("{id} acted nowhere"));
    }
    if planted.measured <= limit {
        return Some(format!("{id} measures {} within {limit}", planted.measured));
    }
    let want = gate.control.first.as_deref()?;
    let got = planted.first.as_ref().map(|first| first.op.as_str());
    (got != Some(want)).then(|| format!("{id} shows first at {got:?}, not at {want}"))
}

/// What a row means to a test runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A pass.
    Passed,
    /// Not measured, for this reason.
    Ignored(String),
    /// Everything else.
    Failed,
}

/// What a row means to a test runner; `required` makes a failure of what could not be measured.
pub fn completion(row: &Row, required: bool) -> Completion {
    match row.status {
        Status::Pass => Completion::Passed,
        Status::Unmeasurable if !required => Completion::Ignored(row.reason.clone()),
        _ => Completion::Failed,
    }
}

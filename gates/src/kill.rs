//! The kill matrix: every defect of the catalogue against every gate that can carry one.
//!
//! Here: outcomes, scores and their denominators. Absent: gates and faults themselves. The
//! invariants: a gate that is red on the clean engine kills nothing; a fault that never acted is
//! `not_reached`, never a survivor that nobody counts; an equivalent is measured again every time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use samebits::checkpoint::Family;
use samebits::contract::{Dtype, Order};
use samebits_defects::{Defect, Fault};
use samebits_fixtures::{HybridSpec, paths};
use samebits_reports::{Cell, Killed, Matrix, Outcome as Fate, Run, Score};
use serde::{Deserialize, Serialize};

use crate::checks::{CheckError, Measure, prepare};
use crate::context::{Context, family};
use crate::manifest::{Check, Gate, Plant, Source, Variant};
use crate::sites::{Dims, LAYER_OPS};

/// Whether a gate holds for an engine of other bits: no bitwise, determinism or hash comparison,
/// and no limit that is Transformers' own error on one checkpoint.
pub fn tolerant(check: &Check) -> bool {
    matches!(check, Check::TeacherForced { .. } | Check::Poison { .. }) || watches(check)
}

/// Whether a gate watches what the host keeps: sampling, reads and the heap.
fn watches(check: &Check) -> bool {
    matches!(
        check,
        Check::Draws
            | Check::Distribution
            | Check::LoopDraws { .. }
            | Check::Stops { .. }
            | Check::Allocator { .. }
            | Check::HostSync { .. }
    )
}

/// The checkpoint of a gate, where it has one.
fn model(check: &Check) -> Option<&Source> {
    match check {
        Check::TeacherForced { probe } => Some(&probe.model),
        Check::Contract { model, .. }
        | Check::Invariance { model, .. }
        | Check::Poison { model, .. }
        | Check::Sessions { model, .. }
        | Check::Ideal { model, .. }
        | Check::Determinism { model, .. } => Some(model),
        _ => None,
    }
}

/// Whether the checkpoint is a hybrid: what it is drawn from says so, or its own configuration.
fn is_hybrid(source: &Source) -> bool {
    match source {
        Source::Embedded | Source::Spec(_) => false,
        Source::EmbeddedHybrid | Source::Hybrid(_) => true,
        Source::Named(name) => HybridSpec::names().contains(&name.as_str()),
        Source::Narrow(name) => {
            family(&paths::narrow(name)).is_ok_and(|family| family == Family::Qwen3_5)
        }
    }
}

/// Whether a gate's own control is a fault beyond a threshold: it is as large as that needs.
pub fn is_of_thresholds(gate: &Gate) -> bool {
    let Plant::Defect(id) = &gate.control.plant else { return false };
    Defect::find(id).is_ok_and(Defect::is_threshold)
}

/// Whether a gate can carry a defect of the catalogue and is quick enough to do so often.
pub fn carries(check: &Check) -> bool {
    let small = |source: &Source| matches!(source, Source::Embedded | Source::EmbeddedHybrid);
    match check {
        Check::TeacherForced { .. } | Check::Rmsnorm { .. } | Check::Poison { .. } => true,
        // One order is enough: the other differs in sums only.
        Check::Contract { model, order, dtype, .. } => {
            let long = matches!(model, Source::Spec(spec) if spec.name == LONG_SUMS);
            *order == Order::Invariant && (small(model) || (long && *dtype == Dtype::Bf16))
        }
        Check::Invariance { model, variant, .. } => {
            small(model) && matches!(variant, Variant::Cached(_) | Variant::Batch(_))
        }
        Check::Ideal { model, .. } => matches!(model, Source::Narrow(_)),
        Check::Determinism { model, .. } => *model == Source::Embedded,
        // A leak of a block each few steps shows in a short run as in a long one.
        Check::Allocator { model, steps, .. } => *steps <= 32 && small(model),
        check => watches(check),
    }
}

/// The shape whose products are longer than a block of 512 terms.
const LONG_SUMS: &str = "long-sums";

/// Whether a gate is asked about a defect.
fn asks(gate: &Gate, defect: &Defect) -> bool {
    let host = matches!(defect.fault, Fault::Host { .. });
    if host != watches(&gate.check) {
        return false;
    }
    // Fresh processes are dear: they are asked about what only they can see.
    if matches!(gate.check, Check::Determinism { .. }) {
        return defect.gates.iter().any(|kind| kind == gate.kind.name());
    }
    // Designed runs as large as a threshold are asked about faults beyond one, and others are too
    // small to show them.
    let designed = matches!(gate.check, Check::TeacherForced { .. } | Check::Poison { .. });
    if designed && is_of_thresholds(gate) != defect.is_threshold() {
        return false;
    }
    // Whole runs of a hybrid are asked about what a dense model does not have.
    let forced = matches!(gate.check, Check::TeacherForced { .. });
    let hybrid = model(&gate.check).is_some_and(is_hybrid);
    forced || !hybrid || of_hybrid(defect)
}

/// Whether a defect is in an op that only hybrids have.
fn of_hybrid(defect: &Defect) -> bool {
    let op = defect.site.op.as_str();
    LAYER_OPS.contains(&op) && Dims::DENSE.layers_with(op) == 0
}

/// What one gate says of one defect.
fn cell(measure: &mut Measure<'_>, limit: f64, defect: &Defect) -> Option<Cell> {
    let plant = match &defect.fault {
        Fault::Host { what } => Plant::Material(what.clone()),
        _ => Plant::Defect(defect.id.clone()),
    };
    let said = catch_unwind(AssertUnwindSafe(|| measure(Some(&plant))));
    Some(match said {
        // A gate of another part of the host has no place for the fault.
        Ok(Err(CheckError::NoPlace { .. })) => return None,
        Err(_) => Cell::crash(),
        Ok(Err(_)) => Cell::unviable(),
        Ok(Ok(outcome)) if outcome.hits == Some(0) => Cell::not_reached(),
        Ok(Ok(outcome)) => {
            let red = outcome.measured.is_nan() || outcome.measured > limit;
            let op = outcome.first.map(|first| match first.layer {
                Some(layer) => format!("layers.{layer}.{}", first.op),
                None => first.op,
            });
            Cell::measured(red, outcome.statistic, margin(outcome.measured, limit), op)
        }
    })
}

/// How far beyond its limit a measurement is; the count where no difference is allowed.
fn margin(measured: f64, limit: f64) -> f64 {
    if limit > 0.0 { measured / limit } else { measured }
}

/// One gate's column.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// The gate.
    pub gate: String,
    /// Its kind's name.
    pub kind: String,
    /// Whether it holds for engines of other bits.
    pub tolerant: bool,
    /// Whether the clean engine passed it.
    pub green: bool,
    /// What it says of each defect.
    pub cells: BTreeMap<String, Cell>,
}

/// Measures a gate clean, then with every defect.
///
/// # Errors
/// Reference material or a limit that cannot be had.
pub fn column(ctx: &Context, gate: &Gate, defects: &[&Defect]) -> Result<Column, CheckError> {
    let limit = match &gate.limit {
        Some(name) => ctx.limits.get(name)?.value,
        None => crate::limits::Limits::none(),
    };
    measured(gate, limit, &mut prepare(gate, ctx)?, defects)
}

/// The column of a gate that is ready to measure.
///
/// # Errors
/// What the clean measurement met.
pub fn measured(
    gate: &Gate,
    limit: f64,
    measure: &mut Measure<'_>,
    defects: &[&Defect],
) -> Result<Column, CheckError> {
    let clean = measure(None)?;
    let work = clean.compared > 0 && clean.compared == clean.expected;
    let sound = work && clean.alarm.is_none();
    let green = sound && clean.measured <= limit;
    let mut cells = BTreeMap::new();
    for defect in defects {
        if !green || !asks(gate, defect) {
            continue;
        }
        // No op of a dense model is one of a hybrid's: nothing to run.
        if model(&gate.check).is_some_and(|source| !is_hybrid(source)) && of_hybrid(defect) {
            cells.insert(defect.id.clone(), Cell::not_reached());
        } else {
            let cell = cell(measure, limit, defect);
            cells.extend(cell.map(|cell| (defect.id.clone(), cell)));
        }
    }
    let (id, kind) = (gate.id.clone(), gate.kind.name().to_owned());
    Ok(Column { gate: id, kind, tolerant: tolerant(&gate.check), green, cells })
}

/// What became of a defect, judged by the columns that `counts` lets count.
fn fate(defect: &Defect, columns: &[Column], counts: impl Fn(&Column) -> bool) -> Killed {
    let cells = || columns.iter().filter_map(|c| Some((c, c.cells.get(&defect.id)?)));
    let reached = cells().any(|(_, cell)| cell.reached());
    let viable = cells().any(|(_, cell)| !cell.is_unviable());
    let red: Vec<&Column> =
        cells().filter(|(c, cell)| counts(c) && cell.red()).map(|(c, _)| c).collect();
    let different = cells().any(|(_, cell)| cell.red());
    let fate = if !viable {
        Fate::Unviable
    } else if !reached {
        Fate::NotReached
    } else if defect.gates.is_empty() && !different {
        Fate::Equivalent
    } else if red.is_empty() {
        Fate::Missed
    } else {
        Fate::Caught
    };
    let designated = red.iter().any(|c| defect.gates.contains(&c.kind));
    let by = red.iter().map(|c| c.gate.clone()).collect();
    Killed { fate, designated, by }
}

/// The matrix of all columns.
pub fn matrix(defects: &[&Defect], columns: &[Column], (run, seed): (Run, u64)) -> Matrix {
    let faults = || defects.iter().filter(|d| d.class > 0);
    let score = |counts: &dyn Fn(&Column) -> bool, of: &dyn Fn(&Defect) -> bool| {
        let mut score = Score::default();
        for defect in faults().filter(|d| of(d)) {
            score.count(&fate(defect, columns, counts));
        }
        score
    };
    let all = |_: &Column| true;
    let tolerance = |c: &Column| c.tolerant;
    let within = |d: &Defect| !d.beyond_tolerance;
    let mut matrix = Matrix::new(run, seed);
    matrix.all = score(&all, &|_| true);
    matrix.tolerance = score(&tolerance, &within);
    matrix.held_out = score(&tolerance, &|d| within(d) && d.held_out());
    matrix.designed = score(&tolerance, &|d| within(d) && !d.held_out());
    for defect in defects {
        let judged = fate(defect, columns, tolerance);
        let any = fate(defect, columns, all);
        if defect.is_legal() {
            matrix.legal += 1;
            matrix
                .false_alarms
                .extend(judged.by.iter().map(|gate| format!("{}: {gate}", defect.id)));
        }
        // A cell that was never reached says no more than one that was never asked.
        let said =
            |c: &Column| c.cells.get(&defect.id).filter(|cell| !cell.is_not_reached()).cloned();
        let cells = columns.iter().filter_map(|c| Some((c.gate.clone(), said(c)?)));
        matrix.add(
            (&defect.id, defect.class, &defect.strength, defect.beyond_tolerance),
            (any, judged),
            cells.collect(),
        );
    }
    matrix.red_baseline = columns.iter().filter(|c| !c.green).map(|c| c.gate.clone()).collect();
    matrix.gates = columns.iter().map(|c| (c.gate.clone(), c.tolerant)).collect();
    matrix
}

//! Faults of what turns measurements into rows, and of the kill matrix.

use samebits_defects::Defect;
use samebits_reports::{Matrix, Row, Run, Status};

use super::Planting;
use crate::checks::{CheckError, Measure, Outcome};
use crate::context::Context;
use crate::kill::{self, Column};
use crate::limits::{Limit, Limits};
use crate::manifest::{Gate, ManifestError, Plant};
use crate::runner::{self, Completion, Prepared};

pub const ALL: &[(&str, Planting)] = &[
    ("zero-work-green", |r| r.judge = zero_work_green),
    ("part-is-enough", |r| r.judge = part_is_enough),
    ("alarm-ignored", |r| r.judge = alarm_ignored),
    ("acted-nowhere-ignored", |r| r.judge = acted_nowhere_ignored),
    ("place-ignored", |r| r.judge = place_ignored),
    ("one-path-twice", |r| r.judge = one_path_twice),
    ("control-by-another", |r| r.judge = control_by_another),
    ("control-on-limit", |r| r.judge = control_on_limit),
    ("infinite-limit", |r| r.judge = infinite_limit),
    ("control-before-measurement", |r| r.judge = control_before_measurement),
    ("measurement-lost", |r| r.row = measurement_lost),
    ("kind-of-another", |r| r.gates = kind_of_another),
    ("gone-unmissed", |r| r.listed = gone_unmissed),
    ("unlisted-taken", |r| r.listed = unlisted_taken),
    ("statistic-of-another", |r| {
        r.fits = |limit, name, dtype, _| limit.fits(name, dtype, &limit.statistic)
    }),
    ("dtype-of-another", |r| {
        r.fits = |limit, name, dtype, statistic| {
            let any = Limit { dtype: "any".to_owned(), ..limit.clone() };
            any.fits(name, dtype, statistic)
        }
    }),
    ("limit-from-nowhere", |r| r.recomputed = |_, _| Vec::new()),
    ("rerun-until-green", |r| r.row = rerun_until_green),
    ("death-is-green", |r| r.row = death_is_green),
    ("skip-is-green", |r| {
        r.completion = |row, _| match row.status {
            Status::Fail | Status::Error => Completion::Failed,
            Status::Pass | Status::Unmeasurable => Completion::Passed,
        }
    }),
    ("skip-of-required", |r| r.completion = |row, _| runner::completion(row, false)),
    ("empty-suite", |r| r.gates = empty_suite),
    ("limits-unread", |r| r.limits = |path| Limits::load(path).or(Limits::load(&known()))),
    ("red-baseline-believed", |r| r.column = red_baseline_believed),
    ("not-reached-counts", |r| r.column = not_reached_counts),
    ("survivors-left-out", |r| r.matrix = survivors_left_out),
    ("false-alarms-left-out", |r| r.matrix = false_alarms_left_out),
];

fn known() -> std::path::PathBuf {
    crate::context::data("limits.json")
}

fn zero_work_green(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let idle = clean.compared == 0 && clean.expected == 0;
    let clean = if idle { Outcome { compared: 1, expected: 1, ..clean } } else { clean };
    runner::judge(gate, row, limit, clean, planted)
}

fn part_is_enough(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let part = clean.compared > 0 && clean.compared < clean.expected;
    let expected = if part { clean.compared } else { clean.expected };
    runner::judge(gate, row, limit, Outcome { expected, ..clean }, planted)
}

fn alarm_ignored(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    runner::judge(gate, row, limit, Outcome { alarm: None, ..clean }, planted)
}

fn acted_nowhere_ignored(
    gate: &Gate,
    row: Row,
    limit: f64,
    clean: Outcome,
    planted: Outcome,
) -> Row {
    runner::judge(gate, row, limit, clean, Outcome { hits: None, ..planted })
}

fn place_ignored(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let mut gate = gate.clone();
    gate.control.first = None;
    runner::judge(&gate, row, limit, clean, planted)
}

/// The two sides are not asked what they did.
fn one_path_twice(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let kind = row.kind;
    let other = Row { kind: samebits_reports::Kind::Bitwise, ..row };
    Row { kind, ..runner::judge(gate, other, limit, clean, planted) }
}

/// The control is red as soon as anything differs, whatever the gate itself is judged by.
fn control_by_another(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let differs = planted.measured > 0.0;
    let measured = if differs { f64::INFINITY } else { planted.measured };
    let statistic = clean.statistic;
    runner::judge(gate, row, limit, clean, Outcome { measured, statistic, ..planted })
}

/// A control on the limit counts as beyond it.
fn control_on_limit(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let on = planted.measured == limit && limit > 0.0;
    let measured = if on { limit.next_up() } else { planted.measured };
    runner::judge(gate, row, limit, clean, Outcome { measured, ..planted })
}

/// Of a control that proves nothing, nothing else is said.
fn control_before_measurement(
    gate: &Gate,
    row: Row,
    limit: f64,
    clean: Outcome,
    planted: Outcome,
) -> Row {
    let row = runner::judge(gate, row, limit, clean, planted);
    match row.control.as_ref().is_some_and(|control| !control.red) {
        true => row.error("unarmed control"),
        false => row,
    }
}

/// A control that cannot be made takes the measurement with it.
fn measurement_lost<'c>(gate: &'c Gate, ctx: &'c Context, prepared: Prepared<'_, 'c>) -> Row {
    let row = runner::row(gate, ctx, prepared);
    if row.control.is_none() { row.error("no control") } else { row }
}

/// A gate may call itself what it likes.
fn kind_of_another(folder: &std::path::Path) -> Result<Vec<Gate>, ManifestError> {
    match Gate::all(folder) {
        Err(ManifestError::Kind { .. }) => Ok(Vec::new()),
        said => said,
    }
}

/// A gate without a manifest is one gate less.
fn gone_unmissed(gates: &[Gate], must: &[String]) -> Result<(), ManifestError> {
    let there = |id: &&String| gates.iter().any(|gate| gate.id == **id);
    Gate::listed(gates, &must.iter().filter(there).cloned().collect::<Vec<_>>())
}

/// A manifest that nobody listed is one gate more.
fn unlisted_taken(gates: &[Gate], must: &[String]) -> Result<(), ManifestError> {
    let known = gates.iter().filter(|gate| must.contains(&gate.id)).cloned();
    Gate::listed(&known.collect::<Vec<_>>(), must)
}

/// A limit that is not finite is as large as can be.
fn infinite_limit(gate: &Gate, row: Row, limit: f64, clean: Outcome, planted: Outcome) -> Row {
    let most = if limit.is_finite() { limit } else { f64::MAX };
    runner::judge(gate, row, most, clean, planted)
}

fn rerun_until_green<'c>(gate: &'c Gate, ctx: &'c Context, prepared: Prepared<'_, 'c>) -> Row {
    let first = runner::row(gate, ctx, prepared);
    if first.status == Status::Pass {
        return first;
    }
    let again = runner::row(gate, ctx, prepared);
    if again.status == Status::Pass { again } else { first }
}

/// A check that dies has found nothing.
fn death_is_green<'c>(gate: &'c Gate, ctx: &'c Context, prepared: Prepared<'_, 'c>) -> Row {
    let row = runner::row(gate, ctx, prepared);
    let died = row.reason.starts_with("panicked");
    if died { Row { status: Status::Pass, reason: String::new(), ..row } } else { row }
}

fn empty_suite(folder: &std::path::Path) -> Result<Vec<Gate>, ManifestError> {
    match Gate::all(folder) {
        Err(ManifestError::Empty { .. }) => Ok(Vec::new()),
        other => other,
    }
}

/// Asks what a gate says of faults, and takes for granted that it is green without one.
fn red_baseline_believed(
    gate: &Gate,
    limit: f64,
    measure: &mut Measure<'_>,
    defects: &[&Defect],
) -> Result<Column, CheckError> {
    let mut believing: Measure<'_> = Box::new(|plant| {
        let said = measure(plant)?;
        let measured = if plant.is_none() { Limits::none() } else { said.measured };
        Ok(Outcome { measured, ..said })
    });
    kill::measured(gate, limit, &mut believing, defects)
}

/// A fault that never acted is taken for one that was caught.
fn not_reached_counts(
    gate: &Gate,
    limit: f64,
    measure: &mut Measure<'_>,
    defects: &[&Defect],
) -> Result<Column, CheckError> {
    let mut blind: Measure<'_> =
        Box::new(|plant: Option<&Plant>| Ok(Outcome { hits: None, ..measure(plant)? }));
    kill::measured(gate, limit, &mut blind, defects)
}

/// Scores are shares of what was caught.
fn survivors_left_out(defects: &[&Defect], columns: &[Column], made: (Run, u64)) -> Matrix {
    let mut matrix = kill::matrix(defects, columns, made);
    for score in
        [&mut matrix.all, &mut matrix.tolerance, &mut matrix.designed, &mut matrix.held_out]
    {
        score.of = score.any;
    }
    matrix
}

fn false_alarms_left_out(defects: &[&Defect], columns: &[Column], made: (Run, u64)) -> Matrix {
    let mut matrix = kill::matrix(defects, columns, made);
    matrix.false_alarms.clear();
    matrix
}

//! Faults of rows, reports, exit codes and goldens.

use std::fs;
use std::path::{Path, PathBuf};

use samebits_reports::{
    Error, Hashes, Outdated, RUN_FILE, Report, Row, Run, Totals, fresh, merge, write_row,
};
use serde_json::Value;

use super::Planting;
use crate::commands::{Failure, run};

pub const ALL: &[(&str, Planting)] = &[
    ("golden-of-engine", |r| r.golden = |_, _, _| Ok(())),
    ("half-a-row-skipped", |r| r.merge = half_a_row_skipped),
    ("unasked-row-taken", |r| r.merge = unasked_row_taken),
    ("old-row-taken", |r| r.merge = old_row_taken),
    ("silence-left-out", |r| r.merge = silence_left_out),
    ("second-row-wins", |r| r.write_row = second_row_wins),
    ("skip-counts-as-pass", |r| r.report = skip_counts_as_pass),
    ("exit-zero", |r| r.publish = exit_zero),
    ("edits-believed", |r| r.read = edits_believed),
    ("old-report-taken", |r| r.fresh = |_, _, _| Ok(())),
    ("row-missing-accepted", |r| r.fresh = row_missing_accepted),
    ("silence-accepted", |r| r.fresh = silence_accepted),
    ("part-accepted", |r| r.fresh = part_accepted),
    ("local-changes-accepted", |r| {
        r.fresh =
            |report, now, wanted| fresh(&Report { dirty: false, ..report.clone() }, now, wanted)
    }),
    ("other-limits-accepted", |r| r.fresh = other_limits_accepted),
    ("other-manifests-accepted", |r| r.fresh = other_manifests_accepted),
    ("other-code-accepted", |r| r.fresh = other_code_accepted),
    ("foreign-row-accepted", |r| r.fresh = foreign_row_accepted),
    ("figures-hide", |r| r.figures = |a, b| (a.rounded(4).to_string(), b.rounded(4).to_string())),
    ("figures-of-45-digits", |r| r.figures = |a, b| (a.to_string(), b.to_string())),
];

/// One row more or less is no matter.
fn row_missing_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    match fresh(report, now, wanted) {
        Err(Outdated::Lacks { count: 1, .. }) => Ok(()),
        said => said,
    }
}

/// A gate that died has a row, if an empty one.
fn silence_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let mut report = report.clone();
    for row in report.rows.iter_mut().filter(|row| row.is_silent()) {
        row.reason = "an error".to_owned();
    }
    fresh(&report, now, wanted)
}

/// What a filter left is the whole.
fn part_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let kind = |id: &str| id.split('/').next().unwrap_or_default().to_owned();
    let has: Vec<String> = report.rows.iter().map(|row| kind(&row.id)).collect();
    let wanted: Vec<&str> = wanted.iter().copied().filter(|id| has.contains(&kind(id))).collect();
    fresh(report, now, &wanted)
}

/// A tree whose hashes are changed so that they are the report's.
fn pretending(report: &Report, now: &Run, change: fn(&mut Hashes, &Hashes)) -> Run {
    let mut now = now.clone();
    change(&mut now.hashes, &report.hashes);
    now
}

fn other_limits_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let now = pretending(report, now, |now, then| now.limits.clone_from(&then.limits));
    fresh(report, &now, wanted)
}

fn other_manifests_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let now = pretending(report, now, |now, then| now.manifests.clone_from(&then.manifests));
    fresh(report, &now, wanted)
}

fn other_code_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let now = pretending(report, now, |now, then| now.code.clone_from(&then.code));
    fresh(report, &now, wanted)
}

/// A row may come from anywhere.
fn foreign_row_accepted(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let mut report = report.clone();
    let run = report.run();
    report.rows = report.rows.into_iter().map(|row| row.made_by(&run)).collect();
    fresh(&report, now, wanted)
}

/// A JSON file changed in place; what is no JSON stays as it is.
fn change(path: &Path, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(path).unwrap_or_default();
    if let Ok(mut value) = serde_json::from_str(&text) {
        change(&mut value);
        // The file was read: it can be written. If not, nothing is changed, and the fault lives.
        let _ = fs::write(path, value.to_string());
    }
}

/// Files of rows.
fn row_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let row =
        |path: &PathBuf| path.extension().is_some_and(|e| e == "json") && !path.ends_with(RUN_FILE);
    entries.filter(row).collect()
}

/// Only the gates that have a row are expected.
fn expect_what_is_there(dir: &Path) {
    let there: Vec<String> = row_files(dir)
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_str()?.replace('+', "/")))
        .collect();
    change(&dir.join(RUN_FILE), |run| {
        if let Some(expected) = run["expected"].as_array_mut() {
            expected.retain(|gate| there.iter().any(|id| gate["id"] == id.as_str()));
        }
    });
}

/// A row that cannot be read is passed over, and the rest is the run.
fn half_a_row_skipped(dir: &Path) -> Result<Report, Error> {
    for path in row_files(dir) {
        let whole = fs::read_to_string(&path)
            .is_ok_and(|text| serde_json::from_str::<Value>(&text).is_ok());
        if !whole {
            // A file that stays is refused by the real merge, and the fault lives.
            let _ = fs::remove_file(&path);
        }
    }
    expect_what_is_there(dir);
    merge(dir)
}

/// Whatever lies in the folder is part of the run.
fn unasked_row_taken(dir: &Path) -> Result<Report, Error> {
    let rows: Vec<Value> = row_files(dir)
        .iter()
        .filter_map(|path| serde_json::from_str(&fs::read_to_string(path).ok()?).ok())
        .map(|file: Value| file["row"].clone())
        .collect();
    change(&dir.join(RUN_FILE), |run| {
        let Some(expected) = run["expected"].as_array_mut() else { return };
        let asked = expected.clone();
        for row in rows.iter().filter(|row| !asked.iter().any(|gate| gate["id"] == row["id"])) {
            let mut gate = expected.first().cloned().unwrap_or_default();
            (gate["id"], gate["kind"]) = (row["id"].clone(), row["kind"].clone());
            expected.push(gate);
        }
    });
    merge(dir)
}

/// A row of any time will do.
fn old_row_taken(dir: &Path) -> Result<Report, Error> {
    let start = |run: &mut Value| run["run"]["start"] = "1970-01-01T00:00:00.000Z".into();
    change(&dir.join(RUN_FILE), start);
    merge(dir)
}

/// A gate that did not report is not spoken of.
fn silence_left_out(dir: &Path) -> Result<Report, Error> {
    expect_what_is_there(dir);
    merge(dir)
}

fn second_row_wins(dir: &Path, row: &Row) -> Result<PathBuf, Error> {
    if let Err(Error::Duplicate { path, .. }) = write_row(dir, row) {
        // A file that stays is refused again, and the fault lives.
        let _ = fs::remove_file(path);
        return write_row(dir, row);
    }
    Ok(dir.join(row.id.replace('/', "+") + ".json"))
}

fn skip_counts_as_pass(run: Run, wall_s: f64, rows: Vec<Row>) -> Report {
    let mut report = Report::new(run, wall_s, rows);
    let Totals { pass, unmeasurable, .. } = report.totals;
    report.totals = Totals { pass: pass + unmeasurable, unmeasurable: 0, ..report.totals };
    report
}

fn exit_zero(
    report: &Report,
    files: (&Path, Option<&Path>),
    out: &mut dyn std::io::Write,
) -> Result<u8, Failure> {
    run::publish(report, files, out).map(|_| 0)
}

/// What the file says is true: rows are not looked at again.
fn edits_believed(path: &Path) -> Result<Report, Error> {
    let text = fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).or_else(|_| Report::read(path))
}

//! `gates calibrate --check --seeds N`: clean whole models held to the law.
//!
//! Exit codes: 1 where a tensor is beyond the law or was not judged, 2 where runs are left. The
//! invariants: `--out` is written after every run, whole, so that a stopped check leaves what it
//! has; what it left is taken up again only by the same code and limits, without local changes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use samebits::contract::Dtype;
use samebits_reports::write_atomic;

use super::Failure;
use super::run::facts;
use crate::checks::CheckError;
use crate::context::data;
use crate::limits::Limits;
use crate::whole::{Case, Clean, Row, cases, grid, published};

/// What to run.
pub struct Plan<'a> {
    /// Seeds of every shape and recipe.
    pub seeds: u64,
    /// The published shapes instead of the grid.
    pub long: bool,
    /// The dtype of all runs.
    pub dtype: Dtype,
    /// No run is begun after so many minutes.
    pub minutes: Option<f64>,
    /// Where rows are kept.
    pub out: Option<&'a Path>,
}

/// Rows of an earlier check of the same plan.
fn kept(path: &Path, now: &Clean) -> Result<Vec<Row>, Failure> {
    let Ok(text) = fs::read(path) else { return Ok(Vec::new()) };
    let json = |source| CheckError::Json { path: path.to_path_buf(), source };
    let old: Clean = serde_json::from_slice(&text).map_err(json)?;
    let of = |clean: &Clean| (clean.run.commit.clone(), clean.run.hashes.clone(), clean.dtype);
    // Local changes have no name: those of the run cannot be told from those of now.
    if of(&old) != of(now) || old.run.dirty || now.run.dirty {
        let said = "holds runs that are not known to be of this code, these limits and this dtype: \
                    name another file, and commit local changes";
        return Err(Failure::Usage(format!("--out {}: {said}", path.display())));
    }
    Ok(old.rows)
}

fn keep(path: Option<&Path>, found: &Clean) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(found).expect("rows are plain data");
    Ok(write_atomic(path, (text + "\n").as_bytes())?)
}

/// How many minutes the runs of `left` take, from those that were made.
fn minutes(left: &[&Case], done: &[(f64, f64)]) -> Option<f64> {
    let (work, wall_s) = done.iter().fold((0.0, 0.0), |(w, s), (work, wall)| (w + work, s + wall));
    let to_do = left.iter().fold(0.0, |sum, case| sum + case.shape.work());
    (work > 0.0).then(|| to_do / work * wall_s / 60.0)
}

/// Runs what is left of a plan.
pub fn command(plan: &Plan<'_>, out: &mut dyn Write) -> Result<u8, Failure> {
    let shapes = if plan.long { published().map_err(CheckError::from)? } else { grid() };
    let all = cases(&shapes, plan.seeds, plan.dtype);
    let limits = Limits::load(&data("limits.json"))?;
    let run = facts(&data("manifest"))?;
    let planned = all.len() as u64;
    let mut found = Clean { run, dtype: plan.dtype, planned, rows: Vec::new() };
    if let Some(path) = plan.out {
        found.rows = kept(path, &found)?;
    }
    let made = |case: &&Case| found.rows.iter().find(|row| case.made(row));
    let mut done: Vec<(f64, f64)> =
        all.iter().filter_map(|case| Some((case.shape.work(), made(&case)?.wall_s))).collect();
    let left: Vec<&Case> = all.iter().filter(|case| made(case).is_none()).collect();
    let (started, mut said) = (Instant::now(), std::io::stderr());
    for (i, case) in left.iter().enumerate() {
        let spent = started.elapsed().as_secs_f64() / 60.0;
        if plan.minutes.is_some_and(|most| spent >= most) {
            break;
        }
        let row = case.run(&limits, None)?;
        done.push((case.shape.work(), row.wall_s));
        let worst = row.worst.values().copied().fold(0.0, f64::max);
        let rest = minutes(&left[i + 1..], &done).unwrap_or(0.0);
        let (name, recipe, beyond) = (&row.model, row.recipe.name(), row.alarms.len());
        writeln!(
            said,
            "{} of {planned}: {name}, {} ids, {recipe}, seed {}: {beyond} beyond, worst \
             {worst:.2}, {:.1} s; about {rest:.1} minutes left",
            found.rows.len() + 1,
            row.ids,
            row.seed,
            row.wall_s
        )?;
        found.rows.push(row);
        keep(plan.out, &found)?;
    }
    summary(&found, &left, &done, out)
}

/// Says what all rows give together; the exit code is the verdict.
fn summary(
    found: &Clean,
    left: &[&Case],
    done: &[(f64, f64)],
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    for row in &found.rows {
        for alarm in &row.alarms {
            let (name, recipe, seed) = (&row.model, row.recipe.name(), row.seed);
            let (site, over, text) = (&alarm.site, alarm.over, &alarm.text);
            writeln!(
                out,
                "{name}, {recipe}, seed {seed}: {site} is {over:.2} of its limit: {text}"
            )?;
        }
    }
    for (kind, worst) in found.worst() {
        writeln!(out, "{kind}: the worst {worst:.2} of its limit")?;
    }
    let [tensors, beyond, blind] = found.totals();
    let (made, planned) = (found.rows.len(), found.planned);
    writeln!(
        out,
        "clean runs {made} of {planned}, tensors {tensors}, beyond the law {beyond}, not judged \
         {blind}"
    )?;
    let open = left.iter().filter(|case| !found.rows.iter().any(|row| case.made(row)));
    let open: Vec<&Case> = open.copied().collect();
    if let Some(rest) = minutes(&open, done).filter(|_| !open.is_empty()) {
        writeln!(out, "stopped early: the other {} take about {rest:.1} minutes", open.len())?;
    }
    Ok(match (beyond + blind, open.len()) {
        (0, 0) => 0,
        (0, _) => 2,
        _ => 1,
    })
}

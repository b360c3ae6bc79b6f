//! Rows, reports, exit codes.

use std::fs;
use std::path::Path;

use samebits_reports::{Expected, Hashes, Kind, RUN_FILE, Report, Row, Run, Status, Totals, begin};

use crate::context::Context;
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, bad, facts, good, hold, said, same, scratch};

/// Begins a run in which these must report.
fn begun(dir: &Path, ids: &[&str]) -> Verdict {
    let gate = |id: &&str| {
        let repeat = format!("gates run {id} --seed 7");
        Expected { id: (*id).to_owned(), kind: Kind::Bitwise, seed: 7, repeat }
    };
    let expected: Vec<Expected> = ids.iter().map(gate).collect();
    begin(dir, &facts(), &expected).map_err(said)
}

fn edit(path: &Path, change: impl FnOnce(String) -> String) -> Verdict {
    let text = fs::read_to_string(path).map_err(said)?;
    fs::write(path, change(text)).map_err(said)
}

/// What spoils a folder that holds the row of gate `a`.
type Spoil = fn(&Path) -> Verdict;

const SPOILS: [(&str, Spoil); 6] = [
    ("half a row", |dir| edit(&dir.join("a.json"), |text| text[..text.len() / 2].to_owned())),
    ("an empty row", |dir| edit(&dir.join("a.json"), |_| String::new())),
    ("a gate that was not asked for", |dir| {
        let row = good("c");
        samebits_reports::write_row(dir, &row).map(|_| ()).map_err(said)
    }),
    ("a row of another seed", |dir| {
        edit(&dir.join("a.json"), |text| text.replace("\"seed\": 7", "\"seed\": 8"))
    }),
    ("a row of an earlier run", |dir| {
        edit(&dir.join("a.json"), |text| {
            let year = text.find("\"ended\": \"").map_or(0, |at| at + "\"ended\": \"".len());
            format!("{}1999{}", &text[..year], &text[year + 4..])
        })
    }),
    ("a folder that no run began", |dir| fs::remove_file(dir.join(RUN_FILE)).map_err(said)),
];

pub(super) fn rows(runner: &Runner, _ctx: &Context) -> Verdict {
    for (why, spoil) in SPOILS {
        let dir = scratch()?;
        begun(dir.path(), &["a", "b"])?;
        (runner.write_row)(dir.path(), &good("a")).map_err(said)?;
        spoil(dir.path())?;
        hold(&format!("{why} is merged"), (runner.merge)(dir.path()).is_err())?;
    }
    let dir = scratch()?;
    begun(dir.path(), &["a", "b", "c"])?;
    (runner.write_row)(dir.path(), &bad("a")).map_err(said)?;
    let again = (runner.write_row)(dir.path(), &good("a"));
    hold("a gate reports twice", again.is_err())?;
    let forged = Row { n_compared: 0, n_expected: 0, ..good("c") };
    (runner.write_row)(dir.path(), &forged).map_err(said)?;
    let report = (runner.merge)(dir.path()).map_err(said)?;
    let got: Vec<(&str, Status)> =
        report.rows.iter().map(|row| (row.id.as_str(), row.status)).collect();
    let want = [("a", Status::Fail), ("b", Status::Error), ("c", Status::Error)];
    same("a fail, silence and a forged pass", got, want.to_vec())
}

/// Rows of these statuses.
fn made(statuses: &[Status]) -> Vec<Row> {
    let row = |(i, status): (usize, &Status)| {
        let id = format!("g{i}");
        match status {
            Status::Pass => good(&id),
            Status::Fail => bad(&id),
            Status::Unmeasurable => good(&id).unmeasurable("no GPU"),
            Status::Error => good(&id).error("broke"),
        }
    };
    statuses.iter().enumerate().map(row).collect()
}

pub(super) fn verdicts(runner: &Runner, _ctx: &Context) -> Verdict {
    let (pass, fail) = (Status::Pass, Status::Fail);
    let (skip, error) = (Status::Unmeasurable, Status::Error);
    for (statuses, [n_pass, n_fail, n_skip, n_error], code) in [
        (vec![pass, pass], [2, 0, 0, 0], 0),
        (vec![pass, skip], [1, 0, 1, 0], 0),
        (vec![pass, fail], [1, 1, 0, 0], 1),
        (vec![pass, error], [1, 0, 0, 1], 1),
        (vec![error], [0, 0, 0, 1], 1),
        (vec![skip, skip], [0, 0, 2, 0], 2),
        (vec![], [0, 0, 0, 0], 2),
    ] {
        let report = (runner.report)(facts(), 1.0, made(&statuses));
        let n = statuses.len() as u64;
        let want = Totals {
            gates: n,
            pass: n_pass,
            fail: n_fail,
            unmeasurable: n_skip,
            error: n_error,
            n_compared: 12 * n,
            n_expected: 12 * n,
        };
        same(&format!("totals of {statuses:?}"), report.totals, want)?;
        let dir = scratch()?;
        let (json, mut out) = (dir.path().join("report.json"), Vec::new());
        let got = (runner.publish)(&report, (&json, None), &mut out).map_err(said)?;
        same(&format!("the exit code of {statuses:?}"), got, code)?;
        let text = String::from_utf8(out).map_err(said)?;
        for (status, word) in
            [(fail, "FAIL"), (error, "ERROR"), (skip, "UNMEASURABLE"), (pass, "PASS")]
        {
            let count = text.lines().filter(|line| line.starts_with(word)).count();
            let due = statuses.iter().filter(|s| **s == status).count();
            same(&format!("lines of {word} for {statuses:?}"), count, due)?;
        }
        same("the report in its file", Report::read(&json).map_err(said)?, report)?;
    }
    Ok(())
}

pub(super) fn edited(runner: &Runner, _ctx: &Context) -> Verdict {
    let dir = scratch()?;
    let path = dir.path().join("report.json");
    let report = Report::new(facts(), 1.0, vec![good("a"), bad("b")]);
    report.write(&path).map_err(said)?;
    hold("a sound report is refused", (runner.read)(&path).is_ok())?;
    for (from, to) in [
        ("\"fail\": 1", "\"fail\": 0"),
        ("\"gates\": 2", "\"gates\": 1"),
        ("\"reason\": \"over the limit\"", "\"reason\": \"\""),
        ("\"status\": \"FAIL\"", "\"status\": \"PASS\""),
        ("\"margin\": -1.0", "\"margin\": 1.0"),
        ("samebits.report/1", "samebits.report/2"),
    ] {
        report.write(&path).map_err(said)?;
        let text = report.to_json();
        hold(&format!("{from} is not in the report"), text.contains(from))?;
        edit(&path, |_| text.replacen(from, to, 1))?;
        hold(&format!("{to} is believed"), (runner.read)(&path).is_err())?;
    }
    Ok(())
}

pub(super) fn fresh(runner: &Runner, _ctx: &Context) -> Verdict {
    let report = Report::new(facts(), 1.0, vec![good("a")]);
    let with = |hashes: Hashes| Run { hashes, ..facts() };
    let old = || "of an older tree".to_owned();
    let hashes = || facts().hashes;
    let none: &[String] = &[];
    let changed: &[String] = &["engine/src/lib.rs".to_owned()];
    for (why, now, changed, good) in [
        ("the same tree", facts(), Some(none), true),
        ("other limits", with(Hashes { limits: old(), ..hashes() }), Some(none), false),
        ("other gates", with(Hashes { manifests: old(), ..hashes() }), Some(none), false),
        ("other goldens", with(Hashes { fixtures: old(), ..hashes() }), Some(none), false),
        ("a file that changed since", facts(), Some(changed), false),
        ("a commit that is not known", facts(), None, false),
    ] {
        let said = (runner.fresh)(&report, &now, changed);
        hold(&format!("{why}: {said:?}"), said.is_ok() == good)?;
    }
    Ok(())
}

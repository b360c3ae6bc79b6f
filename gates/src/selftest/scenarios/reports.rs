//! Rows, reports, exit codes.

use std::fs;
use std::path::Path;

use samebits_reports::{
    Expected, Hashes, Kind, Num, RUN_FILE, Report, Row, Run, Status, Totals, begin,
};

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
    let rows = || vec![good("bitwise/a"), good("bitwise/b"), good("order/a")];
    let report = || Report::new(facts(), 1.0, rows());
    let of = |run: Run| {
        let rows = rows().into_iter().map(|row| row.made_by(&run)).collect();
        Report::new(run, 1.0, rows)
    };
    let with = |hashes: Hashes| of(Run { hashes, ..facts() });
    let other = || "of another tree".to_owned();
    let hashes = || facts().hashes;
    let without = |left_out: &str| {
        let rows = rows().into_iter().filter(|row| !row.id.starts_with(left_out)).collect();
        Report::new(facts(), 1.0, rows)
    };
    let silent = Row::new("order/a", Kind::Order, 7, "gates run").made_by(&facts());
    let mut unheard = without("order");
    unheard = Report::new(facts(), 1.0, unheard.rows.into_iter().chain([silent]).collect());
    let mut foreign = report();
    foreign.rows[1].code = other();
    let old = || Run { hashes: Hashes { code: other(), ..hashes() }, ..facts() };
    for (why, report, sound) in [
        ("the same tree", report(), true),
        ("a commit that only accepts results", of(Run { commit: other(), ..facts() }), true),
        ("local changes", of(Run { dirty: true, ..facts() }), false),
        ("other limits", with(Hashes { limits: other(), ..hashes() }), false),
        ("other manifests", with(Hashes { manifests: other(), ..hashes() }), false),
        ("other goldens", with(Hashes { fixtures: other(), ..hashes() }), false),
        ("other code", of(old()), false),
        ("one row of other code", foreign, false),
        ("a gate without a row", without("order/a"), false),
        ("a gate that did not report", unheard, false),
        ("a part", without("bitwise"), false),
    ] {
        let said = (runner.fresh)(&report, &facts(), &["bitwise/a", "bitwise/b", "order/a"]);
        hold(&format!("{why}: {said:?}"), said.is_ok() == sound)?;
    }
    let said = (runner.fresh)(&report(), &facts(), &["bitwise/a", "bitwise/b"]);
    hold("a row of a gate that is not there is accepted", said.is_err())
}

pub(super) fn figures(runner: &Runner, _ctx: &Context) -> Verdict {
    for (measured, limit, want) in [
        (1.129_616_586_380_739_5, 6.0, ("1.13", "6")),
        (1.0, 1.0, ("1", "1")),
        (1.0004, 1.0, ("1.0004", "1")),
        (1.000_000_04, 1.0, ("1.00000004", "1")),
        (0.999_96, 1.0, ("0.99996", "1")),
        (1f64.next_up(), 1.0, ("1.0000000000000002", "1")),
        (16.5, 16.499_99, ("16.5", "16.49999")),
        (1.946_929_857_657e44, 1.0, ("1.947e44", "1")),
        (f64::NAN, 1.0, ("NaN", "1")),
        (f64::INFINITY, 0.0, ("inf", "0")),
    ] {
        let got = (runner.figures)(Num(measured), Num(limit));
        same(&format!("{measured} and {limit} for people"), (&*got.0, &*got.1), want)?;
    }
    Ok(())
}

//! Row files and their merge.

use std::fs;
use std::path::Path;

use rstest::rstest;
use samebits_reports::{
    Error, Kind, Num, RUN_FILE, Report, Row, Stamp, Status, Totals, Verdict, begin, merge,
    write_row,
};
use tempfile::TempDir;

use crate::{expected, good, run_at, stamp};

fn begun(ids: &[&str]) -> TempDir {
    let dir = TempDir::new().expect("a scratch folder");
    begin(dir.path(), &run_at(Stamp::now()), &expected(ids)).expect("an empty folder begins");
    dir
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("the file is there");
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(path, text.replace(from, to)).expect("the file is written");
}

#[test]
fn rows_are_sorted_summed_and_survive_the_file() {
    let dir = begun(&["b/x", "a", "a/b"]);
    let mut failed = good("a");
    failed.measured = Num(f64::from_bits(0x3ff1_2345_6789_abcd));
    for row in [&good("b/x"), &failed.judged(), &good("a/b").unmeasurable("no GPU")] {
        write_row(dir.path(), row).expect("a first row is written");
    }
    assert!(dir.path().join("a+b.json").is_file());
    let report = merge(dir.path()).expect("a full folder merges");
    let ids: Vec<&str> = report.rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["a", "a/b", "b/x"]);
    let want = Totals {
        gates: 3,
        pass: 1,
        fail: 1,
        unmeasurable: 1,
        error: 0,
        n_compared: 3702,
        n_expected: 3702,
    };
    assert_eq!(report.totals, want);
    let file = dir.path().join("report.out");
    report.write(&file).expect("the report is written");
    assert_eq!(Report::read(&file).expect("the report is read"), report);
    assert_eq!(fs::read_to_string(&file).expect("it is text"), report.to_json());
    assert!(report.to_json().starts_with("{\n  \"schema\": \"samebits.report/1\",\n"));
}

/// The merge may come much later; the run ends with its last row.
#[test]
fn the_wall_time_is_that_of_the_last_row() {
    let dir = TempDir::new().expect("a scratch folder");
    let ids = ["a", "b"];
    begin(dir.path(), &run_at(stamp(1000)), &expected(&ids)).expect("an empty folder begins");
    for (id, ended) in ids.iter().zip([stamp(1090), stamp(1030)]) {
        let path = write_row(dir.path(), &good(id)).expect("a first row is written");
        let text = fs::read_to_string(&path).expect("the row is there");
        let from = text.find("\"ended\": \"").expect("the row has its time") + 10;
        let moved = text[..from].to_owned() + ended.as_str() + &text[from + 24..];
        fs::write(&path, moved).expect("the row is written");
    }
    assert_eq!(merge(dir.path()).expect("a full folder merges").wall_s, Num(90.0));
}

#[test]
fn a_silent_gate_is_an_error() {
    let dir = begun(&["a", "b"]);
    write_row(dir.path(), &good("a")).expect("a first row is written");
    let report = merge(dir.path()).expect("a missing row is no reason to refuse");
    let silent = &report.rows[1];
    assert_eq!((silent.id.as_str(), silent.status), ("b", Status::Error));
    assert_eq!(silent.reason, "did not report");
    assert_eq!(silent.repeat, "gates run b --seed 7");
    assert_eq!(report.verdict(), Verdict::Red);
}

#[test]
fn a_forged_pass_is_an_error_in_the_report() {
    let dir = begun(&["a"]);
    let path = write_row(dir.path(), &good("a")).expect("a first row is written");
    edit(&path, "\"n_compared\": 1234", "\"n_compared\": 0");
    let report = merge(dir.path()).expect("a bad row is no reason to refuse");
    assert_eq!(report.rows[0].status, Status::Error);
    assert!(report.rows[0].reason.starts_with("zero work"), "{}", report.rows[0].reason);
}

#[test]
fn a_false_claim_is_an_error_in_its_file() {
    let dir = begun(&["a"]);
    let mut row = good("a");
    row.control = None;
    let path = write_row(dir.path(), &row).expect("a first row is written");
    let text = fs::read_to_string(path).expect("the file is there");
    assert!(text.contains("\"status\": \"ERROR\""), "{text}");
}

#[test]
fn a_rerun_does_not_count() {
    let dir = begun(&["a"]);
    let mut red = good("a");
    red.measured = Num(1.0);
    write_row(dir.path(), &red.judged()).expect("a first row is written");
    let again = write_row(dir.path(), &good("a"));
    assert!(matches!(again, Err(Error::Duplicate { ref id, .. }) if id == "a"), "{again:?}");
    assert_eq!(merge(dir.path()).expect("one row").rows[0].status, Status::Fail);
}

#[test]
fn of_many_writers_of_one_row_one_wins() {
    let dir = begun(&["a"]);
    let won = std::thread::scope(|scope| {
        let write = || write_row(dir.path(), &good("a")).is_ok();
        let writers: Vec<_> = (0..8).map(|_| scope.spawn(write)).collect();
        writers.into_iter().filter_map(|writer| writer.join().ok()).filter(|&won| won).count()
    });
    assert_eq!(won, 1);
    let names = fs::read_dir(dir.path()).expect("the folder is there").count();
    assert_eq!(names, 2, "a temporary file stays behind");
}

/// Each case spoils a folder that holds one good row, `a.json`.
#[rstest]
#[case::copied("Duplicate", |dir: &Path| {
    fs::copy(dir.join("a.json"), dir.join("b.json")).expect("a copy is made");
})]
#[case::renamed("Misnamed", |dir: &Path| {
    fs::rename(dir.join("a.json"), dir.join("b.json")).expect("the row is renamed");
})]
#[case::stale("Stale", |dir: &Path| {
    let text = fs::read_to_string(dir.join("a.json")).expect("the row is there");
    let from = text.find("\"ended\": \"20").expect("the row has its time") + 10;
    let old = text[..from].to_owned() + "1999" + &text[from + 4..];
    fs::write(dir.join("a.json"), old).expect("the row is written");
})]
#[case::other_schema("Schema", |dir: &Path| {
    edit(&dir.join("a.json"), "samebits.row/1", "samebits.row/2");
})]
#[case::no_schema("Schema", |dir: &Path| {
    edit(&dir.join("a.json"), "\"schema\": \"samebits.row/1\",", "");
})]
#[case::other_run_schema("Schema", |dir: &Path| {
    edit(&dir.join(RUN_FILE), "samebits.run/1", "samebits.run/0");
})]
#[case::unknown_field("Json", |dir: &Path| {
    edit(&dir.join("a.json"), "\"seed\": 7", "\"seed\": 7, \"skip\": true");
})]
#[case::field_twice("Json", |dir: &Path| {
    edit(&dir.join("a.json"), "\"seed\": 7", "\"seed\": 7, \"seed\": 7");
})]
#[case::unknown_kind("Json", |dir: &Path| edit(&dir.join("a.json"), "\"bitwise\"", "\"vibes\""))]
#[case::unknown_status("Json", |dir: &Path| edit(&dir.join("a.json"), "\"PASS\"", "\"SKIP\""))]
#[case::cut("Json", |dir: &Path| {
    let bytes = fs::read(dir.join("a.json")).expect("the row is there");
    fs::write(dir.join("a.json"), &bytes[..bytes.len() / 2]).expect("the row is written");
})]
#[case::other_seed("Unexpected", |dir: &Path| {
    edit(&dir.join("a.json"), "\"seed\": 7", "\"seed\": 8");
})]
#[case::other_kind("Unexpected", |dir: &Path| {
    edit(&dir.join("a.json"), "\"bitwise\"", "\"residual\"");
})]
#[case::unasked("Unexpected", |dir: &Path| {
    write_row(dir, &good("c")).expect("a row is written");
})]
#[case::asked_twice("Duplicate", |dir: &Path| {
    edit(&dir.join(RUN_FILE), "\"id\": \"b\"", "\"id\": \"a\"");
})]
#[case::no_run("Io", |dir: &Path| fs::remove_file(dir.join(RUN_FILE)).expect("it is removed"))]
fn spoiled_folders_are_refused(#[case] want: &str, #[case] spoil: fn(&Path)) {
    let dir = begun(&["a", "b"]);
    write_row(dir.path(), &good("a")).expect("a first row is written");
    merge(dir.path()).expect("the unspoiled folder merges");
    spoil(dir.path());
    let error = merge(dir.path()).expect_err("a spoiled folder is refused");
    assert!(format!("{error:?}").starts_with(want), "{error:?}");
}

#[rstest]
#[case::empty("")]
#[case::up("../a")]
#[case::root("/a")]
#[case::no_segment("a//b")]
#[case::trailing("a/")]
#[case::hidden("a/.b")]
#[case::plus("a+b")]
#[case::backslash("a\\b")]
#[case::nul("a\0b")]
#[case::not_ascii("é")]
fn ids_that_name_no_file(#[case] id: &str) {
    let dir = begun(&[]);
    assert!(matches!(write_row(dir.path(), &good(id)), Err(Error::Id { .. })));
    let begun = begin(dir.path(), &run_at(stamp(0)), &expected(&[id]));
    assert!(matches!(begun, Err(Error::Id { .. })));
}

#[test]
fn a_new_run_forgets_the_old_and_spares_other_folders() {
    let dir = begun(&["a"]);
    write_row(dir.path(), &good("a")).expect("a first row is written");
    fs::write(dir.path().join(".x.part"), "half").expect("a crash leaves this");
    begin(dir.path(), &run_at(Stamp::now()), &expected(&["a"])).expect("a row folder begins");
    let report = merge(dir.path()).expect("an emptied folder merges");
    assert_eq!(report.rows[0].reason, "did not report");
    assert_eq!(fs::read_dir(dir.path()).expect("the folder is there").count(), 1);

    fs::write(dir.path().join("notes.txt"), "mine").expect("a foreign file");
    let refused = begin(dir.path(), &run_at(Stamp::now()), &[]);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    let other = TempDir::new().expect("a scratch folder");
    fs::write(other.path().join("results.json"), "{}").expect("a foreign file");
    let refused = begin(other.path(), &run_at(Stamp::now()), &[]);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert!(other.path().join("results.json").is_file());
}

#[test]
fn two_gates_of_one_id_do_not_begin() {
    let dir = TempDir::new().expect("a scratch folder");
    let begun = begin(dir.path(), &run_at(stamp(0)), &expected(&["a", "a"]));
    assert!(matches!(begun, Err(Error::Duplicate { .. })), "{begun:?}");
}

#[rstest]
#[case::empty_suite(&[], Verdict::Nothing, 2)]
#[case::passed(&[Status::Pass], Verdict::Green, 0)]
#[case::unmeasured(&[Status::Unmeasurable], Verdict::Nothing, 2)]
#[case::partly_measured(&[Status::Pass, Status::Unmeasurable], Verdict::Green, 0)]
#[case::failed(&[Status::Pass, Status::Fail], Verdict::Red, 1)]
#[case::broken(&[Status::Pass, Status::Error], Verdict::Red, 1)]
#[case::only_broken(&[Status::Error], Verdict::Red, 1)]
fn verdicts(#[case] statuses: &[Status], #[case] want: Verdict, #[case] code: u8) {
    let row = |(index, &status): (usize, &Status)| match status {
        Status::Pass => good(&format!("g{index}")),
        status => Row { status, reason: "why".to_owned(), ..good(&format!("g{index}")) },
    };
    let rows = statuses.iter().enumerate().map(row).collect();
    let report = Report::new(run_at(stamp(0)), 1.0, rows);
    assert_eq!((report.verdict(), report.verdict().exit_code()), (want, code));
}

/// Each case edits a written report of one PASS and one FAIL row.
#[rstest]
#[case::totals("\"fail\": 1", "\"fail\": 0")]
#[case::survivor("\"gates\": 2", "\"gates\": 1")]
#[case::status("\"reason\": \"over the limit\"", "\"reason\": \"\"")]
#[case::margin("\"margin\": -1.0", "\"margin\": 1.0")]
#[case::order("\"id\": \"a\"", "\"id\": \"z\"")]
#[case::twice("\"id\": \"a\"", "\"id\": \"b\"")]
fn edited_reports_are_refused(#[case] from: &str, #[case] to: &str) {
    let dir = TempDir::new().expect("a scratch folder");
    let path = dir.path().join("report.json");
    let failed = Row { measured: Num(1.0), ..good("b") }.judged();
    let report = Report::new(run_at(stamp(0)), 1.0, vec![failed, good("a")]);
    report.write(&path).expect("the report is written");
    Report::read(&path).expect("the unedited report is read");
    edit(&path, from, to);
    let refused = Report::read(&path);
    assert!(matches!(refused, Err(Error::Inconsistent { .. })), "{refused:?}");
}

#[test]
fn a_report_of_another_schema_is_refused_by_name() {
    let dir = TempDir::new().expect("a scratch folder");
    let path = dir.path().join("report.json");
    fs::write(&path, "{\"schema\": \"samebits.report/2\", \"new\": 1}").expect("it is written");
    let error = Report::read(&path).expect_err("another schema is refused");
    assert!(error.to_string().contains("samebits.report/2"), "{error}");
}

#[test]
#[should_panic(expected = "two rows")]
fn a_report_of_two_rows_of_one_gate_is_a_bug() {
    Report::new(run_at(stamp(0)), 1.0, vec![good("a"), good("a")]);
}

#[test]
fn kinds_are_spelled_alike_everywhere() {
    for kind in Kind::ALL {
        let json = serde_json::to_string(kind).expect("a kind is written");
        assert_eq!(json, format!("{:?}", kind.name()));
        assert!(!kind.proves().is_empty() && !kind.proves().contains('|'));
    }
}

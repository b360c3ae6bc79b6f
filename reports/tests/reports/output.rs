//! Terminal table, summary, JUnit and Markdown.

use rstest::rstest;
use samebits_reports::{
    Divergence, Kind, Num, Report, Row, closing, gates_table, host_line, junit, summary, table,
};

use crate::{good, run_at, stamp};

/// One row of each status, with hostile text.
fn mixed() -> Report {
    let mut failed = Row { measured: Num(3.0), ..good("b/fail") }.judged();
    failed.first_divergence = Some(Divergence {
        op: "q_proj".to_owned(),
        layer: Some(3),
        position: Some(16),
        element: Some(5),
        ulps: Some(3),
        want: Some(Num(0.5)),
        got: Some(Num(f64::NAN)),
        text: "a<b & \"c\"".to_owned(),
    });
    let gpu = good("c/gpu").unmeasurable("no GPU: 'none' <found>\u{1b}[31m");
    let broken = good("d/error").error("größer\nals | erwartet");
    Report::new(run_at(stamp(0)), 12.25, vec![good("a/pass"), failed, gpu, broken])
}

#[test]
fn the_table_is_aligned_and_plain() {
    let want = "\
status        gate     statistic  measured  limit     compared  wall s
PASS          a/pass   ulps_max          0      0  1,234/1,234    0.25
FAIL          b/fail   ulps_max          3      0  1,234/1,234    0.25
    over the limit
    first at q_proj, layer 3, position 16, element 5, want 0.5, got NaN, 3 ulps apart: a<b & \"c\"
    repeat: gates run b/fail --seed 7
UNMEASURABLE  c/gpu    ulps_max          0      0  1,234/1,234    0.25
    no GPU: 'none' <found>\\u{1b}[31m
    repeat: gates run c/gpu --seed 7
ERROR         d/error  ulps_max          0      0  1,234/1,234    0.25
    größer\\nals | erwartet
    repeat: gates run d/error --seed 7
";
    assert_eq!(table(&mixed()), want);
}

#[test]
fn columns_align_by_characters() {
    let mut wide = good("b");
    wide.statistic = "größe_µs".to_owned();
    let text = table(&Report::new(run_at(stamp(0)), 1.0, vec![good("a"), wide]));
    let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
    assert_eq!(widths, [61; 3], "{text}");
}

#[test]
fn the_summary_counts_every_status() {
    let want = "4 gates: 1 passed, 1 failed, 1 errors, 1 unmeasurable; \
                4,936 of 4,936 comparisons; 12.2 s";
    assert_eq!(summary(&mixed()), want);
}

#[test]
fn junit_counts_and_escapes() {
    let counts = "tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\" time=\"12.250\"";
    let case = |id: &str| {
        format!("<testcase classname=\"bitwise\" name=\"{id}\" assertions=\"1234\" time=\"0.250\"")
    };
    let want = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites name=\"samebits\" {counts}>\n\
         <testsuite name=\"gates\" {counts} timestamp=\"1970-01-01T00:00:00.000Z\">\n\
         <properties>\n\
         <property name=\"commit\" value=\"0123abcd\"/>\n\
         <property name=\"dirty\" value=\"false\"/>\n\
         <property name=\"cpu\" value=\"Test CPU &lt;1&gt;\"/>\n\
         </properties>\n\
         {}/>\n\
         {}>\n<failure message=\"over the limit\">ulps_max: measured 3, limit 0&#10;\
         first at q_proj, layer 3, position 16, element 5, want 0.5, got NaN, 3 ulps apart: \
         a&lt;b &amp; &quot;c&quot;&#10;repeat: gates run b/fail --seed 7</failure>\n</testcase>\n\
         {}>\n<skipped message=\"no GPU: &apos;none&apos; &lt;found&gt;\u{fffd}[31m\">\
         ulps_max: measured 0, limit 0&#10;&#10;repeat: gates run c/gpu --seed 7</skipped>\n\
         </testcase>\n\
         {}>\n<error message=\"größer&#10;als | erwartet\">\
         ulps_max: measured 0, limit 0&#10;&#10;repeat: gates run d/error --seed 7</error>\n\
         </testcase>\n\
         <system-out>{}</system-out>\n\
         </testsuite>\n\
         </testsuites>\n",
        case("a/pass"),
        case("b/fail"),
        case("c/gpu"),
        case("d/error"),
        summary(&mixed()),
    );
    assert_eq!(junit(&mixed()), want);
}

/// Four counts that all differ, so that no two can be swapped.
#[test]
fn each_count_is_that_of_its_status() {
    let mut rows: Vec<Row> = ["p1", "p2", "p3", "p4"].map(good).to_vec();
    rows.extend(["u1", "u2", "u3"].map(|id| good(id).unmeasurable("no GPU")));
    rows.extend(["e1", "e2"].map(|id| good(id).error("broke")));
    rows.push(Row { measured: Num(1.0), ..good("f1") }.judged());
    let report = Report::new(run_at(stamp(0)), 1.0, rows);
    let text = junit(&report);
    let counts = "tests=\"10\" failures=\"1\" errors=\"2\" skipped=\"3\"";
    assert_eq!(text.matches(counts).count(), 2, "{text}");
    let elements = ["<testcase ", "<failure ", "<error ", "<skipped "];
    assert_eq!(elements.map(|element| text.matches(element).count()), [10, 1, 2, 3]);
    let line = summary(&report);
    let want = "10 gates: 4 passed, 1 failed, 2 errors, 3 unmeasurable; ";
    assert!(line.starts_with(want), "{line}");
}

#[test]
fn junit_has_no_time_that_is_no_number() {
    let row = Row { wall_s: Num(f64::NAN), ..good("a") };
    let text = junit(&Report::new(run_at(stamp(0)), f64::INFINITY, vec![row]));
    assert!(!text.contains(" time="), "{text}");
}

#[test]
fn gates_by_kind() {
    let residual = |id: &str, measured: f64, limit: f64| {
        let mut row = good(id);
        (row.kind, row.statistic) = (Kind::Residual, format!("r|{id}"));
        (row.measured, row.limit) = (Num(measured), Num(limit));
        row.judged()
    };
    let rows = vec![
        residual("small-but-close", 0.9, 1.0),
        residual("large-but-far", 50.0, 100.0),
        residual("exact", 0.0, 0.0),
        good("a"),
        Row { kind: Kind::HostSync, ..good("s") }.unmeasurable("no GPU"),
        Row { kind: Kind::Order, measured: Num(2.0), ..good("o1") }.judged(),
        Row { kind: Kind::Order, ..good("o2") }.judged(),
        Row { kind: Kind::Order, ..good("o3") }.error("broke"),
    ];
    let want = format!(
        "| kind | gates | passed | comparisons | worst measured / limit | what it proves |\n\
         |---|--:|--:|--:|---|---|\n\
         | bitwise | 1 | 1 | 1,234 | 0 / 0 ulps_max | {} |\n\
         | residual | 3 | 3 | 3,702 | 0.9 / 1 r\\|small-but-close | {} |\n\
         | host_sync | 1 | 0, 1 unmeasurable | 1,234 | none measured | {} |\n\
         | order | 3 | 1, 1 failed, 1 errors | 3,702 | 2 / 0 ulps_max | {} |\n",
        Kind::Bitwise.proves(),
        Kind::Residual.proves(),
        Kind::HostSync.proves(),
        Kind::Order.proves(),
    );
    assert_eq!(gates_table(&Report::new(run_at(stamp(0)), 1.0, rows)), want);
}

#[rstest]
#[case::clean(false, None, None, "at commit 0123abcd: Test CPU &lt;1>, 2 cores, avx2 fma; no GPU.")]
#[case::dirty(
    true,
    None,
    None,
    "at commit 0123abcd with local changes: Test CPU &lt;1>, 2 cores, \
              avx2 fma; no GPU."
)]
#[case::gpu(
    false,
    Some("G"),
    Some("1.2"),
    "at commit 0123abcd: Test CPU &lt;1>, 2 cores, avx2 \
            fma; GPU G, driver 1.2."
)]
#[case::no_driver(
    false,
    Some("G"),
    None,
    "at commit 0123abcd: Test CPU &lt;1>, 2 cores, avx2 \
                  fma; GPU G."
)]
fn host_lines(
    #[case] dirty: bool,
    #[case] gpu: Option<&str>,
    #[case] driver: Option<&str>,
    #[case] want: &str,
) {
    let mut run = run_at(stamp(951_782_400));
    run.dirty = dirty;
    run.host.gpu = gpu.map(str::to_owned);
    run.host.driver = driver.map(str::to_owned);
    let line = host_line(&Report::new(run, 1.0, vec![good("a")]));
    assert_eq!(line, format!("Measured on 2000-02-29 {want}\n"));
}

#[test]
fn a_run_closes_with_kinds_and_everything_that_is_not_green() {
    let mut rows = vec![
        good("a"),
        Row { kind: Kind::Order, ..good("o") },
        Row { kind: Kind::HostSync, ..good("s") }.unmeasurable("no GPU"),
        good("e").error("broke\n"),
    ];
    let over = |row: Row| Row { measured: Num(1.0004), limit: Num(1.0), ..row };
    let mut red = over(good("f"));
    red.control.as_mut().expect("a good row has one").measured = Num(9.0);
    rows.push(red.judged());
    let want = "\
5 gates: 2 passed, 1 failed, 1 errors, 1 unmeasurable; 6,170 of 6,170 comparisons; 1.0 s
passed by kind: bitwise 1 of 3, host_sync 0 of 1, order 1
failed: f (ulps_max 1.0004, limit 1)
errors: e (broke\\n)
not measured: s (no GPU)
";
    assert_eq!(closing(&Report::new(run_at(stamp(0)), 1.0, rows)), want);
    let many = (0..11).map(|i| good(&format!("g{i:02}")).error("broke")).collect();
    let text = closing(&Report::new(run_at(stamp(0)), 1.0, many));
    assert!(text.ends_with("g07 (broke); and 3 more\n"), "{text}");
}

#[test]
fn tables_are_rounded_for_people_and_files_are_not() {
    let measured = Num(1.129_616_586_380_739_5);
    let mut row = Row { measured, limit: Num(6.0), ..good("a") };
    row.control.as_mut().expect("a good row has one").measured = Num(9.0);
    let report = Report::new(run_at(stamp(0)), 1.0, vec![row.judged()]);
    assert!(gates_table(&report).contains("| 1.13 / 6 ulps_max |"), "{}", gates_table(&report));
    assert!(table(&report).contains(" 1.13 "), "{}", table(&report));
    assert!(report.to_json().contains("1.1296165863807395"));
}

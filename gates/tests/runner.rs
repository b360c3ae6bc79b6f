//! Faults of the gates themselves: each one planted here must be noticed.
//!
//! The table follows the ways in which suites have been green for no reason: NaN that compares as
//! small, nothing compared, a control that is deaf, a thing compared with itself, a second try.

use std::fs;

use samebits::contract::Dtype;
use samebits_gates::checks::Outcome;
use samebits_gates::compare::{Comparison, at, compare, compare_rows};
use samebits_gates::context::data;
use samebits_gates::limits::Limits;
use samebits_gates::manifest::{Gate, ManifestError};
use samebits_gates::runner::judge;
use samebits_gates::sites::{Bits, Sites, rank, ulps};
use samebits_reports::{Row, Status, begin, write_row};

fn gate(id: &str) -> Gate {
    let name = format!("{}.json", id.replace('/', "+"));
    Gate::load(&data("manifest").join(name)).expect("the project's own gates are well-formed")
}

fn outcome(measured: f64, op: &str) -> Outcome {
    let found = Comparison { compared: 10, first: Some(at(op, Some(1))), ..Comparison::default() };
    Outcome { measured, hits: Some(3), ..Outcome::bitwise(found, 10) }
}

fn clean() -> Outcome {
    Outcome { first: None, hits: Some(0), ..outcome(0.0, "") }
}

fn judged(id: &str, clean: Outcome, planted: Outcome) -> Row {
    let gate = gate(id);
    let row = Row::new(&gate.id, gate.kind, 1, "gates run");
    judge(&gate, row, Limits::none(), clean, planted)
}

#[test]
fn a_gate_passes_only_for_a_reason() {
    let id = "bitwise/captured/tied"; // its control shows first at q_rope
    let good = || outcome(5.0, "q_rope");
    for (why, clean, planted, status, reason) in [
        ("sound", clean(), good(), Status::Pass, ""),
        ("a difference", outcome(1.0, "mix"), good(), Status::Fail, "over the limit"),
        ("NaN", Outcome { measured: f64::NAN, ..clean() }, good(), Status::Error, "non-finite"),
        (
            "nothing compared",
            Outcome { compared: 0, ..clean() },
            good(),
            Status::Error,
            "zero work",
        ),
        ("nothing due", Outcome { expected: 0, ..clean() }, good(), Status::Error, "zero work"),
        ("one left out", Outcome { compared: 9, ..clean() }, good(), Status::Error, "wrong work"),
        ("deaf control", clean(), outcome(0.0, "q_rope"), Status::Error, "within 0"),
        ("control elsewhere", clean(), outcome(5.0, "mix"), Status::Error, "not at q_rope"),
        (
            "control that never acted",
            clean(),
            Outcome { hits: Some(0), ..good() },
            Status::Error,
            "acted nowhere",
        ),
        (
            "compared with itself",
            Outcome { alarm: Some("too good".to_owned()), ..clean() },
            good(),
            Status::Error,
            "too good",
        ),
    ] {
        let row = judged(id, clean, planted);
        assert_eq!(row.status, status, "{why}: {}", row.reason);
        assert!(row.reason.contains(reason), "{why}: {}", row.reason);
    }
}

#[test]
fn an_invariance_gate_needs_two_paths() {
    let row = judged("invariance/cached/bf16", clean(), outcome(5.0, "k_cache"));
    assert_eq!(row.status, Status::Error);
    assert!(row.reason.contains("same path"), "{}", row.reason);
}

#[test]
fn a_second_try_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let row = judged("bitwise/captured/tied", clean(), outcome(5.0, "q_rope"));
    write_row(folder.path(), &row).expect("the first row");
    assert!(write_row(folder.path(), &row).is_err());
    let foreign = tempfile::tempdir().expect("a scratch folder");
    fs::write(foreign.path().join("mine"), "").expect("a file");
    let run = samebits_gates::commands::run::facts(&data("manifest")).expect("facts");
    assert!(begin(foreign.path(), &run, &[]).is_err(), "another's folder is not cleared");
}

#[test]
fn manifests_are_strict() {
    let good = fs::read_to_string(data("manifest").join("canary+null-defect.json"))
        .expect("the project's own gate");
    let name = "canary+null-defect.json";
    for (why, file, text, want) in [
        ("sound", name, good.clone(), ""),
        ("another name", "canary+other.json", good.clone(), "belongs in"),
        ("no why", name, good.replace("\"why\": \"", "\"why\": \"\", \"_\": \""), "unknown field"),
        ("unknown field", name, good.replacen('{', "{ \"tolerance\": 1,", 1), "unknown field"),
        ("unknown bird", name, good.replace("null_defect", "parrot"), "unknown variant"),
    ] {
        let folder = tempfile::tempdir().expect("a scratch folder");
        fs::write(folder.path().join(file), text).expect("a file");
        let said = Gate::all(folder.path()).map_or_else(|e| e.to_string(), |_| String::new());
        assert!(said.contains(want) && want.is_empty() == said.is_empty(), "{why}: {said}");
    }
    let mut mute: serde_json::Value = serde_json::from_str(&good).expect("JSON");
    mute["why"] = " ".into();
    let folder = tempfile::tempdir().expect("a scratch folder");
    fs::write(folder.path().join(name), mute.to_string()).expect("a file");
    assert!(matches!(Gate::all(folder.path()), Err(ManifestError::NoWhy { .. })));
    let empty = tempfile::tempdir().expect("a scratch folder");
    assert!(matches!(Gate::all(empty.path()), Err(ManifestError::Empty { .. })));
}

#[test]
fn limits_that_cannot_judge_are_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("limits.json");
    for (value, provenance, good) in
        [("1.5", "measured", true), ("-1", "measured", false), ("1.5", " ", false)]
    {
        let text = format!(
            "{{\"a\":{{\"value\":{value},\"statistic\":\"s\",\"dtype\":\"f32\",\
             \"provenance\":\"{provenance}\"}}}}"
        );
        fs::write(&path, text).expect("a file");
        assert_eq!(Limits::load(&path).is_ok(), good, "{value} {provenance:?}");
    }
}

fn site(shape: &[usize], bits: &[u32]) -> Bits {
    Bits { dtype: Dtype::Bf16, shape: shape.to_vec(), bits: bits.to_vec() }
}

fn sites(all: &[(&str, Bits)]) -> Sites {
    all.iter().map(|(name, bits)| ((*name).to_owned(), bits.clone())).collect()
}

#[test]
fn comparison_sees_nan_shape_and_absence() {
    let want = sites(&[("norm", site(&[2, 2], &[0x3F80, 0x3F80, 0, 0x3F80]))]);
    for (why, got, differing, element) in [
        ("equal", want.clone(), 0, None),
        ("NaN", sites(&[("norm", site(&[2, 2], &[0x3F80, 0x3F80, 0, 0x7FC0]))]), 1, Some(1)),
        ("infinite", sites(&[("norm", site(&[2, 2], &[0x3F80, 0x7F80, 0, 0x3F80]))]), 1, Some(1)),
        (
            "signed zero",
            sites(&[("norm", site(&[2, 2], &[0x3F80, 0x3F80, 0x8000, 0x3F80]))]),
            1,
            Some(0),
        ),
        ("shape", sites(&[("norm", site(&[4, 1], &[0x3F80, 0x3F80, 0, 0x3F80]))]), 1, None),
        ("absent", Sites::new(), 1, None),
    ] {
        let found = compare_rows(&want, &got, 2);
        assert_eq!(found.differing, differing, "{why}");
        assert_eq!(found.first.as_ref().and_then(|f| f.element), element, "{why}");
        assert_eq!(found.first.is_some(), differing > 0, "{why}");
    }
    assert_eq!(compare_rows(&want, &Sites::new(), 2).compared, 0, "absent tensors do not count");
}

#[test]
fn the_first_divergence_is_the_first_that_ran() {
    let names =
        ["layers.2.q_proj", "layers.10.k_proj", "layers.2.k_proj", "lm_head", "embed_tokens"];
    let want = sites(&names.map(|name| (name, site(&[3, 1], &[0, 0, 0]))));
    let mut got = sites(&names.map(|name| (name, site(&[3, 1], &[0, 0, 1]))));
    got.insert("embed_tokens".to_owned(), site(&[3, 1], &[0, 0, 0]));
    got.insert("lm_head".to_owned(), site(&[3, 1], &[1, 0, 0]));
    let found = |forwards: &[std::ops::Range<usize>]| {
        let first = compare(&want, &got, forwards).first.expect("they differ");
        (first.op, first.layer, first.position)
    };
    let whole = std::slice::from_ref(&(0..3));
    assert_eq!(found(whole), ("q_proj".to_owned(), Some(2), Some(2)));
    assert_eq!(found(&[0..2, 2..3]), ("lm_head".to_owned(), None, Some(0)));
    assert!(rank("layers.2.q_proj") < rank("layers.10.k_proj"));
    assert_eq!(rank("kept"), None);
}

#[test]
fn distances_are_steps_on_the_line_of_values() {
    for (a, b, want) in [
        (0x3F80, 0x3F81, Some(1)),
        (0x0001, 0x8001, Some(2)),
        (0x0000, 0x8000, Some(0)),
        (0x7FC0, 0x3F80, None),
    ] {
        assert_eq!(ulps(Dtype::Bf16, a, b), want, "{a:#x} {b:#x}");
    }
}

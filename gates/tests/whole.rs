//! Clean whole models: the grid is what it says, small ones raise no alarm in any recipe, and a
//! fault raises one at its own site.

use std::collections::BTreeSet;
use std::process::Command;

use samebits::contract::Dtype;
use samebits_fixtures::{HybridSpec, Spec};
use samebits_gates::commands::run::facts;
use samebits_gates::context::data;
use samebits_gates::limits::Limits;
use samebits_gates::manifest::Plant;
use samebits_gates::sites::op_of;
use samebits_gates::whole::{Case, Clean, Shape, cases, grid, published};
use samebits_reports::Run;

fn small() -> Vec<Shape> {
    let dense = Spec::named("tiny-d").expect("it is there");
    let hybrid = HybridSpec::named("tiny-h").expect("it is there");
    vec![Shape::dense(dense, 24), Shape::hybrid(hybrid, 24)]
}

fn limits() -> Limits {
    Limits::load(&data("limits.json")).expect("the project's own limits")
}

#[test]
fn the_grid_is_ten_points_in_both_families_and_three_recipes() {
    let grid = grid();
    let all = cases(&grid, 5, Dtype::Bf16);
    let key =
        |case: &Case| (case.shape.name.clone(), case.shape.ids, case.recipe.name(), case.seed);
    let different: BTreeSet<_> = all.iter().map(key).collect();
    assert_eq!((grid.len(), all.len(), different.len()), (20, 300, 300));
    let ids: BTreeSet<usize> = grid.iter().map(|shape| shape.ids).collect();
    assert_eq!((ids.first(), ids.last()), (Some(&16), Some(&512)));
    for family in ["dense ", "hybrid "] {
        let widths: Vec<usize> = grid
            .iter()
            .filter_map(|shape| shape.name.strip_prefix(family))
            .map(|sizes| sizes.split(' ').next().expect("a width").parse().expect("a number"))
            .collect();
        let ends = (widths.iter().min().copied(), widths.iter().max().copied());
        assert_eq!((widths.len(), ends), (10, (Some(256), Some(2_048))), "{family}");
    }
    assert_eq!(published().expect("both have names").len(), 4);
}

#[test]
fn small_clean_models_raise_no_alarm_in_any_recipe() {
    let limits = limits();
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let grid = cases(&grid()[..2], 1, dtype);
        for case in cases(&small(), 2, dtype).into_iter().chain(grid) {
            let row = case.run(&limits, None).expect("it runs");
            let what = (&row.model, row.recipe, row.seed, dtype);
            assert!(row.alarms.is_empty(), "{what:?}: {:?}", row.alarms);
            assert!(row.not_judged.is_empty(), "{what:?}: {:?}", row.not_judged);
            let layers = row.model.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
            let least = 18 * layers.expect("a name ends with the layers") + 3;
            assert!(row.tensors >= least && row.elements > 0, "{what:?}: {} tensors", row.tensors);
            assert!(case.made(&row) && row.worst.contains_key(&format!("norm/{}", dtype.name())));
        }
    }
}

#[test]
fn a_fault_is_an_alarm_at_its_own_site_in_every_recipe() {
    let limits = limits();
    let faults = [("activation-gelu", "silu"), ("scale-times-1.01", "scores")];
    for case in cases(&small()[..1], 1, Dtype::Bf16) {
        for (defect, op) in faults {
            let plant = Plant::Defect(defect.to_owned());
            let row = case.run(&limits, Some(&plant)).expect("it runs");
            let first = row.alarms.first().map(|alarm| op_of(&alarm.site));
            assert_eq!(first, Some(op), "{defect} {:?}: {:?}", case.recipe, row.alarms);
            assert!(row.alarms.iter().all(|alarm| alarm.over > 1.0));
        }
    }
}

#[test]
fn a_check_that_was_stopped_is_no_pass_and_foreign_rows_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("whole.json");
    let check = || {
        let words = ["calibrate", "--check", "--seeds", "1", "--minutes", "0", "--out"];
        Command::new(env!("CARGO_BIN_EXE_gates")).args(words).arg(&file).output().expect("it runs")
    };
    let stopped = check();
    assert_eq!(stopped.status.code(), Some(2), "no run was made");
    let said = String::from_utf8_lossy(&stopped.stdout);
    assert!(said.contains("clean runs 0 of 60"), "{said}");
    let run = facts(&data("manifest")).expect("the project's own data");
    let run = Run { commit: "0".repeat(40), dirty: false, ..run };
    let other = Clean { run, dtype: Dtype::Bf16, planned: 60, rows: Vec::new() };
    let other = serde_json::to_string(&other).expect("plain data");
    for (text, why) in [("{}", "missing field"), (other.as_str(), "not known to be of this code")] {
        std::fs::write(&file, text).expect("the folder is writable");
        let refused = check();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains("whole.json") && said.contains(why), "{said}");
    }
}

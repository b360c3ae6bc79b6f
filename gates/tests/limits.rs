//! The law of legal sums has an answer for every site of both families, and all its constants.

use samebits_gates::context::data;
use samebits_gates::law::{Law, family};
use samebits_gates::limits::Limits;
use samebits_gates::sites::LAYER_OPS;

#[test]
fn every_site_has_a_law_of_its_own() {
    let outside = ["embed_tokens", "norm", "lm_head"];
    for op in LAYER_OPS.iter().chain(&outside) {
        assert_ne!(family(op), "none", "{op}");
    }
    assert_eq!(family("a_new_op"), "none", "what has no law takes no other op's");
}

#[test]
fn a_constant_that_is_missing_is_missed() {
    let limits = Limits::load(&data("limits.json")).expect("the project's own limits");
    Law::of(&limits).expect("all constants are there");
    let constants: Vec<&str> =
        limits.iter().map(|(name, _)| name).filter(|name| name.starts_with("law-")).collect();
    assert!(constants.len() >= 6, "{constants:?}");
    for constant in constants {
        let without = limits.without(|name, _| name == constant);
        assert!(Law::of(&without).is_err(), "{constant} is used");
    }
}

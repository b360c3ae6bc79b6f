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

/// The rounding of a sum to f32, over mantissas that are uniform in their logarithm.
#[test]
fn one_rounding_errs_as_the_law_says() {
    let limits = Limits::load(&data("limits.json")).expect("the project's own limits");
    let law = |name| limits.get(name).expect("a constant of the law").value;
    let unit = 2f64.powi(-24);
    let error = |x: f64| (f64::from(x as f32) - x) / (unit * x);
    let rms = |low: f64, high: f64| {
        // Steps of an irrational part of the range visit every mantissa, and every part of a step.
        let steps = 200_000;
        let part = |i: i32| (f64::from(i) * 0.618_033_988_749_894_9).fract();
        let x = |i: i32| (low.ln() + (high / low).ln() * part(i)).exp();
        let squares: f64 = (0..steps).map(|i| error(x(i)).powi(2)).sum();
        (squares / f64::from(steps)).sqrt()
    };
    let (typical, most) = (rms(1.0, 2.0), rms(1.0, 1.0 + 2f64.powi(-8)));
    assert!((typical / law("law-rounding-rms") - 1.0).abs() < 0.01, "{typical}");
    assert!(most <= law("law-rounding-most") && most > 0.95 / 3f64.sqrt(), "{most}");
}

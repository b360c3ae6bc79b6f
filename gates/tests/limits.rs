//! The limits file serves every designed run, and says of each limit where it comes from.

use samebits_gates::calibrate::uncalibrated;
use samebits_gates::context::data;
use samebits_gates::limits::Limits;
use samebits_gates::manifest::Gate;

#[test]
fn every_op_and_size_of_a_designed_run_has_a_limit() {
    let limits = Limits::load(&data("limits.json")).expect("the project's own limits");
    let gates = Gate::all(&data("manifest")).expect("the project's own gates");
    let missing = uncalibrated(&limits, &gates).expect("probes can be built");
    assert!(missing.is_empty(), "run gates calibrate --write: {}", missing.join(", "));
    let all = uncalibrated(&limits.without(|name, _| name.starts_with("legal-norm-")), &gates)
        .expect("probes can be built");
    assert!(all.iter().any(|name| name.contains("norm-f32")), "a missing limit is seen");
}

#[test]
fn a_calibrated_limit_says_how_many_tensors_it_comes_from() {
    let limits = Limits::load(&data("limits.json")).expect("the project's own limits");
    let legal: Vec<_> = limits.iter().filter(|(name, _)| name.starts_with("legal-")).collect();
    assert!(legal.len() > 30, "{} calibrated limits", legal.len());
    for (name, limit) in legal {
        let n: u64 = limit
            .provenance
            .split_whitespace()
            .find_map(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("{name}: {}", limit.provenance));
        assert!(n >= 300, "{name}: {n} tensors");
    }
}

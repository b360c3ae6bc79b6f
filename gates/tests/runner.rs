//! The runner of the gates: its self-tests pass, and every fault of its own turns one red.
//!
//! The faults and the self-tests are the library's, since the gate `kill/runner` runs them too;
//! here they are spelled out one by one, with what only a test needs: places and distances.

use samebits::contract::Dtype;
use samebits_defects::RunnerFault;
use samebits_gates::compare::compare;
use samebits_gates::context::Context;
use samebits_gates::selftest::{Runner, plant, scenarios, verdict};
use samebits_gates::sites::{Bits, Sites, rank, ulps};

fn context() -> Context {
    let child = env!("CARGO_BIN_EXE_gates").into();
    Context::new(1, None, child).expect("the project's own limits are well-formed")
}

#[test]
fn the_real_runner_passes_every_self_test() {
    let (ctx, runner) = (context(), Runner::real());
    let red = scenarios().iter().filter_map(|scenario| {
        let why = verdict(scenario, &runner, &ctx).err()?;
        Some(format!("{} ({}): {why}", scenario.name, scenario.holds))
    });
    let red: Vec<String> = red.collect();
    assert!(red.is_empty(), "{red:#?}");
}

#[test]
fn every_planted_fault_turns_its_self_test_red() {
    let ctx = context();
    let mut alive = Vec::new();
    for fault in RunnerFault::all() {
        let mut runner = Runner::real();
        plant(&fault.id).expect("the catalogue names what can be planted")(&mut runner);
        let scenario = scenarios().iter().find(|scenario| scenario.name == fault.scenario);
        let scenario = scenario.expect("the catalogue names a self-test");
        match verdict(scenario, &runner, &ctx) {
            Ok(()) => alive.push(format!("{}: {}", fault.id, fault.why)),
            Err(why) => println!("{}: {}: {why}", fault.id, scenario.name),
        }
    }
    assert!(alive.is_empty(), "{alive:#?}");
}

fn site(shape: &[usize], bits: &[u32]) -> Bits {
    Bits { dtype: Dtype::Bf16, shape: shape.to_vec(), bits: bits.to_vec() }
}

fn sites(all: &[(&str, Bits)]) -> Sites {
    all.iter().map(|(name, bits)| ((*name).to_owned(), bits.clone())).collect()
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

//! The hybrid family: against Transformers, against its own rules, against the traps.
//!
//! Deliberately absent: the engine. Invariant: every comparison says how much it compared, and
//! each rule is shown to be one that could be broken.

#[path = "../golden/mod.rs"]
mod golden;

mod drawn;
mod forms;
mod hashed;
mod narrow;
mod rules;
mod traps;

use samebits_oracle::{Bits, Dtype, Order};

const TRANSFORMERS: Bits = Bits { order: Order::Transformers, dtype: Dtype::Bf16 };
const INVARIANT: Bits = Bits { order: Order::Invariant, dtype: Dtype::Bf16 };
const VOCAB: usize = 300;

/// The largest distance of two runs of f32 values in units of the last place.
fn ulps(a: &[f64], b: &[f64]) -> i64 {
    assert_eq!(a.len(), b.len(), "two lengths");
    let key = |x: f64| {
        let bits = i64::from((x as f32).to_bits());
        if bits >> 31 == 0 { bits } else { (1 << 31) - bits }
    };
    a.iter().zip(b).map(|(&a, &b)| (key(a) - key(b)).abs()).max().unwrap_or(0)
}

fn largest(a: &[f64]) -> f64 {
    a.iter().fold(0.0, |max, x| x.abs().max(max))
}

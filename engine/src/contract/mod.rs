//! The numerics contract `sb1`: every rule that decides a bit, once.
//!
//! Here: dtypes, the two summation orders and their block lengths; in the submodules rounding and
//! flushing, `exp_S`, the reductions, and rotary tables. Absent: anything about threads, chunks,
//! caches or instruction sets, since no bit depends on them. The invariant: nothing here calls a
//! transcendental of the platform or of `std`.

mod element;
mod exact;
mod exp;
mod powf;
mod rotary;
mod rotary_exceptions;
mod small_rows;
mod softplus;
mod sum;

pub use element::{Element, NO_EXPONENT, SUBNORMAL, cannot_flush, fma_flush};
pub use exact::{LARGEST_ANGLE, cos_f32, pow_f32, sin_f32};
pub use exp::{exp_s, sigmoid, silu};
pub use rotary::{RotaryTables, inv_freq, largest_angle};
pub use small_rows::{SmallProduct, SmallSum};
pub use softplus::{decay_log, exp_f32, log1p_f32, softplus};
pub use sum::{LANES, halving_tree, sum_of_squares};

use serde::{Deserialize, Serialize};

/// The version of the contract. A changed rule is a new version, never an edit.
pub const CONTRACT: &str = "sb1";

/// The dtype of a run: of every weight, activation and cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16, with f32 accumulation.
    Bf16,
    /// IEEE binary32.
    F32,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The name of the dtype in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

/// Which summation orders a run follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The contract: a row's bits depend on nothing but the row.
    Invariant,
    /// What Transformers computes in eager mode, its dependence on row counts included.
    Transformers,
}

impl Order {
    /// The name of the order in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invariant => "invariant",
            Self::Transformers => "transformers",
        }
    }
}

/// Block length of a linear (and of scores) with `k` terms in a forward of `rows` rows.
pub fn linear_block(order: Order, dtype: Dtype, k: usize, rows: usize) -> usize {
    match dtype {
        Dtype::Bf16 if k <= 1024 || (order == Order::Transformers && rows == 1) => 512,
        Dtype::Bf16 => 1024,
        Dtype::F32 if k <= 192 => k.max(1),
        Dtype::F32 if k < 384 => k / 2,
        Dtype::F32 => 192,
    }
}

/// Block length of probabilities times values, in a forward of `rows` query rows and `keys` keys.
pub fn mix_block(order: Order, dtype: Dtype, keys: usize, rows: usize) -> usize {
    match (order, dtype) {
        (Order::Invariant, Dtype::Bf16) => 1024,
        (Order::Invariant, Dtype::F32) => 192,
        (Order::Transformers, Dtype::Bf16) if rows == 1 || keys <= 1024 => 512,
        (Order::Transformers, Dtype::Bf16) => 1024,
        (Order::Transformers, Dtype::F32) => linear_block(order, dtype, keys, rows),
    }
}

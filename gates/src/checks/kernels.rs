//! Every kernel table this CPU can run against the scalar one and the oracle's `Bits`, on random
//! cases, bit by bit.
//!
//! Deliberately absent: tolerances, and typical inputs alone. Cases draw subnormals, zeros of both
//! signs, infinities, NaN, products near under- and overflow, odd lengths, tails, unaligned starts,
//! and sums whose last terms cancel so that all 24 bits of the accumulator show behind a bf16
//! rounding. The invariant: a case follows from kernel, seed and number alone.

mod attention;
mod delta;
pub(crate) mod draw;
mod product;
mod rowwise;

use std::fmt;

use half::bf16;
use rayon::prelude::*;
use samebits::cpu::Kernels;

use draw::{Draw, Number};

/// A kernel, by what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Products of bf16 rows with a weight.
    LinearBf16,
    /// Products of f32 rows with a weight.
    LinearF32,
    /// Queries times keys, scaled and masked.
    Scores,
    /// Probabilities times values.
    Mix,
    /// Softmax of a row.
    Softmax,
    /// Root mean square norm of a vector.
    RmsNorm,
    /// Rotation of a head.
    Rope,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `a * b`.
    Mul,
    /// `a + b`.
    Add,
    /// Rows of a table.
    Embed,
    /// The lowest index of the largest.
    Argmax,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Root mean square norm whose weight is an offset from one.
    CentredNorm,
    /// Rotation of a part of each head.
    PartialRope,
    /// Each head's query and gate, taken apart.
    SplitGate,
    /// Causal convolution with its state.
    Conv,
    /// Unit vectors of heads.
    L2Norm,
    /// Logarithm of a decay.
    Decay,
    /// Gated delta rule with its state.
    DeltaRule,
    /// Norm with a gate.
    GatedNorm,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::LinearBf16,
        Self::LinearF32,
        Self::Scores,
        Self::Mix,
        Self::Softmax,
        Self::RmsNorm,
        Self::Rope,
        Self::Silu,
        Self::Mul,
        Self::Add,
        Self::Embed,
        Self::Argmax,
        Self::Sigmoid,
        Self::CentredNorm,
        Self::PartialRope,
        Self::SplitGate,
        Self::Conv,
        Self::L2Norm,
        Self::Decay,
        Self::DeltaRule,
        Self::GatedNorm,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LinearBf16 => "linear_bf16",
            Self::LinearF32 => "linear_f32",
            Self::Scores => "scores",
            Self::Mix => "mix",
            Self::Softmax => "softmax",
            Self::RmsNorm => "rms_norm",
            Self::Rope => "rope",
            Self::Silu => "silu",
            Self::Mul => "mul",
            Self::Add => "add",
            Self::Embed => "embed",
            Self::Argmax => "argmax",
            Self::Sigmoid => "sigmoid",
            Self::CentredNorm => "centred_norm",
            Self::PartialRope => "partial_rope",
            Self::SplitGate => "split_gate",
            Self::Conv => "conv",
            Self::L2Norm => "l2_norm",
            Self::Decay => "decay",
            Self::DeltaRule => "delta_rule",
            Self::GatedNorm => "gated_norm",
        }
    }

    fn trial(self, draw: &mut Draw) -> Trial {
        let short = draw.one_in(2);
        match self {
            Self::LinearBf16 => product::linear::<bf16>(draw),
            Self::LinearF32 => product::linear::<f32>(draw),
            Self::Scores if short => attention::scores::<bf16>(draw),
            Self::Scores => attention::scores::<f32>(draw),
            Self::Mix if short => attention::mix::<bf16>(draw),
            Self::Mix => attention::mix::<f32>(draw),
            Self::Embed if short => product::embed::<bf16>(draw),
            Self::Embed => product::embed::<f32>(draw),
            Self::Argmax if short => product::argmax::<bf16>(draw),
            Self::Argmax => product::argmax::<f32>(draw),
            _ if short => self.delta::<bf16>(draw),
            _ => self.delta::<f32>(draw),
        }
    }

    /// A case of a kernel that only hybrids use, or of one on rows.
    fn delta<E: Number>(self, draw: &mut Draw) -> Trial {
        match self {
            Self::PartialRope => delta::partial_rope::<E>(draw),
            Self::SplitGate => delta::split_gate::<E>(draw),
            Self::Conv => delta::conv::<E>(draw),
            Self::L2Norm => delta::l2_norm::<E>(draw),
            Self::Decay => delta::decay::<E>(draw),
            Self::DeltaRule => delta::delta_rule::<E>(draw),
            Self::GatedNorm => delta::gated_norm::<E>(draw),
            _ => rowwise::trial::<E>(self, draw),
        }
    }
}

/// One case: what every table answers, and what the oracle does.
struct Trial {
    /// Shape, dtype, order and kind of values, in words.
    what: String,
    /// Bits of each table's answer, in the order of [`Kernels::supported`]: the scalar one first.
    tables: Vec<Vec<u32>>,
    /// Bits of the oracle's answer.
    oracle: Vec<u32>,
}

/// An element that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which kernel.
    pub kernel: Kernel,
    /// The table that answered.
    pub table: &'static str,
    /// What it was compared with: `scalar` or `oracle`.
    pub against: &'static str,
    /// Seed of the cases.
    pub seed: u64,
    /// Number of the case.
    pub case: u64,
    /// Element of the answer.
    pub element: usize,
    /// The right bits.
    pub want: u32,
    /// The table's bits.
    pub got: u32,
    /// The case, in words.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, against, seed, case, element, want, got, what, .. } = self;
        let name = self.kernel.name();
        write!(f, "{name} of {table}, seed {seed}, case {case} ({what}), element {element}: ")?;
        write!(f, "{got:#x}, {against} has {want:#x}")
    }
}

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Cases compared.
    pub n_compared: u64,
    /// Elements compared, of every table with each of its two references.
    pub n_elements: u64,
    /// Cases in which some element differs.
    pub differing: u64,
    /// The first difference of the lowest such case.
    pub first: Option<Difference>,
}

/// Cases of each kernel in a gate.
pub const CASES: u64 = 10_000;

/// Cases of the control.
pub const CONTROL_CASES: u64 = 64;

/// Compares every supported table with the scalar one and with the oracle.
pub fn check(kernel: Kernel, cases: u64, seed: u64) -> Outcome {
    compare(kernel, cases, seed, |_| {})
}

/// [`CONTROL_CASES`] cases in which one bit of the last table's answer is wrong: all must differ.
pub fn control(kernel: Kernel, seed: u64) -> Outcome {
    compare(kernel, CONTROL_CASES, seed, |trial| {
        let answer = trial.tables.last_mut().expect("the scalar table is always there");
        let middle = answer.len() / 2;
        answer[middle] ^= 1;
    })
}

fn compare(kernel: Kernel, cases: u64, seed: u64, change: impl Fn(&mut Trial) + Sync) -> Outcome {
    let judge = |case| {
        let mut trial = kernel.trial(&mut Draw::new([seed, kernel as u64, case]));
        change(&mut trial);
        judge(kernel, [seed, case], &trial)
    };
    (0..cases).into_par_iter().map(judge).reduce(Outcome::default, |a, b| Outcome {
        n_compared: a.n_compared + b.n_compared,
        n_elements: a.n_elements + b.n_elements,
        differing: a.differing + b.differing,
        first: a.first.or(b.first),
    })
}

fn judge(kernel: Kernel, [seed, case]: [u64; 2], trial: &Trial) -> Outcome {
    let mut outcome = Outcome { n_compared: 1, ..Outcome::default() };
    for (table, answer) in Kernels::supported().iter().zip(&trial.tables) {
        for (against, right) in [("scalar", &trial.tables[0]), ("oracle", &trial.oracle)] {
            assert_eq!(answer.len(), right.len(), "{}: {}: lengths", kernel.name(), trial.what);
            outcome.n_elements += right.len() as u64;
            let at = answer.iter().zip(right).position(|(a, b)| a != b);
            outcome.first = outcome.first.take().or(at.map(|element| {
                let (want, got) = (right[element], answer[element]);
                let (table, what) = (table.name, trial.what.clone());
                Difference { kernel, table, against, seed, case, element, want, got, what }
            }));
        }
    }
    outcome.differing = u64::from(outcome.first.is_some());
    outcome
}

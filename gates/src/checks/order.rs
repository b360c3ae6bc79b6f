//! Reveals the tree in which a backend adds, through its ops alone, and compares it with the
//! contract's.
//!
//! Products are probed with masks: +2^100 at one term, -2^100 at another, ones elsewhere. What
//! survives counts the terms outside the smallest subtree that holds both, and such counts give the
//! whole tree. Longer products, softmax and the sum of squares are probed at three terms: for every
//! inner node of the expected tree, that (left, right) meet before (sibling). These define it.
//! Where no term can be negative, one is large and two are just too small to count unless they
//! meet first.
//!
//! Deliberately absent: the engine's contract. The expected trees are built here from the rules as
//! they are written down. The invariant: every tree is asked of the ops a forward runs.

mod expected;
mod masks;
mod ops;
mod triples;

use std::fmt;

use samebits::contract::{Dtype, Order};
use samebits::op::Backend;

/// A sum whose order is a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Rows times a weight.
    Linear,
    /// Queries times keys, over the width of a head.
    Scores,
    /// Probabilities times values, over the keys.
    Mix,
    /// The sum of exponentials.
    Softmax,
    /// The sum under a norm's root.
    SumOfSquares,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Linear, Self::Scores, Self::Mix, Self::Softmax, Self::SumOfSquares];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Scores => "scores",
            Self::Mix => "mix",
            Self::Softmax => "softmax",
            Self::SumOfSquares => "sum of squares",
        }
    }
}

/// One tree to reveal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    reduction: Reduction,
    k: usize,
    rows: usize,
    dtype: Dtype,
    order: Order,
}

/// A tree that is not the contract's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which sum.
    pub reduction: Reduction,
    /// Terms of the sum.
    pub k: usize,
    /// Rows of the forward.
    pub rows: usize,
    /// Dtype of the run.
    pub dtype: Dtype,
    /// The order it was compared with.
    pub order: Order,
    /// The first term that is placed elsewhere.
    pub leaf: usize,
    /// What the contract says of that term.
    pub expected: String,
    /// What the probes say.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reduction, k, rows, dtype, order, leaf, expected, got } = self;
        let (name, dtype, order) = (reduction.name(), dtype.name(), order.name());
        write!(f, "{name} of {k} terms, {rows} rows, {dtype}, {order} order, term {leaf}: ")?;
        write!(f, "{expected}, the backend: {got}")
    }
}

/// What the probes found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Trees revealed and compared.
    pub n_compared: u64,
    /// Trees that there are to compare.
    pub n_expected: u64,
    /// Trees that differ.
    pub differences: Vec<Difference>,
}

/// Lengths of the sums probed: odd, around blocks, and beyond 1,024.
const LENGTHS: [usize; 8] = [65, 64, 193, 300, 513, 1024, 1025, 2560];

/// Below 16 keys the orders differ. Too short for a bf16 probe, which needs terms to spare.
const SHORT: usize = 13;

/// Longest products whose whole tree is revealed; longer ones are held to the expected one.
const REVEALED: usize = 300;

/// More rows than a tile takes together.
const MANY: usize = 7;

fn cases(dtype: Dtype, order: Order) -> Vec<Case> {
    let mut cases = Vec::new();
    for reduction in Reduction::ALL {
        let short = (reduction == Reduction::Softmax && dtype == Dtype::F32).then_some(SHORT);
        for k in LENGTHS.into_iter().chain(short) {
            let rows: &[usize] =
                if reduction == Reduction::SumOfSquares { &[1] } else { &[1, MANY] };
            cases.extend(rows.iter().map(|&rows| Case { reduction, k, rows, dtype, order }));
        }
    }
    cases
}

/// Trees that [`check`] compares.
pub fn n_expected(dtype: Dtype, order: Order) -> u64 {
    cases(dtype, order).len() as u64
}

/// Reveals every sum of `b` in `dtype` and compares it with the contract's tree for `order`.
pub fn check<B: Backend>(b: &mut B, dtype: Dtype, order: Order) -> Outcome {
    let mut outcome = Outcome { n_expected: n_expected(dtype, order), ..Outcome::default() };
    for case in cases(dtype, order) {
        let want = expected::tree(case.reduction, (case.k, case.rows), dtype, order);
        let found = match case.reduction {
            Reduction::Linear | Reduction::Scores | Reduction::Mix if case.k <= REVEALED => {
                masks::compare(b, case, &want)
            }
            _ => triples::compare(b, case, &want),
        };
        outcome.n_compared += 1;
        outcome.differences.extend(found.map(|(leaf, [expected, got])| {
            let Case { reduction, k, rows, dtype, order } = case;
            Difference { reduction, k, rows, dtype, order, leaf, expected, got }
        }));
    }
    outcome
}

/// A differing term, and what was expected of it and found.
type Found = Option<(usize, [String; 2])>;

/// A tree of additions; parts in the order of their lowest terms.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tree {
    lowest: usize,
    count: usize,
    parts: Vec<Tree>,
}

impl Tree {
    fn leaf(term: usize) -> Self {
        Self { lowest: term, count: 1, parts: Vec::new() }
    }

    fn sum(a: Self, b: Self) -> Self {
        let (lowest, count) = (a.lowest.min(b.lowest), a.count + b.count);
        let parts = if a.lowest < b.lowest { vec![a, b] } else { vec![b, a] };
        Self { lowest, count, parts }
    }

    /// One after another, left to right.
    fn chain(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        parts.into_iter().reduce(Self::sum)
    }

    fn leaves(&self, into: &mut Vec<usize>) {
        if self.parts.is_empty() {
            into.push(self.lowest);
        }
        self.parts.iter().for_each(|part| part.leaves(into));
    }

    /// For each term, the size of the smallest subtree that holds it and `term`.
    fn meets(&self, term: usize, k: usize) -> Vec<usize> {
        let (mut sizes, mut at) = (vec![1; k], self);
        while !at.parts.is_empty() {
            let mut next = at;
            for part in &at.parts {
                let mut leaves = Vec::new();
                part.leaves(&mut leaves);
                if leaves.contains(&term) {
                    next = part;
                } else {
                    leaves.into_iter().for_each(|leaf| sizes[leaf] = at.count);
                }
            }
            at = next;
        }
        sizes
    }
}

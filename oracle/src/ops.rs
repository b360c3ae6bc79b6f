//! The operations of the model: what each one reads and writes.
//!
//! Values are f64 slices, row-major, already in the run's dtype (bf16 and f32 are exact in f64).
//! Deliberately absent: how they are computed (`Arithmetic`). Invariant: every extent follows from
//! the lengths of the slices and the numbers given; what does not fit panics.

use std::ops::Range;

pub use crate::hybrid::{Conv, Decay, Delta, DeltaHeads, DeltaRule, GatedNorm, PartialRope};

/// What an operation writes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Out {
    /// The values, row-major.
    pub values: Vec<f64>,
    /// Sum of the squares of the terms of each value: `Ideal`'s `linear`, `scores`, `mix`, `conv`.
    pub squares: Option<Vec<f64>>,
}

/// `x W^T`.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// `[rows, k]`.
    pub x: &'a [f64],
    /// `[n, k]`.
    pub weight: &'a [f64],
    /// Terms of each sum.
    pub k: usize,
    /// Rows of the forward (batch x new tokens), of which `x` may hold a part.
    pub true_rows: usize,
}

/// Where the rows and columns of a [`Linear`] stand in the product of the whole forward: in f32,
/// Transformers sums a few rows or columns by rules of their own.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Of each row of `x`, its number in the forward (batch x new tokens).
    pub rows: &'a [usize],
    /// The first column computed.
    pub first_column: usize,
    /// Columns of the whole product.
    pub columns: usize,
    /// Floats from a 16-byte boundary to the whole weight, where the library reads it.
    pub weight_start: usize,
}

/// Which sequence of a batch an attention is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Sequences in the forward.
    pub sequences: usize,
    /// This one, from 0.
    pub sequence: usize,
}

impl Batch {
    /// A forward of one sequence.
    pub const ALONE: Self = Self { sequences: 1, sequence: 0 };
}

/// `w * (x / sqrt(mean(x^2) + eps))`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// `[rows, n]`.
    pub x: &'a [f64],
    /// `[n]`.
    pub weight: &'a [f64],
    /// Added under the root.
    pub eps: f64,
}

/// A rotary table, in the run's dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// `[positions, head_dim / 2]`.
    pub cos: Vec<f64>,
    /// `[positions, head_dim / 2]`.
    pub sin: Vec<f64>,
}

/// Rotation of the halves of every head.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// `[rows, heads, head_dim]`.
    pub x: &'a [f64],
    /// Rows for positions from 0 on.
    pub tables: &'a Tables,
    /// Heads in a row.
    pub heads: usize,
    /// Even.
    pub head_dim: usize,
    /// Position of row 0.
    pub first: usize,
}

/// Heads of an attention; query head `j` reads key head `j / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of each.
    pub head_dim: usize,
}

/// Scaled and masked scores, `[heads, rows, keys]`. Row `r` sees keys `0..=first + r`; the others
/// hold `masked()`.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// `[rows, heads, head_dim]`.
    pub q: &'a [f64],
    /// `[keys, kv_heads, head_dim]`.
    pub k: &'a [f64],
    /// Heads of `q` and `k`.
    pub dims: Heads,
    /// Position of row 0.
    pub first: usize,
    /// New tokens of the forward, of which `q` may hold a part.
    pub true_rows: usize,
}

/// Probabilities, `[heads, rows, keys]`; 0 for keys that a row does not see.
#[derive(Clone, Copy, Debug)]
pub struct Softmax<'a> {
    /// `[heads, rows, keys]`.
    pub scores: &'a [f64],
    /// Query rows of each head.
    pub rows: usize,
    /// Keys of each row.
    pub keys: usize,
    /// Position of row 0.
    pub first: usize,
}

/// Probabilities x values, `[rows, heads * head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct Mix<'a> {
    /// `[heads, rows, keys]`.
    pub probs: &'a [f64],
    /// `[keys, kv_heads, head_dim]`.
    pub v: &'a [f64],
    /// Heads of `probs` and `v`.
    pub dims: Heads,
    /// Position of row 0.
    pub first: usize,
    /// New tokens of the forward, of which `probs` may hold a part.
    pub true_rows: usize,
}

impl Linear<'_> {
    /// `(rows, n)`.
    pub(crate) fn extents(&self) -> (usize, usize) {
        let (x, w, k) = (self.x.len(), self.weight.len(), self.k);
        assert!(k > 0 && x % k == 0 && w % k == 0, "linear: {x} and {w} are not rows of {k}");
        (x / k, w / k)
    }
}

impl Scores<'_> {
    pub(crate) fn extents(&self) -> (usize, usize) {
        let (q, k, d) = (self.q.len(), self.k.len(), self.dims);
        let (rows, keys) = (q / (d.heads * d.head_dim), k / (d.kv_heads * d.head_dim));
        assert_eq!(rows * d.heads * d.head_dim, q, "scores: q is not [rows, heads, head_dim]");
        assert_eq!(
            keys * d.kv_heads * d.head_dim,
            k,
            "scores: k is not [keys, kv_heads, head_dim]"
        );
        (rows, keys)
    }
}

impl Mix<'_> {
    pub(crate) fn extents(&self) -> (usize, usize) {
        let (p, v, d) = (self.probs.len(), self.v.len(), self.dims);
        let keys = v / (d.kv_heads * d.head_dim);
        let rows = p / (d.heads * keys);
        assert_eq!(keys * d.kv_heads * d.head_dim, v, "mix: v is not [keys, kv_heads, head_dim]");
        assert_eq!(rows * d.heads * keys, p, "mix: probs is not [heads, rows, keys]");
        (rows, keys)
    }
}

impl Heads {
    /// The key head that a query head reads.
    pub(crate) fn kv(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// Where the vector of a query head lies in `[rows, heads, head_dim]`.
    pub(crate) fn query(&self, row: usize, head: usize) -> Range<usize> {
        let at = (row * self.heads + head) * self.head_dim;
        at..at + self.head_dim
    }

    /// Where the vector that a query head reads lies in `[keys, kv_heads, head_dim]`.
    pub(crate) fn key(&self, key: usize, head: usize) -> Range<usize> {
        let at = (key * self.kv_heads + self.kv(head)) * self.head_dim;
        at..at + self.head_dim
    }
}

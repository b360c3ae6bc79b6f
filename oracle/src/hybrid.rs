//! The operations of the hybrid family: what each one reads and writes, and their loops.
//!
//! Values are f64 slices, row-major, already in the dtype that each field states. Deliberately
//! absent: how numbers are rounded and summed (`Arithmetic`). Invariant: every extent follows from
//! the lengths of the slices and the numbers given; what does not fit panics.

use std::ops::Range;

use rayon::prelude::*;

use crate::arithmetic::Arithmetic;
use crate::ops::{Out, Rope};

/// Rotation of the first `width` values of every head; the others pass.
#[derive(Clone, Copy, Debug)]
pub struct PartialRope<'a> {
    /// Heads whole, tables as wide as the rotated part: `[positions, width / 2]`.
    pub rope: Rope<'a>,
    /// Rotated values of a head; even.
    pub width: usize,
}

/// Causal convolution of each channel over its tokens, before any activation.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// `[rows, channels]`.
    pub x: &'a [f64],
    /// `[any, channels]`: the rows before row 0, oldest first; those that are missing are 0.
    pub history: &'a [f64],
    /// `[channels, kernel]`; the last tap multiplies the row itself.
    pub weight: &'a [f64],
    /// Taps of a channel.
    pub kernel: usize,
}

/// `-exp(log) * softplus(a + bias)`, `[rows, value_heads]`, f32 whatever the dtype of the run.
#[derive(Clone, Copy, Debug)]
pub struct Decay<'a> {
    /// `[rows, value_heads]`.
    pub a: &'a [f64],
    /// `[value_heads]`, as [`parameter`](crate::Arithmetic::parameter) casts it.
    pub log: &'a [f64],
    /// `[value_heads]`.
    pub bias: &'a [f64],
}

/// Heads of a delta rule; value head `j` reads key head `j / (value_heads / key_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v, of the decay and of the state.
    pub value_heads: usize,
    /// Width of a head of q and k.
    pub key_dim: usize,
    /// Width of a head of v.
    pub value_dim: usize,
}

/// The gated delta rule, token by token, in f32 whatever the dtype of the run.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// `[rows, key_heads, key_dim]`, f32: of unit length, not yet times `key_dim^-0.5`.
    pub q: &'a [f64],
    /// `[rows, key_heads, key_dim]`, f32: of unit length.
    pub k: &'a [f64],
    /// `[rows, value_heads, value_dim]`.
    pub v: &'a [f64],
    /// `[rows, value_heads]`.
    pub beta: &'a [f64],
    /// `[rows, value_heads]`, f32.
    pub g: &'a [f64],
    /// Heads of all these.
    pub heads: DeltaHeads,
    /// `[value_heads, key_dim, value_dim]`, f32: the state before row 0.
    pub state: &'a [f64],
}

/// What a delta rule writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// `[rows, value_heads, value_dim]`.
    pub core: Out,
    /// `[value_heads, key_dim, value_dim]`, f32: the state after the last row.
    pub state: Vec<f64>,
}

/// `w * (x / sqrt(mean(x^2) + eps)) * silu(gate)`, row by row.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm<'a> {
    /// `[rows, n]`.
    pub x: &'a [f64],
    /// `[rows, n]`.
    pub gate: &'a [f64],
    /// `[n]`, as [`parameter`](crate::Arithmetic::parameter) casts it.
    pub weight: &'a [f64],
    /// Added under the root.
    pub eps: f64,
}

impl DeltaHeads {
    /// Channels of the convolution: q, k and v of every head.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Values of a row of q or of k.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of a row of v.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Values of a state.
    pub fn state(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Where the key vector that a value head reads lies in `[rows, key_heads, key_dim]`.
    pub(crate) fn key(&self, row: usize, value_head: usize) -> Range<usize> {
        let head = value_head / (self.value_heads / self.key_heads);
        let at = (row * self.key_heads + head) * self.key_dim;
        at..at + self.key_dim
    }
}

impl DeltaRule<'_> {
    /// Rows, after a check of every length.
    pub(crate) fn rows(&self) -> usize {
        let (h, rows) = (self.heads, self.g.len() / self.heads.value_heads);
        let lengths = [
            ("g", self.g.len(), rows * h.value_heads),
            ("beta", self.beta.len(), rows * h.value_heads),
            ("q", self.q.len(), rows * h.keys()),
            ("k", self.k.len(), rows * h.keys()),
            ("v", self.v.len(), rows * h.values()),
            ("state", self.state.len(), h.state()),
        ];
        for (field, got, want) in lengths {
            assert_eq!(got, want, "delta rule: length of {field}");
        }
        rows
    }
}

/// See [`PartialRope`]; `[rows, heads, head_dim]`.
pub(crate) fn partial_rope(a: &(impl Arithmetic + ?Sized), op: &PartialRope<'_>) -> Out {
    let mut values = op.rope.x.to_vec();
    let parts = op.rope.x.chunks_exact(op.rope.head_dim).flat_map(|x| &x[..op.width]);
    let x: Vec<f64> = parts.copied().collect();
    let turned = a.rope(&Rope { x: &x, head_dim: op.width, ..op.rope }).values;
    let heads = values.chunks_exact_mut(op.rope.head_dim);
    for (head, turned) in heads.zip(turned.chunks_exact(op.width)) {
        head[..op.width].copy_from_slice(turned);
    }
    Out { values, squares: None }
}

/// See [`Conv`]; `[rows, channels]`.
pub(crate) fn conv(a: &(impl Arithmetic + ?Sized), op: &Conv<'_>) -> Out {
    let channels = op.weight.len() / op.kernel;
    assert_eq!(channels * op.kernel, op.weight.len(), "conv: weight is not rows of taps");
    assert!(
        op.x.len().is_multiple_of(channels) && op.history.len().is_multiple_of(channels),
        "conv: rows are not as wide as the channels"
    );
    let (rows, before) = (op.x.len() / channels, op.history.len() / channels);
    let input = |row: usize, c: usize| match row.checked_sub(before) {
        Some(row) => op.x[row * channels + c],
        None => op.history[row * channels + c],
    };
    let value = |i: usize| {
        let (row, c) = (i / channels + before, i % channels);
        let taps = &op.weight[c * op.kernel..][..op.kernel];
        let source = |tap: usize| (row + tap + 1).checked_sub(op.kernel);
        let x = |tap: usize| source(tap).map_or(0.0, |row| input(row, c));
        let sum = (0..op.kernel).fold(0.0, |acc, tap| a.link(x(tap), taps[tap], acc));
        let square = |tap: usize| (x(tap) * taps[tap]).powi(2);
        let squares = if a.gives_squares() { (0..op.kernel).map(square).sum() } else { 0.0 };
        (a.round(sum), squares)
    };
    let (values, squares): (_, Vec<f64>) = (0..rows * channels).map(value).unzip();
    Out { values, squares: a.gives_squares().then_some(squares) }
}

/// See [`DeltaRule`]: decay first, the error from the decayed state, the output from the new.
pub(crate) fn delta_rule(a: &(impl Arithmetic + ?Sized), op: &DeltaRule<'_>) -> Delta {
    let (h, rows) = (op.heads, op.rows());
    let heads = (0..h.value_heads).into_par_iter().map(|head| delta_head(a, op, head));
    let heads: Vec<(Vec<f64>, Vec<f64>)> = heads.collect();
    let row =
        |r: usize| heads.iter().flat_map(move |(core, _)| &core[r * h.value_dim..][..h.value_dim]);
    let values = (0..rows).flat_map(row).copied().collect();
    let state = heads.iter().flat_map(|(_, state)| state).copied().collect();
    Delta { core: Out { values, squares: None }, state }
}

/// One value head of [`delta_rule`]: `[rows, value_dim]` and its state.
fn delta_head(
    a: &(impl Arithmetic + ?Sized),
    op: &DeltaRule<'_>,
    head: usize,
) -> (Vec<f64>, Vec<f64>) {
    let (h, rows, n) = (op.heads, op.rows(), op.heads.value_dim);
    let mut state = op.state[head * h.key_dim * n..][..h.key_dim * n].to_vec();
    let scale = a.constant(1.0 / (h.key_dim as f64).sqrt());
    let mut core = Vec::with_capacity(rows * n);
    for row in 0..rows {
        let at = row * h.value_heads + head;
        let (q, k) = (&op.q[h.key(row, head)], &op.k[h.key(row, head)]);
        let (v, beta, decay) = (&op.v[at * n..][..n], op.beta[at], a.wide(a.exp(op.g[at])));
        let (mut seen, mut out) = (vec![0.0; n], vec![0.0; n]);
        for (line, k) in state.chunks_exact_mut(n).zip(k) {
            for (s, seen) in line.iter_mut().zip(&mut seen) {
                *s = a.wide(*s * decay);
                *seen = a.link(*k, *s, *seen);
            }
        }
        let error = |(v, seen): (&f64, &f64)| a.wide(a.wide(v - a.wide(*seen)) * beta);
        let error: Vec<f64> = v.iter().zip(&seen).map(error).collect();
        for ((line, k), q) in state.chunks_exact_mut(n).zip(k).zip(q) {
            let q = a.wide(q * scale);
            for ((s, d), out) in line.iter_mut().zip(&error).zip(&mut out) {
                *s = a.wide(a.link(*k, *d, *s));
                *out = a.link(q, *s, *out);
            }
        }
        core.extend(out.into_iter().map(|o| a.round(a.wide(o))));
    }
    (core, state)
}

/// See [`GatedNorm`]: rounded before its weight, after it, and after the gate.
pub(crate) fn gated_norm(a: &(impl Arithmetic + ?Sized), op: &GatedNorm<'_>) -> Out {
    let n = op.weight.len();
    assert_eq!(op.x.len(), op.gate.len(), "gated_norm: two lengths");
    assert!(op.x.len().is_multiple_of(n), "gated_norm: rows are not as wide as the weight");
    let eps = a.constant(op.eps);
    let row = |(x, gate): (&[f64], &[f64])| {
        let normed = a.norm_row(x, op.weight, eps);
        let each = |(t, z): (f64, &f64)| a.round(a.step(t * a.silu_step(*z)));
        normed.into_iter().zip(gate).map(each).collect::<Vec<_>>()
    };
    let rows = op.x.chunks_exact(n).zip(op.gate.chunks_exact(n));
    Out { values: rows.flat_map(row).collect(), squares: None }
}

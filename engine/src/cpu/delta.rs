//! Ops of a gated delta net: convolution, unit vectors, decay, the delta rule, the gated norm.
//!
//! Rows of a sequence follow one another through the state; heads and sequences are independent,
//! and threads split nothing else. The invariant: a row takes the same steps whether it is one of a
//! prefill or comes alone, so that no bit depends on how a prompt is cut up.

use rayon::prelude::*;

use super::kernels::{ConvRow, DeltaStep, Table};
use super::memory::{Act, Ints, Weight};
use super::simd::for_each_tile_beside;
use crate::contract::{Element, decay_log};
use crate::op::DeltaHeads;

/// Elements below which an op is not worth a second thread.
const TASK: usize = 8192;

/// How many sequences, and new rows of each.
#[derive(Clone, Copy)]
pub struct Batch {
    /// Sequences.
    pub sequences: usize,
    /// New rows per sequence.
    pub rows: usize,
}

impl Batch {
    /// Zeroes each sequence's part of `state` where the sequence is at its start.
    fn begin<T: Copy>(self, state: &mut [T], zero: T, positions: &Ints) {
        let each = state.len() / self.sequences;
        for (sequence, state) in state.chunks_exact_mut(each).enumerate() {
            if positions.values()[sequence * self.rows] == 0 {
                state.fill(zero);
            }
        }
    }
}

/// The convolution of all rows, then the state's move past them.
pub fn conv<E: Element>(
    table: &Table<E>,
    out: &mut Act,
    state: &mut Act,
    x: &Act,
    weight: &[E],
    positions: &Ints,
    (batch, heads): (Batch, DeltaHeads),
) {
    let (width, kernel) = (heads.channels(), heads.kernel);
    let count = batch.sequences * batch.rows;
    assert_eq!(weight.len(), width * kernel, "conv: weight is not channels x kernel");
    let state = state.rows_mut::<E>(batch.sequences * kernel, width);
    batch.begin(state, E::ZERO, positions);
    let (out, x) = (out.rows_mut::<E>(count, width), x.rows::<E>(count, width));
    let (each, kept) = (batch.rows * width, kernel * width);
    out.par_chunks_exact_mut(width).enumerate().with_min_len(TASK.div_ceil(width)).for_each(
        |(row, out)| {
            let (sequence, at) = (row / batch.rows, row % batch.rows);
            let state = &state[sequence * kept..][..kept];
            let x = &x[sequence * each..][..each];
            (table.conv)(out, &ConvRow { state, x, weight, at, kernel });
        },
    );
    for (state, x) in state.chunks_exact_mut(kept).zip(x.chunks_exact(each)) {
        let new = each.min(kept);
        state.copy_within(new.., 0);
        state[kept - new..].copy_from_slice(&x[each - new..]);
    }
}

/// Where heads lie in a row.
#[derive(Clone, Copy)]
pub struct Slot {
    /// Element where the first begins.
    pub first: usize,
    /// Elements in a row.
    pub stride: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
}

/// Unit vectors of the heads of each row.
pub fn l2_norm<E: Element>(table: &Table<E>, out: &mut Act, x: &Act, rows: usize, slot: Slot) {
    let width = slot.heads * slot.dim;
    let x = x.rows::<E>(rows, slot.stride);
    let out = out.rows_mut::<f32>(rows, width);
    let rows = out.par_chunks_exact_mut(width).zip(x.par_chunks_exact(slot.stride));
    rows.with_min_len(TASK.div_ceil(width)).for_each(|(out, x)| {
        let x = &x[slot.first..slot.first + width];
        for (out, x) in out.chunks_exact_mut(slot.dim).zip(x.chunks_exact(slot.dim)) {
            (table.l2_norm)(out, x);
        }
    });
}

/// The logarithm of each head's decay.
pub fn decay<E: Element>(out: &mut [f32], a: &[E], a_log: &[f32], dt_bias: &[E]) {
    let heads = a_log.len();
    assert_eq!(dt_bias.len(), heads, "decay: dt_bias is not as long as a_log");
    let rows = out.par_chunks_exact_mut(heads).zip(a.par_chunks_exact(heads));
    rows.for_each(|(out, a)| {
        for (head, (out, a)) in out.iter_mut().zip(a).enumerate() {
            *out = decay_log(a_log[head], a.widen(), dt_bias[head].widen());
        }
    });
}

/// Inputs of the delta rule, rows of all sequences.
pub struct Rule<'a> {
    /// `[rows, key heads, key_dim]`
    pub q: &'a Act,
    /// `[rows, key heads, key_dim]`
    pub k: &'a Act,
    /// `[rows, channels]`
    pub qkv: &'a Act,
    /// `[rows, value heads]`
    pub g: &'a Act,
    /// `[rows, value heads]`
    pub beta: &'a Act,
    /// What each query is multiplied by.
    pub scale: f32,
    /// `[rows]`
    pub positions: &'a Ints,
}

/// The delta rule: each head of each sequence is one task that walks the rows in order.
pub fn rule<E: Element>(
    table: &Table<E>,
    out: &mut Act,
    state: &mut Act,
    rule: &Rule<'_>,
    (batch, heads): (Batch, DeltaHeads),
) {
    let DeltaHeads { key, value, key_dim, value_dim, .. } = heads;
    let count = batch.sequences * batch.rows;
    let (keys, values, channels) = (heads.keys(), heads.values(), heads.channels());
    let state = state.rows_mut::<f32>(batch.sequences * value * key_dim, value_dim);
    batch.begin(state, 0.0, rule.positions);
    let (q, k) = (rule.q.rows::<f32>(count, keys), rule.k.rows::<f32>(count, keys));
    let (v, g) = (rule.qkv.rows::<E>(count, channels), rule.g.rows::<f32>(count, value));
    let beta = rule.beta.rows::<E>(count, value);
    let out = out.rows_mut::<E>(count, values);
    for_each_tile_beside(out, values, [batch.rows, value_dim], state, |mut tile, state| {
        let head = tile.first_column / value_dim;
        let key_head = head / (value / key);
        for i in 0..tile.rows() {
            let row = tile.first_row + i;
            let at = row * keys + key_head * key_dim;
            let step = DeltaStep {
                q: &q[at..at + key_dim],
                k: &k[at..at + key_dim],
                v: &v[row * channels + 2 * keys + head * value_dim..][..value_dim],
                g: g[row * value + head],
                beta: beta[row * value + head].widen(),
                scale: rule.scale,
            };
            (table.delta_rule)(tile.row(i), state, &step);
        }
    });
}

/// The gated norm of each vector.
pub fn gated_norm<E: Element>(
    table: &Table<E>,
    out: &mut [E],
    (x, z): (&[E], &[E]),
    weight: &Weight,
    eps: f32,
) {
    let weight = weight.vector::<f32>();
    let width = weight.len();
    let vectors = x.par_chunks_exact(width).zip(z.par_chunks_exact(width));
    let min = TASK.div_ceil(width);
    out.par_chunks_exact_mut(width).zip(vectors).with_min_len(min).for_each(|(out, (x, z))| {
        (table.gated_norm)(out, x, z, weight, eps);
    });
}

/// Takes each head's query and gate apart.
pub fn split_gate<E: Element>(query: &mut [E], gate: &mut [E], x: &[E], dim: usize) {
    let heads = query.chunks_exact_mut(dim).zip(gate.chunks_exact_mut(dim));
    for ((query, gate), x) in heads.zip(x.chunks_exact(2 * dim)) {
        query.copy_from_slice(&x[..dim]);
        gate.copy_from_slice(&x[dim..]);
    }
}

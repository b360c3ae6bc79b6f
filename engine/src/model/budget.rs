//! Memory of a run, computed before anything is made.

use super::shape::Shape;
use super::state::Limits;
use crate::checkpoint::Family;
use crate::contract::Dtype;

/// Bytes that a resident run needs, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Weights.
    pub weights: u64,
    /// Keys and values, and states of gated delta nets.
    pub caches: u64,
    /// Activations, rotary tables and logits.
    pub activations: u64,
}

impl Budget {
    /// The budget of a resident run.
    pub fn of(shape: &Shape, dtype: Dtype, tied: bool, limits: Limits) -> Self {
        let wide = |n: usize| n as u64;
        let (hidden, inner) = (wide(shape.hidden), wide(shape.intermediate));
        let query = wide(shape.heads) * wide(shape.head_dim);
        let kv = wide(shape.kv_heads) * wide(shape.head_dim);
        let head = wide(shape.head_dim);
        let (delta, full) = (&shape.delta, shape.kinds.count_full(shape.layers));
        let (full, linear) = (wide(full), wide(shape.layers - full));
        let (channels, values) = (wide(delta.channels()), wide(delta.values()));
        let (value, state) = (wide(delta.value), wide(delta.key_dim * delta.values()));
        let gates = if shape.family == Family::Qwen3 { 0 } else { query };
        let every = 3 * hidden * inner + 2 * hidden;
        let attention = every + hidden * (2 * (query + kv) + gates) + 2 * head;
        let net = hidden * (channels + 2 * values + 2 * value) + channels * wide(delta.kernel);
        let layers = full * attention + linear * (every + net + value);
        let wide_weights = linear * (value + wide(delta.value_dim));
        let tables = if tied { 1 } else { 2 } * wide(shape.vocab) * hidden;
        let rows = wide(limits.batch) * wide(limits.rows);
        let row = 4 * hidden + 4 * query + 4 * kv + 4 * inner;
        let row = row + 5 * gates + 3 * channels + 3 * values + 3 * value;
        let wide_row = value + 2 * wide(delta.keys());
        let keys = wide(limits.batch) * wide(shape.heads) * wide(limits.chunk);
        let logits = wide(limits.batch) * wide(limits.logit_rows) * (hidden + wide(shape.vocab));
        let positions = wide(limits.positions);
        let conv = channels * wide(delta.kernel);
        let batch = wide(limits.batch);
        let caches = batch * (2 * kv * positions * full + linear * conv);
        let bytes = |elements: u64| elements * dtype.size() as u64;
        let f32s = |elements: u64| elements * Dtype::F32.size() as u64;
        let rotary = wide(shape.rotary_dim) * positions;
        Self {
            weights: bytes(tables + hidden + layers) + f32s(wide_weights),
            caches: bytes(caches) + f32s(batch * linear * state),
            activations: bytes(rows * row + 2 * keys * positions + logits + rotary)
                + f32s(rows * wide_row),
        }
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.weights + self.caches + self.activations
    }
}

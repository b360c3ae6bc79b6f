//! Memory of a run, computed before anything is made.

use super::shape::Shape;
use super::state::Limits;
use crate::contract::Dtype;

/// Bytes that a resident run needs, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Weights.
    pub weights: u64,
    /// Keys and values.
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
        let layer = 2 * hidden * (query + kv) + 3 * hidden * inner + 2 * (hidden + head);
        let tables = if tied { 1 } else { 2 } * wide(shape.vocab) * hidden;
        let rows = wide(limits.batch) * wide(limits.rows);
        let row = 4 * hidden + 4 * query + 4 * kv + 4 * inner;
        let keys = wide(limits.batch) * wide(shape.heads) * wide(limits.chunk);
        let logits = wide(limits.batch) * wide(limits.logit_rows) * (hidden + wide(shape.vocab));
        let positions = wide(limits.positions);
        let caches = 2 * wide(limits.batch) * kv * positions * wide(shape.layers);
        let bytes = |elements: u64| elements * dtype.size() as u64;
        Self {
            weights: bytes(tables + hidden + wide(shape.layers) * layer),
            caches: bytes(caches),
            activations: bytes(rows * row + 2 * keys * positions + logits + head * positions),
        }
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.weights + self.caches + self.activations
    }
}

//! Where an op runs and what it spans: sites, rows, heads, and where a norm rounds.

use std::fmt;

use super::Mem;

/// Where in the model an op runs: the name of the tensor it materialises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The decoder layer, or `None` outside the layer loop.
    pub layer: Option<usize>,
    /// The op's name within the layer, after Transformers' module where one exists.
    pub op: &'static str,
}

impl Site {
    /// A site outside the layer loop.
    pub const fn global(op: &'static str) -> Self {
        Self { layer: None, op }
    }

    /// The same place under the name of one of the op's outputs.
    pub const fn named(self, op: &'static str) -> Self {
        Self { layer: self.layer, op }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.op),
            None => f.write_str(self.op),
        }
    }
}

/// The rows an op computes, out of the rows of the whole forward.
///
/// The op reads rows `first .. first + count` of its input and writes rows `0 .. count` of its
/// output. `of` decides one-row rules of [`crate::contract::Order::Transformers`]; a chunk never
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// First row read.
    pub first: usize,
    /// Rows computed.
    pub count: usize,
    /// Rows of the forward that this op belongs to.
    pub of: usize,
}

impl Rows {
    /// All rows of a forward.
    pub const fn all(rows: usize) -> Self {
        Self { first: 0, count: rows, of: rows }
    }
}

/// Attention geometry, the same for every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Sequences in the batch.
    pub batch: usize,
    /// Query heads.
    pub query: usize,
    /// Key and value heads; query head `j` reads head `j / (query / kv)`.
    pub kv: usize,
    /// Width of one head.
    pub dim: usize,
}

/// Geometry of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Query and key heads.
    pub key: usize,
    /// Value heads; value head `j` reads key head `j / (value / key)`.
    pub value: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub kernel: usize,
}

impl DeltaHeads {
    /// Width of all queries, and of all keys.
    pub const fn keys(&self) -> usize {
        self.key * self.key_dim
    }

    /// Width of all values.
    pub const fn values(&self) -> usize {
        self.value * self.value_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub const fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// Where an RMSNorm rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormForm {
    /// Round the normalised value to the run's dtype, then multiply by the weight (Qwen3).
    RoundThenScale,
    /// Multiply by the weight in f32, then round once.
    ScaleThenRound,
    /// Multiply by one plus the weight in f32, then round once (Qwen3.5).
    ZeroCentred,
}

/// What attention ops share: geometry, which query rows, and the device's view of the keys.
pub struct Span<'a, M: Mem> {
    /// Head geometry.
    pub heads: Heads,
    /// Query rows within each sequence; `of` is the forward's rows per sequence.
    pub rows: Rows,
    /// Position of each row of the forward: `[batch * of]`.
    pub positions: &'a M::Ints,
    /// One number: keys in the cache once this forward's are appended.
    pub keys: &'a M::Ints,
    /// Row stride of scores and probabilities; at least the key count.
    pub stride: usize,
}

impl<M: Mem> Clone for Span<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Mem> Copy for Span<'_, M> {}

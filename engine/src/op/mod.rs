//! The seam: an operation is a value, and a backend is whatever executes one.
//!
//! Here: `Op`, the sites it runs at, and `Backend`; in the submodules device memory and what an op
//! writes. Absent on purpose: hooks of any kind. Whatever watches or changes a run is a decorator
//! that wraps a `Backend`. The invariant: an op names everything it writes in [`Op::outs`].

mod memory;
mod outs;

pub use memory::{Fence, Kv, Layout, Mem, Memory, Rotary};
pub use outs::{Out, Part, Written};

use std::fmt;

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

/// Where an RMSNorm rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormForm {
    /// Round the normalised value to the run's dtype, then multiply by the weight (Qwen3).
    RoundThenScale,
    /// Multiply by the weight in f32, then round once.
    ScaleThenRound,
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

/// One operation of a forward pass. Every float buffer is in the run's dtype.
pub enum Op<'a, M: Mem> {
    /// `out[r] = table[ids[r]]`.
    Embed {
        /// `[rows, hidden]`
        out: &'a mut M::Act,
        /// `[vocab, hidden]`
        table: &'a M::Weight,
        /// `[rows]`
        ids: &'a M::Ints,
        /// Rows of the forward.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// Root mean square norm of `rows` vectors, each scaled by the weight.
    RmsNorm {
        /// `[rows, n]`
        out: &'a mut M::Act,
        /// `[rows, n]`
        x: &'a M::Act,
        /// `[n]`
        weight: &'a M::Weight,
        /// Added to the mean of squares, in f32.
        eps: f32,
        /// Where it rounds.
        form: NormForm,
        /// Number of vectors.
        rows: usize,
        /// Elements in a vector.
        width: usize,
    },
    /// `out = x Wᵀ`, rounded once.
    Linear {
        /// `[rows.count, n]`
        out: &'a mut M::Act,
        /// `[.., k]`
        x: &'a M::Act,
        /// `[n, k]`
        weight: &'a M::Weight,
        /// Which rows.
        rows: Rows,
        /// Outputs in a row.
        width: usize,
    },
    /// Rotary embedding in two halves: pairs `(i, i + dim / 2)`.
    Rope {
        /// `[rows, heads, dim]`
        out: &'a mut M::Act,
        /// `[rows, heads, dim]`
        x: &'a M::Act,
        /// Tables of cosines and sines.
        table: &'a Rotary<M>,
        /// `[rows]`
        positions: &'a M::Ints,
        /// Rows of the forward.
        rows: usize,
        /// Heads in a row.
        heads: usize,
        /// Width of a head.
        dim: usize,
    },
    /// Writes the forward's keys and values at their positions of the cache.
    KvAppend {
        /// The layer's cache.
        cache: &'a mut Kv<M>,
        /// `[batch * rows, kv, dim]`
        k: &'a M::Act,
        /// `[batch * rows, kv, dim]`
        v: &'a M::Act,
        /// `[batch * rows]`
        positions: &'a M::Ints,
        /// Head geometry.
        heads: Heads,
        /// New rows per sequence.
        rows: usize,
    },
    /// `out = round(round(q kᵀ) * scale)`, masked.
    Scores {
        /// `[batch, heads, rows.count, stride]`
        out: &'a mut M::Act,
        /// `[batch * of, heads, dim]`
        q: &'a M::Act,
        /// The layer's cache.
        cache: &'a Kv<M>,
        /// `dim^-0.5`
        scale: f32,
        /// Geometry and rows.
        span: Span<'a, M>,
    },
    /// Softmax over the keys of each row, in f32.
    Softmax {
        /// `[batch, heads, rows.count, stride]`
        out: &'a mut M::Act,
        /// `[batch, heads, rows.count, stride]`
        x: &'a M::Act,
        /// Geometry and rows.
        span: Span<'a, M>,
    },
    /// Probabilities times values. Writes rows `rows.first ..` of `out`.
    Mix {
        /// `[batch * of, heads, dim]`
        out: &'a mut M::Act,
        /// `[batch, heads, rows.count, stride]`
        probs: &'a M::Act,
        /// The layer's cache.
        cache: &'a Kv<M>,
        /// Geometry and rows.
        span: Span<'a, M>,
    },
    /// `out = x / (1 + exp(-x))`.
    Silu {
        /// `[len]`
        out: &'a mut M::Act,
        /// `[len]`
        x: &'a M::Act,
        /// Rows of the forward.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// `out = a * b`.
    Mul {
        /// `[rows, width]`
        out: &'a mut M::Act,
        /// `[rows, width]`
        a: &'a M::Act,
        /// `[rows, width]`
        b: &'a M::Act,
        /// Rows of the forward.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// `out = a + b`.
    Add {
        /// `[rows, width]`
        out: &'a mut M::Act,
        /// `[rows, width]`
        a: &'a M::Act,
        /// `[rows, width]`
        b: &'a M::Act,
        /// Rows of the forward.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// `out[r] = x[ids[r]]`: rows picked by number.
    Take {
        /// `[rows, width]`
        out: &'a mut M::Act,
        /// `[.., width]`
        x: &'a M::Act,
        /// `[rows]`
        ids: &'a M::Ints,
        /// Rows picked.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// The lowest index among the largest of each row; `u32::MAX` where a row holds a NaN.
    Argmax {
        /// `[rows]`
        out: &'a mut M::Ints,
        /// `[rows, width]`
        x: &'a M::Act,
        /// Number of rows.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
}

/// Executes ops. A decorator implements [`Backend::exec`], passes [`Backend::mem`] on, and is done.
pub trait Backend {
    /// Handles of the device.
    type M: Mem;

    /// Executes one op. Shape errors are bugs and panic; device errors surface at `read`.
    fn exec(&mut self, site: Site, op: &mut Op<'_, Self::M>);

    /// The device's memory.
    fn mem(&mut self) -> &mut dyn Memory<Self::M>;

    /// Executes several ops; a backend may fuse here.
    fn exec_all(&mut self, ops: &mut [(Site, Op<'_, Self::M>)]) {
        for (site, op) in ops {
            self.exec(*site, op);
        }
    }

    /// Executes an op given by value.
    fn run(&mut self, site: Site, mut op: Op<'_, Self::M>) {
        self.exec(site, &mut op);
    }
}

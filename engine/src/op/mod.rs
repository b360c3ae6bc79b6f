//! The seam: an operation is a value, and a backend is whatever executes one.
//!
//! Here: `Op` and `Backend`; in the submodules sites and geometry, device memory, and what an op
//! writes. Absent on purpose: hooks of any kind. Whatever watches or changes a run is a decorator
//! that wraps a `Backend`. The invariant: an op names everything it writes in [`Op::outs`].

mod geometry;
mod memory;
mod outs;

pub use geometry::{DeltaHeads, Heads, NormForm, Rows, Site, Span};
pub use memory::{Fence, Gdn, Kv, Layout, Mem, Memory, Rotary};
pub use outs::{CONV_STATE, Out, Part, STATE, Written};

/// One operation of a forward pass. Every float buffer is in the run's dtype, unless it says f32.
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
    /// Rotary embedding in two halves: pairs `(i, i + rotary / 2)`. What lies beyond `rotary` in a
    /// head passes through.
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
        /// Width that is rotated; even, at most `dim`.
        rotary: usize,
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
    /// `out = 1 / (1 + exp(-x))`.
    Sigmoid {
        /// `[rows, width]`
        out: &'a mut M::Act,
        /// `[rows, width]`
        x: &'a M::Act,
        /// Rows of the forward.
        rows: usize,
        /// Elements in a row.
        width: usize,
    },
    /// Takes each head's `[query | gate]` apart.
    SplitGate {
        /// `[rows, heads, dim]`
        query: &'a mut M::Act,
        /// `[rows, heads, dim]`
        gate: &'a mut M::Act,
        /// `[rows, heads, 2, dim]`
        x: &'a M::Act,
        /// Rows of the forward.
        rows: usize,
        /// Heads in a row.
        heads: usize,
        /// Width of a head.
        dim: usize,
    },
    /// Causal convolution over time, a kernel for each channel: an f32 FMA chain over the taps, the
    /// oldest first, rounded once. Moves the state on. A sequence at position 0 starts from zeros.
    Conv {
        /// `[batch * rows, channels]`
        out: &'a mut M::Act,
        /// The last inputs of each sequence, oldest first: `[batch, kernel, channels]`
        state: &'a mut M::Act,
        /// `[batch * rows, channels]`
        x: &'a M::Act,
        /// A vector `[channels * kernel]`: the taps of a channel side by side.
        weight: &'a M::Weight,
        /// `[batch * rows]`
        positions: &'a M::Ints,
        /// Sequences.
        batch: usize,
        /// New rows per sequence.
        rows: usize,
        /// Geometry.
        heads: DeltaHeads,
    },
    /// `out = x / sqrt(sum of squares + 1e-6)` for each head, in f32.
    L2Norm {
        /// f32 `[rows, heads, dim]`
        out: &'a mut M::Act,
        /// `[rows, stride]`
        x: &'a M::Act,
        /// Element of a row where the first head begins.
        first: usize,
        /// Elements in a row.
        stride: usize,
        /// Rows of the forward.
        rows: usize,
        /// Heads in a row.
        heads: usize,
        /// Width of a head.
        dim: usize,
    },
    /// `out = -exp(a_log) * softplus(a + dt_bias)`, in f32: the logarithm of each head's decay.
    Decay {
        /// f32 `[rows, heads]`
        out: &'a mut M::Act,
        /// `[rows, heads]`
        a: &'a M::Act,
        /// f32 `[heads]`
        a_log: &'a M::Weight,
        /// `[heads]`
        dt_bias: &'a M::Weight,
        /// Rows of the forward.
        rows: usize,
        /// Heads in a row.
        heads: usize,
    },
    /// The gated delta rule at every position in turn, in f32: decay the state, predict from it,
    /// write the error back, read. A sequence at position 0 starts from a state of zeros.
    DeltaRule {
        /// `[batch * rows, value heads, value_dim]`
        out: &'a mut M::Act,
        /// f32 `[batch, value heads, key_dim, value_dim]`
        state: &'a mut M::Act,
        /// f32 `[batch * rows, key heads, key_dim]`
        q: &'a M::Act,
        /// f32 `[batch * rows, key heads, key_dim]`
        k: &'a M::Act,
        /// `[batch * rows, channels]`: queries, keys, values; the values are read.
        qkv: &'a M::Act,
        /// f32 `[batch * rows, value heads]`
        g: &'a M::Act,
        /// `[batch * rows, value heads]`
        beta: &'a M::Act,
        /// `key_dim^-0.5`, which each query is multiplied by
        scale: f32,
        /// `[batch * rows]`
        positions: &'a M::Ints,
        /// Sequences.
        batch: usize,
        /// New rows per sequence.
        rows: usize,
        /// Geometry.
        heads: DeltaHeads,
    },
    /// RMSNorm of each vector, rounded before and after the weight, times `silu(z)`.
    GatedNorm {
        /// `[rows, width]`
        out: &'a mut M::Act,
        /// `[rows, width]`
        x: &'a M::Act,
        /// `[rows, width]`
        z: &'a M::Act,
        /// f32 `[width]`
        weight: &'a M::Weight,
        /// Added to the mean of squares, in f32.
        eps: f32,
        /// Number of vectors.
        rows: usize,
        /// Elements in a vector.
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

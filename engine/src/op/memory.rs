//! Device memory as the host sees it: handles, layouts, and the calls that move data.

use super::Heads;
use crate::contract::Dtype;
use crate::tensor::Tensor;

/// How an activation or cache buffer is laid out; bits never depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Elements in the order of the shape.
    RowMajor,
    /// A key cache `[batch, kv, capacity, dim]` whose keys are columns of packed panels.
    Keys(Heads),
    /// A value cache `[batch, kv, capacity, dim]` whose dims are columns of packed panels.
    Values(Heads),
}

/// Handles of one device.
pub trait Mem {
    /// A buffer of activations in the run's dtype.
    type Act;
    /// A weight in the device's preferred layout.
    type Weight;
    /// A buffer of `u32`: token ids, positions, key counts.
    type Ints;
}

/// What a device lets the host do with its memory. Reads are the only way out of it.
pub trait Memory<M: Mem> {
    /// A buffer of `len` elements. Contents are unspecified until an op or a write fills them.
    fn alloc(&mut self, len: usize, dtype: Dtype, layout: Layout) -> M::Act;
    /// A buffer of `len` integers, zeroed.
    fn alloc_ints(&mut self, len: usize) -> M::Ints;
    /// Copies elements `start .. start + data.len()`, in row-major order, to the device.
    fn write(&mut self, act: &mut M::Act, start: usize, data: &Tensor);
    /// Copies integers to the start of `ints`.
    fn write_ints(&mut self, ints: &mut M::Ints, data: &[u32]);
    /// Copies elements `start .. start + len`, in row-major order, to the host. NaN is canonical.
    fn read(&mut self, act: &M::Act, start: usize, len: usize) -> Tensor;
    /// Copies the first `out.len()` integers to the host.
    fn fetch_ints(&mut self, ints: &M::Ints, out: &mut [u32]);
    /// The first `len` integers, in a new vector.
    fn read_ints(&mut self, ints: &M::Ints, len: usize) -> Vec<u32> {
        let mut out = vec![0; len];
        self.fetch_ints(ints, &mut out);
        out
    }
    /// A weight `[n, k]`, or a vector `[n]` where `k` is none, to be filled by `write_weight`.
    fn alloc_weight(&mut self, n: usize, k: Option<usize>, dtype: Dtype) -> M::Weight;
    /// Copies whole rows, row-major, from row `first` on.
    fn write_weight(&mut self, weight: &mut M::Weight, first: usize, data: &Tensor);
    /// Notes where a weight's file holds it, in floats, where its bytes are used as they are there:
    /// f32 sums of few rows depend on it in `Order::Transformers`.
    fn note_place(&mut self, _weight: &mut M::Weight, _floats: u64) {}
    /// Rows and columns of a weight; a vector has one column.
    fn weight_shape(&self, weight: &M::Weight) -> (usize, usize);
    /// Rows `first .. first + count` of a weight, row-major, as on disk.
    fn read_weight(&mut self, weight: &M::Weight, first: usize, count: usize) -> Tensor;
    /// A point that all work queued so far lies before.
    fn fence(&mut self) -> Fence;
}

/// A point in a device's queue. A slot is refilled only behind the fence of its last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// Rotary tables in device memory.
pub struct Rotary<M: Mem> {
    /// Cosines in the run's dtype.
    pub cos: M::Act, // [capacity, dim / 2]
    /// Sines in the run's dtype.
    pub sin: M::Act, // [capacity, dim / 2]
}

/// What a gated delta net carries from one position to the next.
pub struct Gdn<M: Mem> {
    /// The convolution's last inputs, oldest first, as projected: before any activation.
    pub conv: M::Act, // [batch, kernel, channels]
    /// The state, in f32 for every dtype of a run: its error compounds over the whole sequence.
    pub s: M::Act, // [batch, value heads, key_dim, value_dim]
}

/// One layer's keys and values.
pub struct Kv<M: Mem> {
    /// Keys after norm and rotation.
    pub k: M::Act, // [batch, kv, capacity, dim]
    /// Values.
    pub v: M::Act, // [batch, kv, capacity, dim]
    /// Positions the cache can hold.
    pub capacity: usize,
}

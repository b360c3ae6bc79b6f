//! Memory of the CPU backend: aligned buffers behind the handles of the seam.

use half::bf16;

use super::panels::{PANEL, Panels, pack};
use crate::contract::{Dtype, Element, NO_EXPONENT};
use crate::op::{Fence, Heads, Layout, Mem, Memory};
use crate::tensor::Tensor;

/// Handles of the CPU.
pub struct CpuMem;

impl Mem for CpuMem {
    type Act = Act;
    type Weight = Weight;
    type Ints = Ints;
}

/// Integers in host memory.
pub struct Ints(Vec<u32>);

impl Ints {
    /// The integers.
    pub fn values(&self) -> &[u32] {
        &self.0
    }

    /// The integers, to be written.
    pub fn values_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }
}

/// Elements that start at a cache line. Never grows, so the alignment holds.
struct Buffer<E> {
    data: Vec<E>,
    start: usize,
    len: usize,
}

const LINE_BYTES: usize = 64;

impl<E: Element> Buffer<E> {
    fn new(len: usize) -> Self {
        let data = vec![E::ZERO; len + LINE_BYTES / size_of::<E>()];
        let start = data.as_ptr().align_offset(LINE_BYTES);
        Self { data, start, len }
    }

    fn get(&self) -> &[E] {
        &self.data[self.start..self.start + self.len]
    }

    fn get_mut(&mut self) -> &mut [E] {
        &mut self.data[self.start..self.start + self.len]
    }
}

enum Store {
    Bf16(Buffer<bf16>),
    F32(Buffer<f32>),
}

impl Store {
    fn new(dtype: Dtype, len: usize) -> Self {
        match dtype {
            Dtype::Bf16 => Self::Bf16(Buffer::new(len)),
            Dtype::F32 => Self::F32(Buffer::new(len)),
        }
    }

    fn dtype(&self) -> Dtype {
        match self {
            Self::Bf16(_) => Dtype::Bf16,
            Self::F32(_) => Dtype::F32,
        }
    }

    fn get<E: Element>(&self) -> &[E] {
        let any: &dyn std::any::Any = match self {
            Self::Bf16(b) => b,
            Self::F32(b) => b,
        };
        any.downcast_ref::<Buffer<E>>().expect("an op's buffers share one dtype").get()
    }

    fn get_mut<E: Element>(&mut self) -> &mut [E] {
        let any: &mut dyn std::any::Any = match self {
            Self::Bf16(b) => b,
            Self::F32(b) => b,
        };
        any.downcast_mut::<Buffer<E>>().expect("an op's buffers share one dtype").get_mut()
    }

    /// Element by element copy to the host, at `at(i)` for i in 0 .. len.
    fn gather(&self, len: usize, at: impl Fn(usize) -> usize) -> Tensor {
        match self {
            Self::Bf16(b) => Tensor::Bf16((0..len).map(|i| b.get()[at(i)].canonical()).collect()),
            Self::F32(b) => Tensor::F32((0..len).map(|i| b.get()[at(i)].canonical()).collect()),
        }
    }

    fn scatter(&mut self, data: &Tensor, at: impl Fn(usize) -> usize) {
        match (self, data) {
            (Self::Bf16(b), Tensor::Bf16(v)) => {
                v.iter().enumerate().for_each(|(i, x)| b.get_mut()[at(i)] = *x);
            }
            (Self::F32(b), Tensor::F32(v)) => {
                v.iter().enumerate().for_each(|(i, x)| b.get_mut()[at(i)] = *x);
            }
            _ => panic!("write: dtypes differ"),
        }
    }
}

/// At most the smallest exponent of what was ever written to each panel.
pub struct Lowest(Vec<i32>);

impl Lowest {
    fn new(panels: usize) -> Self {
        Self(vec![NO_EXPONENT; panels])
    }

    /// Notes values that a panel holds from now on.
    pub fn note<E: Element>(&mut self, panel: usize, values: &[E]) {
        self.0[panel] = self.0[panel].min(E::lowest_exponent(values));
    }
}

/// A buffer of activations, or a cache.
pub struct Act {
    store: Store,
    layout: Layout,
    len: usize,
    lowest: Lowest, // [panels of all matrices], none where rows are not packed
}

impl Act {
    /// The dtype of the elements.
    pub fn dtype(&self) -> Dtype {
        self.store.dtype()
    }

    /// The first `rows * width` elements of a row-major buffer.
    pub fn rows<E: Element>(&self, rows: usize, width: usize) -> &[E] {
        assert_eq!(self.layout, Layout::RowMajor, "a cache has no rows");
        &self.store.get::<E>()[..rows * width]
    }

    /// The first `rows * width` elements of a row-major buffer, to be written.
    pub fn rows_mut<E: Element>(&mut self, rows: usize, width: usize) -> &mut [E] {
        assert_eq!(self.layout, Layout::RowMajor, "a cache has no rows");
        &mut self.store.get_mut::<E>()[..rows * width]
    }

    /// At most the smallest exponent of what was written to a panel, counted through all matrices.
    pub fn lowest_exponent(&self, panel: usize) -> i32 {
        self.lowest.0[panel]
    }

    /// All panels of a cache: one packed matrix for each sequence and head.
    pub fn panels<E: Element>(&self) -> (Panels, &[E]) {
        (self.cache(), self.store.get::<E>())
    }

    /// All panels of a cache, to be written, and where to note what is.
    pub fn panels_mut<E: Element>(&mut self) -> (Panels, &mut [E], &mut Lowest) {
        (self.cache(), self.store.get_mut::<E>(), &mut self.lowest)
    }

    fn cache(&self) -> Panels {
        self.panels_of().expect("a row-major buffer has no panels")
    }

    fn panels_of(&self) -> Option<Panels> {
        cache_panels(self.layout, self.len, lanes(self.dtype()))
    }

    /// Where element `i` of the row-major order lies.
    fn place(&self, i: usize) -> usize {
        let Some(panels) = self.panels_of() else { return i };
        let (Layout::Keys(heads) | Layout::Values(heads)) = self.layout else { return i };
        let capacity = self.len / (heads.batch * heads.kv * heads.dim);
        let (row, dim) = (i / heads.dim, i % heads.dim);
        let (matrix, position) = (row / capacity, row % capacity);
        let within = match self.layout {
            Layout::Keys(_) => panels.index(position, dim),
            _ => panels.index(dim, position),
        };
        matrix * panels.len() + within
    }
}

fn lanes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bf16 => bf16::LANES,
        Dtype::F32 => f32::LANES,
    }
}

/// The geometry of one sequence's and head's matrix of a cache of `len` elements.
fn cache_panels(layout: Layout, len: usize, lanes: usize) -> Option<Panels> {
    let capacity = |heads: Heads| len / (heads.batch * heads.kv * heads.dim);
    match layout {
        Layout::RowMajor => None,
        Layout::Keys(h) => Some(Panels { n: capacity(h), k: h.dim, lanes }),
        Layout::Values(h) => Some(Panels { n: h.dim, k: capacity(h), lanes }),
    }
}

/// A weight: a matrix in packed panels, or a plain vector.
pub struct Weight {
    store: Store,
    n: usize,
    packed: Option<Panels>,
    lowest: Lowest, // [panels]
}

impl Weight {
    /// Rows and columns; a vector has one column.
    fn shape(&self) -> (usize, usize) {
        (self.n, self.packed.map_or(1, |p| p.k))
    }

    /// The packed matrix.
    pub fn panels<E: Element>(&self) -> (Panels, &[E]) {
        (self.packed.expect("a vector has no panels"), self.store.get::<E>())
    }

    /// At most the smallest exponent of a non-zero element of a panel.
    pub fn lowest_exponent(&self, panel: usize) -> i32 {
        self.lowest.0[panel]
    }

    /// A vector's elements.
    pub fn vector<E: Element>(&self) -> &[E] {
        assert!(self.packed.is_none(), "a matrix is not a vector");
        self.store.get::<E>()
    }
}

/// Where element `i` of the row-major order lies.
fn weight_place(packed: Option<Panels>, i: usize) -> usize {
    packed.map_or(i, |p| p.index(i / p.k, i % p.k))
}

/// The CPU's memory: every call is done when it returns.
#[derive(Default)]
pub struct CpuMemory {
    fences: u64,
}

impl Memory<CpuMem> for CpuMemory {
    fn alloc(&mut self, len: usize, dtype: Dtype, layout: Layout) -> Act {
        let packed = cache_panels(layout, len, lanes(dtype));
        let stored = match (layout, packed) {
            (Layout::Keys(h) | Layout::Values(h), Some(p)) => h.batch * h.kv * p.len(),
            _ => len,
        };
        let panels = packed.map_or(0, |p| stored / p.panel_len());
        Act { store: Store::new(dtype, stored), layout, len, lowest: Lowest::new(panels) }
    }

    fn alloc_ints(&mut self, len: usize) -> Ints {
        Ints(vec![0; len])
    }

    fn write(&mut self, act: &mut Act, start: usize, data: &Tensor) {
        assert!(start + data.len() <= act.len, "write: beyond the buffer");
        let places: Vec<usize> = (start..start + data.len()).map(|i| act.place(i)).collect();
        act.store.scatter(data, |i| places[i]);
        if let (Tensor::Bf16(values), Some(panels)) = (data, act.panels_of()) {
            let noted = values.iter().zip(&places);
            noted.for_each(|(x, at)| act.lowest.note(at / panels.panel_len(), &[*x]));
        }
    }

    fn write_ints(&mut self, ints: &mut Ints, data: &[u32]) {
        ints.0[..data.len()].copy_from_slice(data);
    }

    fn read(&mut self, act: &Act, start: usize, len: usize) -> Tensor {
        assert!(start + len <= act.len, "read: beyond the buffer");
        act.store.gather(len, |i| act.place(start + i))
    }

    fn fetch_ints(&mut self, ints: &Ints, out: &mut [u32]) {
        out.copy_from_slice(&ints.0[..out.len()]);
    }

    fn alloc_weight(&mut self, n: usize, k: Option<usize>, dtype: Dtype) -> Weight {
        let packed = k.map(|k| Panels { n, k, lanes: lanes(dtype) });
        let len = packed.map_or(n, |p| p.len());
        let lowest = Lowest::new(packed.map_or(0, |p| p.count()));
        Weight { store: Store::new(dtype, len), n, packed, lowest }
    }

    fn write_weight(&mut self, weight: &mut Weight, first: usize, data: &Tensor) {
        let (n, k) = weight.shape();
        assert_eq!(data.len() % k, 0, "write_weight: not whole rows");
        assert!(first * k + data.len() <= n * k, "write_weight: beyond it");
        match (weight.packed, data) {
            (None, _) => weight.store.scatter(data, |i| first + i),
            (Some(panels), Tensor::Bf16(v)) => {
                pack(panels, weight.store.get_mut(), first, v);
                let rows = v.chunks(k).enumerate();
                rows.for_each(|(i, row)| weight.lowest.note((first + i) / PANEL, row));
            }
            (Some(panels), Tensor::F32(v)) => pack(panels, weight.store.get_mut(), first, v),
        }
    }

    fn weight_shape(&self, weight: &Weight) -> (usize, usize) {
        weight.shape()
    }

    fn read_weight(&mut self, weight: &Weight, first: usize, count: usize) -> Tensor {
        let (n, k) = weight.shape();
        assert!(first + count <= n, "read_weight: beyond it");
        weight.store.gather(count * k, |i| weight_place(weight.packed, first * k + i))
    }

    fn fence(&mut self) -> Fence {
        self.fences += 1;
        Fence(self.fences)
    }
}

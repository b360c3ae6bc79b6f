//! Counts what crosses between host and device: reads, writes, buffers, fences.
//!
//! Absent: waits that a backend makes inside an op, which the seam does not show. The invariant:
//! every call of the device's memory is counted before it is passed on.

use std::cell::{Cell, RefCell};
use std::ops::Sub;
use std::rc::Rc;

use samebits::contract::Dtype;
use samebits::op::{Backend, Fence, Layout, Mem, Memory, Op, Site};
use samebits::tensor::Tensor;

/// Calls and elements so far, one count a name of [`Traffic::NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic(pub [u64; 10]);

impl Traffic {
    /// What is counted.
    pub const NAMES: [&str; 10] = [
        "id_reads",
        "ids_read",
        "reads",
        "elements_read",
        "weight_reads",
        "id_writes",
        "writes",
        "weight_writes",
        "buffers",
        "fences",
    ];

    /// Counts by name; what is not named is 0.
    ///
    /// # Panics
    /// A name that is not counted.
    pub fn of(counts: &[(&str, u64)]) -> Self {
        let mut traffic = Self::default();
        for (name, count) in counts {
            let at = Self::NAMES.iter().position(|n| n == name);
            traffic.0[at.expect("only counted names are asked for")] = *count;
        }
        traffic
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - before.0[i]))
    }
}

/// A backend whose memory is watched.
pub struct Watched<B> {
    inner: RefCell<B>, // `weight_shape` takes `&self`, a backend's memory is `&mut`
    traffic: Rc<Cell<Traffic>>,
}

impl<B: Backend> Watched<B> {
    /// Counts into the returned cell.
    pub fn new(inner: B) -> (Self, Rc<Cell<Traffic>>) {
        let traffic = Rc::new(Cell::new(Traffic::default()));
        (Self { inner: RefCell::new(inner), traffic: Rc::clone(&traffic) }, traffic)
    }

    fn count(&self, counts: &[(&str, u64)]) {
        let mut all = self.traffic.get();
        for (sum, count) in all.0.iter_mut().zip(Traffic::of(counts).0) {
            *sum += count;
        }
        self.traffic.set(all);
    }

    fn memory(&mut self) -> &mut dyn Memory<B::M> {
        self.inner.get_mut().mem()
    }
}

impl<B: Backend> Backend for Watched<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        self.inner.get_mut().exec(site, op);
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self
    }
}

impl<B: Backend> Memory<B::M> for Watched<B> {
    fn alloc(&mut self, len: usize, dtype: Dtype, layout: Layout) -> <B::M as Mem>::Act {
        self.count(&[("buffers", 1)]);
        self.memory().alloc(len, dtype, layout)
    }

    fn alloc_ints(&mut self, len: usize) -> <B::M as Mem>::Ints {
        self.count(&[("buffers", 1)]);
        self.memory().alloc_ints(len)
    }

    fn write(&mut self, act: &mut <B::M as Mem>::Act, start: usize, data: &Tensor) {
        self.count(&[("writes", 1)]);
        self.memory().write(act, start, data);
    }

    fn write_ints(&mut self, ints: &mut <B::M as Mem>::Ints, data: &[u32]) {
        self.count(&[("id_writes", 1)]);
        self.memory().write_ints(ints, data);
    }

    fn read(&mut self, act: &<B::M as Mem>::Act, start: usize, len: usize) -> Tensor {
        self.count(&[("reads", 1), ("elements_read", len as u64)]);
        self.memory().read(act, start, len)
    }

    fn fetch_ints(&mut self, ints: &<B::M as Mem>::Ints, out: &mut [u32]) {
        self.count(&[("id_reads", 1), ("ids_read", out.len() as u64)]);
        self.memory().fetch_ints(ints, out);
    }

    fn alloc_weight(&mut self, n: usize, k: Option<usize>, dtype: Dtype) -> <B::M as Mem>::Weight {
        self.count(&[("buffers", 1)]);
        self.memory().alloc_weight(n, k, dtype)
    }

    fn write_weight(&mut self, weight: &mut <B::M as Mem>::Weight, first: usize, data: &Tensor) {
        self.count(&[("weight_writes", 1)]);
        self.memory().write_weight(weight, first, data);
    }

    fn note_place(&mut self, weight: &mut <B::M as Mem>::Weight, floats: u64) {
        self.inner.borrow_mut().mem().note_place(weight, floats);
    }

    fn weight_shape(&self, weight: &<B::M as Mem>::Weight) -> (usize, usize) {
        self.inner.borrow_mut().mem().weight_shape(weight)
    }

    fn read_weight(
        &mut self,
        weight: &<B::M as Mem>::Weight,
        first: usize,
        count: usize,
    ) -> Tensor {
        self.count(&[("weight_reads", 1)]);
        self.memory().read_weight(weight, first, count)
    }

    fn fence(&mut self) -> Fence {
        self.count(&[("fences", 1)]);
        self.memory().fence()
    }
}

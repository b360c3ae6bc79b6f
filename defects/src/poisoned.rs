//! A backend whose memory starts as NaN, with guard bands behind what ops write.
//!
//! Deliberately absent: poison in weights, which admission proves to be written whole, and guard
//! bands behind caches, whose layout is the device's own. The invariant: an op that reads what
//! nothing has written spreads NaN, and one that writes beyond its outs is named.

use std::cell::RefCell;

use half::bf16;
use samebits::contract::Dtype;
use samebits::op::{Backend, Fence, Layout, Mem, Memory, Op, Out, Part, Site};
use samebits::tensor::Tensor;

/// Elements of a guard band.
const GUARD: usize = 64;

/// An op that changed elements it does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// Where.
    pub site: Site,
    /// The first such element of the buffer.
    pub element: usize,
}

/// A backend with poisoned memory.
pub struct Poisoned<B> {
    inner: RefCell<B>, // `weight_shape` takes `&self`, a backend's memory is `&mut`
    overruns: Vec<Overrun>,
}

impl<B: Backend> Poisoned<B> {
    /// Poisons what is allocated through `inner` from now on.
    pub fn new(inner: B) -> Self {
        Self { inner: RefCell::new(inner), overruns: Vec::new() }
    }

    /// Ops that wrote beyond their outs.
    pub fn overruns(&self) -> &[Overrun] {
        &self.overruns
    }

    /// The backend below.
    pub fn into_inner(self) -> B {
        self.inner.into_inner()
    }

    /// What lies around the op's outs: for each, first elements and bits.
    fn around(&mut self, op: &mut Op<'_, B::M>) -> Vec<(usize, Vec<u32>)> {
        let mem = self.inner.get_mut().mem();
        let mut around = Vec::new();
        for out in op.outs() {
            match out {
                Out::Ints { ints, len } => {
                    let band = mem.read_ints(ints, len + GUARD).split_off(len);
                    around.push((len, band));
                }
                Out::Act { act, part, .. } => {
                    for (start, len) in bands(&part, mem) {
                        let band = mem.read(act, start, len);
                        around.push((start, (0..len).map(|i| band.bits(i)).collect()));
                    }
                }
            }
        }
        around
    }
}

/// Runs of elements that the op must leave alone.
fn bands<M: Mem>(part: &Part<'_, M>, mem: &mut dyn Memory<M>) -> Vec<(usize, usize)> {
    match part {
        Part::Rows { rows, width } => vec![(rows * width, GUARD)],
        Part::Chunk { batch, rows, width } => {
            let before = |b: usize| (b * rows.of * width, rows.first * width);
            let after = |b: usize| {
                let end = rows.first + rows.count;
                ((b * rows.of + end) * width, (rows.of - end) * width)
            };
            let end = (batch * rows.of * width, GUARD);
            (0..*batch).flat_map(|b| [before(b), after(b)]).chain([end]).collect()
        }
        Part::Keys(span) => {
            let keys = mem.read_ints(span.keys, 1)[0] as usize;
            let rows = span.heads.batch * span.heads.query * span.rows.count;
            let tail = |r| (r * span.stride + keys, span.stride - keys);
            (0..rows).map(tail).chain([(rows * span.stride, GUARD)]).collect()
        }
        Part::Cache { .. } => Vec::new(),
    }
}

impl<B: Backend> Backend for Poisoned<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        let before = self.around(op);
        self.inner.get_mut().exec(site, op);
        let after = self.around(op);
        for ((start, before), (_, after)) in before.iter().zip(&after) {
            if let Some(i) = before.iter().zip(after).position(|(a, b)| a != b) {
                self.overruns.push(Overrun { site, element: start + i });
            }
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self
    }
}

impl<B: Backend> Memory<B::M> for Poisoned<B> {
    fn alloc(&mut self, len: usize, dtype: Dtype, layout: Layout) -> <B::M as Mem>::Act {
        let len = if layout == Layout::RowMajor { len + GUARD } else { len };
        let mut act = self.inner.get_mut().mem().alloc(len, dtype, layout);
        let poison = match dtype {
            Dtype::Bf16 => Tensor::Bf16(vec![bf16::NAN; len]),
            Dtype::F32 => Tensor::F32(vec![f32::NAN; len]),
        };
        self.inner.get_mut().mem().write(&mut act, 0, &poison);
        act
    }

    fn alloc_ints(&mut self, len: usize) -> <B::M as Mem>::Ints {
        let mut ints = self.inner.get_mut().mem().alloc_ints(len + GUARD);
        self.inner.get_mut().mem().write_ints(&mut ints, &vec![u32::MAX; len + GUARD]);
        ints
    }

    fn write(&mut self, act: &mut <B::M as Mem>::Act, start: usize, data: &Tensor) {
        self.inner.get_mut().mem().write(act, start, data);
    }

    fn write_ints(&mut self, ints: &mut <B::M as Mem>::Ints, data: &[u32]) {
        self.inner.get_mut().mem().write_ints(ints, data);
    }

    fn read(&mut self, act: &<B::M as Mem>::Act, start: usize, len: usize) -> Tensor {
        self.inner.get_mut().mem().read(act, start, len)
    }

    fn fetch_ints(&mut self, ints: &<B::M as Mem>::Ints, out: &mut [u32]) {
        self.inner.get_mut().mem().fetch_ints(ints, out)
    }

    fn alloc_weight(&mut self, n: usize, k: Option<usize>, dtype: Dtype) -> <B::M as Mem>::Weight {
        self.inner.get_mut().mem().alloc_weight(n, k, dtype)
    }

    fn write_weight(&mut self, weight: &mut <B::M as Mem>::Weight, first: usize, data: &Tensor) {
        self.inner.get_mut().mem().write_weight(weight, first, data);
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
        self.inner.get_mut().mem().read_weight(weight, first, count)
    }

    fn fence(&mut self) -> Fence {
        self.inner.get_mut().mem().fence()
    }
}

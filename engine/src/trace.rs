//! Taps: a decorator that copies what ops write, and joins the copies into one tensor a site.

use std::collections::BTreeMap;

use crate::contract::{Dtype, Element};
use crate::op::{Backend, CONV_STATE, Memory, Op, Out, STATE, Site, Written};
use crate::tensor::Tensor;

/// A backend whose ops' outputs are copied to the host. Of a state only the last copy is kept.
pub struct Traced<B> {
    inner: B,
    batch: usize,
    wanted: fn(Site) -> bool,
    taps: BTreeMap<Site, Vec<Written>>,
}

/// One site's tensor: the rows of all forwards, joined; a state as the last forward left it.
#[derive(Clone, Debug)]
pub struct Tap {
    /// Shape; a leading batch axis only where there is more than one sequence.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Tensor,
}

impl<B: Backend> Traced<B> {
    /// Copies what `inner` writes for `batch` sequences.
    pub fn new(inner: B, batch: usize) -> Self {
        Self::only(inner, batch, |_| true)
    }

    /// The same, for chosen sites only.
    pub fn only(inner: B, batch: usize, wanted: fn(Site) -> bool) -> Self {
        Self { inner, batch, wanted, taps: BTreeMap::new() }
    }

    /// The taps so far, by site name, and the backend.
    pub fn finish(self) -> (BTreeMap<String, Tap>, B) {
        let batch = self.batch;
        let join =
            |(site, parts): (Site, Vec<Written>)| (site.to_string(), join(site, batch, parts));
        (self.taps.into_iter().map(join).collect(), self.inner)
    }
}

impl<B: Backend> Backend for Traced<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        self.inner.exec(site, op);
        for out in op.outs() {
            let Out::Act { name, act, part } = out else { continue };
            let site = name.map_or(site, |name| site.named(name));
            if (self.wanted)(site) {
                let written = part.read(self.inner.mem(), act);
                let taps = self.taps.entry(site).or_default();
                if matches!(site.op, CONV_STATE | STATE) {
                    taps.clear();
                }
                taps.push(written);
            }
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self.inner.mem()
    }
}

/// Joins parts along the rows of a sequence, padding keys to the longest.
fn join(site: Site, batch: usize, parts: Vec<Written>) -> Tap {
    let dtype = parts[0].data.dtype();
    let heads = parts[0].shape[1];
    let width = parts.iter().map(|p| p.shape[3]).max().expect("a tap has parts");
    let rows_of = |p: &Written| p.shape[0] * p.shape[2] / batch;
    let rows: usize = parts.iter().map(rows_of).sum();
    let mut data = Tensor::zeros(dtype, 0);
    for sequence in 0..batch {
        for head in 0..heads {
            for part in &parts {
                let (count, from) = (rows_of(part), part.shape[3]);
                for row in 0..count {
                    let at = ((sequence * heads + head) * count + row) * from;
                    data.extend(&part.data.slice(at, from));
                    data.extend(&padding(site, dtype, width - from));
                }
            }
        }
    }
    let keyed = matches!(site.op, "scores" | "probs");
    let mut shape = if keyed { vec![heads, rows, width] } else { vec![rows, width] };
    if batch > 1 {
        shape.insert(0, batch);
    }
    Tap { shape, data }
}

/// What stands for keys that a shorter forward did not have.
fn padding(site: Site, dtype: Dtype, len: usize) -> Tensor {
    match (site.op, dtype) {
        ("scores", Dtype::Bf16) => Tensor::Bf16(vec![Element::MASKED; len]),
        ("scores", Dtype::F32) => Tensor::F32(vec![Element::MASKED; len]),
        _ => Tensor::zeros(dtype, len),
    }
}

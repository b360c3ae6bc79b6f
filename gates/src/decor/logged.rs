//! Keeps the logits that each step chose from.
//!
//! The invariant: a row is read after the op that chose from it, so what is kept is what was used.

use samebits::op::{Backend, Memory, Op, Site};
use samebits::tensor::Tensor;

/// A backend that keeps every row of logits.
pub struct Logged<B> {
    inner: B,
    rows: Vec<Vec<Tensor>>,
}

impl<B: Backend> Logged<B> {
    /// Keeps from now on.
    pub fn new(inner: B) -> Self {
        Self { inner, rows: Vec::new() }
    }

    /// The rows of each step, one for each sequence, and the backend below.
    pub fn finish(self) -> (Vec<Vec<Tensor>>, B) {
        (self.rows, self.inner)
    }
}

impl<B: Backend> Backend for Logged<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        self.inner.exec(site, op);
        if let Op::Argmax { x, rows, width, .. } = op {
            let row = |i: usize| self.inner.mem().read(x, i * *width, *width);
            self.rows.push((0..*rows).map(row).collect());
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self.inner.mem()
    }
}

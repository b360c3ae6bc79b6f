//! A backend of any make behind one type, so that a stack of decorators can be chosen at run time.

use samebits::cpu::CpuMem;
use samebits::op::{Backend, Memory, Op, Site};

/// Any backend on the CPU's memory.
pub struct Seam(Box<dyn Backend<M = CpuMem>>);

impl Seam {
    /// Hides the type of a backend.
    pub fn new(backend: impl Backend<M = CpuMem> + 'static) -> Self {
        Self(Box::new(backend))
    }
}

impl Backend for Seam {
    type M = CpuMem;

    fn exec(&mut self, site: Site, op: &mut Op<'_, CpuMem>) {
        self.0.exec(site, op);
    }

    fn mem(&mut self) -> &mut dyn Memory<CpuMem> {
        self.0.mem()
    }
}

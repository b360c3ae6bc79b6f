//! Faults of a decode step that change no bit: a block kept or freed, a read too many.
//!
//! The invariant: each acts once a step, where the step's ids are chosen.

use samebits::op::{Backend, Memory, Op, Site};

/// What a step does beyond its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waste {
    /// Nothing.
    None,
    /// A block that is never given back, every eighth step.
    KeptBlock,
    /// A block that is given back at once.
    FreedBlock,
    /// One logit read by the host.
    LogitRead,
    /// The ids read once more.
    IdsRead,
}

impl Waste {
    /// All of them, by the names that manifests use.
    pub const NAMED: [(&str, Self); 4] = [
        ("block-kept", Self::KeptBlock),
        ("block-freed", Self::FreedBlock),
        ("logit-read", Self::LogitRead),
        ("ids-read", Self::IdsRead),
    ];

    /// The one called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(n, _)| *n == name).map(|(_, waste)| *waste)
    }
}

const BLOCK_BYTES: usize = 64;
const EVERY: u64 = 8;

/// A backend that wastes at each step.
pub struct Wasteful<B> {
    inner: B,
    waste: Waste,
    steps: u64,
}

impl<B: Backend> Wasteful<B> {
    /// Wastes in the given way.
    pub fn new(inner: B, waste: Waste) -> Self {
        Self { inner, waste, steps: 0 }
    }
}

impl<B: Backend> Backend for Wasteful<B> {
    type M = B::M;

    fn exec(&mut self, site: Site, op: &mut Op<'_, B::M>) {
        self.inner.exec(site, op);
        let Op::Argmax { out, x, .. } = op else { return };
        self.steps += 1;
        let block = || std::hint::black_box(vec![0u8; BLOCK_BYTES]);
        match self.waste {
            Waste::KeptBlock if self.steps.is_multiple_of(EVERY) => std::mem::forget(block()),
            Waste::None | Waste::KeptBlock => {}
            Waste::FreedBlock => drop(block()),
            Waste::LogitRead => drop(self.inner.mem().read(x, 0, 1)),
            Waste::IdsRead => self.inner.mem().fetch_ints(out, &mut [0]),
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<B::M> {
        self.inner.mem()
    }
}

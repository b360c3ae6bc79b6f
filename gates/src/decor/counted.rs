//! Counts what a backend is really asked to do, for the path proofs of a report.
//!
//! The invariant: numbers come from the ops themselves and from the pool they run in, never from
//! what a gate meant to ask for.

use std::sync::{Arc, Mutex};

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem};
use samebits::op::{Backend, Memory, Op, Site};
use samebits_reports::PathProof;

/// What was counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    rows_per_call: Vec<u64>,
    cached_positions: u64,
    chunk: Option<u64>,
    threads: u64,
    attention: Option<usize>, // the first layer that has scores
}

/// A CPU backend whose ops are counted.
pub struct Counted {
    inner: Cpu,
    counts: Arc<Mutex<Counts>>,
}

impl Counted {
    /// Counts into the returned cell.
    pub fn new(inner: Cpu) -> (Self, Arc<Mutex<Counts>>) {
        let counts = Arc::new(Mutex::new(Counts::default()));
        (Self { inner, counts: Arc::clone(&counts) }, counts)
    }
}

impl Counts {
    /// The counts as one side's proof of path.
    pub fn proof(
        &self,
        label: &str,
        backend: (&str, Order),
        dtype: Dtype,
        bytes: u64,
    ) -> PathProof {
        PathProof {
            label: label.to_owned(),
            kernels: backend.0.to_owned(),
            rows_per_call: self.rows_per_call.clone(),
            cached_positions: self.cached_positions,
            chunk: self.chunk,
            threads: self.threads,
            bytes_read: bytes,
            order: backend.1.name().to_owned(),
            dtype: dtype.name().to_owned(),
        }
    }
}

impl Backend for Counted {
    type M = CpuMem;

    fn exec(&mut self, site: Site, op: &mut Op<'_, CpuMem>) {
        self.inner.exec(site, op);
        let mut counts = self.counts.lock().expect("no thread panics while counting");
        counts.threads = counts.threads.max(rayon::current_num_threads() as u64);
        let layer = site.layer.unwrap_or(0);
        match op {
            Op::Embed { rows, .. } => counts.rows_per_call.push(*rows as u64),
            Op::Scores { span, .. } if *counts.attention.get_or_insert(layer) == layer => {
                let keys = u64::from(span.keys.values()[0]);
                if span.rows.first == 0 {
                    counts.cached_positions += keys - span.rows.of as u64;
                }
                if span.rows.count < span.rows.of {
                    let rows = span.rows.count as u64;
                    counts.chunk = Some(counts.chunk.map_or(rows, |chunk| chunk.max(rows)));
                }
            }
            _ => {}
        }
    }

    fn mem(&mut self) -> &mut dyn Memory<CpuMem> {
        self.inner.mem()
    }
}

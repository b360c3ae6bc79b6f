//! One run of the engine as a gate sees it: taps of every sequence, argmax, and proof of the path.
//!
//! Absent: comparison and references. The invariant: a planted fault sits between the taps and the
//! counted backend, so that taps show it and counts do not.

use std::collections::BTreeMap;
use std::ops::Range;

use samebits::contract::{Dtype, Order, RotaryTables};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::op::Site;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective};
use samebits_reports::PathProof;

use crate::checks::CheckError;
use crate::decor::{Counted, Seam};
use crate::manifest::Plant;
use crate::sites::{Bits, Dims, Sites, is_state, op_of, rank};

/// How a run is made.
#[derive(Clone)]
pub struct Setup {
    /// Kernels.
    pub kernels: &'static Kernels,
    /// Summation order.
    pub order: Order,
    /// Threads of an own pool; none runs in the caller's.
    pub threads: Option<usize>,
    /// Rows of each forward; empty for one.
    pub pieces: Vec<usize>,
    /// Query rows in a chunk; none for the engine's default.
    pub chunk: Option<usize>,
    /// Rotary tables to use.
    pub rotary: Option<RotaryTables>,
    /// What is said of the run in its proof of path.
    pub label: String,
}

impl Setup {
    /// The best kernels and no splits.
    pub fn new(order: Order, label: &str) -> Self {
        Self {
            kernels: Kernels::best(),
            order,
            threads: None,
            pieces: Vec::new(),
            chunk: None,
            rotary: None,
            label: label.to_owned(),
        }
    }

    /// A prefill of `first` rows, then single rows.
    pub fn decode_from(self, first: usize, len: usize) -> Self {
        Self { pieces: Plan::decode_from(first, len).pieces, ..self }
    }

    /// The rows of each forward of a run of `len` rows.
    pub fn forwards(&self, len: usize) -> Vec<Range<usize>> {
        if self.pieces.is_empty() {
            return vec![Range { start: 0, end: len }];
        }
        let mut done = 0;
        let next = |rows: &usize| {
            done += rows;
            done - rows..done
        };
        self.pieces.iter().map(next).collect()
    }
}

/// What a run left.
pub struct Traces {
    /// Taps, one set a sequence.
    pub sequences: Vec<Sites>,
    /// What the last forward left in each gated delta net, one set a sequence.
    pub states: Vec<Sites>,
    /// Argmax of every row, `[batch, rows]`.
    pub argmax: Vec<u32>,
    /// What the backend was really asked to do.
    pub proof: PathProof,
    /// Ops at which the planted fault acted.
    pub hits: u64,
}

/// The catalogue's entry of a planted fault; none where the fault is in the check's own material.
pub fn defect(plant: Option<&Plant>) -> Result<Option<&'static Defect>, CheckError> {
    match plant {
        Some(Plant::Defect(id)) => Ok(Some(Defect::find(id)?)),
        Some(Plant::Material(_)) | None => Ok(None),
    }
}

/// Runs `prompts` through `model` with a tap at every site.
///
/// # Errors
/// What the engine refused, and a fault that is not in the catalogue.
pub fn trace(
    model: &Model<CpuMem>,
    setup: &Setup,
    prompts: &[Vec<u32>],
    plant: Option<&Plant>,
) -> Result<Traces, CheckError> {
    trace_only(model, setup, prompts, plant, |_| true)
}

/// The same, with taps at chosen sites only.
///
/// # Errors
/// Those of [`trace`].
pub fn trace_only(
    model: &Model<CpuMem>,
    setup: &Setup,
    prompts: &[Vec<u32>],
    plant: Option<&Plant>,
    wanted: fn(Site) -> bool,
) -> Result<Traces, CheckError> {
    let go = || traced(model, setup, prompts, (plant, wanted));
    match setup.threads {
        None => go(),
        Some(n) => pool(n).install(go),
    }
}

/// A pool of `n` threads.
pub fn pool(n: usize) -> rayon::ThreadPool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build();
    pool.expect("the system gives a few threads")
}

fn traced(
    model: &Model<CpuMem>,
    setup: &Setup,
    prompts: &[Vec<u32>],
    (plant, wanted): (Option<&Plant>, fn(Site) -> bool),
) -> Result<Traces, CheckError> {
    let (counted, counts) = Counted::new(Cpu::new(setup.kernels, setup.order));
    let (plan, batch) = (plan(setup), prompts.len());
    let (logits, taps, hits) = match defect(plant)? {
        None => {
            let mut b = Traced::only(Seam::new(counted), batch, wanted);
            let logits = run(&mut b, model, prompts, &plan)?;
            (logits, b.finish().0, 0)
        }
        Some(defect) => {
            let mut b = Traced::only(Defective::new(counted, defect), batch, wanted);
            let logits = run(&mut b, model, prompts, &plan)?;
            let (taps, defective) = b.finish();
            (logits, taps, defective.hits())
        }
    };
    let sequences = (0..batch).map(|b| sequence(&taps, model, [batch, b, prompts[b].len()]));
    let sequences = sequences.collect();
    let states = (0..batch).map(|b| carried(&taps, model, [batch, b])).collect();
    let counts = counts.lock().expect("the run is over");
    let backend = (setup.kernels.name, setup.order);
    let proof = counts.proof(&setup.label, backend, model.dtype, model.bytes_read);
    Ok(Traces { sequences, states, argmax: logits.argmax, proof, hits })
}

/// The sites of one sequence, each in its own shape: the engine's taps may join rows and heads.
pub fn sequence(
    taps: &BTreeMap<String, Tap>,
    model: &Model<CpuMem>,
    [batch, b, len]: [usize; 3],
) -> Sites {
    shaped(taps, model, [batch, b, len], |name| rank(name).is_some())
}

/// What a sequence carries on in its gated delta nets, each in its own shape.
pub fn carried(
    taps: &BTreeMap<String, Tap>,
    model: &Model<CpuMem>,
    [batch, b]: [usize; 2],
) -> Sites {
    shaped(taps, model, [batch, b, 0], is_state)
}

fn shaped(
    taps: &BTreeMap<String, Tap>,
    model: &Model<CpuMem>,
    [batch, b, len]: [usize; 3],
    wanted: impl Fn(&str) -> bool,
) -> Sites {
    let dims = Dims::of_shape(&model.shape);
    let shaped = |(name, tap): (&String, &Tap)| {
        let mut bits = Bits::of_tap(tap);
        let each = bits.bits.len() / batch;
        bits.bits = bits.bits[b * each..][..each].to_vec();
        (name.clone(), bits.reshaped(&dims.shape(op_of(name), len, len)))
    };
    taps.iter().filter(|(name, _)| wanted(name)).map(shaped).collect()
}

fn plan(setup: &Setup) -> Plan {
    Plan { pieces: setup.pieces.clone(), chunk: setup.chunk, rotary: setup.rotary.clone() }
}

/// The tables that a run uses, as sites: `[positions, rotary / 2]` in the run's dtype.
pub fn rotary_sites(model: &Model<CpuMem>, setup: &Setup, positions: usize) -> Sites {
    let shape = &model.shape;
    let own = || RotaryTables::new(model.dtype, shape.theta, shape.rotary_dim, positions);
    let tables = setup.rotary.clone().unwrap_or_else(own);
    let bits = |values: &[f32]| {
        let len = positions * tables.half;
        let data = samebits::tensor::Tensor::from_f32(model.dtype, &values[..len]);
        let bits = (0..len).map(|i| data.bits(i)).collect();
        Bits { dtype: model.dtype, shape: vec![positions, tables.half], bits }
    };
    [("rotary.cos", bits(&tables.cos)), ("rotary.sin", bits(&tables.sin))]
        .map(|(name, bits)| (name.to_owned(), bits))
        .into()
}

/// The name of a dtype that files use.
pub fn dtype_of(name: &str) -> Option<Dtype> {
    [Dtype::Bf16, Dtype::F32].into_iter().find(|d| d.name() == name)
}

//! Clean runs against the law: every designed run, on fresh inputs, in every legal order.
//!
//! Absent: any number that a run could move; the law has no fitted constants, so there is nothing
//! to calibrate but the trust in it. The invariants: the independent unit is the run, each with its
//! own inputs and one order; seeds are disjoint from those of gates.

use std::collections::BTreeMap;

use rayon::prelude::*;
use samebits::contract::Dtype;
use samebits_defects::{Defect, Fault};
use samebits_reports::Run;
use serde::{Deserialize, Serialize};

use crate::checks::CheckError;
use crate::context::Context;
use crate::law::{Judgement, Law, family};
use crate::manifest::{Check, Gate};
use crate::probe::{MODEL_SEED, Stage};
use crate::sites::{dtype_at, op_of};

/// First seed of runs that no gate has seen; gates use small ones.
const FRESH: u64 = 5 << 20;

/// What clean tensors of one kind of op measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Tensors judged.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Tensors beyond the law.
    pub beyond: u64,
    /// The worst statistic over its limit.
    pub worst: f64,
}

impl Tally {
    /// Counts a tensor.
    pub fn add(&mut self, found: &Judgement) {
        self.tensors += 1;
        self.elements += found.elements;
        self.beyond += u64::from(found.over > 1.0);
        self.worst = self.worst.max(found.over);
    }

    /// Counts what another has counted.
    pub fn join(&mut self, other: &Self) {
        self.tensors += other.tensors;
        self.elements += other.elements;
        self.beyond += other.beyond;
        self.worst = self.worst.max(other.worst);
    }
}

/// Tallies by kind of op and dtype.
pub type Tallies = BTreeMap<String, Tally>;

/// The tally that a site of a run counts in.
pub fn kind(site: &str, run: Dtype) -> String {
    format!("{}/{}", family(op_of(site)), dtype_at(site, run).name())
}

/// Fresh runs against the law.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Commit, machine, and hashes of limits and gates.
    pub run: Run,
    /// Fresh runs of every designed run, each with inputs of its own and a legal order.
    pub runs: u64,
    /// Tensors of those runs.
    pub tensors: u64,
    /// Those beyond the law.
    pub beyond: u64,
    /// By kind of op.
    pub ops: Tallies,
}

/// Every designed run `runs` times, in the legal orders by turns.
///
/// # Errors
/// A run that could not be made.
pub fn validate(
    ctx: &Context,
    gates: &[Gate],
    runs: usize,
    run: Run,
) -> Result<Validation, CheckError> {
    let legal = |defect: &&Defect| matches!(defect.fault, Fault::Legal(_));
    let orders: Vec<&Defect> = Defect::all().iter().filter(legal).collect();
    let law = Law::of(&ctx.limits)?;
    let mut ops = Tallies::new();
    for gate in gates {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        let stage = Stage::new(probe, MODEL_SEED)?;
        let one = |i: usize| -> Result<Tallies, CheckError> {
            let ran = stage.run(FRESH + ctx.seed + i as u64, orders[i % orders.len()])?;
            let mut own = Tallies::new();
            for site in stage.measure(&ran, None, &law)? {
                own.entry(kind(&site.site, probe.dtype)).or_default().add(&site.found);
            }
            Ok(own)
        };
        let found: Vec<Tallies> = (0..runs).into_par_iter().map(one).collect::<Result<_, _>>()?;
        for (kind, tally) in found.iter().flatten() {
            ops.entry(kind.clone()).or_default().join(tally);
        }
    }
    let sum = |pick: fn(&Tally) -> u64| ops.values().map(pick).sum();
    let (tensors, beyond) = (sum(|t| t.tensors), sum(|t| t.beyond));
    Ok(Validation { run, runs: runs as u64, tensors, beyond, ops })
}

//! Clean whole models against the law: checkpoints of real widths, run by the engine, each op
//! judged on the run's own inputs as `gates localize --model` judges it.
//!
//! Here: the grid of models, one run of it, and what many say together; `shapes` has the sizes.
//! Absent: any number that a run could move. The invariants: a run is a pure function of its case;
//! an op that was not judged is counted, never passed over.

mod shapes;

use std::collections::BTreeMap;
use std::time::Instant;

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::Model;
use samebits_fixtures::{Recipe, prompt_ids};
use samebits_reports::Run;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::calibrate::kind;
use crate::checks::CheckError;
use crate::engine::{Setup, trace};
use crate::limits::Limits;
use crate::localize::forced::{ForcedError, judge};
use crate::manifest::Plant;
use crate::sites::Sites;

pub use shapes::{Shape, grid, published};

/// First seed of models that nothing else draws.
const FRESH: u64 = 9 << 20;

/// A run to make.
#[derive(Clone, Debug)]
pub struct Case {
    /// The model's shape, and how many ids it reads.
    pub shape: Shape,
    /// How its weights are drawn.
    pub recipe: Recipe,
    /// Seed of weights and ids.
    pub seed: u64,
    /// The dtype of the run.
    pub dtype: Dtype,
}

/// All runs of `seeds` seeds: every shape in every recipe. The seed is the outermost loop, so that
/// a part of the runs is a part of every shape.
pub fn cases(shapes: &[Shape], seeds: u64, dtype: Dtype) -> Vec<Case> {
    let all = (1..=seeds).flat_map(|seed| Recipe::ALL.map(|recipe| (seed, recipe)));
    let of = |(seed, recipe)| {
        shapes.iter().map(move |shape| Case { shape: shape.clone(), recipe, seed, dtype })
    };
    all.flat_map(of).collect()
}

/// A tensor beyond the law.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alarm {
    /// Its site.
    pub site: String,
    /// Its statistic over the limit.
    pub over: f64,
    /// What that statistic is.
    pub text: String,
}

/// One run, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Family and sizes of the model.
    pub model: String,
    /// Ids of the prompt.
    pub ids: u64,
    /// How the weights were drawn.
    pub recipe: Recipe,
    /// Seed of weights and ids.
    pub seed: u64,
    /// Tensors judged.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// The worst statistic over its limit, by kind of op.
    pub worst: BTreeMap<String, f64>,
    /// Tensors beyond the law.
    pub alarms: Vec<Alarm>,
    /// Sites that were not judged, and why.
    pub not_judged: Vec<String>,
    /// Seconds it took.
    pub wall_s: f64,
}

/// What clean runs gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clean {
    /// Commit, machine, and hashes of limits and gates.
    pub run: Run,
    /// The dtype of the runs.
    pub dtype: Dtype,
    /// Runs that were to be made.
    pub planned: u64,
    /// Those that were.
    pub rows: Vec<Row>,
}

impl Clean {
    /// Tensors judged, those beyond the law, and those not judged.
    pub fn totals(&self) -> [u64; 3] {
        self.rows.iter().fold([0; 3], |[tensors, alarms, blind], row| {
            let (own, none) = (row.alarms.len() as u64, row.not_judged.len() as u64);
            [tensors + row.tensors, alarms + own, blind + none]
        })
    }

    /// The worst statistic over its limit, by kind of op.
    pub fn worst(&self) -> BTreeMap<&str, f64> {
        let mut worst = BTreeMap::new();
        for (kind, over) in self.rows.iter().flat_map(|row| &row.worst) {
            let of: &mut f64 = worst.entry(kind.as_str()).or_default();
            *of = of.max(*over);
        }
        worst
    }
}

/// Why a run could not be judged.
#[derive(Debug, Error)]
pub enum WholeError {
    /// The model or its run.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The judgement.
    #[error(transparent)]
    Forced(#[from] ForcedError),
}

impl Case {
    /// Whether a row is of this run.
    pub fn made(&self, row: &Row) -> bool {
        let own = (self.shape.name.as_str(), self.shape.ids as u64, self.recipe, self.seed);
        own == (row.model.as_str(), row.ids, row.recipe, row.seed)
    }

    /// Draws the model, runs it and judges what it wrote; a planted fault is for tests.
    ///
    /// # Errors
    /// A model that cannot be written, admitted, run or judged.
    pub fn run(&self, limits: &Limits, plant: Option<&Plant>) -> Result<Row, WholeError> {
        let started = Instant::now();
        let folder = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
        self.shape.draw(self.recipe, FRESH + self.seed, folder.path()).map_err(CheckError::from)?;
        let ids = prompt_ids(FRESH + self.seed, self.shape.vocab(), self.shape.ids);
        let sites = self.traced(folder.path(), &ids, plant)?;
        let model = samebits_oracle::Model::load(folder.path()).map_err(CheckError::from)?;
        let verdict = judge(&sites, &model, Some(&ids), limits)?;
        let mut worst = BTreeMap::new();
        for op in &verdict.ops {
            let of: &mut f64 = worst.entry(kind(&op.site, self.dtype)).or_default();
            *of = of.max(finite(op.over));
        }
        let beyond = verdict.ops.iter().filter(|op| op.over.is_nan() || op.over > 1.0);
        let alarm = |op: &crate::localize::forced::Judged| Alarm {
            site: op.site.clone(),
            over: finite(op.over),
            text: op.text.clone(),
        };
        let blind = verdict.blind.iter().map(|site| format!("{site}: its inputs are missing"));
        let without = verdict.unjudged.iter().map(|(site, why)| format!("{site}: {why}"));
        Ok(Row {
            model: self.shape.name.clone(),
            ids: self.shape.ids as u64,
            recipe: self.recipe,
            seed: self.seed,
            tensors: verdict.ops.len() as u64,
            elements: verdict.ops.iter().map(|op| sites[&op.site].bits.len() as u64).sum(),
            alarms: beyond.map(alarm).collect(),
            not_judged: blind.chain(without).collect(),
            worst,
            wall_s: started.elapsed().as_secs_f64(),
        })
    }

    /// The sites of the engine's run; its copy of the weights is gone when they are judged.
    fn traced(
        &self,
        folder: &std::path::Path,
        ids: &[u32],
        plant: Option<&Plant>,
    ) -> Result<Sites, CheckError> {
        let order = Order::Invariant;
        let checkpoint = Checkpoint::open_as(folder, Some(self.dtype))?;
        let model = Model::load(&mut Cpu::new(Kernels::best(), order), &checkpoint, order)?;
        let setup = Setup::new(order, "whole model");
        Ok(trace(&model, &setup, &[ids.to_vec()], plant)?.sequences.remove(0))
    }
}

/// A statistic as a number that JSON has.
fn finite(over: f64) -> f64 {
    if over.is_finite() { over } else { f64::MAX }
}

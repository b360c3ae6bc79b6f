//! Limits from ensembles: every designed run, on fresh inputs, in every legal order.
//!
//! Here: sampling, order statistics, and what each limit says of its origin. Absent: any number
//! typed in. The invariants: the independent unit is the run, each with its own inputs and one
//! order; seeds of calibration, validation and gates are disjoint; a defect never moves a limit.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use samebits::contract::Dtype;
use samebits_defects::{Defect, Fault, Tree};
use samebits_reports::Run;
use serde::{Deserialize, Serialize};

use crate::checks::CheckError;
use crate::context::Context;
use crate::limits::{Limit, Limits};
use crate::manifest::{Check, Gate};
use crate::probe::{MODEL_SEED, SiteResidual, Stage};
use crate::ruler::{SURPRISE, family, limit_name, rate_name};
use crate::sites::{dtype_at, op_of};
use crate::stats::{BLOCKS, CHANCE, extreme, gamma, order_statistic, surprise};

/// First seed of calibration; gates use small ones.
const CALIBRATION: u64 = 1 << 20;
/// First seed of the second ensemble, which the limit of surprise comes from.
const SURPRISES: u64 = 3 << 20;
/// Validation takes one run for this many of calibration.
const FRESH_SHARE: usize = 3;
/// First seed of the runs that calibration ends with.
const VALIDATION: u64 = 1 << 21;
/// First seed of runs that no calibration has seen.
const FRESH: u64 = 5 << 20;

/// One tensor of one run.
#[derive(Clone, Copy, Debug)]
struct Sample {
    tree: &'static str,
    elements: u64,
    misrounds: u64,
    max: f64,
    terms: usize,
}

/// What calibration was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Runs of every designed run in calibration; a third as many in validation.
    pub runs: usize,
}

/// What calibration found.
pub struct Calibrated {
    /// All limits of the file, the calibrated ones renewed.
    pub limits: Limits,
    /// Tensors of fresh runs, and those of them beyond a limit.
    pub fresh: (u64, u64),
    /// One line a limit.
    pub lines: Vec<String>,
}

/// An ensemble that proves the setup wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrateError {
    /// Above what any summation can do.
    #[error("{limit}: {measured} u is above the ceiling of {ceiling} u: the setup is wrong")]
    Ceiling {
        /// Which limit.
        limit: String,
        /// What legal orders measured.
        measured: f64,
        /// What no order can exceed.
        ceiling: f64,
    },
    /// Nothing was measured.
    #[error("no designed run is judged in {0}: there is nothing to calibrate")]
    Nothing(&'static str),
}

/// The family of a legal order: what leave-one-out leaves out.
fn tree_family(defect: &Defect) -> Option<&'static str> {
    let Fault::Legal(how) = &defect.fault else { return None };
    Some(match how.tree {
        _ if !how.fused => "unfused",
        Tree::Forward => "forward",
        Tree::Reversed => "reversed",
        Tree::Blocks(_) => "blocks",
        Tree::Lanes(_) => "lanes",
        Tree::Split(_) => "split",
        Tree::Pairwise => "pairwise",
        Tree::Shuffled(_) => "shuffled",
        Tree::Wide => "wide",
    })
}

/// Samples by limit of largest error; those of bf16 also serve rates.
type Samples = BTreeMap<String, Vec<Sample>>;

/// Runs every designed run of a dtype `runs` times from `first` on.
fn sample(
    ctx: &Context,
    gates: &[Gate],
    dtype: Dtype,
    (first, runs): (u64, usize),
    limits: &Limits,
) -> Result<Samples, CheckError> {
    let orders: Vec<(&Defect, &'static str)> =
        Defect::all().iter().filter_map(|d| Some((d, tree_family(d)?))).collect();
    let mut all = Samples::new();
    for gate in gates {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        if probe.dtype != dtype || !probe.ops.is_empty() {
            continue;
        }
        let stage = Stage::new(probe, MODEL_SEED)?;
        let ruler = stage.ruler();
        let units = |op: &str| ruler.legal_units(limits, op);
        let one = |i: usize| -> Result<Vec<(String, Sample)>, CheckError> {
            let (defect, tree) = orders[i % orders.len()];
            let ran = stage.run(first + ctx.seed + i as u64, defect)?;
            let found = stage.measure(&ran, None, &units);
            let sample = |site: &SiteResidual| {
                let op = op_of(&site.site);
                let terms = stage.terms(op);
                let r = &site.residual;
                let (elements, misrounds, max) = (r.elements, r.misrounds, r.max);
                let sample = Sample { tree, elements, misrounds, max, terms };
                (limit_name(op, dtype, terms), sample)
            };
            // What is f32 in a bf16 run is calibrated in the f32 runs.
            let own = |s: &&SiteResidual| {
                family(op_of(&s.site)) != "exact" && dtype_at(&s.site, dtype) == dtype
            };
            Ok(found.iter().filter(own).map(sample).collect())
        };
        let runs: Vec<_> = (0..runs).into_par_iter().map(one).collect::<Result<_, _>>()?;
        for (name, sample) in runs.into_iter().flatten() {
            all.entry(name).or_default().push(sample);
        }
    }
    Ok(all)
}

/// The share of the samples of the worst family that exceed the limit made of all others.
fn leave_one_out(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> (&'static str, f64) {
    let trees: BTreeSet<&'static str> = samples.iter().map(|s| s.tree).collect();
    let rate = |tree: &'static str| {
        let (own, others): (Vec<&Sample>, Vec<&Sample>) =
            samples.iter().partition(|s| s.tree == tree);
        let limit = limit_of(others.into_iter(), &value);
        let beyond = own.iter().filter(|s| value(s) > limit).count();
        (tree, beyond as f64 / own.len().max(1) as f64)
    };
    trees.into_iter().map(rate).fold(("none", 0.0), |a, b| if b.1 > a.1 { b } else { a })
}

/// The limit of a statistic of samples.
fn limit_of<'s>(samples: impl Iterator<Item = &'s Sample>, value: impl Fn(&Sample) -> f64) -> f64 {
    extreme(&samples.map(value).collect::<Vec<f64>>()).unwrap_or(0.0)
}

/// How a limit came about.
fn origin(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> String {
    let (n, most) = (samples.len(), order_statistic(samples.iter().map(&value)).unwrap_or(0.0));
    let (tree, beyond) = leave_one_out(samples, value);
    format!(
        "gates calibrate: {n} tensors of independent runs in legal orders of summation, the \
         largest {most:e}; the largest of another {} exceeds the limit with a chance of {CHANCE:e} \
         (Gumbel's law of the largest of {BLOCKS} blocks); with family {tree} left out, {beyond:.1e} \
         of it exceed the limit of the others",
        n.div_ceil(BLOCKS)
    )
}

fn max_limits(limits: Limits, samples: &Samples, dtype: Dtype) -> Result<Limits, CalibrateError> {
    let mut limits = limits;
    for (name, all) in samples {
        let value = limit_of(all.iter(), |s| s.max);
        let terms = all.iter().map(|s| s.terms).max().unwrap_or(1);
        // Softmax and norms add a few roundings to those of their sum.
        let ceiling = gamma(terms + terms.ilog2() as usize + 1);
        if dtype == Dtype::F32 && value > ceiling {
            return Err(CalibrateError::Ceiling { limit: name.clone(), measured: value, ceiling });
        }
        let statistic = match dtype {
            Dtype::F32 => "largest error in u times the terms' sizes",
            Dtype::Bf16 => "largest error in ulps plus the legal f32 error",
        };
        let provenance = origin(all, |s| s.max);
        let (statistic, dtype) = (statistic.to_owned(), dtype.name().to_owned());
        limits = limits.with(name, Limit { value, statistic, dtype, provenance });
    }
    Ok(limits)
}

/// Rates of misrounding: the largest of any tensor. Misrounds of one tensor come together, where
/// one sum serves a whole row, so that a rate pooled over tensors would be too small.
fn rate_limits(mut limits: Limits, samples: &Samples) -> Limits {
    for (name, all) in samples {
        let rate = |s: &Sample| s.misrounds as f64 / s.elements as f64;
        let value = limit_of(all.iter(), rate).min(1.0);
        let provenance = origin(all, rate);
        let statistic = "share of elements that are not the rounded exact result".to_owned();
        let limit = Limit { value, statistic, dtype: "bf16".to_owned(), provenance };
        limits = limits.with(&rate_of(name), limit);
    }
    limits
}

/// The name of the rate beside a limit of largest error.
fn rate_of(name: &str) -> String {
    name.strip_suffix("-max").map_or_else(|| name.to_owned(), |stem| format!("{stem}-rate"))
}

fn digits(limits: &Limits, name: &str, sample: &Sample) -> f64 {
    let rate = limits.get(&rate_of(name)).map_or(0.0, |limit| limit.value);
    surprise(sample.elements, sample.misrounds, rate)
}

fn surprise_limit(limits: Limits, samples: &Samples) -> Limits {
    let all = || samples.iter().flat_map(|(name, all)| all.iter().map(move |s| (name, s)));
    let digits: Vec<f64> = all().map(|(name, s)| digits(&limits, name, s)).collect();
    let value = extreme(&digits).unwrap_or(0.0);
    let (n, most) = (digits.len(), order_statistic(digits).unwrap_or(0.0));
    let provenance = format!(
        "gates calibrate: {n} tensors of independent runs in legal orders, all ops and sizes \
         together, since a digit of surprise means the same for each, the largest {most:e}; the \
         largest of another {} exceeds the limit with a chance of {CHANCE:e} (Gumbel's law of the \
         largest of {BLOCKS} blocks)",
        n.div_ceil(BLOCKS)
    );
    let statistic = "-log10 of the binomial tail of misrounds at the legal rate".to_owned();
    limits.with(SURPRISE, Limit { value, statistic, dtype: "bf16".to_owned(), provenance })
}

/// Fresh tensors, and those beyond a limit.
fn beyond(limits: &Limits, samples: &Samples, dtype: Dtype) -> (u64, u64) {
    let mut counts = (0, 0);
    for (name, all) in samples {
        let most = limits.get(name).map_or(0.0, |limit| limit.value);
        let digits_most = limits.get(SURPRISE).map_or(0.0, |limit| limit.value);
        for sample in all {
            let by_count = dtype == Dtype::Bf16 && digits(limits, name, sample) > digits_most;
            counts.0 += 1;
            counts.1 += u64::from(sample.max > most || by_count);
        }
    }
    counts
}

/// Calibrates every limit of the designed runs, and validates them on fresh runs.
///
/// # Errors
/// A run that could not be made, and an ensemble above its ceiling.
pub fn calibrate(ctx: &Context, gates: &[Gate], plan: Plan) -> Result<Calibrated, CheckError> {
    let mut limits = ctx.limits.without("legal-");
    let mut fresh = (0, 0);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let samples = sample(ctx, gates, dtype, (CALIBRATION, plan.runs), &limits)?;
        if samples.is_empty() {
            return Err(CalibrateError::Nothing(dtype.name()).into());
        }
        limits = max_limits(limits, &samples, dtype)?;
        if dtype == Dtype::Bf16 {
            limits = rate_limits(limits, &samples);
            // No tensor is surprising at a rate that is its own: the digits need a second ensemble.
            let second = sample(ctx, gates, dtype, (SURPRISES, plan.runs), &limits)?;
            limits = surprise_limit(limits, &second);
        }
        let fresh_runs = plan.runs.div_ceil(FRESH_SHARE);
        let again = sample(ctx, gates, dtype, (VALIDATION, fresh_runs), &limits)?;
        let (n, over) = beyond(&limits, &again, dtype);
        fresh = (fresh.0 + n, fresh.1 + over);
    }
    let calibrated = |name: &str| name.starts_with("legal-");
    let lines = limits.iter().filter(|(name, _)| calibrated(name));
    let lines = lines.map(|(name, limit)| format!("{name} {:e}", limit.value)).collect();
    Ok(Calibrated { limits, fresh, lines })
}

/// Fresh runs against the limits as they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Commit, machine, and hashes of limits and gates.
    pub run: Run,
    /// Fresh runs of every designed run, each with inputs of its own and a legal order.
    pub runs: u64,
    /// Tensors of those runs.
    pub tensors: u64,
    /// Those beyond a limit.
    pub beyond: u64,
    /// Tensors and those beyond, by limit.
    pub limits: BTreeMap<String, (u64, u64)>,
}

/// Holds fresh runs to the limits.
///
/// # Errors
/// A run that could not be made.
pub fn validate(
    ctx: &Context,
    gates: &[Gate],
    runs: usize,
    run: Run,
) -> Result<Validation, CheckError> {
    let mut by_limit = BTreeMap::new();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let samples = sample(ctx, gates, dtype, (FRESH, runs), &ctx.limits)?;
        for (name, all) in samples {
            let one = Samples::from([(name.clone(), all)]);
            by_limit.insert(name, beyond(&ctx.limits, &one, dtype));
        }
    }
    let sum = |pick: fn(&(u64, u64)) -> u64| by_limit.values().map(pick).sum();
    let (tensors, beyond) = (sum(|n| n.0), sum(|n| n.1));
    Ok(Validation { run, runs: runs as u64, tensors, beyond, limits: by_limit })
}

/// Every op and size that a designed run judges has a limit.
pub fn uncalibrated(limits: &Limits, gates: &[Gate]) -> Result<Vec<String>, CheckError> {
    let mut missing = BTreeSet::new();
    for gate in gates {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        let stage = Stage::new(probe, MODEL_SEED)?;
        let (ops, dims) =
            (crate::sites::LAYER_OPS.iter().chain(&["norm", "lm_head"]), stage.dims());
        for op in ops.filter(|op| family(op) != "exact" && dims.layers_with(op) > 0) {
            let (terms, dtype) = (stage.terms(op), dtype_at(op, probe.dtype));
            let mut names = vec![limit_name(op, dtype, terms)];
            if dtype == Dtype::Bf16 {
                names.push(rate_name(op, terms));
            }
            missing.extend(names.into_iter().filter(|name| limits.get(name).is_err()));
        }
    }
    Ok(missing.into_iter().collect())
}

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
use crate::ruler::{family, limit_name, rate_name, surprise_name};
use crate::sites::{LAYER_OPS, dtype_at, op_of};
use crate::stats::{BLOCKS, CHANCE, extreme, gamma, order_statistic, surprise};

/// First seed of calibration; gates use small ones.
const CALIBRATION: u64 = 1 << 20;
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
pub struct Plan<'a> {
    /// Runs of every designed run.
    pub runs: usize,
    /// The dtype whose limits are made anew; both where none is given.
    pub dtype: Option<Dtype>,
    /// Make those limits anew that no gate feeds but the ones whose id holds this.
    pub gates: Option<&'a str>,
}

/// What calibration found.
pub struct Calibrated {
    /// All limits of the file, the calibrated ones renewed.
    pub limits: Limits,
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

/// How a limit follows from samples.
#[derive(Clone, Copy)]
enum Rule {
    /// Beyond the largest, as far as the spread of the largest of blocks says.
    Extreme,
    /// The largest, in whole steps of the dtype: errors of bf16 come in them.
    Steps,
}

impl Rule {
    /// The limit of a statistic of samples.
    fn limit(self, samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
        let values: Vec<f64> = samples.iter().map(value).collect();
        match self {
            Self::Extreme => extreme(&values).unwrap_or(0.0),
            Self::Steps => order_statistic(values).unwrap_or(0.0).ceil(),
        }
    }

    /// How a limit of so many samples came about.
    fn words(self, n: usize) -> String {
        match self {
            Self::Extreme => format!(
                "the largest of another {} exceeds the limit with a chance of {CHANCE:e} (Gumbel's \
                 law of the largest of {BLOCKS} blocks)",
                n.div_ceil(BLOCKS)
            ),
            Self::Steps => "the limit is that in whole steps of bf16".to_owned(),
        }
    }
}

/// The share of the samples of the worst family that exceed the limit made of all others.
fn leave_one_out(
    samples: &[Sample],
    rule: Rule,
    value: impl Fn(&Sample) -> f64,
) -> (&'static str, f64) {
    let trees: BTreeSet<&'static str> = samples.iter().map(|s| s.tree).collect();
    let rate = |tree: &'static str| {
        let (own, others): (Vec<Sample>, Vec<Sample>) =
            samples.iter().copied().partition(|s| s.tree == tree);
        let limit = rule.limit(&others, &value);
        let beyond = own.iter().filter(|s| value(s) > limit).count();
        (tree, beyond as f64 / own.len().max(1) as f64)
    };
    trees.into_iter().map(rate).fold(("none", 0.0), |a, b| if b.1 > a.1 { b } else { a })
}

/// How a limit came about.
fn origin(samples: &[Sample], rule: Rule, value: impl Fn(&Sample) -> f64) -> String {
    let (n, most) = (samples.len(), order_statistic(samples.iter().map(&value)).unwrap_or(0.0));
    let (tree, beyond) = leave_one_out(samples, rule, value);
    format!(
        "gates calibrate: {n} tensors of independent runs in legal orders of summation, the \
         largest {most:e}; {}; with family {tree} left out, {beyond:.1e} of it exceed the limit \
         of the others",
        rule.words(n)
    )
}

/// The command that makes the limits again.
fn again() -> String {
    "gates calibrate".to_owned()
}

fn max_limits(limits: Limits, samples: &Samples, dtype: Dtype) -> Result<Limits, CalibrateError> {
    let mut limits = limits;
    for (name, all) in samples {
        let (rule, statistic) = match dtype {
            Dtype::F32 => (Rule::Extreme, "largest error in u times the terms' sizes"),
            Dtype::Bf16 => (Rule::Steps, "largest error in ulps plus the legal f32 error"),
        };
        let value = rule.limit(all, |s| s.max);
        let terms = all.iter().map(|s| s.terms).max().unwrap_or(1);
        // Softmax and norms add a few roundings to those of their sum.
        let ceiling = gamma(terms + terms.ilog2() as usize + 1);
        let most = order_statistic(all.iter().map(|s| s.max)).unwrap_or(0.0);
        if dtype == Dtype::F32 && most > ceiling {
            return Err(CalibrateError::Ceiling { limit: name.clone(), measured: most, ceiling });
        }
        let provenance = origin(all, rule, |s| s.max);
        let (statistic, dtype) = (statistic.to_owned(), dtype.name().to_owned());
        limits =
            limits.with(name, Limit { value, statistic, dtype, provenance, recompute: again() });
    }
    Ok(limits)
}

/// The rate of misrounding that legal orders prove: their mean, or where tensors differ among
/// themselves the largest that the count of one tensor alone proves, three deviations below.
fn legal_rate(samples: &[Sample]) -> f64 {
    const DEVIATIONS: f64 = 3.0;
    let sum = |pick: fn(&Sample) -> u64| samples.iter().map(pick).sum::<u64>() as f64;
    let mean = sum(|s| s.misrounds) / sum(|s| s.elements).max(1.0);
    let proved = |s: &Sample| {
        let count = s.misrounds as f64;
        (count - DEVIATIONS * count.sqrt()).max(0.0) / s.elements as f64
    };
    samples.iter().map(proved).fold(mean, f64::max)
}

/// Rates of misrounding, and how surprising a count may be at them. Misrounds of one tensor come
/// together, where one sum serves a whole row: the limit of surprise allows for it.
fn count_limits(mut limits: Limits, samples: &Samples) -> Limits {
    for (name, all) in samples {
        let (n, rate) = (all.len(), legal_rate(all));
        let statistic = "share of elements that are not the rounded exact result".to_owned();
        let provenance = format!(
            "gates calibrate: the mean over {n} tensors of independent runs in legal orders of \
             summation, or the largest that one of them proves alone, three deviations below its \
             count"
        );
        let (dtype, recompute) = ("bf16".to_owned(), again());
        let limit = Limit { value: rate, statistic, dtype, provenance, recompute };
        limits = limits.with(&beside(name, "rate"), limit);
        let digits = |s: &Sample| surprise(s.elements, s.misrounds, rate);
        let value = Rule::Extreme.limit(all, digits);
        let provenance = origin(all, Rule::Extreme, digits);
        let statistic = "-log10 of the binomial tail of misrounds at the legal rate".to_owned();
        let (dtype, recompute) = ("bf16".to_owned(), again());
        let limit = Limit { value, statistic, dtype, provenance, recompute };
        limits = limits.with(&beside(name, "surprise"), limit);
    }
    limits
}

/// The name of another limit beside one of largest error.
fn beside(name: &str, what: &str) -> String {
    let stem = name.strip_suffix("-max").expect("samples are kept by the limit of largest error");
    format!("{stem}-{what}")
}

/// Tensors of fresh runs, and those beyond a limit.
fn beyond(limits: &Limits, (name, all): (&str, &[Sample]), dtype: Dtype) -> (u64, u64) {
    let value = |name: &str| limits.get(name).map_or(0.0, |limit| limit.value);
    let over = |sample: &&Sample| {
        let rate = value(&beside(name, "rate"));
        let digits = surprise(sample.elements, sample.misrounds, rate);
        let by_count = dtype == Dtype::Bf16 && digits > value(&beside(name, "surprise"));
        sample.max > value(name) || by_count
    };
    (all.len() as u64, all.iter().filter(over).count() as u64)
}

/// Calibrates the limits of the designed runs.
///
/// # Errors
/// A run that could not be made, and an ensemble above its ceiling.
pub fn calibrate(ctx: &Context, gates: &[Gate], plan: Plan<'_>) -> Result<Calibrated, CheckError> {
    let mut limits = ctx.limits.clone();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        if plan.dtype.is_some_and(|only| only != dtype) {
            continue;
        }
        let (some, others): (Vec<Gate>, Vec<Gate>) = gates
            .iter()
            .cloned()
            .partition(|gate| plan.gates.is_none_or(|id| gate.id.contains(id)));
        let fed = limits_of(&others, dtype)?;
        let anew = |name: &str| {
            let stem = name.rsplit_once('-').map_or(name, |(stem, _)| stem);
            name.starts_with("legal-") && !fed.contains(&format!("{stem}-max"))
        };
        limits = limits.without(|name, limit| limit.dtype == dtype.name() && anew(name));
        let mut samples = sample(ctx, &some, dtype, (CALIBRATION, plan.runs), &limits)?;
        samples.retain(|name, _| anew(name));
        if samples.is_empty() {
            return Err(CalibrateError::Nothing(dtype.name()).into());
        }
        limits = max_limits(limits, &samples, dtype)?;
        if dtype == Dtype::Bf16 {
            limits = count_limits(limits, &samples);
        }
    }
    let calibrated = |name: &str| name.starts_with("legal-");
    let lines = limits.iter().filter(|(name, _)| calibrated(name));
    let lines = lines.map(|(name, limit)| format!("{name} {:e}", limit.value)).collect();
    Ok(Calibrated { limits, lines })
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
            let found = beyond(&ctx.limits, (&name, &all), dtype);
            by_limit.insert(name, found);
        }
    }
    let sum = |pick: fn(&(u64, u64)) -> u64| by_limit.values().map(pick).sum();
    let (tensors, beyond) = (sum(|n| n.0), sum(|n| n.1));
    Ok(Validation { run, runs: runs as u64, tensors, beyond, limits: by_limit })
}

/// The limits of largest error that designed runs of a dtype feed.
fn limits_of(gates: &[Gate], dtype: Dtype) -> Result<BTreeSet<String>, CheckError> {
    let mut names = BTreeSet::new();
    for gate in gates {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        if probe.dtype != dtype || !probe.ops.is_empty() {
            continue;
        }
        let stage = Stage::new(probe, MODEL_SEED)?;
        let dims = stage.dims();
        let ops = LAYER_OPS.iter().chain(&["norm", "lm_head"]);
        let own = |op: &&&str| {
            let judged = family(op) != "exact" && dims.layers_with(op) > 0;
            judged && dtype_at(op, dtype) == dtype
        };
        names.extend(ops.filter(own).map(|op| limit_name(op, dtype, stage.terms(op))));
    }
    Ok(names)
}

/// Every op and size that a designed run judges has a limit.
pub fn uncalibrated(limits: &Limits, gates: &[Gate]) -> Result<Vec<String>, CheckError> {
    let mut missing = BTreeSet::new();
    for gate in gates {
        let Check::TeacherForced { probe } = &gate.check else { continue };
        let stage = Stage::new(probe, MODEL_SEED)?;
        let (ops, dims) = (LAYER_OPS.iter().chain(&["norm", "lm_head"]), stage.dims());
        for op in ops.filter(|op| family(op) != "exact" && dims.layers_with(op) > 0) {
            let (terms, dtype) = (stage.terms(op), dtype_at(op, probe.dtype));
            let mut names = vec![limit_name(op, dtype, terms)];
            if dtype == Dtype::Bf16 {
                names.extend([rate_name(op, terms), surprise_name(op, terms)]);
            }
            missing.extend(names.into_iter().filter(|name| limits.get(name).is_err()));
        }
    }
    Ok(missing.into_iter().collect())
}

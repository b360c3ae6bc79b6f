//! End-to-end distance of the engine's logits from exact arithmetic.
//!
//! The invariant: a bf16 run that hits exact arithmetic everywhere was compared with itself.

use samebits::contract::{Dtype, Order};
use samebits_fixtures::golden;
use samebits_fixtures::{paths, prompt_ids};
use samebits_oracle::{self as oracle, Arithmetic, Ideal, RunOptions};
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome, bitwise};
use crate::compare::at;
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::manifest::{IdealStatistic, Source};
use crate::sites::{Dims, oracle_dtype};

/// Cached steps after each prompt.
const STEPS: usize = 8;

/// One prompt with its exact logits and the squared error of Transformers' own arithmetic.
struct Run {
    ids: Vec<u32>,
    prompt: usize,
    exact: Vec<f64>,
    other: f64, // sum of squared errors, or NaN where it is not measured
}

/// Which runs.
pub struct Case<'a> {
    /// The checkpoint.
    pub source: &'a Source,
    /// The run's dtype.
    pub dtype: Dtype,
    /// Ids of each prompt.
    pub prompts: &'a [usize],
    /// What is measured.
    pub statistic: IdealStatistic,
}

/// Ids of a prompt and its steps: those that limits were measured on, where there are such.
fn ids(ctx: &Context, source: &Source, vocab: usize, n: usize) -> Result<Vec<u32>, CheckError> {
    match source {
        Source::Narrow(name) => {
            let tensors = golden::tensors(&paths::golden(&format!("{name}.bf16.safetensors")))?;
            bitwise::ids(&tensors, n)
        }
        _ => Ok(prompt_ids(ctx.seed, vocab, n + STEPS)),
    }
}

fn logits(
    model: &oracle::Model,
    arithmetic: &dyn Arithmetic,
    run: (&[u32], usize),
) -> Result<Vec<f64>, CheckError> {
    let options = RunOptions { decode_from: Some(run.1), ..RunOptions::default() };
    Ok(oracle::run(model, arithmetic, run.0, &options)?.logits().values.clone())
}

fn squares(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// Measures the engine's logits, prefill and cached steps, against exact ones.
pub fn prepare<'c>(ctx: &'c Context, case: &Case<'_>) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(case.source)?;
    let (dtype, statistic) = (case.dtype, case.statistic);
    let (model, reference) = (ctx.load(folder.path(), dtype)?, ctx.reference(folder.path())?);
    let vocab = Dims::of(reference.config()).vocab;
    let transformers =
        oracle::Bits { order: oracle::Order::Transformers, dtype: oracle_dtype(dtype) };
    let mut runs = Vec::new();
    for prompt in case.prompts {
        let ids = ids(ctx, case.source, vocab, *prompt)?;
        let exact = logits(&reference, &Ideal, (&ids, *prompt))?;
        let other = match statistic {
            IdealStatistic::ErrRelMax => f64::NAN,
            IdealStatistic::RmsRatio => {
                squares(&logits(&reference, &transformers, (&ids, *prompt))?, &exact)
            }
        };
        runs.push(Run { ids, prompt: *prompt, exact, other });
    }
    let expected = case.prompts.iter().map(|n| ((n + STEPS) * vocab) as u64).sum();
    Ok(Box::new(move |plant| {
        let keep = folder.path();
        let mut outcome = blank(statistic, expected);
        let (mut own, mut other, mut worst) = (0.0, 0.0, -1.0);
        for run in &runs {
            let setup = Setup::new(Order::Invariant, &format!("prompt={}", run.prompt));
            let setup = setup.decode_from(run.prompt, run.ids.len());
            let traces = trace(&model, &setup, std::slice::from_ref(&run.ids), plant)?;
            let got = traces.sequences[0]["lm_head"].values();
            outcome.hits = Some(outcome.hits.unwrap_or(0) + traces.hits);
            outcome.compared += got.len() as u64;
            let largest = run.exact.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            for (i, (g, e)) in got.iter().zip(&run.exact).enumerate() {
                // A NaN is worse than anything: the comparison is written so that it wins.
                let err = (g - e).abs() / largest;
                if err > worst || err.is_nan() {
                    worst = err;
                    let mut first = at("lm_head", Some(i / vocab));
                    first.element = Some((i % vocab) as u64);
                    (first.want, first.got) = (Some(Num(*e)), Some(Num(*g)));
                    first.text = format!("largest error, prompt of {}", run.prompt);
                    outcome.first = Some(first);
                }
            }
            own += squares(&got, &run.exact);
            other += run.other;
            outcome.paths.push(traces.proof);
        }
        outcome.measured = match statistic {
            IdealStatistic::ErrRelMax => worst,
            IdealStatistic::RmsRatio => (own / other).sqrt(),
        };
        if dtype == Dtype::Bf16 && own == 0.0 {
            let what = keep.display();
            outcome.alarm = Some(format!("too good: bf16 equals exact arithmetic on {what}"));
        }
        Ok(outcome)
    }))
}

fn blank(statistic: IdealStatistic, expected: u64) -> Outcome {
    Outcome {
        statistic: match statistic {
            IdealStatistic::ErrRelMax => "logit_err_rel_max",
            IdealStatistic::RmsRatio => "logit_rms_err_over_transformers",
        },
        measured: f64::NAN,
        compared: 0,
        expected,
        first: None,
        paths: Vec::new(),
        hits: None,
        alarm: None,
    }
}

//! Where the engine and Transformers part on hybrids: how many logits, and whether either is
//! nearer to exact arithmetic.
//!
//! Transformers computes a prompt's delta rule in chunks, by a triangular solve whose order is a
//! library's own; every now and then the last bit of a result in bf16 comes out another way. The
//! measure is the engine's largest error over the largest error of Transformers; how many logits
//! have other bits is said beside it. The invariant: both errors are against the same exact logits.

use samebits::contract::{Dtype, Order};
use samebits_fixtures::golden;
use samebits_fixtures::paths;
use samebits_reports::Num;

use super::bitwise::{ids, recorded};
use super::{CheckError, Measure, Outcome};
use crate::compare::at;
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::sites::{Bits, Dims};

/// One prompt with its steps: logits of Transformers and exact ones, `[rows, vocab]`.
struct Run {
    ids: Vec<u32>,
    prompt: usize,
    theirs: Vec<Bits>,
    exact: Vec<f64>,
}

fn load(narrow: &str, dtype: Dtype, prompt: usize) -> Result<Run, CheckError> {
    let mode = if dtype == Dtype::Bf16 { "bf16" } else { "fp32" };
    let tensors = golden::tensors(&paths::golden(&format!("{narrow}.{mode}.safetensors")))?;
    let oracle = golden::tensors(&paths::golden(&format!("{narrow}.oracle.safetensors")))?;
    let keys = [format!("L{prompt}/logits"), format!("L{prompt}/decode/logits")];
    let (mut theirs, mut exact) = (Vec::new(), Vec::new());
    for key in &keys {
        theirs.push(recorded(&tensors, key)?);
        let values = oracle.get(key).ok_or_else(|| CheckError::missing(key, "the oracle's"))?;
        exact.extend(values.f64s());
    }
    Ok(Run { ids: ids(&tensors, prompt)?, prompt, theirs, exact })
}

/// Measures whole runs of a narrow hybrid.
pub fn prepare<'c>(
    ctx: &'c Context,
    narrow: &str,
    dtype: Dtype,
    prompts: &[usize],
) -> Result<Measure<'c>, CheckError> {
    let folder = paths::narrow(narrow);
    let model = ctx.load_for(&folder, dtype, Order::Transformers)?;
    let vocab = Dims::of_shape(&model.shape).vocab;
    let runs = prompts.iter().map(|n| load(narrow, dtype, *n)).collect::<Result<Vec<_>, _>>()?;
    let expected = runs.iter().map(|run| (run.ids.len() * vocab) as u64).sum();
    Ok(Box::new(move |plant| {
        let mut outcome = Outcome {
            statistic: "logit_err_over_transformers",
            measured: f64::NAN,
            compared: 0,
            expected,
            first: None,
            paths: Vec::new(),
            hits: None,
            alarm: None,
        };
        let (mut own, mut other, mut parted) = (-1.0, 0.0f64, Vec::new());
        for run in &runs {
            let setup = Setup::new(Order::Transformers, &format!("prompt={}", run.prompt));
            let setup = setup.decode_from(run.prompt, run.ids.len());
            let traces = trace(&model, &setup, std::slice::from_ref(&run.ids), plant)?;
            let got = &traces.sequences[0]["lm_head"];
            let largest = run.exact.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            let theirs =
                run.theirs.iter().flat_map(|part| part.bits.iter().map(move |b| (part, *b)));
            let mut flips = 0;
            for (i, ((part, bits), exact)) in theirs.zip(&run.exact).enumerate() {
                outcome.compared += 1;
                flips += u64::from(bits != got.bits[i]);
                let theirs = crate::sites::value(part.dtype, bits);
                other = other.max((theirs - exact).abs() / largest);
                let err = (got.value(i) - exact).abs() / largest;
                if err > own || err.is_nan() {
                    own = err;
                    let mut first = at("lm_head", Some(i / vocab));
                    first.element = Some((i % vocab) as u64);
                    (first.want, first.got) = (Some(Num(*exact)), Some(Num(got.value(i))));
                    outcome.first = Some(first);
                }
            }
            parted.push(format!("{flips} of {} at {}", run.exact.len(), run.prompt));
            outcome.hits = Some(outcome.hits.unwrap_or(0) + traces.hits);
            outcome.paths.push(traces.proof);
        }
        outcome.measured = own / other;
        if let Some(first) = &mut outcome.first {
            let parted = parted.join(", ");
            first.text = format!("largest error {own:.2e}; logits of other bits: {parted}");
        }
        Ok(outcome)
    }))
}

//! Whole runs of the narrow checkpoints against every tensor that Transformers left of them.
//!
//! The order is always Transformers': the narrow prompts are too short for the default one to
//! agree. The invariant: an f32 run is compared only where the contract declares a match, with the
//! rotary tables of torch injected.

use std::collections::BTreeMap;
use std::ops::Range;

use samebits::contract::{Dtype, Order, RotaryTables};
use samebits_fixtures::golden::{self, Tensors};
use samebits_fixtures::paths;

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare_rows};
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::sites::{Bits, Dims, Sites};

/// Which runs.
pub struct Narrow<'a> {
    /// The checkpoint.
    pub narrow: &'a str,
    /// The run's dtype.
    pub dtype: Dtype,
    /// Lengths of the prompts.
    pub prompts: &'a [usize],
    /// Whether the cached steps are compared too.
    pub cached: bool,
}

/// Steps after each prompt.
const STEPS: usize = 8;

/// A tensor of Transformers as bits.
pub fn recorded(tensors: &Tensors, key: &str) -> Result<Bits, CheckError> {
    let bits = tensors.get(key).and_then(Bits::of_golden);
    bits.ok_or_else(|| CheckError::missing(key, "the recorded tensors"))
}

/// The ids of a prompt of `n` and of the steps after it.
pub fn ids(tensors: &Tensors, n: usize) -> Result<Vec<u32>, CheckError> {
    let mut ids = Vec::new();
    for key in ["input_ids", "decode_ids"].map(|key| format!("L{n}/{key}")) {
        let tensor = tensors.get(&key).ok_or_else(|| CheckError::missing(&key, "the tensors"))?;
        ids.extend(tensor.i64s().into_iter().map(|id| id as u32));
    }
    Ok(ids)
}

/// Rotary tables that torch computed, from a file of fixtures.
pub fn rotary(file: &str) -> Result<RotaryTables, CheckError> {
    let tensors = golden::tensors(&paths::golden(file))?;
    let table = |name| tensors.get(name).ok_or_else(|| CheckError::missing(name, file));
    let (cos, sin) = (table("rotary.cos")?, table("rotary.sin")?);
    Ok(RotaryTables { half: cos.shape[1], cos: cos.f32s(), sin: sin.f32s() })
}

/// The recorded tensors of a run, by site: the first forward's, and those of the steps.
struct Recorded {
    ids: Vec<u32>,
    prefill: Sites,
    steps: Sites,
}

fn load(tensors: &Tensors, dims: &Dims, n: usize, cached: bool) -> Result<Recorded, CheckError> {
    let get = |key: &str| recorded(tensors, &format!("L{n}/{key}"));
    let mut prefill = Sites::new();
    for (site, key) in [("embed_tokens", "embed"), ("norm", "norm"), ("lm_head", "logits")] {
        prefill.insert(site.to_owned(), get(key)?);
    }
    for layer in 0..dims.layers {
        prefill.insert(format!("layers.{layer}.mlp_residual"), get(&format!("layer{layer}"))?);
    }
    let mut steps = Sites::new();
    if cached {
        steps.insert("norm".to_owned(), get("decode/norm")?);
        steps.insert("lm_head".to_owned(), get("decode/logits")?);
    }
    let mut ids = ids(tensors, n)?;
    ids.truncate(if cached { n + STEPS } else { n });
    Ok(Recorded { ids, prefill, steps })
}

/// The rows `rows` of every site that `like` has.
fn rows_of(sites: &Sites, like: &Sites, rows: Range<usize>) -> Sites {
    let part = |name: &String| {
        let bits = sites.get(name)?;
        Some((name.clone(), bits.rows(name, rows.clone(), rows.end)))
    };
    like.keys().filter_map(part).collect()
}

/// Compares whole runs with Transformers' tensors.
pub fn narrow<'c>(ctx: &'c Context, which: &Narrow<'_>) -> Result<Measure<'c>, CheckError> {
    let dtype = which.dtype;
    let mode = if dtype == Dtype::Bf16 { "bf16" } else { "fp32" };
    let tensors = golden::tensors(&paths::golden(&format!("{}.{mode}.safetensors", which.narrow)))?;
    let folder = paths::narrow(which.narrow);
    let (model, reference) =
        (ctx.load_for(&folder, dtype, Order::Transformers)?, ctx.reference(&folder)?);
    let dims = Dims::of(reference.config());
    let injected =
        (dtype == Dtype::F32).then(|| rotary("narrow.rotary.safetensors")).transpose()?;
    let cached = which.cached;
    let runs: BTreeMap<usize, Recorded> = which
        .prompts
        .iter()
        .map(|n| Ok((*n, load(&tensors, &dims, *n, cached)?)))
        .collect::<Result<_, CheckError>>()?;
    let row = (dims.layers + 2) * dims.hidden + dims.vocab;
    let step = if cached { STEPS * (dims.hidden + dims.vocab) } else { 0 };
    let expected = runs.keys().map(|n| (n * row + step) as u64).sum();
    Ok(Box::new(move |plant| {
        let (mut found, mut paths, mut hits) = (Comparison::default(), Vec::new(), 0);
        for (n, run) in &runs {
            let len = run.ids.len();
            let mut setup = Setup::new(Order::Transformers, &format!("prompt={n}"));
            setup.rotary.clone_from(&injected);
            let setup = if cached { setup.decode_from(*n, len) } else { setup };
            let traces = trace(&model, &setup, std::slice::from_ref(&run.ids), plant)?;
            let got = &traces.sequences[0];
            let mut one = compare_rows(&run.prefill, &rows_of(got, &run.prefill, 0..*n), *n);
            if cached {
                let steps = rows_of(got, &run.steps, *n..len);
                one.then(compare_rows(&run.steps, &steps, STEPS).labelled("cached step"));
            }
            found.then(one.labelled(&format!("prompt of {n}:")));
            paths.push(traces.proof);
            hits += traces.hits;
        }
        Ok(Outcome::bitwise(found, expected).with_paths(paths).with_hits(hits))
    }))
}

//! Every op of a narrow checkpoint on the inputs that Transformers had.
//!
//! Each captured tensor replaces the engine's own once the engine's has been looked at, so that a
//! difference at one site cannot hide or cause one at the next.

use std::collections::BTreeMap;

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective, Replayed};
use samebits_fixtures::golden::{self, Tensors};
use samebits_fixtures::paths;

use super::bitwise::{ids, recorded};
use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare_rows};
use crate::context::Context;
use crate::engine::defect;
use crate::sites::{Bits, Dims, Sites, op_of};

/// Names of captured ops and of their sites.
const OPS: [(&str, &str); 16] = [
    ("input_layernorm", "input_layernorm"),
    ("q_proj", "q_proj"),
    ("k_proj", "k_proj"),
    ("v_proj", "v_proj"),
    ("q_normed", "q_norm"),
    ("k_normed", "k_norm"),
    ("q_rope", "q_rope"),
    ("k_rope", "k_rope"),
    ("v", "v_cache"),
    ("attn_probs", "probs"),
    ("attn_ctx", "mix"),
    ("o_proj", "o_proj"),
    ("post_attention_layernorm", "post_attention_layernorm"),
    ("gate_proj", "gate_proj"),
    ("up_proj", "up_proj"),
    ("down_proj", "down_proj"),
];
/// The prompt whose ops were captured, and the layers.
const PROMPT: usize = 7;
const LAYERS: [usize; 2] = [0, 3];

/// Captured tensors of the prompt and of the first cached step.
struct Captured {
    prefill: Sites,
    step: Sites,
}

fn load(tensors: &Tensors, dims: &Dims) -> Result<Captured, CheckError> {
    let mut captured = Captured { prefill: Sites::new(), step: Sites::new() };
    for (prefix, rows, sites) in
        [("L7/ops/", PROMPT, &mut captured.prefill), ("L7/ops/decode0/", 1, &mut captured.step)]
    {
        for layer in LAYERS {
            for (key, op) in OPS {
                let site = format!("layers.{layer}.{op}");
                let bits = recorded(tensors, &format!("{prefix}layer{layer}/{key}"))?;
                sites.insert(site, shaped(bits, op, dims, rows));
            }
            let k = sites[&format!("layers.{layer}.k_rope")].clone();
            sites.insert(format!("layers.{layer}.k_cache"), k);
        }
    }
    let prefill = &mut captured.prefill;
    for (site, key) in [("embed_tokens", "embed"), ("norm", "norm"), ("lm_head", "logits")] {
        prefill.insert(site.to_owned(), recorded(tensors, &format!("L7/{key}"))?);
    }
    for layer in 0..dims.layers {
        let site = |op: &str| format!("layers.{layer}.{op}");
        prefill.insert(site("mlp_residual"), recorded(tensors, &format!("L7/layer{layer}"))?);
        for (key, op) in [("k", "k_cache"), ("v", "v_cache")] {
            let bits = recorded(tensors, &format!("cache/L7/layer{layer}/{key}"))?;
            prefill.insert(site(op), shaped(bits, op, dims, PROMPT));
        }
    }
    Ok(captured)
}

/// A captured tensor in its site's shape: heads come after rows but for probabilities, and of a
/// cache only the appended rows are the site's.
fn shaped(bits: Bits, op: &str, dims: &Dims, rows: usize) -> Bits {
    match op {
        "q_norm" | "k_norm" | "q_rope" | "k_rope" | "k_cache" | "v_cache" => {
            let by_row = bits.swapped();
            let all = by_row.shape[0];
            by_row.rows(op, all - rows..all, all)
        }
        "mix" => bits.reshaped(&[rows, dims.heads * dims.head_dim]),
        _ => bits,
    }
}

/// The shape under which the engine writes a site: norms of heads count each head as a row.
fn engine_shape(site: &str, shape: &[usize], len: usize) -> Vec<usize> {
    let per_head = matches!(op_of(site), "q_norm" | "k_norm");
    let width = if per_head { shape[2] } else { len / (PROMPT + 1) };
    vec![len / width, width]
}

/// The captured tensors as taps over both forwards; only sites that have both.
fn taps(captured: &Captured) -> BTreeMap<String, Tap> {
    let both = captured.step.iter().filter(|(name, _)| op_of(name) != "probs");
    both.map(|(name, step)| {
        let first = &captured.prefill[name];
        let bits: Vec<u32> = first.bits.iter().chain(&step.bits).copied().collect();
        let values: Vec<f32> = bits.iter().map(|b| f32::from_bits(b << 16)).collect();
        let shape = engine_shape(name, &first.shape, values.len());
        (name.clone(), Tap { shape, data: Tensor::from_f32(Dtype::Bf16, &values) })
    })
    .collect()
}

/// Compares every captured op with the engine's on the captured inputs.
pub fn prepare<'c>(ctx: &'c Context, narrow: &str) -> Result<Measure<'c>, CheckError> {
    let tensors = golden::tensors(&paths::golden(&format!("{narrow}.bf16.safetensors")))?;
    let folder = paths::narrow(narrow);
    let (model, reference) = (ctx.load(&folder, Dtype::Bf16)?, ctx.reference(&folder)?);
    let dims = Dims::of(reference.config());
    let captured = load(&tensors, &dims)?;
    let ids = ids(&tensors, PROMPT)?[..=PROMPT].to_vec();
    let expected = expected(&dims);
    Ok(Box::new(move |plant| {
        let null = Defect::find("null")?;
        let defect = defect(plant)?.unwrap_or(null);
        let cpu = Cpu::new(Kernels::best(), Order::Transformers);
        let traced = Traced::new(Defective::new(cpu, defect), 1);
        let mut b = Replayed::new(traced, 1, taps(&captured));
        run(&mut b, &model, std::slice::from_ref(&ids), &Plan::decode_from(PROMPT, PROMPT + 1))?;
        let (taps, defective) = b.finish()?.finish();
        let part = |like: &Sites, rows: std::ops::Range<usize>| -> Sites {
            let bits = |name: &String| {
                let shape = dims.shape(op_of(name), PROMPT + 1, PROMPT + 1);
                let bits = Bits::of_tap(taps.get(name)?).reshaped(&shape);
                Some((name.clone(), bits.rows(name, rows.clone(), rows.end)))
            };
            like.keys().filter_map(bits).collect()
        };
        let mut found = Comparison::default();
        found.then(compare_rows(&captured.prefill, &part(&captured.prefill, 0..PROMPT), PROMPT));
        let step = part(&captured.step, PROMPT..PROMPT + 1);
        found.then(compare_rows(&captured.step, &step, 1).labelled("first cached step"));
        Ok(Outcome::bitwise(found, expected).with_hits(defective.hits()))
    }))
}

/// Elements captured, from the shape alone.
fn expected(dims: &Dims) -> u64 {
    let layer = |keys: usize| -> usize {
        let captured = OPS.iter().map(|(_, op)| dims.width(op, keys)).sum::<usize>();
        LAYERS.len() * (captured + dims.width("k_cache", keys))
    };
    // The other layers' caches, all layers' outputs, and what lies outside the layers.
    let caches = (dims.layers - LAYERS.len()) * 2 * dims.width("k_cache", 0);
    let outside = (2 + dims.layers) * dims.hidden + dims.vocab;
    (PROMPT * (layer(PROMPT) + caches + outside) + layer(PROMPT + 1)) as u64
}

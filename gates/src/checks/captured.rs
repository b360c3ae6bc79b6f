//! Every op of a narrow checkpoint on the inputs that Transformers had.
//!
//! Each captured tensor replaces the engine's own once the engine's has been looked at, so that a
//! difference at one site cannot hide or cause one at the next. The logarithm of a decay may be two
//! units off: Transformers takes it from a library that does not round correctly.

mod tensors;

use std::collections::BTreeMap;

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective, Replayed};
use samebits_fixtures::golden;
use samebits_fixtures::paths;

use super::bitwise::ids;
use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare_rows, compare_states, compare_within};
use crate::context::Context;
use crate::engine::{Setup, defect, trace};
use crate::sites::{Bits, Dims, Sites, dtype_at, op_of};
use samebits::op::CONV_STATE;
use tensors::{Captured, expected};

/// The prompt whose ops were captured.
const PROMPT: usize = 7;
/// Units in the last place by which `g` may be off.
const DECAY_ULPS: u64 = 2;

/// The shape under which the engine writes a site: norms of heads count each head as a row.
fn engine_shape(site: &str, shape: &[usize], len: usize) -> Vec<usize> {
    let per_head = matches!(op_of(site), "q_norm" | "k_norm" | "gdn_norm");
    let width = if per_head { shape[2] } else { len / (PROMPT + 1) };
    vec![len / width, width]
}

/// The captured tensors as taps over both forwards; only sites that have both.
fn taps(captured: &Captured) -> BTreeMap<String, Tap> {
    let both = captured.step.iter().filter(|(name, _)| op_of(name) != "probs");
    both.map(|(name, step)| {
        let first = &captured.prefill[name];
        let values: Vec<f64> = first.values().into_iter().chain(step.values()).collect();
        let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
        let shape = engine_shape(name, &first.shape, values.len());
        (name.clone(), Tap { shape, data: Tensor::from_f32(first.dtype, &values) })
    })
    .collect()
}

/// Compares the rows of one forward, decays within their units.
fn compare_forward(want: &Sites, got: &Sites, rows: usize) -> Comparison {
    let exact: Sites = want
        .iter()
        .filter(|(name, _)| op_of(name) != "g")
        .map(|(n, b)| (n.clone(), b.clone()))
        .collect();
    let mut found = compare_rows(&exact, got, rows);
    for (name, bits) in want.iter().filter(|(name, _)| op_of(name) == "g") {
        found.then(compare_within(name, bits, got.get(name), DECAY_ULPS));
    }
    found
}

/// Compares every captured op with the engine's on the captured inputs.
pub fn prepare<'c>(ctx: &'c Context, narrow: &str) -> Result<Measure<'c>, CheckError> {
    let tensors = golden::tensors(&paths::golden(&format!("{narrow}.bf16.safetensors")))?;
    let folder = paths::narrow(narrow);
    let model = ctx.load_for(&folder, Dtype::Bf16, Order::Transformers)?;
    let dims = Dims::of(ctx.reference(&folder)?.config());
    let captured = Captured::load(&tensors, &dims, |layer| model.shape.kinds.is_full(layer))?;
    let ids = ids(&tensors, PROMPT)?[..=PROMPT].to_vec();
    let expected = expected(&dims, |layer| model.shape.kinds.is_full(layer));
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
                assert_eq!(bits.dtype, dtype_at(name, Dtype::Bf16), "{name}");
                Some((name.clone(), bits.rows(name, rows.clone(), rows.end)))
            };
            like.keys().filter_map(bits).collect()
        };
        let mut found = Comparison::default();
        let prefill = part(&captured.prefill, 0..PROMPT);
        found.then(compare_forward(&captured.prefill, &prefill, PROMPT));
        let step = part(&captured.step, PROMPT..PROMPT + 1);
        found.then(compare_forward(&captured.step, &step, 1).labelled("first cached step"));
        if !captured.inputs.is_empty() {
            // What convolutions keep after the prompt, in a run of its own without injection.
            let setup = Setup::new(Order::Transformers, "prompt");
            let traces = trace(&model, &setup, &[ids[..PROMPT].to_vec()], plant)?;
            let kept = |(name, bits): &(String, Bits)| {
                (op_of(name) == CONV_STATE).then(|| (name.clone(), bits.clone()))
            };
            let states = traces.states[0].clone().into_iter().collect::<Vec<_>>();
            let states: Sites = states.iter().filter_map(kept).collect();
            found.then(compare_states(&captured.inputs, &states));
        }
        Ok(Outcome::bitwise(found, expected).with_hits(defective.hits()))
    }))
}

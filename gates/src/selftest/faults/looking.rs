//! Faults of inputs, taps, counts and loops.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use samebits::cpu::{Cpu, CpuMem};
use samebits::generate::{GenerateError, Request, Sequence};
use samebits::model::Model;
use samebits_fixtures::{Spec, container, prompt_ids, synthetic};

use super::Planting;
use crate::checks::determinism::{self, Answer};
use crate::checks::running::{self, heap};
use crate::checks::{CheckError, Outcome};
use crate::context::Context;
use crate::decor::{Seam, Traffic, Watched};
use crate::engine::{Setup, Traces, trace};
use crate::manifest::{Gate, Plant};
use crate::probe::Stage;
use crate::runner;
use crate::sites::split;

pub const ALL: &[(&str, Planting)] = &[
    ("ids-all-equal", |r| r.draw = |seed, vocab, n| vec![prompt_ids(seed, vocab, 1)[0]; n]),
    ("weights-all-equal", |r| r.checkpoint = weights_all_equal),
    ("ids-of-seed-one", |r| r.draw = |_, vocab, n| prompt_ids(1, vocab, n)),
    ("weights-of-seed-one", |r| r.checkpoint = |spec, _, folder| synthetic(spec, 1, folder)),
    ("run-of-seed-one", |r| r.ran = |stage, _, defect| Stage::run(stage, 1, defect)),
    ("seed-not-said", |r| r.repeat = seed_not_said),
    ("tap-overwritten", |r| r.trace = tap_overwritten),
    ("tap-of-last-forward", |r| r.trace = tap_of_last_forward),
    ("plant-left-out", |r| r.trace = |model, setup, prompts, _| trace(model, setup, prompts, None)),
    ("dead-child-believed", |r| r.child = dead_child_believed),
    ("memory-of-zeros", |r| r.poisoned = Seam::new),
    ("hook-disarmed", |r| r.watched = hook_disarmed),
    ("checked-before-loop", |r| r.looped = checked_before_loop),
    ("heap-disarmed", |r| {
        r.heap = |counted, case| Outcome { alarm: None, ..heap::outcome(counted, case) }
    }),
    ("heap-before-loop", |r| r.heap = heap_before_loop),
];

fn weights_all_equal(
    spec: &Spec,
    seed: u64,
    folder: &Path,
) -> Result<(), samebits_fixtures::Error> {
    synthetic(spec, seed, folder)?;
    container::edit_tensors(&folder.join("model.safetensors"), |container| {
        for entry in &mut container.entries {
            let first = [entry.bytes[0], entry.bytes[1]];
            entry.bytes.chunks_exact_mut(2).for_each(|element| element.copy_from_slice(&first));
        }
    })
}

fn seed_not_said(gate: &Gate, ctx: &Context) -> String {
    let repeat = runner::repeat(gate, ctx);
    repeat.replace(&format!(" --seed {}", ctx.seed), "")
}

/// Taps that keep a buffer in the place of a copy: every layer writes the same ones, and the last
/// one is what they hold in the end.
fn tap_overwritten(
    model: &Model<CpuMem>,
    setup: &Setup,
    prompts: &[Vec<u32>],
    plant: Option<&Plant>,
) -> Result<Traces, CheckError> {
    let mut traces = trace(model, setup, prompts, plant)?;
    for sites in &mut traces.sequences {
        let last = sites.clone();
        for (name, bits) in sites.iter_mut() {
            let Some((layer, op)) = split(name).filter(|(_, op)| !op.ends_with("_cache")) else {
                continue;
            };
            let end = format!("layers.{}.{op}", model.shape.layers - 1);
            if layer + 1 < model.shape.layers
                && let Some(end) = last.get(&end)
            {
                *bits = end.clone();
            }
        }
    }
    Ok(traces)
}

/// Each forward's rows show what the last forward wrote: its row, over and over.
fn tap_of_last_forward(
    model: &Model<CpuMem>,
    setup: &Setup,
    prompts: &[Vec<u32>],
    plant: Option<&Plant>,
) -> Result<Traces, CheckError> {
    let mut traces = trace(model, setup, prompts, plant)?;
    for sites in &mut traces.sequences {
        for (_, bits) in sites.iter_mut().filter(|(name, _)| name.ends_with(".mlp_residual")) {
            let width = bits.bits.len() / bits.shape[0];
            let last = bits.bits[bits.bits.len() - width..].to_vec();
            bits.bits = last.repeat(bits.shape[0]);
        }
    }
    Ok(traces)
}

/// A process that did not answer had nothing to say against anyone.
fn dead_child_believed(
    ctx: &Context,
    command: &mut Command,
    index: usize,
) -> Result<Answer, CheckError> {
    determinism::output(ctx, command, index).or(Ok(Answer {
        weights: BTreeMap::new(),
        sites: BTreeMap::new(),
        argmax: Vec::new(),
        generated: Vec::new(),
        hits: 1,
    }))
}

fn hook_disarmed(cpu: Cpu) -> (Seam, Rc<Cell<Traffic>>) {
    let (watched, _) = Watched::new(cpu);
    (Seam::new(watched), Rc::default())
}

/// Everything is looked at first, and then the loop runs.
fn checked_before_loop(
    b: &mut Seam,
    model: &Model<CpuMem>,
    request: &Request,
    mark: &mut dyn FnMut(),
) -> Result<Vec<Sequence>, GenerateError> {
    (0..request.max_new).for_each(|_| mark());
    running::run_loop(b, model, request, || ())
}

/// What was held before the first step stands for every step.
fn heap_before_loop(counted: &heap::Counted, case: heap::Case) -> Outcome {
    let steps = counted.calls.len();
    let before = heap::Counted {
        calls: vec![counted.calls[0]; steps],
        held: vec![counted.held[0]; steps],
        ..counted.clone()
    };
    heap::outcome(&before, case)
}

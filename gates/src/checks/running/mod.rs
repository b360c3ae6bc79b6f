//! Gates of a running engine: its generation loop, sampler, sessions, processes and text.
//!
//! Here: what these checks share. Absent: taps of single ops, which the other checks compare. The
//! invariant: the loop that is measured is the engine's own, never a copy of it.

pub mod heap;
mod loops;
mod perturbed;
pub(crate) mod reference;
mod sampling;
mod sessions;
mod text;
mod traffic;

pub use perturbed::needs_setarch;
pub use text::missing_files;

use samebits::cpu::CpuMem;
use samebits::generate::{GenerateError, Request, Sampler, Sampling, Sequence, generate};
use samebits::model::Model;
use samebits::op::Backend;
use samebits_fixtures::prompt_ids;

use super::{CheckError, Measure};
use crate::context::Context;
use crate::decor::Waste;
use crate::manifest::{Check, Plant};

/// Makes the references of a check of this kind.
///
/// # Errors
/// Reference material that cannot be had.
///
/// # Panics
/// A check of another kind.
pub fn prepare<'c>(check: &'c Check, ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    match *check {
        Check::Allocator { ref model, dtype, steps, batch, threads, sampled } => {
            heap::prepare(ctx, model, heap::Case { dtype, steps, batch, threads, sampled })
        }
        Check::HostSync { ref model, dtype, steps, batch, sampled } => {
            traffic::prepare(ctx, model, traffic::Case { dtype, steps, batch, sampled })
        }
        Check::Draws => sampling::draws(ctx),
        Check::Distribution => sampling::distribution(ctx),
        Check::Ties => sampling::ties(),
        Check::LoopDraws { ref model, dtype, batch, steps } => {
            loops::draws_of_a_loop(ctx, model, dtype, loops::Size { batch, steps })
        }
        Check::GeneratedBatch { ref model, dtype, batch, steps } => {
            loops::batch(ctx, model, dtype, loops::Size { batch, steps })
        }
        Check::Resumed { ref model, dtype, before, after, sampled } => {
            loops::resume(ctx, model, loops::Continued { dtype, before, after, sampled })
        }
        Check::Sessions { ref model, dtype, long, short, steps } => {
            sessions::prepare(ctx, model, sessions::Case { dtype, long, short, steps })
        }
        Check::Perturbed { ref model, dtype, prompt, ref how } => {
            perturbed::prepare(ctx, model, (dtype, prompt), how)
        }
        Check::Text { tokenizer } => text::prepare(ctx, tokenizer),
        _ => unreachable!("the dispatch sends other checks elsewhere"),
    }
}

/// How tokens are chosen where a gate samples: every filter takes part.
const SAMPLING: Sampling =
    Sampling { temperature: 1.25, top_k: 40, top_p: 0.95, min_p: 0.01, seed: 0 };

/// Ids of a prompt whose length does not matter.
const PROMPT: usize = 8;

/// Greedy, or the gates' own sampling under a seed.
fn sampler(sampled: bool, seed: u64) -> Sampler {
    if sampled { Sampler::Sample(Sampling { seed, ..SAMPLING }) } else { Sampler::Greedy }
}

/// Prompts of one length, each of its own seed.
pub(crate) fn prompts(seed: u64, vocab: usize, batch: usize, len: usize) -> Vec<Vec<u32>> {
    (0..batch).map(|i| prompt_ids(seed.wrapping_add(i as u64), vocab, len)).collect()
}

/// Continues prompts by exactly `new` ids.
pub(crate) fn request(prompts: Vec<Vec<u32>>, new: usize, sampler: Sampler) -> Request {
    let context = prompts.first().map_or(0, Vec::len) + new;
    Request { prompts, max_new: new, context, sampler, stop: Vec::new(), chunk: None }
}

/// The engine's generation loop; `mark` is called once a step, when its ids are chosen.
pub(crate) fn run_loop<B: Backend<M = CpuMem>>(
    b: &mut B,
    model: &Model<CpuMem>,
    request: &Request,
    mut mark: impl FnMut(),
) -> Result<Vec<Sequence>, GenerateError> {
    generate(b, model, request, |sequence, _| {
        if sequence == 0 {
            mark();
        }
        Ok::<(), GenerateError>(())
    })
}

/// The planted fault's name, if it is one of the check's own material.
pub fn material<'p>(
    plant: Option<&'p Plant>,
    known: &[&str],
) -> Result<Option<&'p str>, CheckError> {
    match plant {
        None => Ok(None),
        Some(Plant::Material(what)) if known.contains(&what.as_str()) => Ok(Some(what)),
        Some(plant) => Err(CheckError::NoPlace { id: plant.id().to_owned() }),
    }
}

/// The planted waste of a step.
fn waste(plant: Option<&Plant>) -> Result<Waste, CheckError> {
    let named = material(plant, &Waste::NAMED.map(|(name, _)| name))?;
    Ok(named.and_then(Waste::named).unwrap_or(Waste::None))
}

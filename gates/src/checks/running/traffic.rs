//! What a decode step moves between host and device.
//!
//! The invariant: a step's calls are compared one by one with what its choice needs, so that one
//! call too few is as red as one too many.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};

use super::{PROMPT, prompts, request, run_loop, sampler, waste};
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::decor::{Traffic, Wasteful, Watched};
use crate::manifest::Source;

/// Which loop.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The run's dtype.
    pub dtype: Dtype,
    /// Decode steps.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Whether ids are drawn.
    pub sampled: bool,
}

/// Integers that the host sends for a step: ids, positions, the key count, rows kept.
const ID_WRITES: u64 = 4;

/// What one step needs: one read of one id a sequence, or one row of logits a sequence; a fence,
/// which does not wait, after each layer.
fn need(case: Case, layers: usize, vocab: usize) -> Traffic {
    let (batch, vocab) = (case.batch as u64, vocab as u64);
    let choice = if case.sampled {
        [("reads", batch), ("elements_read", batch * vocab)]
    } else {
        [("id_reads", 1), ("ids_read", batch)]
    };
    let all = [("id_writes", ID_WRITES), ("fences", layers as u64), choice[0], choice[1]];
    Traffic::of(&all)
}

/// Compares the calls of every step with what it needs.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Case,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), case.dtype)?;
    let need = need(case, model.shape.layers, model.shape.vocab);
    let prompts = prompts(ctx.seed, model.shape.vocab, case.batch, PROMPT);
    let request = request(prompts, case.steps + 1, sampler(case.sampled, ctx.seed));
    let expected = (case.steps * Traffic::NAMES.len()) as u64;
    Ok(Box::new(move |plant| {
        let (watched, traffic) = Watched::new(Cpu::new(Kernels::best(), Order::Invariant));
        let mut b = Wasteful::new(watched, waste(plant)?);
        let mut marks = Vec::new();
        run_loop(&mut b, &model, &request, || marks.push(traffic.get()))?;
        let mut found = Comparison::default();
        for (step, pair) in marks.windows(2).enumerate() {
            let got = pair[1] - pair[0];
            for (i, name) in Traffic::NAMES.iter().enumerate() {
                let (want, got) = (need.0[i], got.0[i]);
                let text = format!("step {}: {got} {name}, needed are {want}", step + 1);
                found.digest("decode", Some(step + 1), want == got, &text);
            }
        }
        let outcome = Outcome::bitwise(found, expected);
        Ok(Outcome { statistic: "counts_differing", ..outcome })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_needs_its_ids_or_its_rows() {
        let case = Case { dtype: Dtype::Bf16, steps: 1, batch: 4, sampled: false };
        let all = [("id_reads", 1), ("ids_read", 4), ("id_writes", 4), ("fences", 6)];
        assert_eq!(need(case, 6, 100), Traffic::of(&all));
        let all = [("reads", 4), ("elements_read", 400), ("id_writes", 4), ("fences", 6)];
        assert_eq!(need(Case { sampled: true, ..case }, 6, 100), Traffic::of(&all));
    }
}

//! The generation loop against itself and against the reference's sampler, ids and logits.
//!
//! The invariant: logits of every step are compared as bits, so that ids that agree by luck do not
//! hide a difference.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::generate::{Request, Sampler, Sampling, Sequence};
use samebits::model::Model;
use samebits::tensor::Tensor;
use samebits_defects::{Defect, Defective};

use super::reference::{ORDER, candidates, choose, uniform};
use super::{PROMPT, SAMPLING, material, prompts, request, run_loop, sampler};
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::Context;
use crate::decor::Logged;
use crate::engine::{defect, pool};
use crate::manifest::{Plant, Source};
use crate::sites::ulps;

/// How large a loop is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Sequences.
    pub batch: usize,
    /// New ids of each.
    pub steps: usize,
}

/// What a loop chose from, and what it chose.
pub(super) struct Said {
    pub(super) sequences: Vec<Sequence>, // [batch], ids of each [steps]
    pub(super) logits: Vec<Vec<Tensor>>, // [steps][batch]
    hits: u64,
}

pub(super) fn say(
    model: &Model<CpuMem>,
    request: &Request,
    plant: Option<&Plant>,
    threads: usize,
) -> Result<Said, CheckError> {
    let fault = match plant {
        Some(Plant::Defect(_)) => defect(plant)?,
        _ => None,
    };
    let fault = fault.map_or_else(|| Defect::find("null"), Ok)?;
    let cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let mut b = Logged::new(Defective::new(cpu, fault));
    let sequences = pool(threads).install(|| run_loop(&mut b, model, request, || ()))?;
    let (logits, inner) = b.finish();
    Ok(Said { sequences, logits, hits: inner.hits() })
}

/// One sequence of a loop: its ids, and the logits of each step.
struct Line<'a> {
    ids: &'a [u32],
    logits: Vec<&'a Tensor>,
}

impl Said {
    fn line(&self, sequence: usize) -> Line<'_> {
        let logits = self.logits.iter().map(|rows| &rows[sequence]).collect();
        Line { ids: &self.sequences[sequence].ids, logits }
    }

    /// The ids of each sequence.
    pub(super) fn ids(&self) -> Vec<Vec<u32>> {
        self.sequences.iter().map(|sequence| sequence.ids.clone()).collect()
    }
}

/// Compares ids and logits, step by step.
fn compare(want: &Line<'_>, got: &Line<'_>, label: &str) -> Comparison {
    let mut found = Comparison::default();
    for (step, (a, b)) in want.logits.iter().zip(&got.logits).enumerate() {
        for element in 0..a.len() {
            let same = b.dtype() == a.dtype() && element < b.len();
            let same = same && a.bits(element) == b.bits(element);
            found.compared += 1;
            found.differing += u64::from(!same);
            if !same && found.first.is_none() {
                let mut first = at("lm_head", Some(step));
                first.element = Some(element as u64);
                first.ulps = ulps(a.dtype(), a.bits(element), b.bits(element));
                first.text = label.to_owned();
                found.first = Some(first);
            }
        }
    }
    for (step, (a, b)) in want.ids.iter().zip(got.ids).enumerate() {
        found.digest("argmax", Some(step), a == b, &format!("{label}: id {b}, want {a}"));
    }
    found
}

/// Ids and logits of `steps` steps.
fn due(steps: usize, vocab: usize) -> u64 {
    (steps * (vocab + 1)) as u64
}

pub(super) const THREADS: usize = 2;

/// Each sequence of a batch against itself alone, greedy; the batch carries a planted fault.
pub fn batch<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    Size { batch: sequences, steps }: Size,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), dtype)?;
    let vocab = model.shape.vocab;
    let prompts = prompts(ctx.seed, vocab, sequences, PROMPT);
    let expected = sequences as u64 * due(steps, vocab);
    Ok(Box::new(move |plant| {
        let many = request(prompts.clone(), steps, Sampler::Greedy);
        let many = say(&model, &many, plant, THREADS)?;
        let mut found = Comparison::default();
        for (i, prompt) in prompts.iter().enumerate() {
            let one = request(vec![prompt.clone()], steps, Sampler::Greedy);
            let one = say(&model, &one, None, THREADS)?;
            found.then(compare(&one.line(0), &many.line(i), &format!("sequence {i}")));
        }
        Ok(Outcome::bitwise(found, expected).with_hits(many.hits))
    }))
}

/// A generation that is cut and taken up again.
#[derive(Clone, Copy, Debug)]
pub struct Continued {
    /// The run's dtype.
    pub dtype: Dtype,
    /// New ids before the cut.
    pub before: usize,
    /// New ids after it.
    pub after: usize,
    /// Whether ids are drawn.
    pub sampled: bool,
}

/// Pools of a whole and of a resumed generation.
const POOLS: [usize; 3] = [1, 2, 3];
const RESEEDED: &str = "reseeded";

/// Cut and resumed, in pools of several sizes, against the whole in a pool of one; what is resumed
/// carries a planted fault.
pub fn resume<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Continued,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), case.dtype)?;
    let (vocab, seed) = (model.shape.vocab, ctx.seed);
    let prompt = prompts(seed, vocab, 1, PROMPT).remove(0);
    let Continued { before, after, sampled, .. } = case;
    let parts = due(before, vocab) + due(after, vocab);
    let expected = POOLS.len() as u64 * (due(before + after, vocab) + parts);
    Ok(Box::new(move |plant| {
        let reseeded = match plant {
            Some(Plant::Material(_)) => material(plant, &[RESEEDED])?.is_some(),
            _ => false,
        };
        let ask =
            |prompt: &[u32], new, seed| request(vec![prompt.to_vec()], new, sampler(sampled, seed));
        let whole = say(&model, &ask(&prompt, before + after, seed), None, 1)?;
        let (mut found, mut hits) = (Comparison::default(), 0);
        for threads in POOLS {
            let again = say(&model, &ask(&prompt, before + after, seed), None, threads)?;
            found.then(compare(&whole.line(0), &again.line(0), &format!("{threads} threads")));
            let first = say(&model, &ask(&prompt, before, seed), None, threads)?;
            let longer = [&prompt[..], &first.sequences[0].ids].concat();
            let seed = seed + u64::from(reseeded);
            let second = say(&model, &ask(&longer, after, seed), plant, threads)?;
            hits += second.hits;
            let all = whole.line(0);
            let (head, tail) = all.logits.split_at(before);
            let head = Line { ids: &all.ids[..before], logits: head.to_vec() };
            let tail = Line { ids: &all.ids[before..], logits: tail.to_vec() };
            found.then(compare(&head, &first.line(0), &format!("cut, {threads} threads")));
            found.then(compare(&tail, &second.line(0), &format!("resumed, {threads} threads")));
        }
        Ok(Outcome::bitwise(found, expected).with_hits(hits))
    }))
}

/// Every id of a sampled batch against the reference's draw from the same logits.
pub fn draws_of_a_loop<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    Size { batch: sequences, steps }: Size,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), dtype)?;
    let seed = ctx.seed;
    let prompts = prompts(seed, model.shape.vocab, sequences, PROMPT);
    Ok(Box::new(move |plant| {
        let other = material(plant, &[RESEEDED])?.is_some();
        let request = request(prompts.clone(), steps, sampler(true, seed + u64::from(other)));
        let said = say(&model, &request, None, THREADS)?;
        let rules = Sampling { seed, ..SAMPLING };
        let mut found = Comparison::default();
        for (step, rows) in said.logits.iter().enumerate() {
            for (sequence, row) in rows.iter().enumerate() {
                let position = PROMPT + step;
                let kept = candidates(&rules, &row.to_f32(), ORDER);
                let want = choose(&kept, uniform(seed, sequence as u32, position as u32));
                let got = said.sequences[sequence].ids[step];
                let text = format!("sequence {sequence}: id {got}, want {want}");
                found.digest("draw", Some(position), got == want, &text);
            }
        }
        let outcome = Outcome::bitwise(found, (sequences * steps) as u64);
        Ok(Outcome { statistic: "draws_differing", ..outcome })
    }))
}

//! How generation ends: stop ids, finish reasons, and what a sequence that ends leaves to the
//! others.
//!
//! The invariant: what is wanted follows from the logits of a run that nothing stops, by draws and
//! a rule of ending that are not the engine's. A planted fault is another caller, or another rule
//! of ending beside a loop that knows none.

use std::sync::Arc;

use samebits::contract::Dtype;
use samebits::cpu::CpuMem;
use samebits::generate::{Finish, Request, Sampler, Sampling, Sequence};
use samebits::model::Model;

use super::loops::{Said, THREADS, say};
use super::reference::{Filter, ORDER, candidates, choose, uniform};
use super::{material, prompts, request};
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::manifest::Source;

/// Which generations.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The run's dtype.
    pub dtype: Dtype,
    /// Ids of each prompt.
    pub prompt: usize,
    /// Sequences.
    pub batch: usize,
    /// Most new ids of each.
    pub steps: usize,
    /// Whether ids are drawn.
    pub sampled: bool,
}

/// Every filter bites, so that their order shows.
const SAMPLING: Sampling =
    Sampling { temperature: 1.5, top_k: 12, top_p: 0.8, min_p: 0.02, seed: 0 };
/// The seed's other half, which a counter of 32 bits would lose.
const HIGH: u64 = 0x9E37_79B9 << 32;

const FAULTS: [&str; 15] = [
    "stop-first-entry",
    "stop-token-before",
    "stop-first-sequence",
    "stop-next-sequence",
    "stop-left-out",
    "stop-goes-on",
    "stop-ends-all",
    "finish-length",
    "finish-stop",
    "max-new-less",
    "max-new-more",
    "prompt-stops",
    "draws-compacted",
    "seed-high-ignored",
    "resumed-filters-reordered",
];

/// How many of them, at the end of the list, are of draws.
const OF_DRAWS: usize = 3;

/// Where a sequence ends: how many ids it keeps, and why.
type End = (usize, Finish);

/// The first id that is one of `stop`, kept; else all.
fn end(ids: &[u32], stop: &[u32]) -> End {
    match ids.iter().position(|id| stop.contains(id)) {
        Some(at) => (at + 1, Finish::Stop),
        None => (ids.len(), Finish::Length),
    }
}

/// Stop ids by which one sequence ends by the first, another by the second, and a third by none;
/// the last of them stands in a prompt and is not generated.
fn designed(ids: &[Vec<u32>], prompts: &[Vec<u32>]) -> Option<Vec<u32>> {
    let unsaid = |id: &u32| !ids.iter().any(|line| line.contains(id));
    let prompted = prompts.iter().flatten().copied().find(unsaid)?;
    let early: Vec<u32> = ids.iter().flat_map(|line| line[1..].iter().take(8)).copied().collect();
    let mut pairs = early.iter().flat_map(|a| early.iter().rev().map(move |b| [*a, *b]));
    let fits = |stop: &[u32; 2]| {
        let ends: Vec<End> = ids.iter().map(|line| end(line, stop)).collect();
        let by = |id: u32| {
            let last = |(line, end): (&Vec<u32>, &End)| {
                end.1 == Finish::Stop && end.0 > 1 && end.0 < line.len() && line[end.0 - 1] == id
            };
            ids.iter().zip(&ends).filter(|pair| last(*pair)).count()
        };
        // The first sequence goes on, so that what is taken from it shows.
        ends[0].1 == Finish::Length && by(stop[0]) > 0 && by(stop[1]) > 0
    };
    pairs.find(fits).map(|[a, b]| vec![a, b, prompted])
}

/// Ends by another rule, over ids that nothing stopped.
fn otherwise(ids: &[Vec<u32>], stop: &[u32], prompts: &[Vec<u32>], fault: &str) -> Vec<End> {
    let right: Vec<End> = ids.iter().map(|line| end(line, stop)).collect();
    let first = right.iter().map(|end| end.0).min().unwrap_or(0);
    let ended = |i: usize| -> End {
        let (all, (kept, finish)) = (ids[i].len(), right[i]);
        let of = |other: usize| (right[other].0.min(all), right[other].1);
        match fault {
            "stop-token-before" => ((kept + 1).min(all), finish),
            "stop-first-sequence" => of(0),
            "stop-next-sequence" => of((i + 1) % ids.len()),
            "stop-left-out" => (kept - usize::from(finish == Finish::Stop), finish),
            "stop-goes-on" => (all, finish),
            "stop-ends-all" => (first, Finish::Stop),
            "finish-length" => (kept, Finish::Length),
            "finish-stop" => (kept, Finish::Stop),
            "prompt-stops" if prompts[i].iter().any(|id| stop.contains(id)) => (1, Finish::Stop),
            _ => (kept, finish),
        }
    };
    (0..ids.len()).map(ended).collect()
}

/// The model, and what is asked of it.
struct Asked {
    model: Arc<Model<CpuMem>>,
    prompts: Vec<Vec<u32>>,
    rules: Sampling,
    case: Case,
}

impl Asked {
    fn sampler(&self, rules: Sampling) -> Sampler {
        if self.case.sampled { Sampler::Sample(rules) } else { Sampler::Greedy }
    }

    fn request(&self, stop: &[u32]) -> Request {
        let sampler = self.sampler(self.rules);
        Request { stop: stop.to_vec(), ..request(self.prompts.clone(), self.case.steps, sampler) }
    }

    /// What a caller with a fault gets.
    fn faulty(&self, free: &Said, stop: &[u32], fault: &str) -> Result<Vec<Sequence>, CheckError> {
        let mut asked = self.request(stop);
        match fault {
            "stop-first-entry" => asked.stop.truncate(1),
            "max-new-less" => asked.max_new -= 1,
            "max-new-more" => {
                asked.max_new += 1;
                asked.context += 1;
            }
            "seed-high-ignored" => {
                let seed = self.rules.seed & u64::from(u32::MAX);
                asked.sampler = self.sampler(Sampling { seed, ..self.rules });
            }
            "draws-compacted" => return self.compacted(free, stop),
            "resumed-filters-reordered" => return Ok(self.reordered(free, stop)),
            _ => {
                let ends = otherwise(&free.ids(), stop, &self.prompts, fault);
                let cut = |(line, (kept, finish)): (&Vec<u32>, End)| Sequence {
                    ids: line[..kept].to_vec(),
                    finish,
                };
                return Ok(free.ids().iter().zip(ends).map(cut).collect());
            }
        }
        Ok(say(&self.model, &asked, None, THREADS)?.sequences)
    }

    /// The sequences that are left when the first one ends go on as a batch of their own.
    fn compacted(&self, free: &Said, stop: &[u32]) -> Result<Vec<Sequence>, CheckError> {
        let ids = free.ids();
        let ends: Vec<End> = ids.iter().map(|line| end(line, stop)).collect();
        let first = ends.iter().map(|end| end.0).min().unwrap_or(0);
        let open: Vec<usize> = (0..ids.len()).filter(|i| ends[*i].0 > first).collect();
        let longer = |i: &usize| [&self.prompts[*i][..], &ids[*i][..first]].concat();
        let steps = self.case.steps - first;
        let rest = request(open.iter().map(longer).collect(), steps, self.sampler(self.rules));
        let rest = Request { stop: stop.to_vec(), ..rest };
        let rest = say(&self.model, &rest, None, THREADS)?.sequences;
        let head = |(line, end): (&Vec<u32>, &End)| Sequence {
            ids: line[..first].to_vec(),
            finish: end.1,
        };
        let mut all: Vec<Sequence> = ids.iter().zip(&ends).map(head).collect();
        for (i, tail) in open.into_iter().zip(rest) {
            all[i].ids.extend(tail.ids);
            all[i].finish = tail.finish;
        }
        Ok(all)
    }

    /// From the middle on, filters are taken in another order.
    fn reordered(&self, free: &Said, stop: &[u32]) -> Vec<Sequence> {
        let mut ids = free.ids();
        for step in self.case.steps / 2..self.case.steps {
            for (i, line) in ids.iter_mut().enumerate() {
                let order = [Filter::TopP, Filter::MinP, Filter::TopK];
                line[step] = self.drawn(free, (i, step), order);
            }
        }
        let cut = |line: &Vec<u32>| {
            let (kept, finish) = end(line, stop);
            Sequence { ids: line[..kept].to_vec(), finish }
        };
        ids.iter().map(cut).collect()
    }

    /// The reference's draw from the logits of a step.
    fn drawn(&self, free: &Said, (i, step): (usize, usize), order: [Filter; 3]) -> u32 {
        let row = free.logits[step][i].to_f32();
        let position = (self.case.prompt + step) as u32;
        choose(&candidates(&self.rules, &row, order), uniform(self.rules.seed, i as u32, position))
    }

    /// The reference's choice of a step.
    fn choice(&self, free: &Said, at: (usize, usize)) -> u32 {
        if self.case.sampled {
            return self.drawn(free, at, ORDER);
        }
        let row = free.logits[at.1][at.0].to_f32();
        let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        best as u32
    }
}

/// Generations that stop against the rule of ending, over draws of the reference.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Case,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), case.dtype)?;
    let prompts = prompts(ctx.seed, model.shape.vocab, case.batch, case.prompt);
    let rules = Sampling { seed: ctx.seed ^ HIGH, ..SAMPLING };
    let asked = Asked { model, prompts, rules, case };
    let expected = (case.batch * (2 * case.steps + 1)) as u64;
    Ok(Box::new(move |plant| {
        // The last few are of draws: greedy choices have no place for them.
        let known = if case.sampled { &FAULTS[..] } else { &FAULTS[..FAULTS.len() - OF_DRAWS] };
        let fault = material(plant, known)?;
        let free = say(&asked.model, &asked.request(&[]), None, THREADS)?;
        let mut found = Comparison::default();
        for i in 0..case.batch {
            for step in 0..case.steps {
                let (want, got) = (asked.choice(&free, (i, step)), free.sequences[i].ids[step]);
                let text = format!("sequence {i}: id {got}, want {want}");
                found.digest("draw", Some(case.prompt + step), got == want, &text);
            }
        }
        let stop = designed(&free.ids(), &asked.prompts);
        let unfit = || "no stop ids end one sequence by each and leave the first".to_owned();
        let alarm = stop.is_none().then(unfit);
        let stop = stop.unwrap_or_default();
        let got = match fault {
            Some(fault) => asked.faulty(&free, &stop, fault)?,
            None => say(&asked.model, &asked.request(&stop), None, THREADS)?.sequences,
        };
        for (i, (line, got)) in free.ids().iter().zip(&got).enumerate() {
            let (kept, finish) = end(line, &stop);
            for step in 0..case.steps {
                let want = line[..kept].get(step);
                let same = want == got.ids.get(step) && got.ids.len() <= case.steps;
                let text = format!("sequence {i}: id {:?}, want {want:?}", got.ids.get(step));
                found.digest("draw", Some(case.prompt + step), same, &text);
            }
            let text = format!("sequence {i}: ends by {:?}, want {finish:?}", got.finish);
            found.digest("finish", None, got.finish == finish, &text);
        }
        let outcome = Outcome::bitwise(found, expected);
        Ok(Outcome { statistic: "choices_differing", alarm, ..outcome })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_ends_with_the_first_stop_id_and_keeps_it() {
        assert_eq!(end(&[5, 6, 7], &[9, 6]), (2, Finish::Stop));
        assert_eq!(end(&[5, 6, 7], &[9]), (3, Finish::Length));
        assert_eq!(end(&[5], &[]), (1, Finish::Length));
    }

    #[test]
    fn designed_stop_ids_end_one_sequence_each_and_leave_the_first() {
        let ids = [vec![1, 2, 3, 4, 1, 2], vec![5, 6, 7, 8, 5, 6], vec![9, 8, 6, 5, 9, 8]];
        let stop = designed(&ids, &[vec![4, 11]]).expect("6 ends one, 8 the other");
        assert_eq!(stop, [6, 8, 11]);
        assert_eq!(ids.map(|line| end(&line, &stop).0), [6, 2, 2]);
        assert_eq!(designed(&[vec![1; 6], vec![1; 6]], &[vec![2]]), None);
    }

    #[test]
    fn every_other_rule_of_ending_differs() {
        let ids = [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 8, 6, 5]];
        let (stop, prompts) = ([6, 8, 11], [vec![11], vec![3], vec![3]]);
        let right = otherwise(&ids, &stop, &prompts, "none");
        for fault in FAULTS.iter().filter(|fault| {
            ["stop-", "finish-", "prompt-"].iter().any(|start| fault.starts_with(start))
                && **fault != "stop-first-entry"
        }) {
            assert_ne!(otherwise(&ids, &stop, &prompts, fault), right, "{fault}");
        }
    }
}

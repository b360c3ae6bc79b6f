//! The generation loop: every step's logits against the contract, every id against a sampler
//! written apart, and where each sequence ends against its stop ids.
//!
//! The invariant: a sequence's reference knows nothing of its neighbours but its own number.

use samebits::cpu::Cpu;
use samebits::generate::{Finish, Request, Sampler, Sampling, Sequence};
use samebits::tensor::Tensor;
use samebits_defects::{Defect, Defective};
use samebits_oracle as oracle;

use super::judge::{Built, Verdict, arithmetic, largest};
use super::{Asked, Case};
use crate::checks::CheckError;
use crate::checks::running::reference::{ORDER, candidates, choose, uniform};
use crate::checks::running::run_loop;
use crate::compare::{Comparison, at};
use crate::decor::{Counted, Logged};
use crate::engine::{defect, pool};
use crate::manifest::Plant;
use crate::sites::{Bits, oracle_dtype, ulps};

impl Asked {
    fn sampling(&self) -> Sampling {
        let Self { temperature, top_k, top_p, min_p, seed, .. } = *self;
        Sampling { temperature, top_k, top_p, min_p, seed }
    }

    fn sampler(&self) -> Sampler {
        if self.temperature == 0.0 { Sampler::Greedy } else { Sampler::Sample(self.sampling()) }
    }
}

/// What the engine's loop said: sequences, and the logits of each step.
struct Said {
    sequences: Vec<Sequence>,
    logits: Vec<Vec<Tensor>>, // [steps][batch]
}

fn say(
    case: &Case,
    asked: &Asked,
    built: &Built,
    (prompts, plant): (&[Vec<u32>], Option<&Plant>),
) -> Result<(Said, Verdict), CheckError> {
    let fault = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
    let (counted, counts) = Counted::new(Cpu::new(case.kernels(), case.order));
    let mut b = Logged::new(Defective::new(counted, fault));
    let request = Request {
        prompts: prompts.to_vec(),
        max_new: asked.new,
        context: prompts[0].len() + asked.new,
        sampler: asked.sampler(),
        stop: asked.stop.clone(),
        chunk: Some(case.chunk),
    };
    let sequences = run_loop(&mut b, &built.model, &request, || ())?;
    let (logits, inner) = b.finish();
    let counts = counts.lock().expect("the run is over");
    let backend = (case.kernels().name, case.order);
    let proof = counts.proof("swarm", backend, case.dtype, built.model.bytes_read);
    let verdict = Verdict { hits: inner.hits(), paths: vec![proof], ..Verdict::default() };
    Ok((Said { sequences, logits }, verdict))
}

/// Compares a row of logits, bit by bit.
fn row(found: &mut Comparison, want: &Bits, got: &Tensor, position: usize) {
    for (element, right) in want.bits.iter().enumerate() {
        let same = element < got.len() && got.bits(element) == *right;
        found.compared += 1;
        found.differing += u64::from(!same);
        if !same && found.first.is_none() {
            let mut first = at("lm_head", Some(position));
            first.element = Some(element as u64);
            let other = if element < got.len() { got.bits(element) } else { 0 };
            first.ulps = ulps(want.dtype, *right, other);
            found.first = Some(first);
        }
    }
}

/// One sequence against its reference.
fn sequence(
    case: &Case,
    asked: &Asked,
    built: &Built,
    (prompt, said, i): (&[u32], &Said, usize),
) -> Result<Comparison, CheckError> {
    let own = &said.sequences[i];
    let (len, n) = (prompt.len(), own.ids.len());
    let mut found = Comparison::default();
    // Where it ends follows from its own ids alone.
    let stop = own.ids.iter().position(|id| asked.stop.contains(id));
    let ends = stop.map_or((asked.new, Finish::Length), |at| (at + 1, Finish::Stop));
    let text = format!("{n} ids, {}; want {}, {}", own.finish.name(), ends.0, ends.1.name());
    found.digest("finish", Some(len + n), (n, own.finish) == ends, &text);
    if n == 0 {
        return Ok(found);
    }
    let ids = [prompt, &own.ids[..n - 1]].concat();
    let options = oracle::RunOptions {
        pieces: Some([vec![len], vec![1; n - 1]].concat()),
        logit_rows: Some((len - 1..ids.len()).collect()),
        batch: Some(case.batch),
        ..oracle::RunOptions::default()
    };
    let trace = oracle::run(&built.reference, &arithmetic(case), &ids, &options)?;
    let vocab = built.dims.vocab;
    let bits = trace.logits().bits(oracle_dtype(case.dtype));
    for (step, bits) in bits.chunks(vocab).enumerate() {
        let position = len + step;
        let want = Bits { dtype: case.dtype, shape: vec![vocab], bits: bits.to_vec() };
        row(&mut found, &want, &said.logits[step][i], position);
        let values = want.values();
        let id = if asked.temperature == 0.0 {
            largest(&values)
        } else {
            let narrow: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            let kept = candidates(&asked.sampling(), &narrow, ORDER);
            choose(&kept, uniform(asked.seed, i as u32, position as u32))
        };
        let got = own.ids[step];
        found.digest("draw", Some(position), got == id, &format!("id {got}, want {id}"));
    }
    Ok(found)
}

/// Generates and compares; goes on from the shortest sequence's end where that is asked.
pub(super) fn judge(
    case: &Case,
    asked: &Asked,
    built: &Built,
    plant: Option<&Plant>,
) -> Result<Verdict, CheckError> {
    let (mut prompts, mut all) = (case.ids(), Verdict::default());
    for label in ["", "resumed, "].iter().take(1 + usize::from(asked.resumed)) {
        let given = (prompts.as_slice(), plant);
        let run = || say(case, asked, built, given);
        let (said, verdict) = pool(case.threads).install(run)?;
        all.hits += verdict.hits;
        all.paths.extend(verdict.paths);
        for (i, prompt) in prompts.iter().enumerate() {
            let one = sequence(case, asked, built, (prompt, &said, i))?;
            let n = said.sequences[i].ids.len();
            all.due += (n * (built.dims.vocab + 1)) as u64 + 1;
            all.draws = all.draws.max(n);
            all.found.then(one.labelled(&format!("{label}sequence {i}:")));
        }
        let shortest = said.sequences.iter().map(|own| own.ids.len()).min().unwrap_or(0);
        for (prompt, own) in prompts.iter_mut().zip(&said.sequences) {
            prompt.extend(&own.ids[..shortest]);
        }
    }
    Ok(all)
}

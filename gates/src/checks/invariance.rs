//! Two runs of the engine that must agree at every site, and the proof that they went different
//! ways.
//!
//! The invariant: a second run whose counted path is that of the first proves nothing, and is an
//! error whatever its bits are.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{CpuMem, Kernels};
use samebits::model::Model;
use samebits_fixtures::prompt_ids;
use samebits_reports::PathProof;

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare_rows, compare_states, nonfinite};
use crate::context::Context;
use crate::engine::{Setup, Traces, trace};
use crate::manifest::{Plant, Side, Source, Variant};
use crate::sites::Dims;

/// Which runs.
pub struct Case<'a> {
    /// The checkpoint.
    pub source: &'a Source,
    /// The run's dtype.
    pub dtype: Dtype,
    /// Ids of the prompt.
    pub prompt: usize,
    /// How the second run differs.
    pub variant: &'a Variant,
    /// Which runs carry a planted fault.
    pub side: Side,
}

/// The second runs. All have the same prompt; a batch adds others.
pub fn setups(variant: &Variant, len: usize, seed: u64) -> Vec<Setup> {
    let new = |label: String| Setup::new(Order::Invariant, &label);
    match variant {
        Variant::Cached(firsts) => {
            let setup = |n: &usize| new(format!("cached from {n}")).decode_from(*n, len);
            firsts.iter().map(setup).collect()
        }
        Variant::Chunks(sizes) => {
            let setup = |n: &usize| Setup { chunk: Some(*n), ..new(format!("chunks of {n}")) };
            sizes.iter().map(setup).collect()
        }
        Variant::Batch(n) => vec![new(format!("batch of {n}"))],
        Variant::Threads(counts) => {
            let setup = |n: &usize| Setup { threads: Some(*n), ..new(format!("threads={n}")) };
            counts.iter().map(setup).collect()
        }
        Variant::Kernels => {
            let setup = |kernels: &'static Kernels| Setup {
                kernels,
                ..new(format!("kernels={}", kernels.name))
            };
            let tables = Kernels::supported();
            tables[..tables.len() - 1].iter().copied().map(setup).collect()
        }
        Variant::Splits(random) => {
            let two = (1..len).map(|first| vec![first, len - first]);
            let more = (0..*random).map(|i| split(len, seed.wrapping_add(i as u64)));
            let setup = |pieces: Vec<usize>| Setup {
                pieces: pieces.clone(),
                ..new(format!("split {pieces:?}"))
            };
            two.chain(more).map(setup).collect()
        }
    }
}

/// A split of `len` rows into three pieces or more, drawn from `seed`.
fn split(len: usize, seed: u64) -> Vec<usize> {
    let (mut pieces, mut left) = (Vec::new(), len);
    for draw in prompt_ids(seed, len / 3, len) {
        let piece = (draw as usize + 1).min(left);
        pieces.push(piece);
        left -= piece;
        if left == 0 {
            break;
        }
    }
    pieces
}

/// Compares each second run with the first.
pub fn prepare<'c>(ctx: &'c Context, case: &Case<'_>) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(case.source)?;
    let model = ctx.load(folder.path(), case.dtype)?;
    let dims = Dims::of_shape(&model.shape);
    let (len, side, seed) = (case.prompt, case.side, ctx.seed);
    let batch = if let Variant::Batch(n) = case.variant { *n } else { 1 };
    let prompt = |i: usize| prompt_ids(seed.wrapping_add(i as u64), dims.vocab, len);
    let prompts: Vec<Vec<u32>> = (0..batch).map(prompt).collect();
    let threads = matches!(case.variant, Variant::Threads(_)).then_some(1);
    let setups = setups(case.variant, len, seed);
    let each = dims.elements(len, len) + dims.carried();
    let expected = (setups.len() * batch) as u64 * each;
    Ok(Box::new(move |plant| {
        let keep = folder.path();
        let first = if side == Side::Both { plant } else { None };
        let singles = singles(&model, &prompts, threads, first)?;
        let (mut found, mut paths) = (Comparison::default(), vec![singles[0].proof.clone()]);
        let (mut alarm, mut hits) = (None, singles.iter().map(|s| s.hits).sum());
        for setup in &setups {
            let second = trace(&model, setup, &prompts, plant)?;
            for (i, single) in singles.iter().enumerate() {
                let mut one = compare_rows(&single.sequences[0], &second.sequences[i], len);
                one.then(compare_states(&single.states[0], &second.states[i]));
                let which = if batch > 1 { format!(" sequence {i}:") } else { ":".to_owned() };
                found.then(one.labelled(&format!("{}{which}", setup.label)));
            }
            if same_path(&singles[0].proof, &second.proof) {
                alarm = Some(format!("same path: {} did as the first run", setup.label));
            }
            hits += second.hits;
            paths.push(second.proof);
        }
        if plant.is_none() && singles.iter().any(|s| nonfinite(&s.sequences[0]) > 0) {
            alarm = Some(format!("non-finite values in {}", keep.display()));
        }
        let outcome = Outcome::bitwise(found, expected).with_paths(paths).with_hits(hits);
        Ok(Outcome { alarm, ..outcome })
    }))
}

/// The first run of each prompt, on its own: in one thread where threads are what varies.
fn singles(
    model: &Model<CpuMem>,
    prompts: &[Vec<u32>],
    threads: Option<usize>,
    plant: Option<&Plant>,
) -> Result<Vec<Traces>, CheckError> {
    let setup = Setup { threads, ..Setup::new(Order::Invariant, "one forward") };
    prompts.iter().map(|p| trace(model, &setup, std::slice::from_ref(p), plant)).collect()
}

fn same_path(a: &PathProof, b: &PathProof) -> bool {
    PathProof { label: String::new(), ..a.clone() }
        == PathProof { label: String::new(), ..b.clone() }
}

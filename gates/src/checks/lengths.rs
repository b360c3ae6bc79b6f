//! Prompts of many lengths, each cut in many ways: whole, in two, one row at a time.
//!
//! The runs of a length go through all kernel tables and one to four threads in turn, so that a
//! difference that only one of them has is met too. The invariant: a run that goes the first run's
//! own way proves nothing, and is an error.

use samebits::contract::{Dtype, Order};
use samebits::cpu::Kernels;
use samebits_fixtures::prompt_ids;

use super::invariance::same_path;
use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare_rows, compare_states};
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::manifest::{Places, Source};
use crate::sites::Dims;

/// Threads that runs take in turn.
const THREADS: usize = 4;

/// Places where [`Places::Edges`] cuts.
const EDGES: [usize; 12] = [1, 2, 3, 4, 5, 31, 62, 63, 64, 65, 127, 128];

/// Ways to cut a prompt up: whole on every kernel table, in two, one row at a time.
fn cuts(len: usize, places: Places) -> Vec<Vec<usize>> {
    let whole = Kernels::supported().into_iter().map(|_| vec![len]);
    let here = |at: &usize| places == Places::Every || EDGES.contains(at) || at + 1 == len;
    let two = (1..len).filter(here).map(|first| vec![first, len - first]);
    let singles = (len > 2).then(|| vec![1; len]);
    whole.chain(two).chain(singles).collect()
}

/// The runs of a prompt after the first.
fn setups(len: usize, places: Places) -> Vec<Setup> {
    let tables = Kernels::supported();
    let setup = |(i, pieces): (usize, Vec<usize>)| {
        let (kernels, threads) = (tables[i % tables.len()], 2 + (i / tables.len()) % THREADS);
        // The first run has one thread; one is taken in turn by whoever is cut.
        let threads = if threads > THREADS && pieces.len() > 1 { 1 } else { threads.min(THREADS) };
        let label = format!("{len} ids, {} pieces from {}", pieces.len(), pieces[0]);
        let new = Setup::new(Order::Invariant, &label);
        Setup { kernels, pieces, threads: Some(threads), ..new }
    };
    cuts(len, places).into_iter().enumerate().map(setup).collect()
}

/// Compares each cut of each prompt with the whole.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    (prompts, places): (&'c [usize], Places),
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), dtype)?;
    let dims = Dims::of_shape(&model.shape);
    let each = |len: &usize| {
        setups(*len, places).len() as u64 * (dims.elements(*len, *len) + dims.carried())
    };
    let expected = prompts.iter().map(each).sum();
    Ok(Box::new(move |plant| {
        let _keep = &folder;
        let (mut found, mut paths, mut hits) = (Comparison::default(), Vec::new(), 0);
        let mut alarm = None;
        for &len in prompts {
            let ids = [prompt_ids(ctx.seed.wrapping_add(len as u64), dims.vocab, len)];
            let whole = Setup::new(Order::Invariant, &format!("{len} ids, whole"));
            let whole = trace(&model, &Setup { threads: Some(1), ..whole }, &ids, plant)?;
            paths.push(whole.proof.clone());
            hits += whole.hits;
            let setups = setups(len, places);
            for (i, setup) in setups.iter().enumerate() {
                let other = trace(&model, setup, &ids, plant)?;
                let mut one = compare_rows(&whole.sequences[0], &other.sequences[0], len);
                one.then(compare_states(&whole.states[0], &other.states[0]));
                found.then(one.labelled(&format!("{}:", setup.label)));
                if same_path(&whole.proof, &other.proof) {
                    alarm = Some(format!("same path: {} did as the first run", setup.label));
                }
                hits += other.hits;
                // One row at a time, and the last row alone: the others differ in where they cut.
                if i + 2 >= setups.len() {
                    paths.push(other.proof);
                }
            }
            // A fault that shows at one length need not be looked for at the next.
            if plant.is_some() && found.differing > 0 {
                break;
            }
        }
        let outcome = Outcome::bitwise(found, expected).with_paths(paths).with_hits(hits);
        Ok(Outcome { alarm, ..outcome })
    }))
}

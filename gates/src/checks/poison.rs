//! NaN in everything a run has not written: fresh buffers, guard bands, and what an earlier, longer
//! request left in the same ones.
//!
//! The invariant: a planted fault is in the clean run as well, so that only reading what nobody
//! wrote makes a difference.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{DEFAULT_CHUNK, Kept, Limits, Model, State, Step, feed, forward};
use samebits::trace::Traced;
use samebits_defects::{Defect, Defective, Poisoned};
use samebits_fixtures::prompt_ids;

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at, compare, compare_states};
use crate::context::Context;
use crate::engine::{Setup, carried, defect, sequence, trace};
use crate::manifest::Source;
use crate::sites::{Dims, Sites};

/// Which requests.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The run's dtype.
    pub dtype: Dtype,
    /// Ids of the first request.
    pub long: usize,
    /// Ids of the second.
    pub short: usize,
    /// Requests, long and short by turns.
    pub requests: usize,
}

/// Rows of the cached steps that end a request.
const STEPS: usize = 2;

type Stack = Defective<Poisoned<Cpu>>;

/// What a request wrote and left.
struct Left {
    sites: Sites,
    states: Sites,
}

/// All requests in one state on poisoned memory, what each wrote, and the backend.
fn poisoned(
    model: &Model<CpuMem>,
    requests: &[Vec<u32>],
    defect: &Defect,
) -> Result<(Vec<Left>, Stack), CheckError> {
    let cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let mut b: Stack = Defective::new(Poisoned::new(cpu), defect);
    let rows = requests.iter().map(Vec::len).max().unwrap_or(0);
    let (positions, chunk) = (rows, DEFAULT_CHUNK.min(rows));
    let limits = Limits { batch: 1, positions, rows, logit_rows: rows, chunk };
    let mut state = State::new(&mut b, model, limits, None);
    let mut left = Vec::new();
    for ids in requests {
        state.reset();
        let mut traced = Traced::new(b, 1);
        for piece in pieces(ids.len()) {
            let ids = &ids[state.len..state.len + piece];
            feed(&mut traced, &mut state, &[ids], Kept::All);
            let step = Step { rows: piece, kept: piece };
            forward(&mut traced, model, &mut state, step).map_err(CheckError::Admission)?;
        }
        let (found, inner) = traced.finish();
        let sites = sequence(&found, model, [1, 0, ids.len()]);
        left.push(Left { sites, states: carried(&found, model, [1, 0]) });
        b = inner;
    }
    Ok((left, b))
}

/// Rows of each forward: a prefill, then cached steps.
fn pieces(len: usize) -> Vec<usize> {
    std::iter::once(len - STEPS).chain([1; STEPS]).collect()
}

/// Compares requests on poisoned memory with the same ones on clean memory.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Case,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), case.dtype)?;
    let dims = Dims::of_shape(&model.shape);
    let draw = |i: usize| {
        let len = if i.is_multiple_of(2) { case.long } else { case.short };
        prompt_ids(ctx.seed.wrapping_add(i as u64), dims.vocab, len)
    };
    let requests: Vec<Vec<u32>> = (0..case.requests).map(draw).collect();
    let each = |ids: &Vec<u32>| dims.elements(ids.len(), ids.len()) + dims.carried();
    let expected = requests.iter().map(each).sum();
    Ok(Box::new(move |plant| {
        let defect = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
        let (left, stack) = poisoned(&model, &requests, defect)?;
        let hits = stack.hits();
        let mut found = Comparison::default();
        for (i, (ids, got)) in requests.iter().zip(&left).enumerate() {
            let setup = Setup::new(Order::Invariant, "clean");
            let setup = Setup { pieces: pieces(ids.len()), ..setup };
            let clean = trace(&model, &setup, std::slice::from_ref(ids), plant)?;
            let forwards = setup.forwards(ids.len());
            let mut one = compare(&clean.sequences[0], &got.sites, &forwards);
            one.then(compare_states(&clean.states[0], &got.states));
            found.then(one.labelled(&format!("request {i} of {} ids:", ids.len())));
        }
        let memory = stack.into_inner();
        for overrun in memory.overruns() {
            found.differing += 1;
            found.first.get_or_insert_with(|| {
                let mut first = at(&overrun.site.to_string(), None);
                first.element = Some(overrun.element as u64);
                first.text = "written outside the op's outputs".to_owned();
                first
            });
        }
        Ok(Outcome::bitwise(found, expected).with_hits(hits))
    }))
}

//! The heap over decode steps: a fresh process counts its own, whatever thread asks.
//!
//! The invariant: a process whose allocator counts nothing is an error, never a pass.

use std::path::Path;
use std::process::{Command, Stdio};

use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::Model;
use serde::{Deserialize, Serialize};

use super::{PROMPT, prompts, request, run_loop, sampler, waste};
use crate::checks::determinism::output;
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::Context;
use crate::decor::{Waste, Wasteful};
use crate::engine::pool;
use crate::heap::Heap;
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
    /// Threads of the pool.
    pub threads: usize,
    /// Whether ids are drawn.
    pub sampled: bool,
}

/// What one process counted, at the prefill's end and after each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Whether the allocator counts at all.
    pub armed: bool,
    /// Blocks asked for so far.
    pub calls: Vec<u64>,
    /// Bytes held.
    pub held: Vec<i64>,
    /// Threads of the pool that really ran.
    pub threads: usize,
}

/// Whether this process counts its heap.
fn armed() -> bool {
    let before = Heap::now();
    let block = std::hint::black_box(vec![1u8; 32]);
    let held = Heap::now();
    drop(block);
    held.calls > before.calls && held.held > before.held
}

/// Counts in this process.
///
/// # Errors
/// What admission, the files or the engine answered.
pub fn count(folder: &Path, seed: u64, case: Case, waste: Waste) -> Result<Counted, CheckError> {
    let armed = armed();
    let checkpoint = Checkpoint::open_as(folder, Some(case.dtype))?;
    let cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let mut b = Wasteful::new(cpu, waste);
    let model = Model::load(&mut b, &checkpoint, Order::Invariant)?;
    let prompts = prompts(seed, model.shape.vocab, case.batch, PROMPT);
    let request = request(prompts, case.steps + 1, sampler(case.sampled, seed));
    let mut marks = Vec::with_capacity(case.steps + 1);
    let pool = pool(case.threads);
    let threads = pool.broadcast(|_| ()).len();
    pool.install(|| run_loop(&mut b, &model, &request, || marks.push(Heap::now())))?;
    let calls = marks.iter().map(|heap| heap.calls).collect();
    let held = marks.iter().map(|heap| heap.held).collect();
    Ok(Counted { armed, calls, held, threads })
}

/// Counts in a fresh process.
fn ask(ctx: &Context, folder: &Path, case: Case, waste: Waste) -> Result<Counted, CheckError> {
    let mut command = Command::new(&ctx.child);
    command.arg("steps").arg(folder).args(["--dtype", case.dtype.name()]).stdin(Stdio::null());
    command.arg("--seed").arg(ctx.seed.to_string()).arg("--steps").arg(case.steps.to_string());
    command.arg("--batch").arg(case.batch.to_string());
    command.arg("--threads").arg(case.threads.to_string());
    if case.sampled {
        command.arg("--sampled");
    }
    if let Some((name, _)) = Waste::NAMED.iter().find(|(_, named)| *named == waste) {
        command.args(["--waste", name]);
    }
    output(ctx, &mut command, 0)
}

/// Holds every step of a loop to the heap that the prefill left.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Case,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    Ok(Box::new(move |plant| {
        let counted = ask(ctx, folder.path(), case, waste(plant)?)?;
        Ok(outcome(&counted, case))
    }))
}

/// What the counts of a loop say of it.
pub fn outcome(counted: &Counted, case: Case) -> Outcome {
    let found = compare(counted, case.sampled);
    let (armed, threads) = (counted.armed, counted.threads);
    let deaf = (!armed).then(|| "the allocator of the process counts nothing".to_owned());
    let fewer = (threads != case.threads).then(|| format!("{threads} threads ran"));
    let outcome = Outcome::bitwise(found, case.steps as u64);
    Outcome { statistic: "steps_changing_heap", alarm: deaf.or(fewer), ..outcome }
}

/// Steps that hold another number of bytes than the prefill left or, where ids are not drawn, ask
/// for a block at all. A draw ranks its row in buffers of its own, and gives them back.
fn compare(counted: &Counted, sampled: bool) -> Comparison {
    let mut found = Comparison::default();
    for step in 1..counted.calls.len().min(counted.held.len()) {
        let calls = counted.calls[step] - counted.calls[step - 1];
        let growth = counted.held[step] - counted.held[0];
        let same = growth == 0 && (sampled || calls == 0);
        found.compared += 1;
        if !same {
            found.differing += 1;
            let text = format!("step {step}: {calls} blocks asked for, {growth} bytes grown");
            found.first.get_or_insert_with(|| samebits_reports::Divergence {
                text,
                ..at("decode", Some(step))
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_or_a_byte_is_seen_where_it_is() {
        for (why, calls, held, sampled, differing, step) in [
            ("nothing", vec![9, 9, 9], vec![5, 5, 5], false, 0, None),
            ("a block given back", vec![9, 9, 10], vec![5, 5, 5], false, 1, Some(2)),
            ("a draw's own buffers", vec![9, 12, 15], vec![5, 5, 5], true, 0, None),
            ("a byte kept", vec![9, 10, 11], vec![5, 6, 6], true, 2, Some(1)),
            ("a byte less", vec![9, 10, 11], vec![5, 5, 4], true, 1, Some(2)),
            ("no step at all", vec![9], vec![5], false, 0, None),
        ] {
            let found = compare(&Counted { armed: true, calls, held, threads: 1 }, sampled);
            assert_eq!(found.differing, differing, "{why}");
            assert_eq!(found.first.and_then(|first| first.position), step, "{why}");
        }
    }

    #[test]
    fn a_process_without_the_counting_allocator_is_not_armed() {
        // The test's own binary has the system's allocator.
        assert!(!armed());
    }
}

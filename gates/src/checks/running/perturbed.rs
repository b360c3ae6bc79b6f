//! Fresh processes in other surroundings: none of them may change a bit.
//!
//! The invariant: a perturbation that cannot be had is never run as if it had been.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use samebits::contract::Dtype;
use samebits_fixtures::prompt_ids;

use crate::checks::determinism::{Answer, Question, ask_by, compare, due};
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::manifest::{Perturbation, Source};
use crate::sites::Dims;

/// Bytes of the variable that pads the environment: the stack begins elsewhere.
const PADDING_BYTES: usize = 60_000;
/// What glibc writes, and its complement, into blocks as it hands them out and takes them back.
const FILL: &str = "165";

/// Why layout randomisation cannot be turned off here, if it cannot.
pub fn needs_setarch() -> Option<String> {
    let tried = Command::new("setarch").args(["-R", "true"]).stderr(Stdio::null()).status();
    match tried {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("setarch -R true ended with {status}: ASLR stays on here")),
        Err(error) => Some(format!("setarch: {error}: ASLR stays on here")),
    }
}

/// The command of one process; `child` is absolute.
fn command(child: &Path, how: Perturbation) -> Command {
    let mut command = Command::new(child);
    match how {
        Perturbation::FixedLayout => {
            command = Command::new("setarch");
            command.arg("-R").arg(child);
        }
        Perturbation::Environment => {
            command.env("SAMEBITS_PADDING", "x".repeat(PADDING_BYTES));
        }
        Perturbation::EmptyEnvironment => {
            command.env_clear();
        }
        Perturbation::Folder => {
            command.current_dir("/");
        }
        Perturbation::Threads(n) => {
            command.env("RAYON_NUM_THREADS", n.to_string());
        }
        Perturbation::Memory => {
            command.env("MALLOC_PERTURB_", FILL);
        }
        Perturbation::Load => {}
    }
    command
}

/// Runs `work` while every core, and one more, is busy.
fn under_load<T>(work: impl FnOnce() -> T) -> T {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..=cores {
            scope.spawn(|| {
                let mut spin = 1u64;
                while !done.load(Ordering::Relaxed) {
                    spin = std::hint::black_box(spin.wrapping_mul(3));
                }
            });
        }
        let answer = work();
        done.store(true, Ordering::Relaxed);
        answer
    })
}

/// Compares the answer of a process in each of `how` with that of a plain one; the last of them
/// carries a planted fault.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    (dtype, prompt): (Dtype, usize),
    how: &'c [Perturbation],
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = folder.path().canonicalize().map_err(CheckError::io(folder.path()))?;
    let child = ctx.child.canonicalize().map_err(CheckError::io(&ctx.child))?;
    let dims = Dims::of(ctx.reference(folder.path())?.config());
    let ids = prompt_ids(ctx.seed, dims.vocab, prompt);
    let last = how.len();
    let expected = last as u64 * due(&dims, ids.len());
    let mut clean: Vec<Answer> = Vec::new();
    Ok(Box::new(move |plant| {
        let _alive = &folder;
        let question = Question { model: &model, dtype, ids: &ids, plant: None };
        // All but the last answer of a planted run are those of the clean one before it.
        let mut known = clean.drain(..);
        let first = match known.next().filter(|_| plant.is_some()) {
            Some(answer) => answer,
            None => ask_by(ctx, 0, &question, Command::new(&child))?,
        };
        let mut answers = Vec::new();
        let mut found = Comparison::default();
        for (i, how) in how.iter().enumerate() {
            let (planted, plant) = (plant.is_some(), plant.filter(|_| i + 1 == last));
            let question = Question { plant, ..question };
            let ask = || ask_by(ctx, i + 1, &question, command(&child, *how));
            let known = known.next().filter(|_| question.plant.is_none() && planted);
            let answer = match known {
                Some(answer) => answer,
                None if *how == Perturbation::Load => under_load(ask)?,
                None => ask()?,
            };
            found.then(compare(&first, &answer).labelled(&format!("{how:?}:")));
            answers.push(answer);
        }
        drop(known);
        clean = std::iter::once(first).chain(answers).collect();
        let outcome = Outcome::bitwise(found, expected);
        Ok(Outcome { statistic: "hashes_differing", ..outcome })
    }))
}

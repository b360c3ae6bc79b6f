//! What gates do: each check measures the engine once clean and once with a planted fault.
//!
//! Here: the dispatch, and what every check answers. Absent: status, which the report decides from
//! the numbers, and limits. The invariant: references are made once and never see a fault.

mod admission;
mod bitwise;
mod canary;
mod captured;
pub mod contract;
pub mod determinism;
mod drift;
mod growth;
mod hashes;
mod ideal;
pub mod invariance;
pub mod kernels;
mod lengths;
mod named;
pub mod order;
mod parting;
mod poison;
mod probes;
pub mod readme;
pub mod rmsnorm;
pub mod running;
mod smoke;
pub mod swarm;
pub mod teacher;
pub mod tidy;
mod traps;

use std::path::{Path, PathBuf};

use samebits::checkpoint::CheckpointError;
use samebits::contract::Order;
use samebits::generate::{ChatError, GenerateError, TextError};
use samebits::model::RunError;
use samebits_defects::{DefectError, ReplayError};
use samebits_oracle::OracleError;
use samebits_reports::{Divergence, PathProof};
use thiserror::Error;

use crate::compare::Comparison;
use crate::context::Context;
use crate::limits::LimitError;
use crate::manifest::{Check, Gate, ManifestError, Plant};

/// Why a check could not be made.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A fixture.
    #[error(transparent)]
    Fixture(#[from] samebits_fixtures::Error),
    /// The reference.
    #[error(transparent)]
    Reference(#[from] OracleError),
    /// The engine refused a run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The engine refused a generation.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A command of the engine that ended without an answer.
    #[error("generate: {0}")]
    Command(#[from] samebits::commands::Failure),
    /// The engine refused a checkpoint.
    #[error(transparent)]
    Admission(#[from] CheckpointError),
    /// A fault that is not in the catalogue.
    #[error(transparent)]
    Defect(#[from] DefectError),
    /// A manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A limit that is not there.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A report that cannot be read.
    #[error(transparent)]
    Report(#[from] samebits_reports::Error),
    /// A replay that did not fit the run.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A checkpoint that an earlier gate of this run could not get either.
    #[error("checkpoint: {why}")]
    Checkpoint {
        /// What it met.
        why: String,
    },
    /// A file.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A JSON file.
    #[error("{}: {source}", path.display())]
    Json {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Reference material without what the manifest names.
    #[error("{what} is not in {place}")]
    Missing {
        /// The tensor, run or shape.
        what: String,
        /// The file or table.
        place: String,
    },
    /// A fault that this check cannot carry.
    #[error("the check has no place for the planted fault {id}")]
    NoPlace {
        /// The fault.
        id: String,
    },
    /// A fresh process that did not answer.
    #[error("process {index} ended with {status}: {stderr}")]
    Child {
        /// Which.
        index: usize,
        /// How it ended.
        status: String,
        /// The last line it wrote to stderr.
        stderr: String,
    },
}

impl CheckError {
    /// An input or output error at `path`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Io { path, source }
    }

    /// A parse error in `path`.
    pub fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Json { path, source }
    }

    /// Something that reference material lacks.
    pub fn missing(what: impl ToString, place: impl ToString) -> Self {
        Self::Missing { what: what.to_string(), place: place.to_string() }
    }
}

/// What a check measured.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What is measured, its unit last; larger is worse.
    pub statistic: &'static str,
    /// Its value.
    pub measured: f64,
    /// Comparisons made.
    pub compared: u64,
    /// Comparisons that had to be made, from shapes alone.
    pub expected: u64,
    /// Where the sides first differ.
    pub first: Option<Divergence>,
    /// What each side did.
    pub paths: Vec<PathProof>,
    /// Ops at which the planted fault acted; none where it is not in an op.
    pub hits: Option<u64>,
    /// Why the numbers may not be trusted, whatever they are.
    pub alarm: Option<String>,
}

impl Outcome {
    /// A bitwise comparison: the number of differing elements.
    pub fn bitwise(found: Comparison, expected: u64) -> Self {
        Self {
            statistic: "elements_differing",
            measured: found.differing as f64,
            compared: found.compared,
            expected,
            first: found.first,
            paths: Vec::new(),
            hits: None,
            alarm: None,
        }
    }

    /// The same, with the proofs of its runs.
    pub fn with_paths(self, paths: Vec<PathProof>) -> Self {
        Self { paths, ..self }
    }

    /// The same, with the hits of the planted fault.
    pub fn with_hits(self, hits: u64) -> Self {
        Self { hits: Some(hits), ..self }
    }
}

/// A check that is ready to measure, clean or with a planted fault.
pub type Measure<'c> = Box<dyn FnMut(Option<&Plant>) -> Result<Outcome, CheckError> + 'c>;

/// Makes a gate's references and returns what measures the engine against them.
///
/// # Errors
/// Reference material that cannot be had.
pub fn prepare<'c>(gate: &'c Gate, ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    match &gate.check {
        Check::Captured { narrow } => captured::prepare(ctx, narrow),
        Check::Narrow { narrow, dtype, prompts, cached } => bitwise::narrow(
            ctx,
            &bitwise::Narrow { narrow, dtype: *dtype, prompts, cached: *cached },
        ),
        Check::Hashes { file, order, prompt, cached } => {
            hashes::recorded(ctx, file, *order, *prompt, *cached)
        }
        Check::Strangers { name } => hashes::stranger(ctx, name),
        Check::Injected { file, prompt, cached } => {
            hashes::injected::prepare(ctx, file, *prompt, *cached)
        }
        Check::Parting { narrow, dtype, prompts } => parting::prepare(ctx, narrow, *dtype, prompts),
        Check::Lengths { model, dtype, prompts, places } => {
            lengths::prepare(ctx, model, *dtype, (prompts, *places))
        }
        Check::Smoke { defects, gates } => smoke::prepare(ctx, defects, gates),
        Check::Traps => traps::prepare(ctx),
        Check::Drift { model, dtype, positions } => drift::prepare(ctx, model, *dtype, *positions),
        Check::Growth { model, dtype, positions } => {
            growth::prepare(ctx, model, *dtype, *positions)
        }
        Check::Contract { model, dtype, order, prompt, steps } => {
            let case =
                contract::Case { dtype: *dtype, order: *order, prompt: *prompt, steps: *steps };
            contract::prepare(ctx, model, case)
        }
        Check::Kernels { kernel, cases } => probes::kernels(ctx, kernel, *cases),
        Check::Invariance { model, dtype, prompt, variant } => {
            let (dtype, prompt, side) = (*dtype, *prompt, gate.control.side);
            invariance::prepare(
                ctx,
                &invariance::Case { source: model, dtype, prompt, variant, side },
            )
        }
        Check::Determinism { model, dtype, prompt, processes } => {
            let (dtype, prompt, processes) = (*dtype, *prompt, *processes);
            let side = gate.control.side;
            let case = determinism::Case { source: model, dtype, prompt, processes, side };
            determinism::prepare(ctx, &case)
        }
        Check::Ideal { model, dtype, prompts, statistic } => {
            let (dtype, statistic) = (*dtype, *statistic);
            ideal::prepare(ctx, &ideal::Case { source: model, dtype, prompts, statistic })
        }
        Check::Localize => named::prepare(ctx),
        Check::Runner => crate::selftest::prepare(ctx),
        Check::TeacherForced { probe } => teacher::prepare(ctx, probe),
        Check::Rmsnorm { dtype } => rmsnorm::prepare(ctx, *dtype),
        Check::Order { dtype } => probes::trees(ctx, *dtype),
        Check::Poison { model, dtype, long, short } => {
            let case = poison::Case { dtype: *dtype, long: *long, short: *short };
            poison::prepare(ctx, model, case)
        }
        Check::Hostile { hybrids } => admission::hostile(ctx, *hybrids),
        Check::Weights { model, dtype, order } => {
            admission::weights(ctx, model, *dtype, order.unwrap_or(Order::Invariant))
        }
        Check::Swarm { lane, cases } => swarm::prepare(ctx, *lane, *cases),
        Check::Tidy => tidy::prepare(ctx),
        Check::Canary { bird } => canary::prepare(ctx, *bird),
        Check::Readme => readme::prepare(ctx),
        other => running::prepare(other, ctx),
    }
}

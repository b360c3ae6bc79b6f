//! The commands of the `gates` binary, with all sentences they print.
//!
//! Exit codes: 0 good; 1 a gate is red; 2 usage or environment; 4 a checkpoint was refused. A
//! closed pipe ends quietly.

mod answer;
mod calibrate;
mod golden;
mod kill;
mod list;
mod localize;
mod readme;
mod replay;
mod report;
pub mod run;
mod steps;
mod swarm;
mod tidy;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use samebits::checkpoint::CheckpointError;
use samebits::model::RunError;
use thiserror::Error;

use crate::checks::CheckError;
use crate::limits::LimitError;
use crate::manifest::ManifestError;

/// Gates: checks of the engine that can fail.
#[derive(Debug, Parser)]
#[command(name = "gates", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the gates.
    List(list::Args),
    /// Run gates, print the table of their rows, and write the report.
    Run(run::Args),
    /// Merge a folder of rows into a report.
    Report(report::Args),
    /// Say what a gate is for, what it does and where its limit comes from.
    Explain(list::ExplainArgs),
    /// Rewrite the tables of the README from the accepted results.
    Readme(readme::Args),
    /// Print code sizes and everything that breaks a rule of the house.
    Tidy,
    /// Run a model with the outputs of named sites replaced by the tensors of a file.
    Replay(replay::Args),
    /// Rewrite the exact values that gates compare with, computed by the reference.
    Golden(golden::Args),
    /// Make the limits of designed runs from ensembles of legal orders of summation.
    Calibrate(calibrate::Args),
    /// Plant every defect of the catalogue and say which gates catch it.
    Kill(kill::Args),
    /// Say where two traces part: the first op, and the smallest place in it.
    Localize(localize::Args),
    /// Random shapes and runs against the contract: coverage, and a failure made small.
    Swarm(swarm::Args),
    /// Answer with hashes, for the determinism gates.
    #[command(hide = true)]
    Answer(answer::Args),
    /// Count the heap over decode steps, for the allocator gates.
    #[command(hide = true)]
    Steps(steps::Args),
}

/// Why a command ended without a verdict.
#[derive(Debug, Error)]
pub enum Failure {
    /// Words that mean nothing together.
    #[error("{0}")]
    Usage(String),
    /// The manifests.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The limits.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// A report.
    #[error(transparent)]
    Report(#[from] samebits_reports::Error),
    /// A report that is older than the tree.
    #[error("the report is {0}")]
    Outdated(#[from] samebits_reports::Outdated),
    /// The README.
    #[error("README.md: {0}")]
    Readme(#[from] samebits_reports::MarkerError),
    /// A check.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Two traces that cannot be told apart.
    #[error(transparent)]
    Localize(#[from] crate::localize::LocalizeError),
    /// A trace that does not fit a model.
    #[error(transparent)]
    Forced(#[from] crate::localize::forced::ForcedError),
    /// A gate that leads nowhere.
    #[error(transparent)]
    Gate(#[from] crate::localize::gate::GateError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// stdout.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Checkpoint(error) | Self::Check(CheckError::Admission(error)) => {
                error.exit_code()
            }
            _ => 2,
        }
    }
}

/// Runs a command.
pub fn dispatch(cli: Cli) -> ExitCode {
    let mut out = io::stdout().lock();
    let done = match cli.command {
        Command::List(args) => list::list(&args, &mut out),
        Command::Run(args) => run::command(&args, &mut out),
        Command::Report(args) => report::command(&args, &mut out),
        Command::Explain(args) => list::explain(&args, &mut out),
        Command::Readme(args) => readme::command(&args, &mut out),
        Command::Tidy => tidy::command(&mut out),
        Command::Replay(args) => replay::command(&args),
        Command::Golden(args) => golden::command(&args, &mut out),
        Command::Calibrate(args) => calibrate::command(&args, &mut out),
        Command::Kill(args) => kill::command(&args, &mut out),
        Command::Localize(args) => localize::command(&args, &mut out),
        Command::Swarm(args) => swarm::command(&args, &mut out),
        Command::Answer(args) => answer::command(&args, &mut out),
        Command::Steps(args) => steps::command(&args, &mut out),
    };
    let done = done.and_then(|code| out.flush().map(|()| code).map_err(Failure::Output));
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(io::stderr(), "gates: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Ids separated by commas or white space.
fn parse_ids(list: &str) -> Result<Vec<u32>, Failure> {
    samebits::commands::parse_ids(list).map_err(|error| Failure::Usage(format!("--ids: {error}")))
}

//! `gates steps`: one process of an allocator gate.

use std::io::Write;
use std::path::PathBuf;

use samebits::contract::Dtype;

use super::Failure;
use crate::checks::running::heap::{Case, count};
use crate::decor::Waste;

/// Arguments of `steps`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint.
    model: PathBuf,
    /// The run's dtype.
    #[arg(long, value_enum)]
    dtype: Dtype,
    /// Seed of prompts and draws.
    #[arg(long)]
    seed: u64,
    /// Decode steps.
    #[arg(long)]
    steps: usize,
    /// Sequences.
    #[arg(long)]
    batch: usize,
    /// Threads.
    #[arg(long)]
    threads: usize,
    /// Draw the ids.
    #[arg(long)]
    sampled: bool,
    /// A planted fault.
    #[arg(long)]
    waste: Option<String>,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let &Args { dtype, steps, batch, threads, sampled, .. } = args;
    let waste = match &args.waste {
        None => Waste::None,
        Some(name) => Waste::named(name)
            .ok_or_else(|| Failure::Usage(format!("--waste: no fault is called {name}")))?,
    };
    let case = Case { dtype, steps, batch, threads, sampled };
    let counted = count(&args.model, args.seed, case, waste)?;
    serde_json::to_writer(&mut *out, &counted).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(0)
}

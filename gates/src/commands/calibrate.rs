//! `gates calibrate`: limits from ensembles of legal orders.
//!
//! The invariant: nothing is written without `--write`, and then one file, whole.

use std::io::Write;

use samebits_reports::write_atomic;

use super::Failure;
use crate::calibrate::{Plan, calibrate};
use crate::context::{Context, data};
use crate::manifest::Gate;

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Independent runs of every designed run; validation takes a third as many fresh ones.
    #[arg(long, default_value_t = 300)]
    runs: usize,
    /// Rewrite the limits file; else only print what it would hold.
    #[arg(long)]
    write: bool,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let ctx = Context::new(1, None, std::env::current_exe()?)?;
    let gates = Gate::all(&data("manifest"))?;
    let found = calibrate(&ctx, &gates, Plan { runs: args.runs })?;
    for line in &found.lines {
        writeln!(out, "{line}")?;
    }
    let (fresh, beyond) = found.fresh;
    writeln!(out, "fresh tensors {fresh}, beyond a limit {beyond}")?;
    if args.write {
        write_atomic(&data("limits.json"), found.limits.to_json().as_bytes())?;
    }
    Ok(0)
}

//! `gates calibrate`: limits from ensembles of legal orders.
//!
//! The invariant: nothing is written without `--write`, and then one file, whole.

use std::io::Write;
use std::path::PathBuf;

use samebits::contract::Dtype;
use samebits_reports::write_atomic;

use super::Failure;
use super::run::facts;
use crate::calibrate::{Plan, calibrate, validate};
use crate::context::{Context, data};
use crate::manifest::Gate;

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Independent runs of every designed run.
    #[arg(long, default_value_t = 300)]
    runs: usize,
    /// Only the limits of this dtype.
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Only the limits that no gate feeds but those whose id holds this.
    #[arg(long, value_name = "GATES")]
    gates: Option<String>,
    /// Rewrite the limits file; else only print what it would hold.
    #[arg(long)]
    write: bool,
    /// Make no limits: hold as many fresh runs to those there are. Exit code 1 where one is beyond.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Write what the check found here.
    #[arg(long, value_name = "FILE", requires = "check")]
    out: Option<PathBuf>,
}

fn check(args: &Args, ctx: &Context, gates: &[Gate], out: &mut dyn Write) -> Result<u8, Failure> {
    let found = validate(ctx, gates, args.runs, facts(&data("manifest"))?)?;
    for (name, (tensors, beyond)) in &found.limits {
        writeln!(out, "{name}: {beyond} of {tensors} beyond")?;
    }
    writeln!(out, "fresh tensors {}, beyond a limit {}", found.tensors, found.beyond)?;
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&found).expect("counts are plain data");
        write_atomic(path, (text + "\n").as_bytes())?;
    }
    Ok(u8::from(found.beyond > 0))
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let ctx = Context::new(1, None, std::env::current_exe()?)?;
    let gates = Gate::project()?;
    if args.check {
        return check(args, &ctx, &gates, out);
    }
    let found = calibrate(
        &ctx,
        &gates,
        Plan { runs: args.runs, dtype: args.dtype, gates: args.gates.as_deref() },
    )?;
    for line in &found.lines {
        writeln!(out, "{line}")?;
    }
    if args.write {
        write_atomic(&data("limits.json"), found.limits.to_json().as_bytes())?;
    }
    Ok(0)
}

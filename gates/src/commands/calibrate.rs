//! `gates calibrate`: clean runs held to the law.
//!
//! The invariant: nothing but `--out` is written, and that whole.

use std::io::Write;
use std::path::PathBuf;

use samebits_reports::write_atomic;

use super::Failure;
use super::run::facts;
use crate::calibrate::validate;
use crate::context::{Context, data};
use crate::manifest::Gate;

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hold fresh clean runs to the law: there is no other kind of calibration. Exit code 1 where
    /// one is beyond it.
    #[arg(long, required = true)]
    check: bool,
    /// Independent runs of every designed run, each in a legal order of summation.
    #[arg(long, default_value_t = 60)]
    runs: usize,
    /// Write what was found here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let ctx = Context::new(1, None, std::env::current_exe()?)?;
    let gates = Gate::project()?;
    let found = validate(&ctx, &gates, args.runs, facts(&data("manifest"))?)?;
    for (kind, t) in &found.ops {
        writeln!(
            out,
            "{kind}: {} of {} tensors beyond, the worst {:.2} of its limit",
            t.beyond, t.tensors, t.worst
        )?;
    }
    writeln!(out, "fresh tensors {}, beyond the law {}", found.tensors, found.beyond)?;
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&found).expect("counts are plain data");
        write_atomic(path, (text + "\n").as_bytes())?;
    }
    Ok(u8::from(found.beyond > 0))
}

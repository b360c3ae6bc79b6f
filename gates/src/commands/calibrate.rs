//! `gates calibrate`: clean runs held to the law.
//!
//! The invariant: nothing but `--out` is written, and that whole.

use std::io::Write;
use std::path::PathBuf;

use samebits::contract::Dtype;
use samebits_reports::write_atomic;

use super::run::facts;
use super::{Failure, whole};
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
    /// Hold whole models to the law instead: ten widths and prompts, dense and hybrid, in three
    /// recipes of weights, each with so many seeds.
    #[arg(long, value_name = "N", conflicts_with = "runs",
          value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The dtype of whole models' runs.
    #[arg(long, value_enum, default_value = "bf16", requires = "seeds")]
    dtype: Dtype,
    /// The published 0.6B and 0.8B-like shapes in the place of the ten widths.
    #[arg(long, requires = "seeds")]
    long: bool,
    /// Begin no whole model's run after so many minutes; --out is taken up again where it ends.
    #[arg(long, requires = "seeds")]
    minutes: Option<f64>,
    /// Write what was found here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let &Args { dtype, long, minutes, .. } = args;
    if let Some(seeds) = args.seeds {
        let plan = whole::Plan { seeds, long, dtype, minutes, out: args.out.as_deref() };
        return whole::command(&plan, out);
    }
    let ctx = Context::new(1, None, std::env::current_exe()?)?;
    let gates = Gate::all(&data("manifest"))?;
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

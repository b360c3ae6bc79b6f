//! `gates answer`: one process of a determinism gate.

use std::io::Write;
use std::path::PathBuf;

use samebits::contract::Dtype;

use super::{Failure, parse_ids};
use crate::checks::determinism::{Question, answer};
use crate::context::Context;
use crate::manifest::Plant;

/// Arguments of `answer`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint.
    model: PathBuf,
    /// The run's dtype.
    #[arg(long, value_enum)]
    dtype: Dtype,
    /// The prompt.
    #[arg(long)]
    ids: String,
    /// A planted fault.
    #[arg(long)]
    defect: Option<String>,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let ids = parse_ids(&args.ids)?;
    let ctx = Context::new(0, None, std::env::current_exe()?)?;
    let plant = args.defect.clone().map(Plant::Defect);
    let (dtype, plant) = (args.dtype, plant.as_ref());
    let answer = answer(&ctx, &Question { model: &args.model, dtype, ids: &ids, plant })?;
    serde_json::to_writer(&mut *out, &answer).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(0)
}

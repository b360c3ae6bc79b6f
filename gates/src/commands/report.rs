//! `gates report`: rows that were written one by one, merged.

use std::io::Write;
use std::path::PathBuf;

use samebits_reports::{merge, same_tree};

use super::Failure;
use super::run::{facts, publish};
use crate::context::data;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder of rows.
    rows: PathBuf,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Also write JUnit XML here.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let report = merge(&args.rows)?;
    same_tree(&report.run(), &facts(&data("manifest"))?)?;
    publish(&report, (&args.out, args.junit.as_deref()), out)
}

//! `gates readme`: the tables of the README, rewritten or checked.
//!
//! The invariant: results that are older than the tree are refused, not shown.

use std::io::Write;

use samebits_reports::{Report, check, rewrite, write_atomic};

use super::Failure;
use super::run::current;
use crate::checks::CheckError;
use crate::checks::readme::{files, tables};

/// Arguments of `readme`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only say whether the README is up to date; exit code 1 if it is not.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let (readme, results) = files();
    current(&Report::read(&results.join("gates.json"))?)?;
    let mut text = std::fs::read_to_string(&readme).map_err(CheckError::io(&readme))?;
    let mut stale = 0;
    for (name, table) in tables(&results)? {
        if args.check {
            if let Err(error) = check(&text, name, &table) {
                writeln!(out, "README.md: {error}")?;
                stale = 1;
            }
        } else {
            text = rewrite(&text, name, &table)?;
        }
    }
    if !args.check {
        write_atomic(&readme, text.as_bytes())?;
    }
    Ok(stale)
}

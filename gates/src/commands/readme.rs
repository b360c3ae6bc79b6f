//! `gates readme`: the tables of the README, rewritten or checked.
//!
//! The invariant: results that are not of this tree, whole and unchanged, never get into the
//! README; and of those that are there, what no longer holds is said. Code that is newer than the
//! results is told as their age: it is for who accepts the next ones.

use std::io::Write;

use samebits_reports::{check, rewrite, write_atomic};

use super::Failure;
use super::run::facts;
use crate::accepted::{Results, Tree};
use crate::checks::CheckError;
use crate::checks::readme::{files, tables};
use crate::context::data;
use crate::manifest::Gate;

/// Arguments of `readme`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only say whether the README is up to date; exit code 1 if it is not.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let (readme, folder) = files();
    let results = Results::read(&folder)?;
    let tree = Tree::of(facts(&data("manifest"))?, &Gate::project()?);
    let mut text = std::fs::read_to_string(&readme).map_err(CheckError::io(&readme))?;
    let tables = tables(&folder)?;
    if !args.check {
        if let Some((file, source)) = results.refused(&tree).into_iter().next() {
            return Err(Failure::Refused { file, source });
        }
        for (name, table) in tables {
            text = rewrite(&text, name, &table)?;
        }
        write_atomic(&readme, text.as_bytes())?;
        return Ok(0);
    }
    let stale = tables.iter().filter_map(|(name, table)| check(&text, name, table).err());
    let mut wrong: Vec<String> = stale.map(|error| format!("README.md: {error}")).collect();
    let differing = results.differing(&tree).into_iter();
    wrong.extend(differing.map(|(file, why)| format!("results/{file} is {why}")));
    for line in wrong.iter().chain(&results.ages(&tree, &data(".."))) {
        writeln!(out, "{line}")?;
    }
    Ok(u8::from(!wrong.is_empty()))
}

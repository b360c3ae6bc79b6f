//! `gates golden`: the files of exact values, made by the reference.

use std::io::Write;

use samebits_reports::write_atomic;

use super::Failure;
use crate::checks::{CheckError, rmsnorm};

/// Arguments of `golden`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only say whether the files are up to date; exit code 1 if they are not.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let path = rmsnorm::file();
    let lines: Vec<String> = rmsnorm::generate()
        .iter()
        .map(|case| serde_json::to_string(case).expect("a case is plain data"))
        .collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    if !args.check {
        write_atomic(&path, text.as_bytes())?;
        return Ok(0);
    }
    let same = std::fs::read_to_string(&path).map_err(CheckError::io(&path))? == text;
    if !same {
        writeln!(out, "{}: not what the reference computes", path.display())?;
    }
    Ok(u8::from(!same))
}

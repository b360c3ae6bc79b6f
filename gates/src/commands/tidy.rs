//! `gates tidy`: code sizes and findings.

use std::io::Write;

use super::Failure;
use crate::checks::tidy::{code_sizes, files, findings, load};

/// Runs the command.
pub fn command(out: &mut dyn Write) -> Result<u8, Failure> {
    let (files, rules) = (files()?, load()?);
    for size in code_sizes(&files, &rules) {
        let budget = size.budget.map_or(String::new(), |budget| format!(" of {budget}"));
        writeln!(out, "{:<10} {:>6}{budget} lines of code", size.part, size.lines)?;
    }
    let found = findings(&files, &rules);
    for finding in &found {
        let (file, line, rule, what) = (&finding.file, finding.line, finding.rule, &finding.what);
        writeln!(out, "{file}:{line}: {rule}: {what}")?;
    }
    Ok(u8::from(!found.is_empty()))
}

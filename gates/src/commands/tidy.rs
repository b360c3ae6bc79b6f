//! `gates tidy`: code sizes and findings.

use std::io::Write;

use super::Failure;
use crate::checks::tidy::{code_sizes, files, findings, load, unmade};
use crate::context::data;
use crate::limits::Limits;

/// Runs the command.
pub fn command(out: &mut dyn Write) -> Result<u8, Failure> {
    let (files, rules) = (files()?, load()?);
    for size in code_sizes(&files, &rules) {
        let budget = size.budget.map_or(String::new(), |budget| format!(" of {budget}"));
        writeln!(out, "{:<10} {:>6}{budget} lines of code", size.part, size.lines)?;
    }
    let mut found = findings(&files, &rules);
    found.extend(unmade(&Limits::load(&data("limits.json"))?)?);
    for finding in &found {
        let (file, line, rule, what) = (&finding.file, finding.line, finding.rule, &finding.what);
        writeln!(out, "{file}:{line}: {rule}: {what}")?;
    }
    Ok(u8::from(!found.is_empty()))
}

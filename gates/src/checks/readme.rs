//! The tables in the README are those of the accepted results.

use std::path::{Path, PathBuf};

use samebits_reports::{Matrix, Report, check, gates_table, host_line, kill_table, rewrite};

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::{Context, data};
use crate::manifest::Plant;

/// The README and the folder of accepted results.
pub fn files() -> (PathBuf, PathBuf) {
    (data("../README.md"), data("../results"))
}

/// Each generated table of the README, by the name of its markers.
///
/// # Errors
/// Results that cannot be read.
pub fn tables(results: &Path) -> Result<[(&'static str, String); 3], samebits_reports::Error> {
    let report = Report::read(&results.join("gates.json"))?;
    let matrix = Matrix::read(&results.join("kill.json"))?;
    Ok([
        ("gates", gates_table(&report)),
        ("host", host_line(&report)),
        ("kill", kill_table(&matrix)),
    ])
}

fn read(path: &Path) -> Result<String, CheckError> {
    std::fs::read_to_string(path).map_err(CheckError::io(path))
}

/// Checks the README; never writes it.
pub fn prepare<'c>(_ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let (readme, results) = files();
    let text = read(&readme)?;
    let tables = tables(&results)?;
    Ok(Box::new(move |plant| {
        let stale = match plant {
            None => None,
            Some(Plant::Material(what)) if what == "stale-table" => Some("an older table"),
            Some(other) => return Err(CheckError::NoPlace { id: other.id().to_owned() }),
        };
        let mut found = Comparison::default();
        for (name, table) in &tables {
            let old = stale.map_or(Ok(text.clone()), |old| rewrite(&text, name, old));
            let verdict = old.and_then(|text| check(&text, name, table));
            let text = verdict.as_ref().err().map(ToString::to_string).unwrap_or_default();
            found.compared += 1;
            if verdict.is_err() {
                found.differing += 1;
                found.first.get_or_insert_with(|| {
                    let mut first = at("readme", None);
                    first.text = text;
                    first
                });
            }
        }
        let outcome = Outcome::bitwise(found, tables.len() as u64);
        Ok(Outcome { statistic: "tables_stale", ..outcome })
    }))
}

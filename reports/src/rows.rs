//! Row files: a folder with one file a gate, written by the gates and merged into a report.
//!
//! `begin` empties the folder and says which gates must report; each gate then writes its row once,
//! from any thread or process; `merge` reads all of them. A gate that crashed has no row, and so is
//! ERROR. Two runs in one folder at a time are absent: every run has its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::atomic::{create_atomic, write_atomic};
use crate::error::Error;
use crate::kind::Kind;
use crate::report::{Report, Run, read_json, to_json};
use crate::row::Row;
use crate::stamp::Stamp;

/// Name of the file that makes a folder one of rows. No gate id can give this name.
pub const RUN_FILE: &str = "+run.json";

const RUN_SCHEMA: &str = "samebits.run/1";
const ROW_SCHEMA: &str = "samebits.row/1";

/// A gate that must report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The gate's id.
    pub id: String,
    /// Its kind.
    pub kind: Kind,
    /// The seed it runs with.
    pub seed: u64,
    /// The one command that repeats it.
    pub repeat: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunFile {
    schema: String,
    run: Run,
    expected: Vec<Expected>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowFile {
    schema: String,
    ended: Stamp,
    row: Row,
}

/// Makes `dir` the empty folder of rows of `run`, in which `expected` must report. The rows of an
/// earlier run are deleted; a folder of anything else is refused, as are two gates of one id.
pub fn begin(dir: &Path, run: &Run, expected: &[Expected]) -> Result<(), Error> {
    let mut files = BTreeMap::new();
    for gate in expected {
        if files.insert(file_name(&gate.id)?, &gate.id).is_some() {
            return Err(Error::Duplicate { id: gate.id.clone(), path: dir.join(RUN_FILE) });
        }
    }
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let old = listing(dir)?;
    let ours = |path: &PathBuf| is_row(path) || is_part(path) || path.ends_with(RUN_FILE);
    let row_folder = dir.join(RUN_FILE).is_file() && old.iter().all(ours);
    if !old.is_empty() && !row_folder {
        return Err(Error::Foreign { path: dir.to_owned() });
    }
    for path in old.iter().filter(|path| !path.ends_with(RUN_FILE)) {
        fs::remove_file(path).map_err(Error::io(path))?;
    }
    let file =
        RunFile { schema: RUN_SCHEMA.to_owned(), run: run.clone(), expected: expected.to_vec() };
    write_atomic(&dir.join(RUN_FILE), to_json(&file).as_bytes())
}

/// Writes the checked row to its own file, whole or not at all, and returns its path. A second row
/// of one gate is refused: a rerun does not count.
pub fn write_row(dir: &Path, row: &Row) -> Result<PathBuf, Error> {
    let path = dir.join(file_name(&row.id)?);
    let file =
        RowFile { schema: ROW_SCHEMA.to_owned(), ended: Stamp::now(), row: row.clone().checked() };
    match create_atomic(&path, to_json(&file).as_bytes()) {
        Ok(()) => Ok(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(Error::Duplicate { id: row.id.clone(), path })
        }
        Err(error) => Err(Error::io(path)(error)),
    }
}

/// The report of the folder's run. Expected gates without a row are ERROR, "did not report".
///
/// Refuses an unreadable row, another schema, two rows of one id, a row older than the run, and a
/// row of a gate, kind, seed, commit or code the run does not expect.
pub fn merge(dir: &Path) -> Result<Report, Error> {
    let RunFile { run, expected, .. } = read_json(&dir.join(RUN_FILE), RUN_SCHEMA)?;
    let mut awaited: BTreeMap<&str, &Expected> = BTreeMap::new();
    for gate in &expected {
        if awaited.insert(&gate.id, gate).is_some() {
            return Err(Error::Duplicate { id: gate.id.clone(), path: dir.join(RUN_FILE) });
        }
    }
    let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
    let (mut rows, mut last) = (Vec::new(), run.start.clone());
    let ours = |row: &Row| (&row.commit, &row.code) == (&run.commit, &run.hashes.code);
    for path in listing(dir)?.into_iter().filter(|path| is_row(path)) {
        let RowFile { ended, row, .. } = read_json(&path, ROW_SCHEMA)?;
        if let Some(first) = seen.insert(row.id.clone(), path.clone()) {
            return Err(Error::Duplicate { id: row.id, path: first });
        }
        if !path.ends_with(file_name(&row.id)?) {
            return Err(Error::Misnamed { path, id: row.id });
        }
        if ended < run.start {
            return Err(Error::Stale { id: row.id, ended, start: run.start });
        }
        match awaited.remove(row.id.as_str()) {
            Some(gate) if gate.kind == row.kind && gate.seed == row.seed && ours(&row) => {}
            _ => return Err(Error::Unexpected { id: row.id }),
        }
        last = last.max(ended);
        rows.push(row);
    }
    let silent = awaited.into_values();
    let did_not_report =
        |gate: &Expected| Row::new(&gate.id, gate.kind, gate.seed, &gate.repeat).made_by(&run);
    rows.extend(silent.map(did_not_report));
    let wall_s = last.since(&run.start).as_secs_f64();
    Ok(Report::new(run, wall_s, rows))
}

/// `a/b` to `a+b.json`. An id has no `+` and no segment with a leading dot, so that two ids never
/// share a name and no name is hidden or leaves the folder.
fn file_name(id: &str) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._=,-".contains(c);
    let segment = |s: &str| !s.is_empty() && !s.starts_with('.') && s.chars().all(plain);
    if id.split('/').all(segment) {
        Ok(id.replace('/', "+") + ".json")
    } else {
        Err(Error::Id { id: id.to_owned() })
    }
}

/// Every `.json` but the run's is a row's file, and is refused if it holds none.
fn is_row(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".json") && name != RUN_FILE
}

/// What a process that died while writing left behind.
fn is_part(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') && name.ends_with(".part")
}

/// The folder's entries, sorted.
fn listing(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(dir).map_err(Error::io(dir))?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(Error::io(dir))?;
    paths.sort();
    Ok(paths)
}

//! The report of a run, `samebits.report/1`, and its verdict.
//!
//! Absent until a run makes one: the kill matrix. A changed meaning of any field is a new schema.
//! The invariant to remember: status, margin, order and totals follow from the rows; a file in
//! which they do not is refused.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::atomic::write_atomic;
use crate::error::Error;
use crate::host::Host;
use crate::num::Num;
use crate::row::{Row, Status};
use crate::stamp::Stamp;

/// The schema's name and version.
pub const SCHEMA: &str = "samebits.report/1";

/// What is known of a run before its first gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Commit hash, or `unknown`.
    pub commit: String,
    /// Whether the sources differ from the commit, or may.
    pub dirty: bool,
    /// When the run began.
    pub start: Stamp,
    /// The machine.
    pub host: Host,
    /// Hashes of what the gates read.
    pub hashes: Hashes,
    /// Lines of code of each part.
    pub code_sizes: Vec<CodeSize>,
}

/// SHA-256 of the data the gates read, in hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hashes {
    /// Folder of models and goldens.
    pub fixtures: String,
    /// File of limits.
    pub limits: String,
    /// Folder of gate manifests.
    pub manifests: String,
    /// All tracked sources, results and prose left out; empty in files that are older than it.
    #[serde(default)]
    pub code: String,
}

/// Lines of code of one part, against its budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeSize {
    /// The part: `engine`.
    pub part: String,
    /// Its lines.
    pub lines: u64,
    /// The most it may have; none if it has no budget.
    pub budget: Option<u64>,
}

/// Sums over the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// All rows.
    pub gates: u64,
    /// Rows PASS.
    pub pass: u64,
    /// Rows FAIL.
    pub fail: u64,
    /// Rows UNMEASURABLE.
    pub unmeasurable: u64,
    /// Rows ERROR.
    pub error: u64,
    /// Comparisons made.
    pub n_compared: u64,
    /// Comparisons that had to be made.
    pub n_expected: u64,
}

impl Totals {
    /// The sums over `rows`; counts saturate.
    pub fn of(rows: &[Row]) -> Totals {
        let mut totals = Totals::default();
        for row in rows {
            totals.gates += 1;
            totals.n_compared = totals.n_compared.saturating_add(row.n_compared);
            totals.n_expected = totals.n_expected.saturating_add(row.n_expected);
            *match row.status {
                Status::Pass => &mut totals.pass,
                Status::Fail => &mut totals.fail,
                Status::Unmeasurable => &mut totals.unmeasurable,
                Status::Error => &mut totals.error,
            } += 1;
        }
        totals
    }
}

/// The run's verdict, and the exit code of the process that gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// At least one gate passed and none is red: exit 0.
    Green,
    /// A gate is FAIL or ERROR: exit 1.
    Red,
    /// No gate is red and none passed: an empty suite, or one nothing of which could be measured.
    /// Exit 2.
    Nothing,
}

impl Verdict {
    /// 0, 1 or 2.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Green => 0,
            Verdict::Red => 1,
            Verdict::Nothing => 2,
        }
    }
}

/// A run's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `samebits.report/1`.
    pub schema: String,
    /// Commit hash, or `unknown`.
    pub commit: String,
    /// Whether the sources differed from the commit, or may have.
    pub dirty: bool,
    /// When the run began.
    pub start: Stamp,
    /// From the start to the last row, in seconds.
    pub wall_s: Num,
    /// The machine.
    pub host: Host,
    /// Hashes of what the gates read.
    pub hashes: Hashes,
    /// One row a gate, by id.
    pub rows: Vec<Row>,
    /// Lines of code of each part.
    pub code_sizes: Vec<CodeSize>,
    /// Sums over the rows.
    pub totals: Totals,
}

impl Report {
    /// Checks every row (`Row::checked`), sorts them by id and sums them up.
    ///
    /// Panics if two rows have one id: `merge` refuses that in files.
    pub fn new(run: Run, wall_s: f64, rows: Vec<Row>) -> Report {
        let mut rows: Vec<Row> = rows.into_iter().map(Row::checked).collect();
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        assert!(rows.windows(2).all(|two| two[0].id != two[1].id), "report: a gate has two rows");
        let totals = Totals::of(&rows);
        Report {
            schema: SCHEMA.to_owned(),
            commit: run.commit,
            dirty: run.dirty,
            start: run.start,
            wall_s: Num(wall_s),
            host: run.host,
            hashes: run.hashes,
            rows,
            code_sizes: run.code_sizes,
            totals,
        }
    }

    /// What is known of the run that made it.
    pub fn run(&self) -> Run {
        Run {
            commit: self.commit.clone(),
            dirty: self.dirty,
            start: self.start.clone(),
            host: self.host.clone(),
            hashes: self.hashes.clone(),
            code_sizes: self.code_sizes.clone(),
        }
    }

    /// The run's verdict.
    pub fn verdict(&self) -> Verdict {
        match self.totals {
            Totals { fail, error, .. } if fail > 0 || error > 0 => Verdict::Red,
            Totals { pass: 0, .. } => Verdict::Nothing,
            _ => Verdict::Green,
        }
    }

    /// Indented JSON with a final line feed. Equal reports give equal bytes.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// Writes the JSON to `path`: whole, or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_atomic(path, self.to_json().as_bytes())
    }

    /// Reads a report. Refuses another schema, unknown fields, and a file whose status, margin,
    /// order or totals do not follow from its rows.
    pub fn read(path: &Path) -> Result<Report, Error> {
        let report: Report = read_json(path, SCHEMA)?;
        let ordered = report.rows.windows(2).all(|two| two[0].id < two[1].id);
        let settled = report.rows.iter().all(|row| row.clone().checked() == *row);
        if ordered && settled && Totals::of(&report.rows) == report.totals {
            Ok(report)
        } else {
            Err(Error::Inconsistent { path: path.to_owned() })
        }
    }
}

/// The JSON text of a value of this crate.
pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string_pretty(value)
        .expect("the types of a report have string keys and no failing serializer");
    text + "\n"
}

/// Reads JSON of a schema; the schema is looked at before the shape.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, want: &'static str) -> Result<T, Error> {
    #[derive(Deserialize)]
    struct Probe {
        schema: Option<String>,
    }

    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let json = |source| Error::Json { path: path.to_owned(), source };
    let probe: Probe = serde_json::from_str(&text).map_err(json)?;
    match probe.schema {
        Some(found) if found == want => serde_json::from_str(&text).map_err(json),
        found => {
            Err(Error::Schema { path: path.to_owned(), found: found.unwrap_or_default(), want })
        }
    }
}

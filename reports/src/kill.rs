//! The kill matrix as data: which gate caught which defect, and the scores.
//!
//! Its Markdown table and its heat map have files of their own. The invariants: a defect that was
//! not reached or could not run is listed and red; equivalents and the unviable are the only ones
//! outside a denominator.

mod svg;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::atomic::write_atomic;
use crate::error::Error;
use crate::report::Run;

pub use svg::kill_svg;
pub use table::kill_table;

/// The schema of a matrix, with its version.
pub const KILL_SCHEMA: &str = "samebits.kill/1";

/// What became of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A gate that is green on the clean engine was red.
    Caught,
    /// No gate was.
    Missed,
    /// The fault never acted.
    NotReached,
    /// No gate saw a difference, and none was promised.
    Equivalent,
    /// It cannot be run.
    Unviable,
}

/// What one gate said of one defect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Cell {
    /// The gate measured.
    Measured {
        /// Whether it was red.
        red: bool,
        /// What it measured.
        statistic: String,
        /// The measurement over its limit, or the count where no difference is allowed.
        margin: crate::Num,
        /// The op it names first.
        op: Option<String>,
    },
    /// The fault never acted.
    NotReached,
    /// The engine died; the clean run did not.
    Crash,
    /// The run was refused.
    Unviable,
}

impl Cell {
    /// A measurement.
    pub fn measured(red: bool, statistic: &str, margin: f64, op: Option<String>) -> Self {
        Self::Measured { red, statistic: statistic.to_owned(), margin: crate::Num(margin), op }
    }

    /// The fault never acted.
    pub fn not_reached() -> Self {
        Self::NotReached
    }

    /// The engine died.
    pub fn crash() -> Self {
        Self::Crash
    }

    /// The run was refused.
    pub fn unviable() -> Self {
        Self::Unviable
    }

    /// Whether the gate caught it. A crash counts: the clean run ended well.
    pub fn red(&self) -> bool {
        matches!(self, Self::Measured { red: true, .. } | Self::Crash)
    }

    /// Whether the fault acted.
    pub fn reached(&self) -> bool {
        matches!(self, Self::Measured { .. } | Self::Crash)
    }

    /// Whether the fault never acted.
    pub fn is_not_reached(&self) -> bool {
        *self == Self::NotReached
    }

    /// Whether it could not be run.
    pub fn is_unviable(&self) -> bool {
        *self == Self::Unviable
    }
}

/// A defect's outcome under some gates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Killed {
    /// What became of it.
    pub fate: Outcome,
    /// Whether a gate of a kind that the catalogue names caught it.
    pub designated: bool,
    /// The gates that were red.
    pub by: Vec<String>,
}

/// Caught, of those that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Caught by a designated gate.
    pub designated: u64,
    /// Caught by any gate.
    pub any: u64,
    /// All but equivalents and the unviable.
    pub of: u64,
    /// Equivalents.
    pub equivalent: u64,
    /// Those that never acted: red.
    pub not_reached: u64,
    /// Those that could not run: red.
    pub unviable: u64,
}

impl Score {
    /// Counts a defect.
    pub fn count(&mut self, killed: &Killed) {
        match killed.fate {
            Outcome::Equivalent => self.equivalent += 1,
            Outcome::Unviable => self.unviable += 1,
            fate => {
                self.of += 1;
                self.not_reached += u64::from(fate == Outcome::NotReached);
                let caught = fate == Outcome::Caught;
                self.any += u64::from(caught);
                self.designated += u64::from(caught && killed.designated);
            }
        }
    }
}

/// One defect's row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixRow {
    /// The defect.
    pub id: String,
    /// Its class; 0 for what is no fault.
    pub class: u32,
    /// Its rung.
    pub strength: String,
    /// No tolerance can see it.
    pub beyond_tolerance: bool,
    /// Under all gates.
    pub all: Killed,
    /// Under the tolerance gates alone.
    pub tolerance: Killed,
    /// Gate by gate.
    pub cells: BTreeMap<String, Cell>,
}

/// The whole matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// [`KILL_SCHEMA`].
    pub schema: String,
    /// Commit, machine, and hashes of limits and gates.
    pub run: Run,
    /// Seed of all inputs.
    pub seed: u64,
    /// Seconds it took.
    pub wall_s: crate::Num,
    /// Gates, and whether each is a tolerance gate.
    pub gates: Vec<(String, bool)>,
    /// Gates that are red on the clean engine.
    pub red_baseline: Vec<String>,
    /// All gates.
    pub all: Score,
    /// Tolerance gates alone, without the defects that none can see.
    pub tolerance: Score,
    /// The same for classes that inputs were designed with.
    pub designed: Score,
    /// The same for the third that was held out.
    pub held_out: Score,
    /// Legal variants.
    pub legal: u64,
    /// Legal variants that a tolerance gate took for faults.
    pub false_alarms: Vec<String>,
    /// Defect by defect.
    pub rows: Vec<MatrixRow>,
}

impl Matrix {
    /// A matrix without rows.
    pub fn new(run: Run, seed: u64) -> Self {
        let score = Score::default();
        Self {
            schema: KILL_SCHEMA.to_owned(),
            run,
            seed,
            wall_s: crate::Num(0.0),
            gates: Vec::new(),
            red_baseline: Vec::new(),
            all: score,
            tolerance: score,
            designed: score,
            held_out: score,
            legal: 0,
            false_alarms: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a defect's row.
    pub fn add(
        &mut self,
        (id, class, strength, beyond_tolerance): (&str, u32, &str, bool),
        (all, tolerance): (Killed, Killed),
        cells: BTreeMap<String, Cell>,
    ) {
        let (id, strength) = (id.to_owned(), strength.to_owned());
        self.rows.push(MatrixRow { id, class, strength, beyond_tolerance, all, tolerance, cells });
    }

    /// The matrix in a file.
    ///
    /// # Errors
    /// A file that cannot be read or is no matrix.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read(path).map_err(Error::io(path))?;
        let json = |source| Error::Json { path: path.to_path_buf(), source };
        let matrix: Self = serde_json::from_slice(&text).map_err(json)?;
        if matrix.schema != KILL_SCHEMA {
            let (path, found) = (path.to_path_buf(), matrix.schema);
            return Err(Error::Schema { path, found, want: KILL_SCHEMA });
        }
        Ok(matrix)
    }

    /// Writes the matrix, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string(self).expect("a matrix is plain data");
        write_atomic(path, (text + "\n").as_bytes())
    }

    /// Faults: all rows but legal variants and what is no fault.
    pub fn faults(&self) -> impl Iterator<Item = &MatrixRow> {
        self.rows.iter().filter(|row| row.class > 0)
    }

    /// Tolerance gates that are nowhere the only tolerance gate to catch a defect.
    pub fn never_alone(&self) -> Vec<&str> {
        let alone: BTreeSet<&str> = self
            .faults()
            .filter_map(|row| match row.tolerance.by.as_slice() {
                [only] => Some(only.as_str()),
                _ => None,
            })
            .collect();
        let tolerant = self.gates.iter().filter(|(_, tolerant)| *tolerant);
        tolerant.map(|(gate, _)| gate.as_str()).filter(|gate| !alone.contains(gate)).collect()
    }

    /// Defects that make the run red: missed where they must not be, or never there.
    pub fn red(&self) -> Vec<&str> {
        let red = self.faults().filter(|row| {
            let lost = |k: &Killed| {
                matches!(k.fate, Outcome::Missed | Outcome::NotReached | Outcome::Unviable)
            };
            lost(&row.all) || (!row.beyond_tolerance && lost(&row.tolerance))
        });
        red.map(|row| row.id.as_str()).collect()
    }

    /// 3 where a baseline is red, 1 where a defect lives or a legal variant dies, else 0.
    pub fn exit_code(&self) -> u8 {
        match (self.red_baseline.is_empty(), self.red().is_empty(), self.false_alarms.is_empty()) {
            (false, ..) => 3,
            (true, true, true) if !self.rows.is_empty() => 0,
            _ => 1,
        }
    }
}

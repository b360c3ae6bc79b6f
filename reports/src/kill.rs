//! The kill matrix as data, as a Markdown table and as a heat map.
//!
//! The invariants: a defect that was not reached or could not run is listed and red; equivalents
//! and the unviable are the only ones outside a denominator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

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
    pub fn new(wall_s: f64) -> Self {
        let score = Score::default();
        Self {
            wall_s: crate::Num(wall_s),
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

    /// Defects that make the run red: missed where they must not be, or never there.
    pub fn red(&self) -> Vec<&str> {
        let faults = self.rows.iter().filter(|row| row.class > 0);
        let red = faults.filter(|row| {
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

/// The matrix as one table: a line a class.
pub fn kill_table(matrix: &Matrix) -> String {
    let mut text = String::from(
        "| class | defects | all gates | tolerance gates | weakest caught by tolerance | missed |\n\
         |--:|--:|--:|--:|---|---|\n",
    );
    let mut classes: BTreeMap<u32, Vec<&MatrixRow>> = BTreeMap::new();
    for row in matrix.rows.iter().filter(|row| row.class > 0) {
        classes.entry(row.class).or_default().push(row);
    }
    for (class, rows) in classes {
        let caught = |of: &dyn Fn(&MatrixRow) -> &Killed| {
            rows.iter().filter(|row| of(row).fate == Outcome::Caught).count()
        };
        let least = rows.iter().filter(|row| row.tolerance.fate == Outcome::Caught);
        let least = least.min_by_key(|row| row.tolerance.by.len());
        let missed: Vec<&str> = rows
            .iter()
            .filter(|row| row.tolerance.fate == Outcome::Missed)
            .map(|row| row.id.as_str())
            .collect();
        let weakest = least.map_or("none", |row| row.strength.as_str());
        let (all, tolerance) = (caught(&|row| &row.all), caught(&|row| &row.tolerance));
        let n = rows.len();
        let missed = missed.join(", ");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {class} | {n} | {all} | {tolerance} | {weakest} | {missed} |");
    }
    let share = |s: &Score| format!("{} designated, {} any, of {}", s.designated, s.any, s.of);
    let _ = writeln!(text, "\nAll gates: {}. ", share(&matrix.all));
    let _ = writeln!(text, "Tolerance gates alone: {}; ", share(&matrix.tolerance));
    let _ = writeln!(text, "classes designed with: {}; ", share(&matrix.designed));
    let _ = writeln!(text, "classes held out: {}. ", share(&matrix.held_out));
    let alarms = matrix.false_alarms.len();
    let _ = writeln!(text, "Legal variants: {}, false alarms {alarms}.", matrix.legal);
    text
}

/// The matrix as an SVG heat map: a row a defect, a column a gate, darker for a larger margin.
pub fn kill_svg(matrix: &Matrix) -> String {
    const SIDE: usize = 11;
    const LEFT: usize = 190;
    const TOP: usize = 190;
    let (gates, rows) = (matrix.gates.len(), matrix.rows.len());
    let (width, height) = (LEFT + gates * SIDE + 8, TOP + rows * SIDE + 8);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"9\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (x, (gate, _)) in matrix.gates.iter().enumerate() {
        let x = LEFT + x * SIDE + SIDE - 2;
        let y = TOP - 4;
        let _ = writeln!(svg, "<text transform=\"translate({x},{y}) rotate(-90)\">{gate}</text>");
    }
    for (y, row) in matrix.rows.iter().enumerate() {
        let top = TOP + y * SIDE;
        let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">{} {}</text>", top + 9, row.class, row.id);
        for (x, (gate, _)) in matrix.gates.iter().enumerate() {
            let fill = row.cells.get(gate).map_or("#ffffff", shade);
            let left = LEFT + x * SIDE;
            let _ = writeln!(
                svg,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{SIDE}\" height=\"{SIDE}\" \
                 fill=\"{fill}\" stroke=\"#dddddd\"><title>{}: {gate}</title></rect>",
                row.id
            );
        }
    }
    svg + "</svg>\n"
}

/// White: not asked or never acted; pale green: passed; orange to dark red: caught, by margin.
fn shade(cell: &Cell) -> &'static str {
    match cell {
        Cell::NotReached | Cell::Unviable => "#f4f4f4",
        Cell::Crash => "#000000",
        Cell::Measured { red: false, .. } => "#d9ead3",
        Cell::Measured { margin, .. } => match margin.0 {
            m if m < 10.0 => "#f6b26b",
            m if m < 1_000.0 => "#e06666",
            _ => "#990000",
        },
    }
}

//! The accepted results, and whether they are of this tree, whole.
//!
//! Here: the three files of `results/` that gates make, and what must be in them. Absent: asking
//! the tree about itself, and the README. The invariant: what is accepted was made by this code,
//! from these limits and gates, on sources that a commit holds, and lacks nothing.

use std::path::Path;

use samebits_defects::Defect;
use samebits_reports::{
    Matrix, Outdated, Report, Run, acceptable, changed_since, commits_since, fresh, same_data,
    same_tree, whole,
};
use serde::Deserialize;

use crate::checks::CheckError;
use crate::kill::carries;
use crate::manifest::Gate;

/// The report, the kill matrix and the check of the limits.
pub const FILES: [&str; 3] = ["gates.json", "kill.json", "limits-check.json"];

/// The run of a file of results, whatever else is in it.
#[derive(Deserialize)]
struct Made {
    run: Run,
}

/// What results must be of.
pub struct Tree {
    /// The tree as it is.
    pub now: Run,
    /// Ids of its gates.
    pub gates: Vec<String>,
    /// Defects, and the gates that can carry one.
    pub cells: Vec<String>,
}

impl Tree {
    /// A tree with these gates, and all defects.
    pub fn of(now: Run, gates: &[Gate]) -> Self {
        let ids = |gates: &mut dyn Iterator<Item = &Gate>| -> Vec<String> {
            gates.map(|gate| gate.id.clone()).collect()
        };
        let mut cells = ids(&mut gates.iter().filter(|gate| carries(&gate.check)));
        cells.extend(Defect::all().iter().map(|defect| defect.id.clone()));
        Self { now, gates: ids(&mut gates.iter()), cells }
    }
}

/// What is accepted, or wants to be.
pub struct Results {
    /// The report of all gates.
    pub report: Report,
    /// The kill matrix.
    pub matrix: Matrix,
    /// The run that held fresh tensors to the limits.
    pub limits: Run,
}

fn names(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// Gates and defects of a matrix.
fn cells(matrix: &Matrix) -> Vec<&str> {
    let gates = matrix.gates.iter().map(|(gate, _)| gate.as_str());
    gates.chain(matrix.rows.iter().map(|row| row.id.as_str())).collect()
}

impl Results {
    /// Reads a folder of results.
    ///
    /// # Errors
    /// A file that cannot be read, or is not what its name says.
    pub fn read(folder: &Path) -> Result<Self, CheckError> {
        let [report, matrix, limits] = FILES.map(|name| folder.join(name));
        let text = std::fs::read(&limits).map_err(CheckError::io(&limits))?;
        let made: Made = serde_json::from_slice(&text).map_err(CheckError::json(&limits))?;
        let (report, matrix) = (Report::read(&report)?, Matrix::read(&matrix)?);
        Ok(Self { report, matrix, limits: made.run })
    }

    /// The runs of the files.
    fn runs(&self) -> [Run; 3] {
        [self.report.run(), self.matrix.run.clone(), self.limits.clone()]
    }

    /// The files that may not be accepted, each with its first reason.
    pub fn refused(&self, tree: &Tree) -> Vec<(&'static str, Outdated)> {
        let [_, matrix, limits] = self.runs();
        let of_cells = ((&matrix, &*cells(&self.matrix)), (&tree.now, &*names(&tree.cells)));
        let said = [
            fresh(&self.report, &tree.now, &names(&tree.gates)),
            acceptable(of_cells.0, of_cells.1),
            acceptable((&limits, &[]), (&tree.now, &[])),
        ];
        named(said)
    }

    /// The files that speak of other data or of other gates than the tree has. Newer code is no
    /// reason: see [`Results::ages`].
    pub fn differing(&self, tree: &Tree) -> Vec<(&'static str, Outdated)> {
        let [report, matrix, limits] = self.runs();
        let ids: Vec<&str> = self.report.rows.iter().map(|row| row.id.as_str()).collect();
        named([
            same_data(&report, &tree.now).and_then(|()| whole(&ids, &names(&tree.gates))),
            same_data(&matrix, &tree.now)
                .and_then(|()| whole(&cells(&self.matrix), &names(&tree.cells))),
            same_data(&limits, &tree.now),
        ])
    }

    /// How old each file is: a sentence a file, from the history of the tree in `dir`.
    pub fn ages(&self, tree: &Tree, dir: &Path) -> Vec<String> {
        FILES.iter().zip(self.runs()).map(|(file, run)| age(file, &run, (tree, dir))).collect()
    }
}

fn named(said: [Result<(), Outdated>; 3]) -> Vec<(&'static str, Outdated)> {
    let all = FILES.into_iter().zip(said);
    all.filter_map(|(file, said)| Some((file, said.err()?))).collect()
}

fn age(file: &str, run: &Run, (tree, dir): (&Tree, &Path)) -> String {
    let commit = &run.commit;
    if same_tree(run, &tree.now).is_ok() {
        return format!("results/{file}: made by this code (commit {commit})");
    }
    match (commits_since(dir, commit), changed_since(dir, commit)) {
        (Some(commits), Some(changed)) => {
            let first = changed.first().map_or(String::new(), |name| format!(", as {name}"));
            format!(
                "results/{file}: {commits} commits old (commit {commit}), {} sources changed \
                 since{first}",
                changed.len()
            )
        }
        _ => format!("results/{file}: made by other code, of commit {commit}, not known here"),
    }
}

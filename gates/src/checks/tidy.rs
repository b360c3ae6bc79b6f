//! Who may know whom, what may stand where, and how large it may be.
//!
//! Here: the walk over the workspace and the gate; in the submodules the rules and the counting of
//! code. Limits too must keep a rule: each names what recomputes it. The invariant: an exception
//! has a reason in `data/tidy.json`, and one that is no longer needed is itself a finding.

mod rules;
mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use samebits_reports::CodeSize;
use serde::Deserialize;

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::{Context, data};
use crate::limits::Limits;
use crate::manifest::{Gate, Plant};
use crate::recompute;

/// Budgets and exceptions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Most bytes of a line, lines of a function, of a file, and of a model's file.
    pub limits: Sizes,
    /// Most lines of code of a part, tests left out.
    pub budgets: BTreeMap<String, u64>,
    /// Files or functions beyond a limit, with the reason.
    pub exceptions: Vec<Exception>,
}

/// Limits of size.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// Characters of a line.
    pub line: usize,
    /// Lines of a function.
    pub function: usize,
    /// Lines of a file.
    pub file: usize,
    /// Lines of a file that holds a model's forward pass.
    pub model: usize,
}

/// A place where a rule yields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The file, from the workspace's root.
    pub file: String,
    /// Which rule.
    pub rule: String,
    /// Why the rule would make the code worse there.
    pub why: String,
}

/// A rule that a place breaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the workspace's root.
    pub file: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// Which rule.
    pub rule: &'static str,
    /// What is wrong.
    pub what: String,
}

/// A file of the workspace.
#[derive(Clone, Debug)]
pub struct File {
    /// From the workspace's root, with `/`.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// The parts of the workspace.
pub const PARTS: [&str; 6] = ["defects", "engine", "fixtures", "gates", "oracle", "reports"];

fn root() -> PathBuf {
    data("..")
}

/// Reads the budgets and exceptions.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn load() -> Result<Rules, CheckError> {
    let path = data("data/tidy.json");
    let text = std::fs::read(&path).map_err(CheckError::io(&path))?;
    serde_json::from_slice(&text).map_err(CheckError::json(&path))
}

/// All sources and manifests of the workspace, by name.
///
/// # Errors
/// A folder or file that cannot be read.
pub fn files() -> Result<Vec<File>, CheckError> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = PARTS.iter().map(|part| root().join(part)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(CheckError::io(&folder))? {
            let path = entry.map_err(CheckError::io(&folder))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
                files.push(read(&path)?);
            }
        }
    }
    files.push(read(&root().join("Cargo.toml"))?);
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn read(path: &Path) -> Result<File, CheckError> {
    let name = path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/");
    let text = std::fs::read_to_string(path).map_err(CheckError::io(path))?;
    Ok(File { name, text })
}

/// Lines of code of every part, tests left out.
pub fn code_sizes(files: &[File], rules: &Rules) -> Vec<CodeSize> {
    let lines = |part: &str| {
        let ours = files.iter().filter(|f| f.name.starts_with(&format!("{part}/src/")));
        ours.map(size::code_lines).sum()
    };
    let size = |part: &str| CodeSize {
        part: part.to_owned(),
        lines: lines(part),
        budget: rules.budgets.get(part).copied(),
    };
    PARTS.iter().map(|part| size(part)).collect()
}

/// What breaks a rule without an exception, and exceptions that nothing needs.
pub fn findings(files: &[File], rules: &Rules) -> Vec<Finding> {
    let mut all = BTreeSet::new();
    for file in files {
        all.extend(rules::of_file(file));
        all.extend(size::of_file(file, &rules.limits));
    }
    for size in code_sizes(files, rules) {
        if let Some(budget) = size.budget.filter(|budget| size.lines > *budget) {
            let what = format!("{} lines of code, the budget is {budget}", size.lines);
            all.insert(Finding { file: size.part, line: 0, rule: "budget", what });
        }
    }
    let excuses = |e: &Exception, f: &Finding| e.file == f.file && e.rule == f.rule;
    let unused = rules.exceptions.iter().filter(|e| !all.iter().any(|f| excuses(e, f)));
    let unused = unused.map(|e| Finding {
        file: e.file.clone(),
        line: 0,
        rule: "exception",
        what: format!("nothing here needs an exception from {}", e.rule),
    });
    let unused: Vec<Finding> = unused.collect();
    let open = all.into_iter().filter(|f| !rules.exceptions.iter().any(|e| excuses(e, f)));
    open.chain(unused).collect()
}

/// Limits that nothing recomputes.
///
/// # Errors
/// Gates that cannot be read.
pub fn unmade(limits: &Limits) -> Result<Vec<Finding>, CheckError> {
    let file = "gates/limits.json".to_owned();
    let finding = |what| Finding { file: file.clone(), line: 0, rule: "limit", what };
    Ok(recompute::unmade(limits, &Gate::project()?).into_iter().map(finding).collect())
}

/// A file that breaks a rule, for the control.
fn planted(plant: &Plant) -> Result<File, CheckError> {
    match plant {
        Plant::Material(what) if what == "unsafe-in-model" => Ok(File {
            name: "engine/src/model/planted.rs".to_owned(),
            text: "//! Planted.\nfn f() {\n    unsafe { g() }\n}\n".to_owned(),
        }),
        _ => Err(CheckError::NoPlace { id: plant.id().to_owned() }),
    }
}

/// Holds every rule against every file.
pub fn prepare<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let rules = load()?;
    let files = files()?;
    let (unmade, limits) = (unmade(&ctx.limits)?, ctx.limits.iter().count() as u64);
    Ok(Box::new(move |plant| {
        let mut files = files.clone();
        files.extend(plant.map(planted).transpose()?);
        let mut found = findings(&files, &rules);
        found.extend(unmade.iter().cloned());
        let first = found.first().map(|finding| {
            let Finding { file, line, what, .. } = finding;
            let mut first = at(finding.rule, None);
            first.text = format!("{file}:{line}: {what}; {} findings in all", found.len());
            first
        });
        let (compared, differing) = (files.len() as u64 + limits, found.len() as u64);
        let comparison = Comparison { compared, differing, first, nonfinite: 0 };
        let outcome = Outcome::bitwise(comparison, compared);
        Ok(Outcome { statistic: "findings", ..outcome })
    }))
}

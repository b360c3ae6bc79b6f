//! Gates as data: one JSON file a gate, parsed strictly.
//!
//! Here: the fields of a gate; in the submodules the parameters of each kind of check. Absent: what
//! the checks do. The invariant: an unknown field, an empty `why` or a file under another name than
//! its gate's id is refused, so that a manifest never promises what no code reads.

mod check;
mod choices;

use std::fs;
use std::path::{Path, PathBuf};

use samebits_reports::Kind;
use serde::Deserialize;
use thiserror::Error;

use crate::context::data;

pub use check::Check;
pub use choices::{Bird, IdealStatistic, Perturbation, Places, Source, Tokenizer, Variant};

/// Why the manifests cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// A file or folder that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is no gate.
    #[error("{}: {source}", path.display())]
    Json {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A gate without a reason to be.
    #[error("{}: `why` is empty", path.display())]
    NoWhy {
        /// Where.
        path: PathBuf,
    },
    /// A file that is not named for its gate.
    #[error("{}: holds gate {id}, which belongs in {want}", path.display())]
    Misnamed {
        /// Where.
        path: PathBuf,
        /// The id in it.
        id: String,
        /// The name it should have.
        want: String,
    },
    /// A gate whose id begins with another kind than its own.
    #[error("{}: gate {id} is of kind {kind}, which its id must begin with", path.display())]
    Kind {
        /// Where.
        path: PathBuf,
        /// The id in it.
        id: String,
        /// The kind in it.
        kind: Kind,
    },
    /// A gate that must exist and does not.
    #[error("gate {id} is in gates/data/gates.json and has no manifest")]
    Gone {
        /// Its id.
        id: String,
    },
    /// A gate that the list of gates does not know.
    #[error("gate {id} has a manifest and is not in gates/data/gates.json")]
    Unlisted {
        /// Its id.
        id: String,
    },
    /// A folder without gates: an empty suite proves nothing.
    #[error("{}: holds no gate", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

/// When a gate runs without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Always.
    Default,
    /// Only with `--long` or `SAMEBITS_LONG=1`.
    Long,
}

/// What a gate cannot be measured without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A second kernel table beside the scalar one.
    TwoKernelTables,
    /// Leave to turn address space layout randomisation off.
    FixedLayout,
    /// The published Qwen3 tokenizer, which a script fetches.
    Qwen3Tokenizer,
}

/// A gate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Segments joined by `/`, the first one its kind's.
    pub id: String,
    /// What it belongs to in the report.
    pub kind: Kind,
    /// Which fault or promise it is there for.
    pub why: String,
    /// What it does.
    pub check: Check,
    /// The fault that must turn it red.
    pub control: Control,
    /// Name of its limit; without one, no difference at all is allowed.
    #[serde(default)]
    pub limit: Option<String>,
    /// When it runs.
    pub lane: Lane,
    /// What it cannot be measured without.
    #[serde(default)]
    pub needs: Vec<Need>,
}

/// The negative control of a gate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The fault that is planted.
    pub plant: Plant,
    /// The op that must diverge first; none where the check names no op.
    #[serde(default)]
    pub first: Option<String>,
    /// Which runs of a check that compares two runs of the engine carry the fault.
    #[serde(default)]
    pub side: Side,
}

/// Where a fault is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// In every run of the engine: the check must notice that the runs now disagree.
    #[default]
    Both,
    /// In the second run only.
    Variant,
}

/// A fault to plant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Plant {
    /// An entry of the catalogue.
    Defect(String),
    /// A fault of the check's own material, where no op is run: a wrong verdict, a bad source line.
    Material(String),
}

impl Plant {
    /// The name in reports.
    pub fn id(&self) -> &str {
        let (Self::Defect(id) | Self::Material(id)) = self;
        id
    }
}

impl Gate {
    /// The gate in a file.
    ///
    /// # Errors
    /// A file that is unreadable, no gate, misnamed, of a kind that is not its id's, or without a
    /// `why`.
    pub fn load(path: &Path) -> Result<Self, ManifestError> {
        let owned = || path.to_path_buf();
        let text =
            fs::read(path).map_err(|source| ManifestError::Read { path: owned(), source })?;
        let gate: Self = serde_json::from_slice(&text)
            .map_err(|source| ManifestError::Json { path: owned(), source })?;
        if gate.why.trim().is_empty() {
            return Err(ManifestError::NoWhy { path: owned() });
        }
        if gate.id.split('/').next() != Some(gate.kind.name()) {
            return Err(ManifestError::Kind { path: owned(), id: gate.id, kind: gate.kind });
        }
        let want = format!("{}.json", gate.id.replace('/', "+"));
        if path.file_name().is_none_or(|name| name != want.as_str()) {
            return Err(ManifestError::Misnamed { path: owned(), id: gate.id, want });
        }
        Ok(gate)
    }

    /// The project's own gates: those that must exist, no more and no less.
    ///
    /// # Errors
    /// What [`Gate::all`] and [`Gate::listed`] refuse.
    pub fn project() -> Result<Vec<Self>, ManifestError> {
        let path = data("data/gates.json");
        let text =
            fs::read(&path).map_err(|source| ManifestError::Read { path: path.clone(), source })?;
        let must: Vec<String> =
            serde_json::from_slice(&text).map_err(|source| ManifestError::Json { path, source })?;
        let gates = Self::all(&data("manifest"))?;
        Self::listed(&gates, &must)?;
        Ok(gates)
    }

    /// The gates of a folder, or the project's own.
    ///
    /// # Errors
    /// What [`Gate::all`] and [`Gate::project`] refuse.
    pub fn all_or_own(folder: Option<&Path>) -> Result<Vec<Self>, ManifestError> {
        folder.map_or_else(Self::project, Self::all)
    }

    /// Refuses gates of which one that must exist is missing, or one is not known: a gate that is
    /// deleted would else be missed by nobody.
    ///
    /// # Errors
    /// The first of them.
    pub fn listed(gates: &[Self], must: &[String]) -> Result<(), ManifestError> {
        if let Some(id) = must.iter().find(|id| gates.iter().all(|gate| gate.id != **id)) {
            return Err(ManifestError::Gone { id: id.clone() });
        }
        match gates.iter().find(|gate| !must.contains(&gate.id)) {
            Some(gate) => Err(ManifestError::Unlisted { id: gate.id.clone() }),
            None => Ok(()),
        }
    }

    /// All gates of a folder, by id.
    ///
    /// # Errors
    /// A folder that is unreadable or holds no gate, and what [`Gate::load`] refuses.
    pub fn all(folder: &Path) -> Result<Vec<Self>, ManifestError> {
        let read = |source| ManifestError::Read { path: folder.to_path_buf(), source };
        let mut gates = Vec::new();
        for entry in fs::read_dir(folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.extension().is_some_and(|e| e == "json") {
                gates.push(Self::load(&path)?);
            }
        }
        if gates.is_empty() {
            return Err(ManifestError::Empty { path: folder.to_path_buf() });
        }
        gates.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(gates)
    }
}

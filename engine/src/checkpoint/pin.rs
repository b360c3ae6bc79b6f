//! Pins: what a checkpoint's bytes are, written down.
//!
//! Here: the file `samebits.pin/1`, reading and writing it, and the comparison with what is found.
//! Absent: the hashing itself (`hashing`), and the reference answer, which takes an engine; the
//! caller supplies it. The invariant: a pin that is loaded is well formed, and a comparison names
//! every difference.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Checkpoint;
use super::error::CheckpointError;
use super::hashing::{self, Hashes, Progress};
use super::json::{self, one_line};
use crate::output::write_whole;

/// The schema of a pin file.
pub const SCHEMA: &str = "samebits.pin/1";
/// Name of a pin that lies in its checkpoint's folder.
pub const PIN_FILE: &str = "samebits.pin.json";

/// What a checkpoint's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Revision of the hub, if the folder is a snapshot of a hub cache.
    pub revision: Option<String>,
    /// SHA-256 of `config.json`.
    pub config_sha256: String,
    /// Every file of the folder.
    pub files: BTreeMap<String, FilePin>,
    /// Every tensor of the weight files.
    pub tensors: BTreeMap<String, TensorPin>,
    /// What the engine answers to a reference prompt.
    pub reference: Option<Reference>,
}

/// What a file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePin {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of all of them, lower hex.
    pub sha256: String,
}

/// What a tensor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorPin {
    /// Dtype by its name in the file format.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// SHA-256 of the stored bytes, lower hex.
    pub sha256: String,
}

/// What the engine answers to a reference prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Token ids of the prompt.
    pub ids: Vec<u32>,
    /// Argmax of every row.
    pub argmax: Vec<u32>,
    /// SHA-256 of all logits, lower hex.
    pub logits_sha256: String,
}

/// Why there is no pin.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// A file of the checkpoint could not be read, changed, or belies the name of its blob.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A pin file could not be read or written, or is malformed (`InvalidData`).
    #[error("{}: {error}", path.display())]
    File {
        /// The pin file.
        path: PathBuf,
        /// What the system or the parser said.
        error: io::Error,
    },
}

impl PinError {
    /// Exit code of a command that stops for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Checkpoint(error) => error.exit_code(),
            Self::File { error, .. } => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => 5,
                _ => 2,
            },
        }
    }
}

/// One difference between a pin and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A file has other bytes.
    FileChanged {
        /// Its name.
        name: String,
        /// As pinned.
        want: FilePin,
        /// As found.
        got: FilePin,
    },
    /// A file is gone.
    FileMissing(String),
    /// A file was not there.
    FileAdded(String),
    /// A tensor has another dtype or shape, or other bytes.
    TensorChanged {
        /// Its name.
        name: String,
        /// As pinned.
        want: TensorPin,
        /// As found.
        got: TensorPin,
    },
    /// A tensor is gone.
    TensorMissing(String),
    /// A tensor was not there.
    TensorAdded(String),
}

impl Pin {
    /// The pin of `checkpoint`, without a reference. `skip` names files that are not its own.
    ///
    /// # Errors
    /// A file that cannot be read, changes meanwhile, or belies its blob's name.
    pub fn take(
        checkpoint: &Checkpoint,
        skip: &[&Path],
        progress: Progress<'_>,
    ) -> Result<Self, PinError> {
        let hashes = hashing::hash(&checkpoint.folder, Some(&checkpoint.index), skip, progress)?;
        hashing::blobs_agree(&checkpoint.folder, &hashes)?;
        Ok(Self {
            schema: SCHEMA.to_owned(),
            revision: hashing::revision(&checkpoint.folder),
            config_sha256: hashes.files[super::CONFIG].sha256.clone(),
            files: hashes.files,
            tensors: hashes.tensors,
            reference: None,
        })
    }

    /// Reads a pin file.
    ///
    /// # Errors
    /// [`PinError::File`]: unreadable, malformed, or of another schema.
    pub fn load(path: &Path) -> Result<Self, PinError> {
        let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, one_line(what));
        let load = || -> io::Result<Self> {
            let text = fs::read_to_string(path)?;
            let value = json::parse(&text).map_err(|e| malformed(&e))?;
            match value.get("schema").and_then(|s| s.as_str()) {
                Some(SCHEMA) => {}
                Some(other) => {
                    return Err(malformed(&format!("schema is {other}, expected {SCHEMA}")));
                }
                None => return Err(malformed("no schema")),
            }
            let pin: Self = serde_json::from_value(value).map_err(|e| malformed(&e.to_string()))?;
            let hashes = pin.files.values().map(|f| &f.sha256);
            let mut hashes = hashes.chain(pin.tensors.values().map(|t| &t.sha256));
            match hashes.find(|sha256| !hashing::is_sha256(sha256)) {
                None => Ok(pin),
                Some(bad) => Err(malformed(&format!("\"{bad}\" is no SHA-256 in lower hex"))),
            }
        };
        load().map_err(|error| PinError::File { path: path.to_path_buf(), error })
    }

    /// The text of the pin file.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("strings, numbers and maps with string keys have a JSON form") + "\n"
    }

    /// Writes the pin to `path`: under a temporary name, flushed, renamed.
    ///
    /// # Errors
    /// [`PinError::File`]; then `path` is as it was.
    pub fn write(&self, path: &Path) -> Result<(), PinError> {
        let written = write_whole(path, |at| fs::write(at, self.to_json()));
        written.map_err(|error| PinError::File { path: path.to_path_buf(), error })
    }

    /// Everything in which `got` differs: files first, each by name. Tensors are compared if
    /// `got` has any.
    pub fn differences(&self, got: &Hashes) -> Vec<Difference> {
        let mut all = compare(
            &self.files,
            &got.files,
            |name, want, got| Difference::FileChanged { name, want, got },
            Difference::FileMissing,
            Difference::FileAdded,
        );
        if !got.tensors.is_empty() {
            all.extend(compare(
                &self.tensors,
                &got.tensors,
                |name, want, got| Difference::TensorChanged { name, want, got },
                Difference::TensorMissing,
                Difference::TensorAdded,
            ));
        }
        all
    }
}

fn compare<T: Clone + PartialEq>(
    want: &BTreeMap<String, T>,
    got: &BTreeMap<String, T>,
    changed: fn(String, T, T) -> Difference,
    missing: fn(String) -> Difference,
    added: fn(String) -> Difference,
) -> Vec<Difference> {
    let mut all = Vec::new();
    for (name, pinned) in want {
        match got.get(name) {
            None => all.push(missing(name.clone())),
            Some(found) if found != pinned => {
                all.push(changed(name.clone(), pinned.clone(), found.clone()));
            }
            Some(_) => {}
        }
    }
    all.extend(got.keys().filter(|name| !want.contains_key(*name)).cloned().map(added));
    all
}

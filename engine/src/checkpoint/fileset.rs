//! Which files hold the weights.
//!
//! The rule, which is that of Transformers: `model.safetensors` if it is there; otherwise the
//! files that `model.safetensors.index.json` names, and no others. Every other `*.safetensors` in
//! the folder, and an index beside a single file, is named as ignored. The set is decided before
//! any weight file is opened.
//!
//! The invariant: a name out of an index never leaves the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::error::{CheckpointError, Refusal};
use super::folder::Folder;
use super::json::{self, one_line};

/// The one file that wins if it is there.
pub(super) const SINGLE: &str = "model.safetensors";
/// The index of a sharded checkpoint.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The files that hold the weights.
#[derive(Debug)]
pub(super) struct FileSet {
    /// Names of the files, sorted.
    pub files: Vec<String>,
    /// Which file each tensor is in, as an index of `files`, where an index says so.
    pub placed: Option<BTreeMap<String, usize>>,
    /// `metadata.total_size` of the index, as it stands there.
    pub total_size: Option<Value>,
    /// What was ignored.
    pub notices: Vec<String>,
}

/// What is wrong with an index file.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    #[error("{0}")]
    Json(String),
    #[error("has no weight_map object with at least one tensor")]
    NoMap,
    #[error("weight_map: the file of {tensor} is {found}, not a string")]
    NotName { tensor: String, found: String },
    #[error("weight_map: the file of {tensor} is \"{file}\", not a plain *.safetensors name")]
    BadName { tensor: String, file: String },
    #[error("{count} of {of} shards are missing: {names}")]
    MissingShards { count: usize, of: usize, names: String },
    /// `first` names the first few.
    #[error("differs from the shards in {count} places: {first}")]
    Disagreement { count: usize, first: String },
}

impl FileSet {
    /// Decides the set.
    ///
    /// # Errors
    /// No weights at all, a malformed index, or shards that are missing, all of them at once.
    pub fn decide(folder: &Folder) -> Result<Self, CheckpointError> {
        let names = folder.names()?;
        let has = |name: &str| names.iter().any(|n| n == name);
        let mut set = if has(SINGLE) {
            let (files, notices) = (vec![SINGLE.to_owned()], Vec::new());
            Self { files, placed: None, total_size: None, notices }
        } else if has(INDEX) {
            Self::of_index(folder, &names)?
        } else {
            return Err(none(folder, &names));
        };
        if set.placed.is_none() && has(INDEX) {
            set.notices.push(format!("{INDEX}: ignored, since {SINGLE} is there"));
        }
        for name in names.iter().filter(|n| n.ends_with(".safetensors")) {
            if !set.files.contains(name) {
                set.notices.push(format!("{}: ignored, not in the file set", one_line(name)));
            }
        }
        Ok(set)
    }

    fn of_index(folder: &Folder, names: &[String]) -> Result<Self, CheckpointError> {
        let path = folder.file(INDEX);
        let text = folder.text(INDEX)?.ok_or_else(|| Refusal::NoFile.of(&path))?;
        let (map, total_size) = parse(&text).map_err(|e| Refusal::Index(e).of(&path))?;
        let files: Vec<String> =
            map.values().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let missing: Vec<String> = files
            .iter()
            .filter(|f| names.binary_search(f).is_err() || !present(folder, f))
            .map(|f| one_line(f))
            .collect();
        if !missing.is_empty() {
            let (count, of, names) = (missing.len(), files.len(), missing.join(", "));
            return Err(Refusal::Index(IndexError::MissingShards { count, of, names }).of(path));
        }
        let place =
            |file: &String| files.binary_search(file).expect("`files` are the map's values");
        let placed = map.iter().map(|(tensor, file)| (tensor.clone(), place(file))).collect();
        Ok(Self { files, placed: Some(placed), total_size, notices: Vec::new() })
    }
}

/// Whether a name in the folder leads to a file.
fn present(folder: &Folder, name: &str) -> bool {
    match folder {
        Folder::Disk(path) => path.join(name).exists(),
        Folder::Embedded(_) => true,
    }
}

/// Tensor to file, and the stated total size.
type Index = (BTreeMap<String, String>, Option<Value>);

fn parse(text: &str) -> Result<Index, IndexError> {
    let mut index = json::parse(text).map_err(IndexError::Json)?;
    let total_size = index.pointer("/metadata/total_size").cloned();
    let Some(Value::Object(map)) = index.get_mut("weight_map").map(Value::take) else {
        return Err(IndexError::NoMap);
    };
    if map.is_empty() {
        return Err(IndexError::NoMap);
    }
    let mut placed = BTreeMap::new();
    for (tensor, file) in map {
        let Value::String(file) = file else {
            let found = one_line(&file.to_string());
            return Err(IndexError::NotName { tensor: one_line(&tensor), found });
        };
        let plain = Path::new(&file).file_name().is_some_and(|name| name == file.as_str());
        if !plain
            || file.contains(|c: char| c == '\\' || c.is_control())
            || !file.ends_with(".safetensors")
        {
            let (tensor, file) = (one_line(&tensor), one_line(&file));
            return Err(IndexError::BadName { tensor, file });
        }
        placed.insert(tensor, file);
    }
    Ok((placed, total_size))
}

/// The error for a folder without weights, naming what might be meant.
fn none(folder: &Folder, names: &[String]) -> CheckpointError {
    const KINDS: [&str; 7] =
        [".safetensors", ".bin", ".gguf", ".pt", ".pth", ".npz", ".index.json"];
    let mut others: Vec<String> = names
        .iter()
        .filter(|name| KINDS.iter().any(|kind| name.ends_with(kind)))
        .map(|name| one_line(name))
        .collect();
    if others.len() > 4 {
        let more = others.len() - 4;
        others.truncate(4);
        others.push(format!("{more} more"));
    }
    Refusal::NoWeights { others: others.join(", ") }.of(folder.path())
}

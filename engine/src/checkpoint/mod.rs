//! Admission of a checkpoint: everything that must be true before a forward pass is run.
//!
//! A folder in Hugging Face layout goes through five steps, each of which may refuse it: the
//! configuration is parsed (`config`), the file set decided, every header checked and indexed
//! (`pages`), every tensor given its one role (`mapping`), embedding and head reconciled.
//! No weight is read on the way, except where a tied head must be compared with its embedding.
//!
//! Deliberately absent: where weights live once they are loaded. The invariant: a [`Checkpoint`]
//! that exists is complete and is exactly what its configuration says; nothing was guessed.

mod config;
mod dtype;
mod embedded;
mod error;
mod fault;
mod fields;
mod fileset;
mod folder;
mod generation;
pub mod hashing;
mod head;
mod header;
mod header_json;
mod hybrid;
mod json;
mod mapping;
mod pages;
pub mod pin;
mod rates;
mod recognise;
mod roles;
mod rope;
mod source;

use std::path::Path;

pub use config::{Config, ConfigError};
pub use dtype::StorageDtype;
pub use error::{CheckpointError, ReadError};
pub use generation::{GENERATION_CONFIG, GenerationConfig};
pub use hybrid::{Family, LayerKinds, Linear};
pub use pages::{Extent, PAGE_BYTES, PageIndex, ShardFile, TensorInfo};
pub use roles::{LayerRole, Role};
pub use source::{FileSource, Source, StaticSource};

use crate::contract::Dtype;
use config::Fault;
pub use embedded::EMBEDDED;
use embedded::MODELS;
use error::Refusal;
use fileset::FileSet;
use folder::Folder;
use mapping::WeightMap;

/// The configuration file.
const CONFIG: &str = "config.json";

/// An admitted checkpoint: configuration, open files, and the role of every tensor.
#[derive(Debug)]
pub struct Checkpoint {
    folder: Folder,
    config: Config,
    index: PageIndex,
    map: WeightMap,
    dtype: Dtype,
    tied: bool,
    notices: Vec<String>,
}

impl Checkpoint {
    /// Admits the folder `dir` for a run in its own dtype.
    ///
    /// # Errors
    /// The first reason not to.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Self::open_as(dir, None)
    }

    /// Admits the folder `dir` for a run in `dtype`; `None` is the dtype that `config.json`
    /// states, or else that of the first tensor.
    ///
    /// # Errors
    /// The first reason not to.
    pub fn open_as(dir: &Path, dtype: Option<Dtype>) -> Result<Self, CheckpointError> {
        Self::admit(Folder::disk(dir)?, dtype)
    }

    /// Admits the first model that is part of the program, for a run in its own dtype.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn embedded() -> Result<Self, CheckpointError> {
        Self::embedded_as(None)
    }

    /// Admits the first model that is part of the program, for a run in `dtype`.
    ///
    /// # Errors
    /// As [`Self::open_as`].
    pub fn embedded_as(dtype: Option<Dtype>) -> Result<Self, CheckpointError> {
        Self::admit(Folder::Embedded(MODELS[0].1), dtype)
    }

    /// Admits the model of that name that is part of the program, for a run in `dtype`; `None` if
    /// there is none of that name.
    ///
    /// # Errors
    /// As [`Self::open_as`].
    pub fn embedded_named(
        name: &str,
        dtype: Option<Dtype>,
    ) -> Option<Result<Self, CheckpointError>> {
        let (_, files) = MODELS.iter().find(|(known, _)| *known == name)?;
        Some(Self::admit(Folder::Embedded(files), dtype))
    }

    /// Admits what a user calls `name`: that folder, or where there is none the model of that name
    /// that is part of the program.
    ///
    /// # Errors
    /// As [`Self::open_as`].
    pub fn find(name: &Path, dtype: Option<Dtype>) -> Result<Self, CheckpointError> {
        Self::admit(Folder::find(name)?, dtype)
    }

    /// Admits what a user names, as [`Self::find`]; without a name the first model that is part of
    /// the program.
    ///
    /// # Errors
    /// As [`Self::open_as`].
    pub fn named(name: Option<&Path>, dtype: Option<Dtype>) -> Result<Self, CheckpointError> {
        match name {
            Some(name) => Self::find(name, dtype),
            None => Self::embedded_as(dtype),
        }
    }

    fn admit(folder: Folder, dtype: Option<Dtype>) -> Result<Self, CheckpointError> {
        let config = configuration(&folder)?;
        let mut notices = config.notices.clone();
        let index = index(&folder, &mut notices)?;
        let mut map = WeightMap::assign(&config, &folder, &index)?;
        let dtype = dtype.or(config.dtype).unwrap_or_else(|| stored_dtype(&index));
        let tied = head::resolve(&config, &folder, &index, &mut map, dtype)?;
        if config.linear.is_some() {
            rates::check(&config, &index, &map, &mut notices)?;
            notices.extend(rates::precision(&config, &index, &map, dtype));
        }
        notices.extend(mapping::bystanders(&config, &index));
        for tensor in index.tensors().iter().filter(|t| mapping::obsolete(t)) {
            notices.push(format!("{}: ignored, computed from config.json", tensor.name));
        }
        Ok(Self { folder, config, index, map, dtype, tied, notices })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The dtype of the run.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The tensor that plays `role`; of a tied model the head's is the embedding's.
    ///
    /// # Panics
    /// If `role` names a layer the model does not have.
    pub fn tensor(&self, role: Role) -> &TensorInfo {
        let number = self.map.get(role);
        &self.index.tensors()[number.unwrap_or_else(|| panic!("{role:?} is no part of this model"))]
    }

    /// Fills `out` with the stored bytes (little-endian) of `tensor` from its byte `start` on.
    ///
    /// # Errors
    /// One that names file, tensor, offset, bytes wanted and got.
    ///
    /// # Panics
    /// If the range leaves the tensor.
    pub fn read(
        &self,
        tensor: &TensorInfo,
        start: u64,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.index.read(tensor, start, out)
    }

    /// Whether head and embedding are one tensor.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// The weight files.
    pub fn files(&self) -> &[ShardFile] {
        self.index.files()
    }

    /// Where every tensor lies.
    pub fn index(&self) -> &PageIndex {
        &self.index
    }

    /// What was ignored or is unusual, one line each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The folder; "(embedded)" for the model that is part of the program.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// All bytes of another file of the folder, such as `tokenizer.json`; `None` if it is absent.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        self.folder.bytes(name)
    }

    /// The text of another file of the folder, such as `chat_template.jinja`; `None` if it is
    /// absent.
    ///
    /// # Errors
    /// If it is there and cannot be read, or is no text.
    pub fn side_text(&self, name: &str) -> Result<Option<String>, CheckpointError> {
        self.folder.text(name)
    }

    /// What generation_config.json says; `None` where there is none.
    ///
    /// # Errors
    /// If it is there and cannot be read or understood.
    pub fn generation_config(&self) -> Result<Option<GenerationConfig>, CheckpointError> {
        GenerationConfig::read(&self.folder)
    }

    /// Fails if a weight file is not what it was when it was admitted.
    ///
    /// # Errors
    /// The first such file.
    pub fn recheck(&self) -> Result<(), CheckpointError> {
        self.index.recheck()
    }
}

/// Decides the file set of `folder` and indexes it.
fn index(folder: &Folder, notices: &mut Vec<String>) -> Result<PageIndex, CheckpointError> {
    let mut set = FileSet::decide(folder)?;
    notices.append(&mut set.notices);
    PageIndex::open(folder, &set, notices)
}

/// Reads and parses `config.json`. For a quantised checkpoint the files are asked as well, so
/// that the refusal can say what they hold.
fn configuration(folder: &Folder) -> Result<Config, CheckpointError> {
    let path = folder.file(CONFIG);
    let text = folder.text(CONFIG)?.ok_or_else(|| Refusal::NoFile.of(&path))?;
    Config::parse(&text).map_err(|error| match error {
        ConfigError(Fault::Quantised { method }) => {
            let held = index(folder, &mut Vec::new());
            let foreign = held.map(|held| mapping::foreign_dtypes(&held, None)).unwrap_or_default();
            Refusal::Quantised { method, foreign }.of(path)
        }
        error => Refusal::Config(error).of(path),
    })
}

/// The dtype of the first tensor, by name, of the first file, as the reference chooses.
fn stored_dtype(index: &PageIndex) -> Dtype {
    let native = |tensor: &&TensorInfo| tensor.dtype.is_native();
    let mut tensors = index.tensors().iter().filter(native);
    let first = tensors.clone().find(|t| t.file == 0).or_else(|| tensors.next());
    match first.expect("a mapped model has tensors").dtype {
        StorageDtype::F32 => Dtype::F32,
        _ => Dtype::Bf16,
    }
}

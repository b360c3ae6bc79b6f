//! A folder in Hugging Face layout, on disk or in the program.
//!
//! Here: opening files by name and reading short texts. Links are followed (the hub cache is made
//! of them); one that leads nowhere is an error of its own. Absent: subfolders. The invariant: a
//! file is either absent, or a source, or an error that names it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::embedded::{Files, MODELS};
use super::error::{CheckpointError, Refusal};
use super::recognise::{PREFIX_BYTES, impostor};
use super::source::{FileSource, Source, StaticSource};

/// Longest text file read whole, in bytes: 1 GiB, which an index of 10 million tensors fits into.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// Where the files of a model are.
#[derive(Clone, Debug)]
pub(super) enum Folder {
    /// A directory.
    Disk(PathBuf),
    /// Files in the program: names and bytes.
    Embedded(Files),
}

impl Folder {
    /// The directory `path`.
    pub fn disk(path: &Path) -> Result<Self, CheckpointError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Self::Disk(path.to_path_buf())),
            Ok(_) => Err(Refusal::NotFolder.of(path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Refusal::NoFolder.of(path)),
            Err(e) => Err(Refusal::Read(e.into()).of(path)),
        }
    }

    /// What a user calls `name`: that directory, or where there is none the model of that name that
    /// is part of the program.
    pub fn find(name: &Path) -> Result<Self, CheckpointError> {
        let called = |known: &str| name.to_str() == Some(known);
        match MODELS.iter().find(|(known, _)| called(known)) {
            Some((_, files)) if !name.exists() => Ok(Self::Embedded(files)),
            _ => Self::disk(name),
        }
    }

    /// The folder, for messages and for callers that write beside it.
    pub fn path(&self) -> &Path {
        match self {
            Self::Disk(path) => path,
            Self::Embedded(_) => Path::new("(embedded)"),
        }
    }

    /// The path of the file `name`, for messages.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Opens the file `name`; `None` if there is none.
    pub fn open(&self, name: &str) -> Result<Option<Box<dyn Source>>, CheckpointError> {
        let path = match self {
            Self::Disk(folder) => folder.join(name),
            Self::Embedded(files) => {
                let found = files.iter().find(|(file, _)| *file == name);
                return Ok(found.map(|&(name, bytes)| -> Box<dyn Source> {
                    Box::new(StaticSource::new(name, bytes))
                }));
            }
        };
        match FileSource::open(&path) {
            Ok(source) => Ok(Some(Box::new(source))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => match fs::read_link(&path) {
                Ok(target) => Err(Refusal::Dangling(target).of(path)),
                Err(_) => Ok(None),
            },
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Err(Refusal::NotFile.of(path)),
            Err(e) => Err(Refusal::Read(e.into()).of(path)),
        }
    }

    /// All bytes of the short file `name`; `None` if there is none.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(source) = self.open(name)? else {
            return Ok(None);
        };
        let (path, bytes) = (self.file(name), source.size());
        if bytes > TEXT_BYTES_MAX {
            return Err(Refusal::TooLong { bytes, cap: TEXT_BYTES_MAX }.of(path));
        }
        let mut held = vec![0; bytes as usize];
        source.read_at(0, &mut held).map_err(|e| Refusal::Read(e).of(path))?;
        Ok(Some(held))
    }

    /// The text of the file `name`; `None` if there is none.
    pub fn text(&self, name: &str) -> Result<Option<String>, CheckpointError> {
        let Some(bytes) = self.bytes(name)? else {
            return Ok(None);
        };
        if let Some(stranger) = impostor(&bytes[..bytes.len().min(PREFIX_BYTES)]) {
            return Err(Refusal::Stranger(stranger).of(self.file(name)));
        }
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|e| Refusal::NotUtf8(e.utf8_error().valid_up_to()).of(self.file(name)))
    }

    /// Names of everything in the folder that is no subfolder and no dot file, sorted.
    ///
    /// A name that is not UTF-8 is shown with replacement characters, and so opens nothing.
    pub fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = Vec::new();
        match self {
            Self::Embedded(files) => names.extend(files.iter().map(|(name, _)| (*name).to_owned())),
            Self::Disk(folder) => {
                let failed = |e: io::Error| Refusal::Read(e.into()).of(folder);
                for entry in fs::read_dir(folder).map_err(failed)? {
                    let path = entry.map_err(failed)?.path();
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    if !name.starts_with('.') && !path.is_dir() {
                        names.push(name.into_owned());
                    }
                }
            }
        }
        names.sort();
        Ok(names)
    }
}

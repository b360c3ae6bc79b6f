//! Why a checkpoint is not admitted.
//!
//! Here: the one error of the folder, and the reasons behind it, each with what and both numbers,
//! in one line without a full stop. A caller gets the file, the sentence and the exit code; the
//! reasons are for this module to build. The invariant: text that came out of a file has passed
//! `one_line` before it gets here.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::config::ConfigError;
use super::fileset::IndexError;
use super::head::HeadError;
use super::header::HeaderError;
use super::mapping::MappingError;
use super::recognise::Stranger;

/// Why bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file ends before the bytes that were asked for.
    #[error("wanted {wanted} bytes, got {got}")]
    Short {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that were there.
        got: u64,
    },
    /// Reading failed.
    #[error(transparent)]
    Io(io::Error),
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(e) => e,
            short @ ReadError::Short { .. } => Self::new(io::ErrorKind::UnexpectedEof, short),
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(read) => read,
            Err(e) => Self::Io(e),
        }
    }
}

/// Why a checkpoint is not admitted, or a part of it could not be read.
#[derive(Debug)]
pub struct CheckpointError {
    path: PathBuf,
    refusal: Box<Refusal>,
}

/// What is wrong with the file or folder that the error names.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("no such folder")]
    NoFolder,
    #[error("not a folder (name the folder that holds config.json)")]
    NotFolder,
    #[error("missing")]
    NoFile,
    #[error("a link to {}, which does not exist", .0.display())]
    Dangling(PathBuf),
    #[error("not a regular file")]
    NotFile,
    #[error("{0}")]
    Stranger(Stranger),
    #[error("has {bytes} bytes; at most {cap} are read")]
    TooLong { bytes: u64, cap: u64 },
    #[error("not UTF-8 (first bad byte at {0})")]
    NotUtf8(usize),
    #[error(transparent)]
    Config(ConfigError),
    /// `foreign` lists dtypes other than BF16 and F32; it may be empty.
    #[error(
        "quantization_config {method}: quantised weights are not supported{}",
        if foreign.is_empty() { String::new() } else { format!(" ({foreign})") }
    )]
    Quantised { method: String, foreign: String },
    /// `others` lists what may be meant; it may be empty.
    #[error(
        "neither model.safetensors nor model.safetensors.index.json{}",
        if others.is_empty() { String::new() } else { format!(" (found {others})") }
    )]
    NoWeights { others: String },
    #[error(transparent)]
    Index(IndexError),
    #[error(transparent)]
    Header(HeaderError),
    #[error(transparent)]
    Mapping(MappingError),
    #[error(transparent)]
    Head(HeadError),
    #[error("{tensor}: head {head} is {value}, which makes its state NaN")]
    Rate { tensor: String, head: usize, value: f32 },
    #[error("tensor {tensor} at byte {offset}: {error}")]
    Tensor { tensor: String, offset: u64, error: ReadError },
    #[error(transparent)]
    Read(ReadError),
    #[error("{0} since it was opened")]
    Changed(String),
    #[error("sha256 is {got}, but it links to a blob named {blob}")]
    Blob { blob: String, got: String },
}

impl Refusal {
    /// Names the file or folder.
    pub fn of(self, path: impl Into<PathBuf>) -> CheckpointError {
        CheckpointError { path: path.into(), refusal: Box::new(self) }
    }
}

impl CheckpointError {
    /// The file or folder it is about.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Exit code of a command that stops for it: 4 for a refusal, 2 where the folder does not
    /// exist or the operating system would not read a file.
    pub fn exit_code(&self) -> u8 {
        match *self.refusal {
            Refusal::NoFolder
            | Refusal::NotFolder
            | Refusal::Read(ReadError::Io(_))
            | Refusal::Tensor { error: ReadError::Io(_), .. }
            | Refusal::Header(HeaderError::Read(ReadError::Io(_))) => 2,
            _ => 4,
        }
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A path may hold a line break; an error is one line.
        write!(f, "{}: {}", self.path.display().to_string().escape_debug(), self.refusal)
    }
}

impl std::error::Error for CheckpointError {}

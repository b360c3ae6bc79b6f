//! How a command fails: one line and an exit code.

use std::io;

use thiserror::Error;

use crate::checkpoint::pin::PinError;
use crate::checkpoint::{CheckpointError, GENERATION_CONFIG};
use crate::commands::inspect::InspectError;
use crate::commands::pin::PinCommandError;
use crate::generate::{ChatError, GenerateError, SamplerError, TextError};
use crate::model::{Budget, RunError};

/// Exit code of a failed comparison.
pub const FAILED: u8 = 1;
/// Exit code of wrong usage or environment.
pub const USAGE: u8 = 2;
/// Exit code of a checkpoint that is not what it should be.
pub const REFUSED: u8 = 4;
/// Exit code where memory or disk does not suffice.
pub const EXHAUSTED: u8 = 5;
/// Exit code of a command that was interrupted from the keyboard.
pub const INTERRUPTED: u8 = 130;

/// Why a command stopped.
#[derive(Debug, Error)]
pub enum Failure {
    /// A checkpoint was refused or could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A pin could not be read.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A run does not fit the model.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A generation was refused or stopped.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// Text cannot be turned into ids or back.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A conversation cannot be rendered.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// A file asks for what would be another output than the order promises.
    #[error("{GENERATION_CONFIG} asks for {0}, which --order transformers would have to follow")]
    Wishes(String),
    /// A word of the command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A comparison failed.
    #[error("{0}")]
    Mismatch(String),
    /// A run needs more memory than it may take.
    #[error("{need}, but {limit} is {have} bytes")]
    Memory {
        /// The budget of the run.
        need: Need,
        /// What sets the limit.
        limit: &'static str,
        /// The limit.
        have: u64,
    },
    /// The system gives no more threads.
    #[error("threads cannot be started: {0}")]
    Threads(String),
    /// A file or the standard output cannot be read or written.
    #[error("{what}: {source}")]
    Io {
        /// Which file, and what was tried.
        what: String,
        /// What the system answered.
        source: io::Error,
    },
}

/// A budget with its arithmetic shown.
#[derive(Debug)]
pub struct Need(pub Budget);

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Budget { weights, caches, activations } = self.0;
        let total = self.0.total();
        write!(f, "weights {weights} + caches {caches} + activations {activations} = {total} bytes")
    }
}

impl Failure {
    /// An input or output error.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Checkpoint(error)
            | Self::Run(RunError::Checkpoint(error))
            | Self::Generate(GenerateError::Run(RunError::Checkpoint(error)))
            | Self::Text(TextError::Checkpoint(error))
            | Self::Chat(ChatError::Checkpoint(error)) => error.exit_code(),
            Self::Text(TextError::Tokenizer(_) | TextError::Added(_)) => REFUSED,
            Self::Wishes(_) => REFUSED,
            Self::Chat(ChatError::Malformed(_) | ChatError::Template(_)) => REFUSED,
            Self::Generate(GenerateError::Nan { .. }) => FAILED,
            Self::Generate(_) | Self::Text(_) | Self::Chat(_) | Self::Sampler(_) => USAGE,
            Self::Pin(error) => error.exit_code(),
            Self::Run(_) | Self::Usage(_) => USAGE,
            Self::Mismatch(_) => FAILED,
            Self::Memory { .. } | Self::Threads(_) => EXHAUSTED,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull
                | io::ErrorKind::OutOfMemory
                | io::ErrorKind::QuotaExceeded => EXHAUSTED,
                _ => USAGE,
            },
        }
    }

    /// Whether the reader of the output went away, which ends a command quietly.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Checkpoint(error) => error.into(),
            InspectError::Output(error) => Self::io("stdout", error),
        }
    }
}

impl From<PinCommandError<Self>> for Failure {
    fn from(error: PinCommandError<Self>) -> Self {
        match error {
            PinCommandError::Pin(error) => error.into(),
            PinCommandError::Reference(failure) => failure,
            PinCommandError::Output(error) => Self::io("stdout", error),
        }
    }
}

//! Which ids end a generation, and where that was said.
//!
//! Precedence is Transformers': the command line, else generation_config.json where the file
//! exists, else config.json.

use serde::Deserialize;
use thiserror::Error;

use crate::checkpoint::{Checkpoint, CheckpointError};

/// Where stop ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSource {
    /// `--stop`.
    CommandLine,
    /// generation_config.json.
    GenerationConfig,
    /// config.json, there being no generation_config.json.
    Config,
}

impl StopSource {
    /// The name of the source in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CommandLine => "--stop",
            Self::GenerationConfig => "generation_config.json",
            Self::Config => "config.json",
        }
    }
}

/// Ids that end a sequence once generated. Ids of the prompt never do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopIds {
    /// The ids, in the order of their source.
    pub ids: Vec<u32>,
    /// Where they were found.
    pub source: StopSource,
}

/// Why stop ids cannot be determined.
#[derive(Debug, Error)]
pub enum StopError {
    /// The file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The file is not what it should be.
    #[error("generation_config.json: {0}")]
    Malformed(String),
}

#[derive(Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl StopIds {
    /// The stop ids of a checkpoint, unless the command line names some.
    ///
    /// # Errors
    /// A generation_config.json that cannot be read or understood.
    pub fn of(checkpoint: &Checkpoint, command_line: &[u32]) -> Result<Self, StopError> {
        if !command_line.is_empty() {
            return Ok(Self { ids: command_line.to_vec(), source: StopSource::CommandLine });
        }
        let Some(bytes) = checkpoint.side_file("generation_config.json")? else {
            let ids = checkpoint.config().eos_token_ids.clone().unwrap_or_default();
            return Ok(Self { ids, source: StopSource::Config });
        };
        let config: GenerationConfig = serde_json::from_slice(&bytes)
            .map_err(|e| StopError::Malformed(e.to_string().replace('\n', " ")))?;
        let ids = match config.eos_token_id {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![id],
            Some(OneOrMany::Many(ids)) => ids,
        };
        Ok(Self { ids, source: StopSource::GenerationConfig })
    }
}

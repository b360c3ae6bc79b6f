//! Which ids end a generation, and where that was said.
//!
//! Precedence is Transformers': the command line, else generation_config.json where the file
//! exists, else config.json.

use crate::checkpoint::{Checkpoint, CheckpointError, GENERATION_CONFIG};

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
            Self::GenerationConfig => GENERATION_CONFIG,
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

impl StopIds {
    /// The stop ids of a checkpoint, unless the command line names some.
    ///
    /// # Errors
    /// A generation_config.json that cannot be read or understood.
    pub fn of(checkpoint: &Checkpoint, command_line: &[u32]) -> Result<Self, CheckpointError> {
        if !command_line.is_empty() {
            return Ok(Self { ids: command_line.to_vec(), source: StopSource::CommandLine });
        }
        let (stated, source) = match checkpoint.generation_config()? {
            Some(config) => (config.eos_token_ids, StopSource::GenerationConfig),
            None => (checkpoint.config().eos_token_ids.clone(), StopSource::Config),
        };
        Ok(Self { ids: stated.unwrap_or_default(), source })
    }
}

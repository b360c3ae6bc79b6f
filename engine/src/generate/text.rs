//! Text in and out: the checkpoint's own tokenizer, and a stream that breaks no character.

use thiserror::Error;
use tokenizers::Tokenizer;

use crate::checkpoint::{Checkpoint, CheckpointError};

/// Why text cannot be turned into ids or back.
#[derive(Debug, Error)]
pub enum TextError {
    /// The file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no tokenizer.
    #[error("{0} has no tokenizer.json: give token ids instead of text")]
    Missing(String),
    /// The tokenizer's file or the tokenizer's answer.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
}

/// A checkpoint's tokenizer.
pub struct Text(Tokenizer);

fn tokenizer_error(error: impl std::fmt::Display) -> TextError {
    TextError::Tokenizer(error.to_string().replace('\n', " "))
}

impl Text {
    /// The tokenizer of a checkpoint.
    ///
    /// # Errors
    /// No tokenizer.json, or one that cannot be read or understood.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let Some(bytes) = checkpoint.side_file("tokenizer.json")? else {
            return Err(TextError::Missing(checkpoint.dir().display().to_string()));
        };
        Tokenizer::from_bytes(bytes).map(Self).map_err(tokenizer_error)
    }

    /// Token ids of a text, special tokens in it recognised.
    ///
    /// # Errors
    /// What the tokenizer answered.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.0.encode(text, true).map_err(tokenizer_error)?.get_ids().to_vec())
    }

    /// The text of ids. Special tokens and ids that the tokenizer does not know render as nothing.
    ///
    /// # Errors
    /// What the tokenizer answered.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.0.decode(ids, true).map_err(tokenizer_error)
    }

    /// Whether the tokenizer has a token of this id.
    pub fn knows(&self, id: u32) -> bool {
        self.0.id_to_token(id).is_some()
    }
}

/// The text of one sequence as its ids arrive.
///
/// Text is held back while it ends in U+FFFD, since the next id may complete the character. What
/// is left at the end is flushed as it is, so that the pieces add up to the text of the whole list.
#[derive(Default)]
pub struct Stream {
    pending: Vec<u32>,
}

impl Stream {
    /// The text that one more id completes; often empty.
    ///
    /// # Errors
    /// What the tokenizer answered.
    pub fn push(&mut self, text: &Text, id: u32) -> Result<String, TextError> {
        self.pending.push(id);
        let piece = text.decode(&self.pending)?;
        if piece.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.pending.clear();
        Ok(piece)
    }

    /// The text of what was held back.
    ///
    /// # Errors
    /// What the tokenizer answered.
    pub fn finish(&mut self, text: &Text) -> Result<String, TextError> {
        let piece = text.decode(&self.pending);
        self.pending.clear();
        piece
    }
}

//! Text in and out: the checkpoint's own tokenizer, and a stream that breaks no character.
//!
//! Truncation and padding in tokenizer.json are those of the last training call and are passed
//! over. Tokens that only tokenizer_config.json knows are added, as Transformers adds them; the
//! invariant is that each then has the id that the file states.

use serde_json::{Map, Value};
use thiserror::Error;
use tokenizers::{AddedToken, Tokenizer};

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
    /// Added tokens that are not what they should be.
    #[error("tokenizer_config.json: {0}")]
    Added(String),
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
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(tokenizer_error)?;
        tokenizer.with_truncation(None).map_err(tokenizer_error)?.with_padding(None);
        if let Some(bytes) = checkpoint.side_file("tokenizer_config.json")? {
            let config: Map<String, Value> =
                serde_json::from_slice(&bytes).map_err(|e| TextError::Added(e.to_string()))?;
            add_tokens(&mut tokenizer, &config)?;
        }
        Ok(Self(tokenizer))
    }

    /// Token ids of a text, special tokens in it recognised.
    ///
    /// # Errors
    /// What the tokenizer answered.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, true)
    }

    /// Token ids of a rendered template, which states its own first and last tokens: none is added.
    ///
    /// # Errors
    /// What the tokenizer answered.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.ids(text, false)
    }

    fn ids(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        Ok(self.0.encode(text, add_special).map_err(tokenizer_error)?.get_ids().to_vec())
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

/// Named tokens of tokenizer_config.json, in the order in which Transformers adds them.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Adds the tokens of tokenizer_config.json that the tokenizer does not have.
fn add_tokens(tokenizer: &mut Tokenizer, config: &Map<String, Value>) -> Result<(), TextError> {
    let mut stated = Vec::new();
    if let Some(decoder) = config.get("added_tokens_decoder").filter(|d| !d.is_null()) {
        let bad = || TextError::Added("added_tokens_decoder is no object of ids".into());
        for (id, token) in decoder.as_object().ok_or_else(bad)? {
            stated.push((id.parse::<u32>().map_err(|_| bad())?, token));
        }
    }
    stated.sort_by_key(|(id, _)| *id);
    let tokens: Vec<(u32, AddedToken)> =
        stated.into_iter().map(|(id, t)| Ok((id, token(t)?))).collect::<Result<_, TextError>>()?;
    let all: Vec<AddedToken> = tokens.iter().map(|(_, token)| token.clone()).collect();
    tokenizer.add_tokens(all).map_err(tokenizer_error)?;
    for (id, AddedToken { content, .. }) in &tokens {
        let has = tokenizer.token_to_id(content);
        if has != Some(*id) {
            let has = has.map_or("none".into(), |id| id.to_string());
            let sentence = format!(
                "added_tokens_decoder gives {content:?} the id {id}, the tokenizer's is {has}"
            );
            return Err(TextError::Added(sentence));
        }
    }
    let listed = ["additional_special_tokens", "extra_special_tokens"].into_iter();
    let listed = listed.filter_map(|key| config.get(key)?.as_array()).flatten();
    for named in NAMED.iter().filter_map(|name| config.get(*name)).chain(listed) {
        if !named.is_null() {
            let special = AddedToken { special: true, ..token(named)? };
            tokenizer.add_tokens([special]).map_err(tokenizer_error)?;
        }
    }
    Ok(())
}

/// A token as tokenizer_config.json states it: its text, or an object that holds it.
fn token(stated: &Value) -> Result<AddedToken, TextError> {
    let bad = || TextError::Added(format!("{stated} is no token"));
    let flag = |key: &str, default: bool| match stated.get(key) {
        None => Ok(default),
        Some(value) => value.as_bool().ok_or_else(bad),
    };
    let content = stated.as_str().or_else(|| stated.get("content")?.as_str()).ok_or_else(bad)?;
    let special = flag("special", false)?;
    Ok(AddedToken::from(content, special)
        .normalized(flag("normalized", !special)?)
        .single_word(flag("single_word", false)?)
        .lstrip(flag("lstrip", false)?)
        .rstrip(flag("rstrip", false)?))
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

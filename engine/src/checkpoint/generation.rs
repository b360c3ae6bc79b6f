//! `generation_config.json`: stop ids, and what else the file asks of a generation.
//!
//! Here: which of its keys change an output. Absent: following any but the stop ids; the command
//! names the others. The invariant: a key that is neither known to be idle nor set to what changes
//! nothing is named, also one that no version of the library knows yet.

use serde_json::{Map, Value};

use super::config::{Fault, eos};
use super::error::{CheckpointError, Refusal};
use super::fields::{Fields, shown};
use super::folder::Folder;
use super::json::{self, one_line};

/// The file.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// What a `generation_config.json` says.
#[derive(Clone, Debug)]
pub struct GenerationConfig {
    /// Stop ids, if any are stated.
    pub eos_token_ids: Option<Vec<u32>>,
    keys: Map<String, Value>,
}

/// Keys that matter only where tokens are drawn.
const DRAWING: [&str; 8] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
];

/// Keys that matter only to a search with several beams.
const BEAMS: [&str; 4] = ["diversity_penalty", "early_stopping", "length_penalty", "low_memory"];

/// Keys whose value 1 changes nothing; that of any other is 0.
const ONE: [&str; 9] = [
    "temperature",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "guidance_scale",
];

/// Keys that change no id of a text model's output, whatever they say.
const IDLE: [&str; 25] = [
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "compile_config",
    "decoder_start_token_id",
    "disable_compile",
    "eos_token_id",
    "is_assistant",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "renormalize_logits",
    "return_dict_in_generate",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
];

impl GenerationConfig {
    /// Reads the file of `folder`; `None` where there is none.
    ///
    /// # Errors
    /// A file that cannot be read, is no object, or states stop ids that are none.
    pub(super) fn read(folder: &Folder) -> Result<Option<Self>, CheckpointError> {
        let Some(text) = folder.text(GENERATION_CONFIG)? else { return Ok(None) };
        let refuse =
            |fault: Fault| Refusal::Config(fault.into()).of(folder.file(GENERATION_CONFIG));
        let keys = match json::parse(&text).map_err(Fault::Json).map_err(refuse)? {
            Value::Object(keys) => keys,
            other => return Err(refuse(Fault::NotObject(shown(&other)))),
        };
        let eos_token_ids = eos(&Fields::new(&keys)).map_err(refuse)?;
        Ok(Some(Self { eos_token_ids, keys }))
    }

    /// Keys that would change an output and are not followed, each with its value. `decided` are
    /// those that the caller decides himself; `draws` is whether he does so by drawing.
    pub fn unfollowed(&self, decided: &[&str], draws: Option<bool>) -> Vec<String> {
        let says = |key: &str| self.keys.get(key).is_some_and(|value| !neutral(key, value));
        let draws = draws.unwrap_or_else(|| says("do_sample"));
        let matters = |key: &str| {
            !IDLE.contains(&key)
                && !key.starts_with('_')
                && !decided.contains(&key)
                && (draws || !DRAWING.contains(&key))
                && (says("num_beams") || !BEAMS.contains(&key))
        };
        let wishes = self.keys.iter().filter(|(key, v)| matters(key) && !neutral(key, v));
        wishes.map(|(key, value)| format!("{} {}", one_line(key), shown(value))).collect()
    }
}

/// Whether a key of that value leaves an output as it is.
fn neutral(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(if ONE.contains(&key) { 1.0 } else { 0.0 }),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(true) | Value::String(_) => false,
    }
}

/// Keys of `generation_config.json` that older files carry in `config.json`; the reference drops
/// them, so they are not worth a notice.
pub(super) const GENERATION: [&str; 30] = [
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

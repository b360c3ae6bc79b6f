//! `config.json` of a Qwen3.
//!
//! Here: every key that decides a bit, its default where it is absent, and what is refused because
//! the forward pass does not do it. The defaults are those of the family, never derived: an absent
//! `head_dim` is 128 whatever the widths are. Absent: the shapes of the tensors, which the mapping
//! compares with what is read here.
//!
//! The invariant: a `Config` that exists can be run exactly as it says.

use serde_json::Value;

use super::fields::{Fields, id, mistyped, shown};
use super::json::{self, one_line};
use super::rope;
use crate::contract::Dtype;

/// Model types that are supported.
pub const MODEL_TYPES: [&str; 1] = ["qwen3"];

/// The configuration of a Qwen3.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; even. Need not be `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Whether `head_dim` is the default of the family.
    pub head_dim_defaulted: bool,
    /// Added to the mean of squares.
    pub rms_norm_eps: f64,
    /// The same as the forward pass adds it.
    pub rms_norm_eps_f32: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The key that gave `rope_theta`, or "default".
    pub rope_theta_source: &'static str,
    /// Positions the model was made for.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// The dtype stated for the run.
    pub dtype: Option<Dtype>,
    /// Stop ids stated here, if any are.
    pub eos_token_ids: Option<Vec<u32>>,
    /// What a reader should know: keys without effect, defaults that are often forgotten.
    pub notices: Vec<String>,
}

/// Why a configuration is refused, in one line.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConfigError(#[from] pub(super) Fault);

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Json(String),
    #[error("holds {0}, not an object")]
    NotObject(String),
    #[error("model_type is {found}; supported: {}", MODEL_TYPES.join(", "))]
    ModelType { found: String },
    #[error("{key} must be {want}, found {found}")]
    Type { key: &'static str, want: &'static str, found: String },
    #[error("{key} must be from {low} to {high}, found {found}")]
    Range { key: &'static str, low: u64, high: u64, found: String },
    #[error("{key} {found} is not supported, only {only}")]
    Unsupported { key: &'static str, found: String, only: &'static str },
    #[error("num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")]
    Heads { heads: usize, kv_heads: usize },
    #[error("head_dim {0} is odd: a head has two rotary halves")]
    OddHeadDim(usize),
    #[error(
        "sliding_window {window} is in use from layer {layer} on; only full attention is supported"
    )]
    Window { layer: usize, window: i64 },
    #[error("layer_types: layer {layer} is {found}; only \"full_attention\" is supported")]
    LayerType { layer: usize, found: String },
    #[error("layer_types has {found} entries, num_hidden_layers is {layers}")]
    LayerTypes { found: usize, layers: usize },
    #[error("quantization_config {method}: quantised weights are not supported")]
    Quantised { method: String },
    /// `by` is the key that gave `effective`, or "default".
    #[error("rope_theta is stated twice: {effective} ({by}) takes effect, {key} states {stated}")]
    Thetas { effective: f64, by: &'static str, key: &'static str, stated: f64 },
    #[error("{dict}.{key} {found} is not supported, only {only}")]
    Rope { dict: &'static str, key: String, found: String, only: &'static str },
    #[error("{dict}.{key} {found} has no effect under the rope type \"default\"")]
    RopeKey { dict: &'static str, key: String, found: String },
}

impl Config {
    /// Parses the text of a `config.json`.
    ///
    /// # Errors
    /// The first thing that is malformed, contradictory or not supported.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Ok(Self::read(&json::parse(text).map_err(Fault::Json)?)?)
    }

    fn read(json: &Value) -> Result<Self, Fault> {
        let Value::Object(object) = json else {
            return Err(Fault::NotObject(shown(json)));
        };
        let fields = Fields::new(object);
        family(&fields)?;
        let mut notices = Vec::new();
        let num_hidden_layers = fields.count("num_hidden_layers", 32)?;
        let num_attention_heads = fields.count("num_attention_heads", 32)?;
        let kv_heads = fields.count_or_null("num_key_value_heads", 32)?;
        let num_key_value_heads = kv_heads.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let (heads, kv_heads) = (num_attention_heads, num_key_value_heads);
            return Err(Fault::Heads { heads, kv_heads });
        }
        let head_dim = fields.count("head_dim", 128)?;
        if head_dim % 2 == 1 {
            return Err(Fault::OddHeadDim(head_dim));
        }
        let rms_norm_eps = fields.float("rms_norm_eps", 1e-6)?;
        if rms_norm_eps < 0.0 {
            let (key, found) = ("rms_norm_eps", rms_norm_eps.to_string());
            return Err(Fault::Unsupported { key, found, only: "0.0 or more" });
        }
        full_attention(&fields, num_hidden_layers, &mut notices)?;
        let theta = rope::resolve(&fields, head_dim, &mut notices)?;
        let config = Self {
            vocab_size: fields.count("vocab_size", 151_936)?,
            hidden_size: fields.count("hidden_size", 4096)?,
            intermediate_size: fields.count("intermediate_size", 22_016)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            head_dim_defaulted: fields.get("head_dim").is_none(),
            rms_norm_eps,
            rms_norm_eps_f32: rms_norm_eps as f32,
            rope_theta: theta.value,
            rope_theta_source: theta.source,
            max_position_embeddings: fields.count("max_position_embeddings", 32_768)?,
            tie_word_embeddings: fields.boolean("tie_word_embeddings", false)?,
            dtype: dtype(&fields, &mut notices)?,
            eos_token_ids: eos(&fields)?,
            notices: Vec::new(),
        };
        no_effect(&fields, &mut notices)?;
        Ok(Self { notices, ..config })
    }
}

/// Refuses what is another family, or another function of the same tensors.
fn family(fields: &Fields<'_>) -> Result<(), Fault> {
    match fields.get("model_type") {
        Some(Value::String(name)) if MODEL_TYPES.contains(&name.as_str()) => {}
        Some(other) => return Err(Fault::ModelType { found: shown(other) }),
        None => return Err(Fault::ModelType { found: "absent".to_owned() }),
    }
    for key in ["quantization_config", "compression_config"] {
        match fields.get(key) {
            None | Some(Value::Null) => {}
            Some(value) => {
                let method = value.get("quant_method").map_or_else(|| shown(value), shown);
                return Err(Fault::Quantised { method });
            }
        }
    }
    if let Some(value) = fields.get("transformers_weights").filter(|v| !v.is_null()) {
        let (key, found) = ("transformers_weights", shown(value));
        return Err(Fault::Unsupported { key, found, only: "the usual file names" });
    }
    let act = fields.string("hidden_act")?.unwrap_or("silu");
    if act != "silu" {
        let found = format!("\"{}\"", one_line(act));
        return Err(Fault::Unsupported { key: "hidden_act", found, only: "\"silu\"" });
    }
    if fields.boolean("attention_bias", false)? {
        let (key, found) = ("attention_bias", "true".to_owned());
        return Err(Fault::Unsupported { key, found, only: "false" });
    }
    Ok(())
}

/// Refuses any layer that is not full attention. `layer_types` decides where it is given;
/// otherwise layers from `max_window_layers` on have the window that is switched on.
fn full_attention(
    fields: &Fields<'_>,
    layers: usize,
    notices: &mut Vec<String>,
) -> Result<(), Fault> {
    let switched_on = fields.boolean("use_sliding_window", false)?;
    let first_windowed = fields.integer("max_window_layers", 28)?;
    let window = match fields.get("sliding_window") {
        Some(Value::Null) => None,
        _ => Some(fields.integer("sliding_window", 4096)?),
    };
    match fields.get("layer_types") {
        None | Some(Value::Null) => {
            let layer = usize::try_from(first_windowed).unwrap_or(0);
            if let Some(window) = window.filter(|_| switched_on && layer < layers) {
                return Err(Fault::Window { layer, window });
            }
        }
        Some(Value::Array(types)) => {
            let full = |t: &Value| t.as_str() == Some("full_attention");
            if let Some(layer) = types.iter().position(|t| !full(t)) {
                return Err(Fault::LayerType { layer, found: shown(&types[layer]) });
            }
            if types.len() != layers {
                return Err(Fault::LayerTypes { found: types.len(), layers });
            }
        }
        Some(other) => return Err(mistyped("layer_types", "a list", other)),
    }
    if let Some(window) = window.filter(|_| fields.get("sliding_window").is_some()) {
        notices.push(format!("config.json: sliding_window {window} is not used by any layer"));
    }
    Ok(())
}

/// The dtype of the run: `dtype`, or its old spelling.
fn dtype(fields: &Fields<'_>, notices: &mut Vec<String>) -> Result<Option<Dtype>, Fault> {
    let named = |key: &'static str| match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_str() {
            Some("bfloat16") => Ok(Some(Dtype::Bf16)),
            Some("float32" | "float") => Ok(Some(Dtype::F32)),
            _ => {
                let only = "\"bfloat16\" and \"float32\"";
                Err(Fault::Unsupported { key, found: shown(value), only })
            }
        },
    };
    let (new, old) = (named("dtype")?, named("torch_dtype")?);
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        notices.push(format!(
            "config.json: dtype {} takes effect, torch_dtype {} does not",
            new.name(),
            old.name()
        ));
    }
    Ok(new.or(old))
}

/// Stop ids: one, a list, or none.
fn eos(fields: &Fields<'_>) -> Result<Option<Vec<u32>>, Fault> {
    match fields.get("eos_token_id") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(ids)) => {
            ids.iter().map(|v| id("eos_token_id", v)).collect::<Result<_, _>>().map(Some)
        }
        Some(value) => Ok(Some(vec![id("eos_token_id", value)?])),
    }
}

/// Keys of the family that the forward pass does not read: their types are checked, since the
/// reference refuses others, and any other key is named.
fn no_effect(fields: &Fields<'_>, notices: &mut Vec<String>) -> Result<(), Fault> {
    const SILENT: [&str; 2] = ["architectures", "transformers_version"];
    fields.float("initializer_range", 0.02)?;
    fields.boolean("use_cache", true)?;
    fields.id_or_null("pad_token_id")?;
    fields.id_or_null("bos_token_id")?;
    if let Some(value) = fields.get("attention_dropout").filter(|v| !v.is_number()) {
        return Err(mistyped("attention_dropout", "a number", value));
    }
    fields.idle("architectures", "a list of strings", |v| v.is_null() || v.is_array())?;
    let mut rest = fields.rest();
    rest.retain(|key| !SILENT.contains(key) && !GENERATION.contains(key));
    if !rest.is_empty() {
        let keys = rest.into_iter().map(one_line).collect::<Vec<_>>().join(", ");
        notices.push(format!("config.json: keys without effect: {}", one_line(&keys)));
    }
    Ok(())
}

/// Keys of `generation_config.json` that older files carry in `config.json`; the reference drops
/// them, so they are not worth a notice.
const GENERATION: [&str; 30] = [
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

//! `config.json` of a Qwen3 or of a Qwen3.5's text model.
//!
//! Here: every key that decides a bit, its default where it is absent, and what is refused because
//! the forward pass does not do it. The defaults are those of the family, never derived: an absent
//! `head_dim` of a Qwen3 is 128 whatever the widths are. Absent: the shapes of the tensors, which
//! the mapping compares with what is read here.
//!
//! The invariant: a `Config` that exists can be run exactly as it says.

use serde_json::Value;

pub use super::fault::ConfigError;
pub(super) use super::fault::Fault;
use super::fields::{Fields, id, mistyped, shown};
use super::generation::GENERATION;
use super::hybrid::{self, Family, LayerKinds, Linear, Place};
use super::json::{self, one_line};
use super::rope;
use crate::contract::Dtype;

/// Model types that are supported.
pub const MODEL_TYPES: [&str; 3] = ["qwen3", "qwen3_5", "qwen3_5_text"];

/// The configuration of a Qwen3, or of a Qwen3.5's text model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which forward pass it takes.
    pub family: Family,
    /// `model_type` of the file.
    pub model_type: &'static str,
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
    /// Which layers are attention.
    pub layer_kinds: LayerKinds,
    /// Widths of the gated delta nets; none in a Qwen3.
    pub linear: Option<Linear>,
    /// Width of a head; even in a Qwen3. Need not be `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Whether `head_dim` is the default of the family.
    pub head_dim_defaulted: bool,
    /// Widths that are absent from the file, and so the defaults of the family.
    pub defaulted: Vec<(&'static str, usize)>,
    /// Width of a head that is rotated; even.
    pub rotary_dim: usize,
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

impl Config {
    /// Parses the text of a `config.json`.
    ///
    /// # Errors
    /// The first thing that is malformed, contradictory or not supported.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config = Self::read(&json::parse(text).map_err(Fault::Json)?)?;
        rope::reducible(&config)?;
        Ok(config)
    }

    fn read(json: &Value) -> Result<Self, Fault> {
        let Value::Object(object) = json else {
            return Err(Fault::NotObject(shown(json)));
        };
        let place = Place::of(object)?;
        let fields = Fields::new(place.text);
        let outer = place.outer.map(Fields::new);
        let (family, defaults) = (place.family, Defaults::of(place.family));
        for fields in outer.iter().chain([&fields]) {
            unquantised(fields)?;
        }
        same_function(&fields)?;
        let mut notices = Vec::new();
        let num_hidden_layers = fields.count("num_hidden_layers", 32)?;
        let num_attention_heads = fields.count("num_attention_heads", defaults.heads)?;
        let kv_heads = fields.count_or_null("num_key_value_heads", defaults.kv_heads)?;
        let num_key_value_heads = kv_heads.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let (heads, kv_heads) = (num_attention_heads, num_key_value_heads);
            return Err(Fault::Heads { heads, kv_heads });
        }
        let head_dim = fields.count("head_dim", defaults.head_dim)?;
        if family == Family::Qwen3 && head_dim % 2 == 1 {
            return Err(Fault::OddHeadDim(head_dim));
        }
        let (layer_kinds, linear) = match family {
            Family::Qwen3 => {
                full_attention(&fields, num_hidden_layers, &mut notices)?;
                (LayerKinds::Full, None)
            }
            Family::Qwen3_5 => {
                hybrid::switches(&fields)?;
                let kinds = hybrid::layer_kinds(&fields, num_hidden_layers)?;
                (kinds, Some(hybrid::linear(&fields)?))
            }
        };
        let rope = rope::resolve(&fields, family, head_dim, &mut notices)?;
        let rms_norm_eps = epsilon(&fields)?;
        let dtype = match (dtype(&fields, &mut notices)?, &outer) {
            (None, Some(outer)) => dtype(outer, &mut notices)?,
            (inner, _) => inner,
        };
        let config = Self {
            family,
            model_type: place.model_type,
            vocab_size: fields.count("vocab_size", defaults.vocab)?,
            hidden_size: fields.count("hidden_size", 4096)?,
            intermediate_size: fields.count("intermediate_size", defaults.intermediate)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            layer_kinds,
            linear,
            head_dim,
            head_dim_defaulted: fields.get("head_dim").is_none(),
            defaulted: fields.defaulted(),
            rotary_dim: rope.width,
            rms_norm_eps,
            rms_norm_eps_f32: rms_norm_eps as f32,
            rope_theta: rope.theta,
            rope_theta_source: rope.source,
            max_position_embeddings: fields.count("max_position_embeddings", 32_768)?,
            tie_word_embeddings: hybrid::tied(&fields, outer.as_ref())?,
            dtype,
            eos_token_ids: eos(&fields)?,
            notices: Vec::new(),
        };
        no_effect(&fields, family, &mut notices)?;
        Ok(Self { notices, ..config })
    }
}

/// What an absent width is.
struct Defaults {
    vocab: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Defaults {
    const fn of(family: Family) -> Self {
        match family {
            Family::Qwen3 => Self {
                vocab: 151_936,
                intermediate: 22_016,
                heads: 32,
                kv_heads: 32,
                head_dim: 128,
            },
            Family::Qwen3_5 => {
                Self { vocab: 248_320, intermediate: 12_288, heads: 16, kv_heads: 4, head_dim: 256 }
            }
        }
    }
}

/// The epsilon of every norm.
fn epsilon(fields: &Fields<'_>) -> Result<f64, Fault> {
    let eps = fields.float("rms_norm_eps", 1e-6)?;
    if eps < 0.0 {
        let (key, found) = ("rms_norm_eps", eps.to_string());
        return Err(Fault::Unsupported { key, found, only: "0.0 or more" });
    }
    Ok(eps)
}

/// Refuses quantised weights.
fn unquantised(fields: &Fields<'_>) -> Result<(), Fault> {
    for key in ["quantization_config", "compression_config"] {
        match fields.get(key) {
            None | Some(Value::Null) => {}
            Some(value) => {
                let method = value.get("quant_method").map_or_else(|| shown(value), shown);
                return Err(Fault::Quantised { method });
            }
        }
    }
    Ok(())
}

/// Refuses another function of the same tensors.
fn same_function(fields: &Fields<'_>) -> Result<(), Fault> {
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
pub(super) fn eos(fields: &Fields<'_>) -> Result<Option<Vec<u32>>, Fault> {
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
fn no_effect(fields: &Fields<'_>, family: Family, notices: &mut Vec<String>) -> Result<(), Fault> {
    const SILENT: [&str; 3] = ["architectures", "transformers_version", "model_type"];
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
    // Layers that predict further are no part of the text model.
    rest.retain(|key| family == Family::Qwen3 || !key.starts_with("mtp_"));
    if !rest.is_empty() {
        let keys = rest.into_iter().map(one_line).collect::<Vec<_>>().join(", ");
        notices.push(format!("config.json: keys without effect: {}", one_line(&keys)));
    }
    Ok(())
}

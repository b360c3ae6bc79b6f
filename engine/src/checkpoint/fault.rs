//! What may be wrong with a configuration: one sentence each, with the key and what it holds.

use super::config::MODEL_TYPES;
use crate::contract::LARGEST_ANGLE;

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
    #[error("model_type is \"qwen3_5\", which needs a text_config; a flat file says qwen3_5_text")]
    NoText,
    #[error("text_config.model_type is {found}; supported: \"qwen3_5_text\"")]
    TextType { found: String },
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
    #[error(
        "layer_types: layer {layer} is {found}; only \"full_attention\" and \"linear_attention\" \
         are supported"
    )]
    HybridLayer { layer: usize, found: String },
    #[error("none of {layers} layers is full_attention: a cache takes its length from one")]
    NoFullLayer { layers: usize },
    #[error("linear_num_value_heads {values} is no multiple of linear_num_key_heads {keys}")]
    ValueHeads { values: usize, keys: usize },
    #[error(
        "tie_word_embeddings is {inside} in text_config and {outside} beside it: they must agree"
    )]
    Flags { inside: bool, outside: bool },
    #[error(
        "partial_rotary_factor {factor} of head_dim {head_dim} rotates {width} dims; it must be an \
         even number from 2 to head_dim"
    )]
    Rotary { factor: f64, head_dim: usize, width: i64 },
    #[error(
        "rope_theta {theta} turns by {angle:e} over {positions} positions; rotary tables are exact \
         below {LARGEST_ANGLE:e}"
    )]
    Angle { theta: f64, angle: f32, positions: usize },
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

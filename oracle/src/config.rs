//! `config.json` of a plain dense Qwen3 checkpoint, with the defaults of Transformers 5.17.
//!
//! Deliberately absent: windows, scaled rotary kinds, biases, quantization, activations other than
//! silu: all are refused. Invariant: `head_dim` and `kv_heads` are never derived from other fields
//! (a `null` number of key heads is the one exception).

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::model::{OracleError, read};

/// What the forward reads of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the MLP.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of every head.
    pub head_dim: usize,
    /// Added under the root of every norm.
    pub eps: f64,
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// Whether the head is the embedding.
    pub tied: bool,
}

#[derive(Deserialize)]
#[serde(default)]
struct Fields {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>, // absent is 32, null is the number of query heads
    head_dim: usize,
    hidden_act: String,
    rms_norm_eps: Number,
    tie_word_embeddings: bool,
    attention_bias: bool,
    use_sliding_window: bool,
    sliding_window: Option<usize>,
    max_window_layers: usize,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            model_type: String::new(),
            vocab_size: 151_936,
            hidden_size: 4096,
            intermediate_size: 22_016,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: Some(32),
            head_dim: 128,
            hidden_act: "silu".to_owned(),
            rms_norm_eps: Number::from_f64(1e-6).expect("1e-6 is finite"),
            tie_word_embeddings: false,
            attention_bias: false,
            use_sliding_window: false,
            sliding_window: Some(4096),
            max_window_layers: 28,
            layer_types: None,
            quantization_config: None,
            rope_theta: None,
            rope_scaling: None,
            rope_parameters: None,
        }
    }
}

impl Config {
    pub(crate) fn parse(path: &Path) -> Result<Self, OracleError> {
        let fields: Fields = serde_json::from_slice(&read(path)?)
            .map_err(|source| OracleError::Json { path: path.to_owned(), source })?;
        fields.check()
    }
}

impl Fields {
    fn check(self) -> Result<Config, OracleError> {
        let kinds = self.layer_types.as_deref();
        let window = self.use_sliding_window
            && self.sliding_window.is_some()
            && kinds.is_none()
            && self.max_window_layers < self.num_hidden_layers;
        let full = |kinds: &[String]| {
            kinds.len() == self.num_hidden_layers && kinds.iter().all(|k| k == "full_attention")
        };
        let theta = self.theta()?;
        let kv_heads = self.num_key_value_heads.unwrap_or(self.num_attention_heads);
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.intermediate_size,
            self.num_hidden_layers,
            self.num_attention_heads,
            kv_heads,
            self.head_dim,
        ];
        let eps = self.rms_norm_eps.as_f64().filter(|_| self.rms_norm_eps.is_f64());
        let demands = [
            ("model_type", self.model_type == "qwen3", "only qwen3 is run"),
            ("hidden_act", self.hidden_act == "silu", "only silu is run"),
            ("attention_bias", !self.attention_bias, "biases are not run"),
            ("use_sliding_window", !window, "windowed layers are not run"),
            ("layer_types", kinds.is_none_or(full), "only full_attention in every layer is run"),
            ("quantization_config", self.quantization_config.is_none(), "only plain weights"),
            ("rms_norm_eps", eps.is_some(), "must be a float"),
            ("rope_theta", theta >= 1.0 && (theta as f32).is_finite(), "must be 1 or more"),
            ("hidden_size", !sizes.contains(&0), "no size may be 0"),
            ("head_dim", self.head_dim.is_multiple_of(2), "must be even"),
            (
                "num_key_value_heads",
                kv_heads > 0 && self.num_attention_heads.is_multiple_of(kv_heads),
                "must divide num_attention_heads",
            ),
        ];
        if let Some((field, _, why)) = demands.into_iter().find(|(_, good, _)| !good) {
            return Err(OracleError::Config { field, why });
        }
        Ok(Config {
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads,
            head_dim: self.head_dim,
            eps: eps.unwrap_or_default(),
            theta,
            tied: self.tie_word_embeddings,
        })
    }

    /// The rotary base: `rope_scaling`, if it says anything, replaces `rope_parameters` whole.
    fn theta(&self) -> Result<f64, OracleError> {
        let wrong = |field, why| Err(OracleError::Config { field, why });
        let said = |map: &&Map<String, Value>| !map.is_empty();
        let none = Map::new();
        let scaling = self.rope_scaling.as_ref().filter(said);
        let rope = scaling.or(self.rope_parameters.as_ref()).unwrap_or(&none);
        match rope.get("rope_type").or_else(|| rope.get("type")).map(Value::as_str) {
            None | Some(Some("default")) => {}
            _ => return wrong("rope_parameters", "only the default rotary kind is run"),
        }
        match rope.get("rope_theta").map(Value::as_f64) {
            Some(None) => wrong("rope_parameters", "rope_theta must be a number"),
            Some(Some(theta)) => Ok(theta),
            None => Ok(self.rope_theta.unwrap_or(10_000.0)),
        }
    }
}

//! `config.json` of a plain dense Qwen3 checkpoint, with the defaults of Transformers 5.17.
//!
//! Deliberately absent: windows, scaled rotary kinds, biases, quantization, activations other than
//! silu: all are refused. Invariant: `head_dim` and `kv_heads` are never derived from other fields
//! (a `null` number of key heads is the one exception).

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

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

impl Config {
    pub(crate) fn parse(path: &Path) -> Result<Self, OracleError> {
        let map = serde_json::from_slice(&read(path)?);
        let f = Fields(map.map_err(|source| OracleError::Json { path: path.to_owned(), source })?);
        let heads = f.get("num_attention_heads", 32)?;
        let config = Self {
            vocab: f.get("vocab_size", 151_936)?,
            hidden: f.get("hidden_size", 4096)?,
            intermediate: f.get("intermediate_size", 22_016)?,
            layers: f.get("num_hidden_layers", 32)?,
            heads,
            kv_heads: f.get("num_key_value_heads", Some(32))?.unwrap_or(heads),
            head_dim: f.get("head_dim", 128)?,
            eps: f.get("rms_norm_eps", 1e-6)?,
            theta: f.theta()?,
            tied: f.get("tie_word_embeddings", false)?,
        };
        f.check(&config)?;
        Ok(config)
    }
}

struct Fields(Map<String, Value>);

impl Fields {
    /// A field, or its default if it is absent; `null` is a value like any other.
    fn get<'a, T: Deserialize<'a>>(
        &'a self,
        field: &'static str,
        default: T,
    ) -> Result<T, OracleError> {
        let wrong = |_| OracleError::Config { field, why: "is of the wrong type" };
        self.0.get(field).map_or(Ok(default), |value| T::deserialize(value).map_err(wrong))
    }

    /// Refuses what the forward does not do.
    fn check(&self, c: &Config) -> Result<(), OracleError> {
        let kinds: Option<Vec<String>> = self.get("layer_types", None)?;
        let window: Option<usize> = self.get("sliding_window", Some(4096))?;
        let windowed = self.get("use_sliding_window", false)?
            && window.is_some()
            && kinds.is_none()
            && self.get("max_window_layers", 28)? < c.layers;
        let full = |kinds: Vec<String>| {
            kinds.len() == c.layers && kinds.iter().all(|k| k == "full_attention")
        };
        let sizes = [c.vocab, c.hidden, c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim];
        let demands = [
            ("model_type", self.get("model_type", "")? == "qwen3", "only qwen3 is run"),
            ("hidden_act", self.get("hidden_act", "silu")? == "silu", "only silu is run"),
            ("attention_bias", !self.get("attention_bias", false)?, "biases are not run"),
            ("use_sliding_window", !windowed, "windowed layers are not run"),
            ("layer_types", kinds.is_none_or(full), "only full_attention in every layer is run"),
            (
                "quantization_config",
                self.get("quantization_config", Value::Null)?.is_null(),
                "only plain weights are run",
            ),
            (
                "rms_norm_eps",
                self.0.get("rms_norm_eps").is_none_or(Value::is_f64),
                "must be written as a float",
            ),
            ("rope_theta", c.theta >= 1.0 && (c.theta as f32).is_finite(), "must be 1 or more"),
            ("hidden_size", !sizes.contains(&0), "no size may be 0"),
            ("head_dim", c.head_dim.is_multiple_of(2), "must be even"),
            (
                "num_key_value_heads",
                c.kv_heads > 0 && c.heads.is_multiple_of(c.kv_heads),
                "must divide num_attention_heads",
            ),
        ];
        match demands.into_iter().find(|(_, good, _)| !good) {
            Some((field, _, why)) => Err(OracleError::Config { field, why }),
            None => Ok(()),
        }
    }

    /// The rotary base: `rope_scaling`, if it says anything, replaces `rope_parameters` whole.
    fn theta(&self) -> Result<f64, OracleError> {
        let scaling: Option<Map<String, Value>> = self.get("rope_scaling", None)?;
        let parameters: Option<Map<String, Value>> = self.get("rope_parameters", None)?;
        let scaling = scaling.filter(|map| !map.is_empty());
        let rope = Self(scaling.or(parameters).unwrap_or_default());
        let kind = rope.get("rope_type", rope.get("type", "default")?)?;
        if kind != "default" || rope.0.values().any(Value::is_object) {
            let why = "only the default rotary kind is run";
            return Err(OracleError::Config { field: "rope_parameters", why });
        }
        let outer: Option<f64> = self.get("rope_theta", None)?;
        rope.get("rope_theta", outer.unwrap_or(10_000.0))
    }
}

//! `config.json` of a plain Qwen3 or of the text model of a Qwen3.5, with the defaults of
//! Transformers 5.17.
//!
//! Deliberately absent: windows, scaled rotary kinds, biases, quantization, activations other than
//! silu: all are refused. Invariant: `head_dim` and `kv_heads` are never derived from other fields
//! (a `null` number of key heads is the one exception).

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::{OracleError, read};
use crate::ops::DeltaHeads;

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
    /// The part of a head that is rotated; `head_dim` in the dense family.
    pub rotary_dim: usize,
    /// Added under the root of every norm.
    pub eps: f64,
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// What the hybrid family has beside; `None` is the dense family.
    pub hybrid: Option<Hybrid>,
}

/// What a hybrid has beside a dense model. Its norms are zero-centred and its attention is gated.
#[derive(Clone, Debug, PartialEq)]
pub struct Hybrid {
    /// Heads of the delta rule.
    pub heads: DeltaHeads,
    /// Taps of the convolution.
    pub kernel: usize,
    /// For each layer, whether it is a gated delta net and not an attention.
    pub linear: Vec<bool>,
}

impl Config {
    pub(crate) fn parse(path: &Path) -> Result<Self, OracleError> {
        let map = serde_json::from_slice(&read(path)?);
        let f = Fields(map.map_err(|source| OracleError::Json { path: path.to_owned(), source })?);
        match f.get("model_type", String::new())?.as_str() {
            "qwen3" => f.dense(),
            "qwen3_5_text" => f.text(),
            "qwen3_5" => f.composite(),
            _ => refuse("model_type", "only qwen3, qwen3_5 and qwen3_5_text are run"),
        }
    }

    /// Whether a layer is a gated delta net.
    pub fn is_linear(&self, layer: usize) -> bool {
        self.hybrid.as_ref().is_some_and(|h| h.linear[layer])
    }
}

/// Values of the fields that an absent key takes.
struct Absent {
    vocab: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const DENSE: Absent =
    Absent { vocab: 151_936, intermediate: 22_016, heads: 32, kv_heads: 32, head_dim: 128 };
const TEXT: Absent =
    Absent { vocab: 248_320, intermediate: 12_288, heads: 16, kv_heads: 4, head_dim: 256 };

struct Fields(Map<String, Value>);

type Demand = (&'static str, bool, &'static str);

fn refuse<T>(field: &'static str, why: &'static str) -> Result<T, OracleError> {
    Err(OracleError::Config { field, why })
}

fn demand(demands: &[Demand]) -> Result<(), OracleError> {
    match demands.iter().find(|(_, good, _)| !good) {
        Some((field, _, why)) => refuse(field, why),
        None => Ok(()),
    }
}

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

    fn dense(&self) -> Result<Config, OracleError> {
        let config = self.common(&DENSE)?;
        let kinds: Option<Vec<String>> = self.get("layer_types", None)?;
        let window: Option<usize> = self.get("sliding_window", Some(4096))?;
        let windowed = self.get("use_sliding_window", false)?
            && window.is_some()
            && kinds.is_none()
            && self.get("max_window_layers", 28)? < config.layers;
        let full = |kinds: Vec<String>| {
            kinds.len() == config.layers && kinds.iter().all(|k| k == "full_attention")
        };
        demand(&[
            ("use_sliding_window", !windowed, "windowed layers are not run"),
            ("head_dim", config.head_dim.is_multiple_of(2), "must be even"),
            ("layer_types", kinds.is_none_or(full), "only full_attention in every layer is run"),
        ])?;
        Ok(config)
    }

    /// The text model inside a composite file. Beside it only the tying flag is read, which must
    /// say the same outside and inside.
    fn composite(&self) -> Result<Config, OracleError> {
        let text: Map<String, Value> = self.get("text_config", Map::new())?;
        let text = Self(text);
        demand(&[
            ("text_config", !text.0.is_empty(), "a composite file has one"),
            (
                "model_type",
                text.get("model_type", "qwen3_5_text")? == "qwen3_5_text",
                "the text model is of another family",
            ),
            (
                "quantization_config",
                self.get("quantization_config", Value::Null)?.is_null(),
                "only plain weights are run",
            ),
            (
                "tie_word_embeddings",
                self.get("tie_word_embeddings", false)?
                    == text.get("tie_word_embeddings", false)?,
                "outer and text_config disagree",
            ),
        ])?;
        text.text()
    }

    fn text(&self) -> Result<Config, OracleError> {
        let factor = "partial_rotary_factor";
        let factor: f64 = self.rope()?.get(factor, self.get(factor, 0.25)?)?;
        let mut config = self.common(&TEXT)?;
        config.rotary_dim = (config.head_dim as f64 * factor) as usize;
        let heads = DeltaHeads {
            key_heads: self.get("linear_num_key_heads", 16)?,
            value_heads: self.get("linear_num_value_heads", 32)?,
            key_dim: self.get("linear_key_head_dim", 128)?,
            value_dim: self.get("linear_value_head_dim", 128)?,
        };
        let kernel = self.get("linear_conv_kernel_dim", 4)?;
        let linear = self.linear_layers(config.layers)?;
        let sizes = [heads.key_heads, heads.value_heads, heads.key_dim, heads.value_dim, kernel];
        let (rotary, output) = (config.rotary_dim, self.get("output_gate_type", "swish")?);
        demand(&[
            ("linear_num_key_heads", !sizes.contains(&0), "no size of a linear layer may be 0"),
            (
                "linear_num_key_heads",
                heads.key_heads > 0 && heads.value_heads.is_multiple_of(heads.key_heads),
                "must divide linear_num_value_heads",
            ),
            (
                "partial_rotary_factor",
                factor <= 1.0 && rotary > 0 && rotary.is_multiple_of(2),
                "must leave an even width within a head",
            ),
            ("attn_output_gate", self.get("attn_output_gate", true)?, "the gate is always run"),
            (
                "mamba_ssm_dtype",
                self.get("mamba_ssm_dtype", "float32")? == "float32",
                "the state is always f32",
            ),
            (
                "output_gate_type",
                ["swish", "silu"].contains(&output),
                "the gate of the norm is always silu",
            ),
            (
                "layer_types",
                linear.contains(&false),
                "without a layer of full_attention nothing counts the positions",
            ),
        ])?;
        config.hybrid = Some(Hybrid { heads, kernel, linear });
        Ok(config)
    }

    /// Which layers are gated delta nets: a list, under new or old names, or an interval.
    fn linear_layers(&self, layers: usize) -> Result<Vec<bool>, OracleError> {
        let kinds: Option<Vec<String>> = self.get("layer_types", None)?;
        let interval: usize = self.get("full_attention_interval", 4)?;
        let Some(kinds) = kinds else {
            demand(&[("full_attention_interval", interval > 0, "must be 1 or more")])?;
            return Ok((1..=layers).map(|i| !i.is_multiple_of(interval)).collect());
        };
        let linear = |kind: &String| match kind.as_str() {
            "linear_attention" | "mamba" | "conv" => Ok(true),
            "full_attention" | "attention" => Ok(false),
            _ => refuse("layer_types", "only linear_attention and full_attention are run"),
        };
        demand(&[("layer_types", kinds.len() == layers, "must name every layer")])?;
        kinds.iter().map(linear).collect()
    }

    /// What both families have, checked.
    fn common(&self, absent: &Absent) -> Result<Config, OracleError> {
        let heads = self.get("num_attention_heads", absent.heads)?;
        let kv_heads = self.get("num_key_value_heads", Some(absent.kv_heads))?;
        let head_dim = self.get("head_dim", absent.head_dim)?;
        let outer: Option<f64> = self.get("rope_theta", None)?;
        let c = Config {
            vocab: self.get("vocab_size", absent.vocab)?,
            hidden: self.get("hidden_size", 4096)?,
            intermediate: self.get("intermediate_size", absent.intermediate)?,
            layers: self.get("num_hidden_layers", 32)?,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head_dim,
            rotary_dim: head_dim,
            eps: self.get("rms_norm_eps", 1e-6)?,
            theta: self.rope()?.get("rope_theta", outer.unwrap_or(10_000.0))?,
            tied: self.get("tie_word_embeddings", false)?,
            hybrid: None,
        };
        let sizes = [c.vocab, c.hidden, c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim];
        demand(&[
            ("hidden_act", self.get("hidden_act", "silu")? == "silu", "only silu is run"),
            ("attention_bias", !self.get("attention_bias", false)?, "biases are not run"),
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
            (
                "num_key_value_heads",
                c.kv_heads > 0 && c.heads.is_multiple_of(c.kv_heads),
                "must divide num_attention_heads",
            ),
        ])?;
        Ok(c)
    }

    /// The rotary fields: `rope_scaling`, if it says anything, replaces `rope_parameters` whole.
    fn rope(&self) -> Result<Self, OracleError> {
        let scaling: Option<Map<String, Value>> = self.get("rope_scaling", None)?;
        let parameters: Option<Map<String, Value>> = self.get("rope_parameters", None)?;
        let scaling = scaling.filter(|map| !map.is_empty());
        let rope = Self(scaling.or(parameters).unwrap_or_default());
        let kind = rope.get("rope_type", rope.get("type", "default")?)?;
        if kind != "default" || rope.0.values().any(Value::is_object) {
            return refuse("rope_parameters", "only the default rotary kind is run");
        }
        Ok(rope)
    }
}

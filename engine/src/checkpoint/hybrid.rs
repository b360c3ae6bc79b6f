//! The keys of a configuration that only hybrids have: Qwen3.5's text model.
//!
//! Here: where the text model's keys stand, which layers are attention, the gated delta net's
//! widths, and switches that name another function of the same tensors. The invariant: a key that
//! the reference reads and ignores is refused unless it says what the forward pass does.

use serde_json::{Map, Value};

use super::config::Fault;
use super::fields::{Fields, mistyped, shown};

/// Which forward pass a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Dense: attention in every layer.
    Qwen3,
    /// Hybrid: gated delta nets, and gated attention in some layers.
    Qwen3_5,
}

impl Family {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen3_5 => "qwen3_5",
        }
    }
}

/// Which layers are attention; the others are gated delta nets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerKinds {
    /// All of them.
    Full,
    /// Layer `i` where `i + 1` is a multiple.
    Every(usize),
    /// As listed.
    Listed(Vec<bool>),
}

impl LayerKinds {
    /// Whether layer `i` is attention.
    pub fn is_full(&self, i: usize) -> bool {
        match self {
            Self::Full => true,
            Self::Every(n) => (i + 1).is_multiple_of(*n),
            Self::Listed(full) => full[i],
        }
    }

    /// Whether any of `layers` layers is attention.
    fn any_full(&self, layers: usize) -> bool {
        match self {
            Self::Full => true,
            Self::Every(n) => layers >= *n,
            Self::Listed(full) => full.contains(&true),
        }
    }

    /// How many of `layers` layers are attention.
    pub fn count_full(&self, layers: usize) -> usize {
        match self {
            Self::Full => layers,
            Self::Every(n) => layers / n,
            Self::Listed(full) => full.iter().filter(|full| **full).count(),
        }
    }
}

/// Widths of the gated delta nets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of the key heads.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_head_dim: usize,
    /// Width of a value head.
    pub value_head_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel_dim: usize,
}

/// The keys of a text model: `text_config` of a composite file, or all of a flat one.
pub(super) struct Place<'a> {
    /// Which forward pass.
    pub family: Family,
    /// `model_type` of the file.
    pub model_type: &'static str,
    /// The text model's keys.
    pub text: &'a Map<String, Value>,
    /// The keys around `text_config`.
    pub outer: Option<&'a Map<String, Value>>,
}

/// The type of a text model within a composite file.
const TEXT_TYPE: &str = "qwen3_5_text";

impl<'a> Place<'a> {
    /// Decides by `model_type`.
    pub fn of(object: &'a Map<String, Value>) -> Result<Self, Fault> {
        let plain = |family, model_type| Self { family, model_type, text: object, outer: None };
        match object.get("model_type") {
            None => Err(Fault::ModelType { found: "absent".to_owned() }),
            Some(Value::String(name)) if name == "qwen3" => Ok(plain(Family::Qwen3, "qwen3")),
            Some(Value::String(name)) if name == TEXT_TYPE => Ok(plain(Family::Qwen3_5, TEXT_TYPE)),
            Some(Value::String(name)) if name == "qwen3_5" => {
                let text = match object.get("text_config") {
                    Some(Value::Object(text)) => text,
                    Some(other) => return Err(mistyped("text_config", "an object", other)),
                    None => return Err(Fault::NoText),
                };
                match text.get("model_type") {
                    None => {}
                    Some(Value::String(name)) if name == TEXT_TYPE => {}
                    Some(other) => return Err(Fault::TextType { found: shown(other) }),
                }
                let (family, outer) = (Family::Qwen3_5, Some(object));
                Ok(Self { family, model_type: "qwen3_5", text, outer })
            }
            Some(other) => Err(Fault::ModelType { found: shown(other) }),
        }
    }
}

/// Which layers are attention: a list where there is one, else an interval.
pub(super) fn layer_kinds(fields: &Fields<'_>, layers: usize) -> Result<LayerKinds, Fault> {
    let interval = fields.count("full_attention_interval", 4)?;
    let kinds = match fields.get("layer_types") {
        None | Some(Value::Null) => LayerKinds::Every(interval),
        Some(Value::Array(types)) => {
            let kind = |(layer, kind): (usize, &Value)| match kind.as_str() {
                Some("full_attention" | "attention") => Ok(true),
                Some("linear_attention" | "mamba" | "conv") => Ok(false),
                _ => Err(Fault::HybridLayer { layer, found: shown(kind) }),
            };
            let full: Vec<bool> =
                types.iter().enumerate().map(kind).collect::<Result<_, Fault>>()?;
            if full.len() != layers {
                return Err(Fault::LayerTypes { found: full.len(), layers });
            }
            LayerKinds::Listed(full)
        }
        Some(other) => return Err(mistyped("layer_types", "a list", other)),
    };
    if !kinds.any_full(layers) {
        return Err(Fault::NoFullLayer { layers });
    }
    Ok(kinds)
}

/// The widths of the gated delta nets.
pub(super) fn linear(fields: &Fields<'_>) -> Result<Linear, Fault> {
    let linear = Linear {
        key_heads: fields.count("linear_num_key_heads", 16)?,
        value_heads: fields.count("linear_num_value_heads", 32)?,
        key_head_dim: fields.count("linear_key_head_dim", 128)?,
        value_head_dim: fields.count("linear_value_head_dim", 128)?,
        conv_kernel_dim: fields.count("linear_conv_kernel_dim", 4)?,
    };
    if !linear.value_heads.is_multiple_of(linear.key_heads) {
        let (values, keys) = (linear.value_heads, linear.key_heads);
        return Err(Fault::ValueHeads { values, keys });
    }
    Ok(linear)
}

/// Refuses switches that the forward pass does not follow.
pub(super) fn switches(fields: &Fields<'_>) -> Result<(), Fault> {
    if !fields.boolean("attn_output_gate", true)? {
        let (key, found) = ("attn_output_gate", "false".to_owned());
        return Err(Fault::Unsupported { key, found, only: "true" });
    }
    let one_of = |key: &'static str, allowed: &[&str], only: &'static str| match fields
        .get(key)
        .filter(|v| !v.is_null())
    {
        Some(value) if !value.as_str().is_some_and(|text| allowed.contains(&text)) => {
            Err(Fault::Unsupported { key, found: shown(value), only })
        }
        _ => Ok(()),
    };
    one_of("mamba_ssm_dtype", &["float32", "float"], "\"float32\"")?;
    one_of("output_gate_type", &["swish", "silu"], "\"silu\" and \"swish\"")
}

/// The two flags that tie the head must agree; absent is false.
pub(super) fn tied(fields: &Fields<'_>, outer: Option<&Fields<'_>>) -> Result<bool, Fault> {
    let inside = fields.boolean("tie_word_embeddings", false)?;
    let Some(outer) = outer else { return Ok(inside) };
    let outside = outer.boolean("tie_word_embeddings", false)?;
    if inside != outside {
        return Err(Fault::Flags { inside, outside });
    }
    Ok(inside)
}

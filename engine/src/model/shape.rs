//! What a forward pass needs to know of a config.

use crate::checkpoint::{Config, Family, LayerKinds};
use crate::op::{DeltaHeads, Heads};

/// The shape of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Which forward pass it is.
    pub family: Family,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the gated MLP.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Which layers are attention, and which a gated delta net.
    pub kinds: LayerKinds,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of a head that is rotated.
    pub rotary_dim: usize,
    /// The gated delta net of linear layers; all zero where there are none.
    pub delta: DeltaHeads,
    /// Epsilon of every norm, in f32.
    pub eps: f32,
    /// Base of the rotary frequencies.
    pub theta: f64,
}

const NO_DELTA: DeltaHeads = DeltaHeads { key: 0, value: 0, key_dim: 0, value_dim: 0, kernel: 0 };

impl Shape {
    /// The shape a config declares.
    pub fn of(config: &Config) -> Self {
        Self {
            family: config.family,
            vocab: config.vocab_size,
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            layers: config.num_hidden_layers,
            kinds: config.layer_kinds.clone(),
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            rotary_dim: config.rotary_dim,
            delta: config.linear.as_ref().map_or(NO_DELTA, |linear| DeltaHeads {
                key: linear.key_heads,
                value: linear.value_heads,
                key_dim: linear.key_head_dim,
                value_dim: linear.value_head_dim,
                kernel: linear.conv_kernel_dim,
            }),
            eps: config.rms_norm_eps_f32,
            theta: config.rope_theta,
        }
    }

    /// Head geometry for a batch.
    pub fn heads(&self, batch: usize) -> Heads {
        Heads { batch, query: self.heads, kv: self.kv_heads, dim: self.head_dim }
    }
}

//! Sizes that a model's shape implies, without looking at any run.
//!
//! The invariant: an op that the model has no layer for has no elements.

use samebits::checkpoint::Family;
use samebits::model::Shape;
use samebits::op::{CONV_STATE, DeltaHeads, STATE};
use samebits_fixtures::{HybridSpec, Spec};
use samebits_oracle as oracle;

use super::{LAYER_OPS, STATES};

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Those of them that are a gated delta net.
    pub linear_layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of a head that is rotated.
    pub rotary_dim: usize,
    /// Whether heads of attention are gated.
    pub gated: bool,
    /// The gated delta net; all zero in a dense model.
    pub delta: DeltaHeads,
}

const NO_DELTA: DeltaHeads = DeltaHeads { key: 0, value: 0, key_dim: 0, value_dim: 0, kernel: 0 };

impl Dims {
    /// A dense model of one layer and unit widths: what tells its ops from a hybrid's.
    pub const DENSE: Self = Self {
        vocab: 1,
        hidden: 1,
        intermediate: 1,
        layers: 1,
        linear_layers: 0,
        heads: 1,
        kv_heads: 1,
        head_dim: 1,
        rotary_dim: 1,
        gated: false,
        delta: NO_DELTA,
    };

    /// From the engine's shape of a model.
    pub fn of_shape(shape: &Shape) -> Self {
        let linear = |i: &usize| !shape.kinds.is_full(*i);
        Self {
            vocab: shape.vocab,
            hidden: shape.hidden,
            intermediate: shape.intermediate,
            layers: shape.layers,
            linear_layers: (0..shape.layers).filter(linear).count(),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            rotary_dim: shape.rotary_dim,
            gated: shape.family == Family::Qwen3_5,
            delta: shape.delta,
        }
    }

    /// From the reference's reading of a config.
    pub fn of(config: &oracle::Config) -> Self {
        let hybrid = config.hybrid.as_ref();
        Self {
            vocab: config.vocab,
            hidden: config.hidden,
            intermediate: config.intermediate,
            layers: config.layers,
            linear_layers: (0..config.layers).filter(|i| config.is_linear(*i)).count(),
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            rotary_dim: config.rotary_dim,
            gated: hybrid.is_some(),
            delta: hybrid.map_or(NO_DELTA, |hybrid| DeltaHeads {
                key: hybrid.heads.key_heads,
                value: hybrid.heads.value_heads,
                key_dim: hybrid.heads.key_dim,
                value_dim: hybrid.heads.value_dim,
                kernel: hybrid.kernel,
            }),
        }
    }

    /// From a synthetic dense shape.
    pub fn of_spec(spec: &Spec) -> Self {
        Self {
            vocab: spec.vocab,
            hidden: spec.hidden,
            intermediate: spec.intermediate,
            layers: spec.layers,
            linear_layers: 0,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            rotary_dim: spec.head_dim,
            gated: false,
            delta: NO_DELTA,
        }
    }

    /// From a synthetic hybrid shape.
    pub fn of_hybrid_spec(spec: &HybridSpec) -> Self {
        Self {
            vocab: spec.vocab,
            hidden: spec.hidden,
            intermediate: spec.intermediate,
            layers: spec.layers,
            linear_layers: (0..spec.layers).filter(|i| spec.is_linear(*i)).count(),
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            rotary_dim: spec.rotary_dim(),
            gated: true,
            delta: DeltaHeads {
                key: spec.key_heads,
                value: spec.value_heads,
                key_dim: spec.key_dim,
                value_dim: spec.value_dim,
                kernel: spec.kernel,
            },
        }
    }

    /// How many layers run an op.
    pub fn layers_with(&self, op: &str) -> usize {
        match op {
            "in_proj_qkv" | "in_proj_z" | "in_proj_b" | "in_proj_a" | "conv" | "conv_silu"
            | "beta" | "g" | "q_l2" | "k_l2" | "core" | "gdn_norm" | "out_proj" | CONV_STATE
            | STATE => self.linear_layers,
            "q_gate" | "gate_sigmoid" | "mix_gated" if !self.gated => 0,
            "q_proj" | "q_gate" | "k_proj" | "v_proj" | "q_norm" | "k_norm" | "q_rope"
            | "k_rope" | "k_cache" | "v_cache" | "scores" | "probs" | "mix" | "gate_sigmoid"
            | "mix_gated" | "o_proj" => self.layers - self.linear_layers,
            _ => self.layers,
        }
    }

    /// Elements of one row of an op; `keys` counts only where the site is keyed.
    pub fn width(&self, op: &str, keys: usize) -> usize {
        let (delta, query) = (self.delta, self.heads * self.head_dim);
        match op {
            _ if self.layers_with(op) == 0 => 0,
            "q_proj" if self.gated => 2 * query,
            "q_proj" | "q_norm" | "q_rope" | "mix" | "q_gate" | "gate_sigmoid" | "mix_gated" => {
                query
            }
            "k_proj" | "v_proj" | "k_norm" | "k_rope" | "k_cache" | "v_cache" => {
                self.kv_heads * self.head_dim
            }
            "scores" | "probs" => self.heads * keys,
            "in_proj_qkv" | "conv" | "conv_silu" | CONV_STATE => delta.channels(),
            "in_proj_z" | "core" | "gdn_norm" => delta.values(),
            "in_proj_b" | "in_proj_a" | "beta" | "g" => delta.value,
            "q_l2" | "k_l2" => delta.keys(),
            STATE => delta.key_dim * delta.value_dim,
            "gate_proj" | "up_proj" | "silu" | "mul" => self.intermediate,
            "lm_head" => self.vocab,
            _ => self.hidden,
        }
    }

    /// The shape of a site in a run of `rows` rows whose keyed sites hold `keys` keys.
    pub fn shape(&self, op: &str, rows: usize, keys: usize) -> Vec<usize> {
        let delta = self.delta;
        match op {
            "q_norm" | "q_rope" => vec![rows, self.heads, self.head_dim],
            "k_norm" | "k_rope" | "k_cache" | "v_cache" => vec![rows, self.kv_heads, self.head_dim],
            "scores" | "probs" => vec![self.heads, rows, keys],
            "in_proj_z" | "core" | "gdn_norm" => vec![rows, delta.value, delta.value_dim],
            "q_l2" | "k_l2" => vec![rows, delta.key, delta.key_dim],
            CONV_STATE => vec![delta.kernel, delta.channels()],
            STATE => vec![delta.value, delta.key_dim, delta.value_dim],
            _ => vec![rows, self.width(op, keys)],
        }
    }

    /// Elements of all sites of a run of `rows` rows whose keyed sites hold `keys` keys.
    pub fn elements(&self, rows: usize, keys: usize) -> u64 {
        let all = LAYER_OPS.iter().map(|op| self.layers_with(op) * self.width(op, keys));
        let outside = 2 * self.hidden + self.vocab;
        (rows * (all.sum::<usize>() + outside)) as u64
    }

    /// Elements of what all layers carry on beside keys and values.
    pub fn carried(&self) -> u64 {
        let each = |op: &&str| self.shape(op, 0, 0).iter().product::<usize>();
        let all: usize = STATES.iter().map(each).sum();
        (self.linear_layers * all) as u64
    }

    /// Elements of the states of all delta rules.
    pub fn delta_states(&self) -> u64 {
        let state: usize = self.shape(STATE, 0, 0).iter().product();
        (self.linear_layers * state) as u64
    }

    /// Sites of a run, the rotary tables and what is carried on left out.
    pub fn sites(&self) -> u64 {
        let all: usize = LAYER_OPS.iter().map(|op| self.layers_with(op)).sum();
        (all + 3) as u64
    }

    /// What is carried on, counted as sites.
    pub fn states(&self) -> u64 {
        (STATES.len() * self.linear_layers) as u64
    }

    /// Elements of all weights; a head that is the embedding counts once more.
    pub fn weights(&self) -> u64 {
        let (q, kv, h) = (self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden);
        let (delta, gate) = (self.delta, if self.gated { 2 } else { 1 });
        let attention = h * (gate * q + 2 * kv) + q * h + 2 * self.head_dim;
        let projections = h * (delta.channels() + delta.values() + 2 * delta.value);
        let small = delta.channels() * delta.kernel + 2 * delta.value + delta.value_dim;
        let net = projections + small + delta.values() * h;
        let full = self.layers - self.linear_layers;
        let shared = self.layers * (2 * h + 3 * h * self.intermediate);
        let outside = h + 2 * self.vocab * h;
        (full * attention + self.linear_layers * net + shared + outside) as u64
    }

    /// How many weights there are; a head that is the embedding counts once more.
    pub fn weight_count(&self) -> u64 {
        let full = self.layers - self.linear_layers;
        (full * 11 + self.linear_layers * 14 + 3) as u64
    }
}

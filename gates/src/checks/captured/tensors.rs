//! What was captured of a narrow checkpoint, under the names and shapes of sites.

use samebits::op::CONV_STATE;
use samebits_fixtures::golden::Tensors;

use super::PROMPT;
use crate::checks::CheckError;
use crate::checks::bitwise::recorded;
use crate::sites::{Bits, Dims, Sites};

/// A captured tensor's name and its site's op.
type Op = (&'static str, &'static str);

/// Ops that layers of every kind have.
const SHARED: [Op; 5] = [
    ("input_layernorm", "input_layernorm"),
    ("post_attention_layernorm", "post_attention_layernorm"),
    ("gate_proj", "gate_proj"),
    ("up_proj", "up_proj"),
    ("down_proj", "down_proj"),
];
/// Ops of attention, gated or not.
const ATTENTION: [Op; 11] = [
    ("q_proj", "q_proj"),
    ("k_proj", "k_proj"),
    ("v_proj", "v_proj"),
    ("q_normed", "q_norm"),
    ("k_normed", "k_norm"),
    ("q_rope", "q_rope"),
    ("k_rope", "k_rope"),
    ("v", "v_cache"),
    ("attn_probs", "probs"),
    ("attn_ctx", "mix"),
    ("o_proj", "o_proj"),
];
/// Ops of a gated delta net; its activated convolution comes in three parts.
const DELTA_NET: [Op; 9] = [
    ("in_proj_qkv", "in_proj_qkv"),
    ("in_proj_z", "in_proj_z"),
    ("in_proj_b", "in_proj_b"),
    ("in_proj_a", "in_proj_a"),
    ("gdn_beta", "beta"),
    ("gdn_g", "g"),
    ("gdn_core", "core"),
    ("gdn_norm", "gdn_norm"),
    ("out_proj", "out_proj"),
];
/// The layers whose ops were captured.
const LAYERS: [usize; 2] = [0, 3];

/// Ops captured of a layer, but for the activated convolution.
fn ops(full: bool) -> impl Iterator<Item = &'static Op> {
    let own: &[Op] = if full { &ATTENTION } else { &DELTA_NET };
    SHARED.iter().chain(own)
}

/// Captured tensors of the prompt and of the first cached step.
pub struct Captured {
    /// The prompt's.
    pub prefill: Sites,
    /// The step's.
    pub step: Sites,
    /// What convolutions keep after the prompt.
    pub inputs: Sites,
}

impl Captured {
    /// Reads what was captured; `full` says which layers are attention.
    ///
    /// # Errors
    /// A tensor that is not there.
    pub fn load(
        tensors: &Tensors,
        dims: &Dims,
        full: impl Fn(usize) -> bool,
    ) -> Result<Self, CheckError> {
        let mut captured = Self { prefill: Sites::new(), step: Sites::new(), inputs: Sites::new() };
        let parts = [
            ("L7/ops/", PROMPT, &mut captured.prefill),
            ("L7/ops/decode0/", 1, &mut captured.step),
        ];
        for (prefix, rows, sites) in parts {
            for layer in LAYERS {
                let get = |key: &str| recorded(tensors, &format!("{prefix}layer{layer}/{key}"));
                let site = |op: &str| format!("layers.{layer}.{op}");
                for (key, op) in ops(full(layer)) {
                    sites.insert(site(op), shaped(get(key)?, op, dims, rows));
                }
                if full(layer) {
                    let k = sites[&site("k_rope")].clone();
                    sites.insert(site("k_cache"), k);
                } else {
                    let parts = ["gdn_q", "gdn_k", "gdn_v"].map(get);
                    let [q, k, v] = parts;
                    sites.insert(site("conv_silu"), joined([&q?, &k?, &v?], dims));
                }
            }
        }
        captured.outputs(tensors, dims)?;
        captured.carried(tensors, dims, full)?;
        Ok(captured)
    }

    /// What layers and the head put out.
    fn outputs(&mut self, tensors: &Tensors, dims: &Dims) -> Result<(), CheckError> {
        for (site, key) in [("embed_tokens", "embed"), ("norm", "norm"), ("lm_head", "logits")] {
            self.prefill.insert(site.to_owned(), recorded(tensors, &format!("L7/{key}"))?);
        }
        for layer in 0..dims.layers {
            let bits = recorded(tensors, &format!("L7/layer{layer}"))?;
            self.prefill.insert(format!("layers.{layer}.mlp_residual"), bits);
        }
        Ok(())
    }

    /// What layers carry on after the prompt.
    fn carried(
        &mut self,
        tensors: &Tensors,
        dims: &Dims,
        full: impl Fn(usize) -> bool,
    ) -> Result<(), CheckError> {
        for layer in 0..dims.layers {
            let get = |key: &str| recorded(tensors, &format!("cache/L7/layer{layer}/{key}"));
            let site = |op: &str| format!("layers.{layer}.{op}");
            if full(layer) {
                for (key, op) in [("k", "k_cache"), ("v", "v_cache")] {
                    self.prefill.insert(site(op), shaped(get(key)?, op, dims, PROMPT));
                }
            } else {
                self.inputs.insert(site(CONV_STATE), get("conv")?.transposed());
            }
        }
        Ok(())
    }
}

/// A captured tensor in its site's shape: heads come after rows but for probabilities, and of a
/// cache only the appended rows are the site's.
fn shaped(bits: Bits, op: &str, dims: &Dims, rows: usize) -> Bits {
    match op {
        "q_norm" | "k_norm" | "q_rope" | "k_rope" | "k_cache" | "v_cache" => {
            let by_row = bits.swapped();
            let all = by_row.shape[0];
            by_row.rows(op, all - rows..all, all)
        }
        "probs" => bits,
        _ => bits.reshaped(&dims.shape(op, rows, rows)),
    }
}

/// Queries, keys and values of value heads as the rows of an activated convolution, where each
/// key head stands once.
fn joined(parts: [&Bits; 3], dims: &Dims) -> Bits {
    let (delta, rows) = (dims.delta, parts[0].shape[0]);
    let group = delta.value / delta.key;
    let mut bits = Vec::with_capacity(rows * delta.channels());
    for row in 0..rows {
        for (part, every, dim) in
            [(0, group, delta.key_dim), (1, group, delta.key_dim), (2, 1, delta.value_dim)]
        {
            for head in (0..delta.value).step_by(every) {
                bits.extend_from_slice(
                    &parts[part].bits[(row * delta.value + head) * dim..][..dim],
                );
            }
        }
    }
    Bits { dtype: parts[0].dtype, shape: vec![rows, delta.channels()], bits }
}

/// Elements captured, from the shape alone.
pub fn expected(dims: &Dims, full: impl Fn(usize) -> bool) -> u64 {
    let layer = |layer: usize, keys: usize| -> usize {
        let own: usize = ops(full(layer)).map(|(_, op)| dims.width(op, keys)).sum();
        own + dims.width(if full(layer) { "k_cache" } else { "conv_silu" }, keys)
    };
    let captured = |keys: usize| LAYERS.iter().map(|i| layer(*i, keys)).sum::<usize>();
    // The other layers' caches, all layers' outputs, and what lies outside the layers.
    let others = (0..dims.layers).filter(|i| full(*i) && !LAYERS.contains(i)).count();
    let caches = others * 2 * dims.width("k_cache", 0);
    let outside = (2 + dims.layers) * dims.hidden + dims.vocab;
    let inputs = dims.linear_layers * dims.delta.kernel * dims.delta.channels();
    (PROMPT * (captured(PROMPT) + caches + outside) + captured(PROMPT + 1) + inputs) as u64
}

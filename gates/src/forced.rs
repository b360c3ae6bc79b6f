//! Teacher forcing: the result of every op on the very inputs that the engine gave it.
//!
//! Absent: statistics and limits. The invariant: weights, epsilon, scale, base and positions are
//! the reference's own reading of the checkpoint, never the engine's.

use std::collections::BTreeMap;

use samebits_oracle::ops::{
    Conv, Decay, DeltaRule, GatedNorm, Heads, Linear, Mix, Out, PartialRope, RmsNorm, Rope, Scores,
    Softmax, Tables,
};
use samebits_oracle::{Arithmetic, Config, Hybrid, Model};

use crate::sites::split;

/// The engine's values, and what turns them into an op's exact result.
pub struct Forced<'a> {
    /// What computes the expected results.
    pub arithmetic: &'a dyn Arithmetic,
    /// Weights and config.
    pub model: &'a Model,
    /// What the engine wrote, by site.
    pub values: &'a BTreeMap<String, Vec<f64>>,
    /// Ids of the rows.
    pub ids: &'a [u32],
    /// Rotary tables of all positions.
    pub tables: &'a Tables,
    /// Keys and values of each layer that were in the cache before the rows.
    pub past: &'a Past,
}

/// The rows of the final norm that have logits, where not all do.
pub const KEPT: &str = "norm.kept";

/// What a cache held before a run, by layer: `[positions, kv, head_dim]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Positions.
    pub len: usize,
    /// Keys.
    pub keys: Vec<Vec<f64>>,
    /// Values.
    pub values: Vec<Vec<f64>>,
}

impl Forced<'_> {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn rows(&self) -> usize {
        self.ids.len()
    }

    fn first(&self) -> usize {
        self.past.len
    }

    /// Keys at the end of the run.
    pub fn keys(&self) -> usize {
        self.past.len + self.rows()
    }

    /// The cache's rows from position 0 on.
    fn cached(&self, past: &[Vec<f64>], layer: usize, new: &[f64]) -> Vec<f64> {
        let mut all = past.get(layer).cloned().unwrap_or_default();
        all.extend_from_slice(new);
        all
    }

    fn weight(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("the reference has a weight for every op");
        let values = weight.values(0..weight.count());
        values.into_iter().map(|v| self.arithmetic.round(v)).collect()
    }

    fn norm(&self, site: &str, x: &[f64]) -> Out {
        let (weight, eps) = (self.weight(site), self.config().eps);
        let op = RmsNorm { x, weight: &weight, eps };
        match self.config().hybrid {
            Some(_) => self.arithmetic.centred_norm(&op),
            None => self.arithmetic.rms_norm(&op),
        }
    }

    fn linear(&self, site: &str, x: &[f64], k: usize) -> Out {
        let (weight, true_rows) = (self.weight(site), self.rows());
        self.arithmetic.linear(&Linear { x, weight: &weight, k, true_rows })
    }

    fn rope(&self, x: &[f64], heads: usize) -> Out {
        let (tables, head_dim) = (self.tables, self.config().head_dim);
        let rope = Rope { x, tables, heads, head_dim, first: self.first() };
        self.arithmetic.partial_rope(&PartialRope { rope, width: self.config().rotary_dim })
    }

    /// A weight that the default order keeps as the file has it.
    fn parameter(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("the reference has a weight for every op");
        weight.values(0..weight.count())
    }

    /// Sizes of an op's terms where the exact op does not give them: the result times what an
    /// error of its argument does to an exponential, or the two terms of a rotation.
    pub fn terms(&self, site: &str, y: &[f64]) -> Option<Vec<f64>> {
        let (layer, op) = split(site)?;
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        match op {
            "q_rope" | "k_rope" => Some(self.rope_terms(site)),
            "silu" => Some(by_argument(y, x("gate_proj"))),
            "conv_silu" => Some(by_argument(y, x("conv"))),
            "gate_sigmoid" => Some(by_argument(y, x("q_gate"))),
            "beta" => Some(by_argument(y, x("in_proj_b"))),
            "g" => Some(by_argument(y, x("in_proj_a"))),
            "gdn_norm" => Some(by_argument(y, x("in_proj_z"))),
            "conv" => self.hybrid().map(|h| self.conv_terms(layer, h.kernel)),
            "core" => self.hybrid().map(|h| self.core_terms(layer, h)),
            "probs" => {
                let rows = y.chunks(self.keys()).zip(x("scores").chunks(self.keys()));
                let row = |(y, x): (&[f64], &[f64])| -> Vec<f64> {
                    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    y.iter().zip(x).map(|(y, x)| y * (1.0 + most - x)).collect()
                };
                Some(rows.flat_map(row).collect())
            }
            _ => None,
        }
    }

    /// Sizes of the two terms of each rotated element, added up.
    fn rope_terms(&self, site: &str) -> Vec<f64> {
        let c = self.config();
        let x = &self.values[&site.replace("_rope", "_norm")];
        let (dim, width, half) = (c.head_dim, c.rotary_dim, c.rotary_dim / 2);
        let heads = x.len() / self.rows() / dim;
        let size = |i: usize| {
            let (row, at) = (i / (heads * dim), i % dim);
            if at >= width {
                return x[i].abs();
            }
            let entry = (self.first() + row) * half + at % half;
            let other = i - at + (at + half) % width;
            let (cos, sin) = (self.tables.cos[entry], self.tables.sin[entry]);
            (x[i] * cos).abs() + (x[other] * sin).abs()
        };
        (0..x.len()).map(size).collect()
    }

    fn hybrid(&self) -> Option<&Hybrid> {
        self.config().hybrid.as_ref()
    }

    /// Sums of the sizes of a convolution's terms: that of sizes.
    fn conv_terms(&self, layer: usize, kernel: usize) -> Vec<f64> {
        let sizes = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        let x = sizes(&self.values[&format!("layers.{layer}.in_proj_qkv")]);
        let weight = sizes(&self.weight(&format!("layers.{layer}.conv")));
        self.arithmetic.conv(&Conv { x: &x, history: &[], weight: &weight, kernel }).values
    }

    /// What a rule answers is a sum over a column of its state, which is as exact as its largest
    /// element: sizes of the query times that, after each row.
    fn core_terms(&self, layer: usize, hybrid: &Hybrid) -> Vec<f64> {
        let h = hybrid.heads;
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        let (mut state, mut sizes) = (vec![0.0; h.state()], Vec::new());
        for row in 0..self.rows() {
            let (q, k) = (&x("q_l2")[row * h.keys()..][..h.keys()], x("k_l2"));
            let values = &x("conv_silu")[row * h.channels()..][2 * h.keys()..h.channels()];
            let each = |op: &str| &x(op)[row * h.value_heads..][..h.value_heads];
            let op = DeltaRule {
                q,
                k: &k[row * h.keys()..][..h.keys()],
                v: values,
                beta: each("beta"),
                g: each("g"),
                heads: h,
                state: &state,
            };
            let next = self.arithmetic.delta_rule(&op).state;
            for (head, state) in next.chunks_exact(h.key_dim * h.value_dim).enumerate() {
                let key = head / (h.value_heads / h.key_heads) * h.key_dim;
                let query: f64 = q[key..key + h.key_dim].iter().map(|q| q.abs()).sum();
                let scaled = query / (h.key_dim as f64).sqrt();
                let column = |c: usize| state.iter().skip(c).step_by(h.value_dim);
                let most = |c: usize| column(c).fold(0.0f64, |most, s| most.max(s.abs()));
                sizes.extend((0..h.value_dim).map(|c| scaled * most(c)));
            }
            state = next;
        }
        sizes
    }

    /// The result of an op of a gated delta net or of gated attention.
    fn of_hybrid(&self, hybrid: &Hybrid, site: &str) -> Out {
        let (layer, op) = split(site).expect("the caller split it");
        let at = |op: &str| format!("layers.{layer}.{op}");
        let x = |op: &str| self.values[&at(op)].as_slice();
        let (a, c, heads) = (self.arithmetic, self.config(), hybrid.heads);
        let (keys, channels) = (heads.keys(), heads.channels());
        let part = |from: usize, to: usize| -> Vec<f64> {
            let rows = x("conv_silu").chunks_exact(channels);
            rows.flat_map(|row| &row[from..to]).copied().collect()
        };
        match op {
            "q_norm" => self.norm(site, &halves(x("q_proj"), c.head_dim)[0]),
            "q_gate" => {
                let [_, gate] = halves(x("q_proj"), c.head_dim);
                Out { values: gate, magnitude: None }
            }
            "gate_sigmoid" => a.sigmoid(x("q_gate")),
            "mix_gated" => a.mul(x("mix"), x("gate_sigmoid")),
            "o_proj" => self.linear(site, x("mix_gated"), c.heads * c.head_dim),
            "conv" => {
                let weight = self.weight(site);
                let kernel = hybrid.kernel;
                a.conv(&Conv { x: x("in_proj_qkv"), history: &[], weight: &weight, kernel })
            }
            "conv_silu" => a.silu(x("conv")),
            "beta" => a.sigmoid(x("in_proj_b")),
            "g" => {
                let (log, bias) = (self.parameter(&at("A_log")), self.weight(&at("dt_bias")));
                a.decay(&Decay { a: x("in_proj_a"), log: &log, bias: &bias })
            }
            "q_l2" => a.l2_norm(&part(0, keys), heads.key_dim),
            "k_l2" => a.l2_norm(&part(keys, 2 * keys), heads.key_dim),
            "core" => {
                let (v, state) = (part(2 * keys, channels), vec![0.0; heads.state()]);
                let (q, k, beta, g) = (x("q_l2"), x("k_l2"), x("beta"), x("g"));
                let (v, state) = (v.as_slice(), state.as_slice());
                a.delta_rule(&DeltaRule { q, k, v, beta, g, heads, state }).core
            }
            "gdn_norm" => {
                let weight = self.parameter(site);
                let (x, gate, eps) = (x("core"), x("in_proj_z"), c.eps);
                a.gated_norm(&GatedNorm { x, gate, weight: &weight, eps })
            }
            "out_proj" => self.linear(site, x("gdn_norm"), heads.values()),
            _ if hybrid.linear[layer] => {
                let stream = match layer {
                    0 => self.values["embed_tokens"].as_slice(),
                    _ => self.values[&format!("layers.{}.mlp_residual", layer - 1)].as_slice(),
                };
                a.add(stream, x("out_proj"))
            }
            _ => unreachable!("{site} is an op of every family"),
        }
    }

    /// The result of the op that writes `site`.
    pub fn site(&self, site: &str) -> Out {
        let (c, rows) = (self.config(), self.rows());
        let Some((layer, op)) = split(site) else { return self.outside(site) };
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        let stream = || match layer {
            0 => self.values["embed_tokens"].as_slice(),
            _ => self.values[&format!("layers.{}.mlp_residual", layer - 1)].as_slice(),
        };
        let dims = || Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let (first, true_rows, keys) = (self.first(), rows, self.keys());
        if let Some(hybrid) = &c.hybrid {
            let own = ["q_norm", "q_gate", "gate_sigmoid", "mix_gated", "o_proj"];
            let net = ["conv", "conv_silu", "beta", "g", "q_l2", "k_l2", "core", "gdn_norm"];
            let out = ["out_proj", "attn_residual"].contains(&op) && hybrid.linear[layer];
            if out || net.contains(&op) || own.contains(&op) {
                return self.of_hybrid(hybrid, site);
            }
        }
        let copy = |op: &str| Out { values: x(op).to_vec(), magnitude: None };
        match op {
            "input_layernorm" => self.norm(site, stream()),
            "q_proj" | "k_proj" | "v_proj" | "in_proj_qkv" | "in_proj_z" | "in_proj_b"
            | "in_proj_a" => self.linear(site, x("input_layernorm"), c.hidden),
            "q_norm" => self.norm(site, x("q_proj")),
            "k_norm" => self.norm(site, x("k_proj")),
            "q_rope" => self.rope(x("q_norm"), c.heads),
            "k_rope" => self.rope(x("k_norm"), c.kv_heads),
            "k_cache" => copy("k_rope"),
            "v_cache" => copy("v_proj"),
            "scores" => {
                let (q, k) = (x("q_rope"), self.cached(&self.past.keys, layer, x("k_cache")));
                self.arithmetic.scores(&Scores { q, k: &k, dims: dims(), first, true_rows })
            }
            "probs" => self.arithmetic.softmax(&Softmax { scores: x("scores"), rows, keys, first }),
            "mix" => {
                let (probs, v) = (x("probs"), self.cached(&self.past.values, layer, x("v_cache")));
                self.arithmetic.mix(&Mix { probs, v: &v, dims: dims(), first, true_rows })
            }
            "o_proj" => self.linear(site, x("mix"), c.heads * c.head_dim),
            "attn_residual" => self.arithmetic.add(stream(), x("o_proj")),
            "post_attention_layernorm" => self.norm(site, x("attn_residual")),
            "gate_proj" | "up_proj" => self.linear(site, x("post_attention_layernorm"), c.hidden),
            "silu" => self.arithmetic.silu(x("gate_proj")),
            "mul" => self.arithmetic.mul(x("silu"), x("up_proj")),
            "down_proj" => self.linear(site, x("mul"), c.intermediate),
            _ => self.arithmetic.add(x("attn_residual"), x("down_proj")),
        }
    }

    fn outside(&self, site: &str) -> Out {
        let (c, x) = (self.config(), |site: &str| self.values[site].as_slice());
        match site {
            "embed_tokens" => {
                let table = self.model.weight(site).expect("every model has an embedding");
                self.arithmetic.embed(table, self.ids)
            }
            "norm" => self.norm(site, x(&format!("layers.{}.mlp_residual", c.layers - 1))),
            _ => {
                // Where only some rows have logits, they stand under this name.
                let kept = self.values.get(KEPT).unwrap_or(&self.values["norm"]);
                self.linear(site, kept, c.hidden)
            }
        }
    }
}

/// Of each pair of runs of `n` values, the first and the second.
fn halves(x: &[f64], n: usize) -> [Vec<f64>; 2] {
    [0, n].map(|at| x.chunks_exact(2 * n).flat_map(|x| &x[at..at + n]).copied().collect())
}

/// Sizes of results whose error is that of an exponential's argument.
fn by_argument(y: &[f64], x: &[f64]) -> Vec<f64> {
    y.iter().zip(x).map(|(y, x)| y.abs() * (1.0 + x.abs())).collect()
}

//! Teacher forcing: the result of every op on the very inputs that the engine gave it.
//!
//! Absent: statistics and limits. The invariant: weights, epsilon, scale, base and positions are
//! the reference's own reading of the checkpoint, never the engine's.

use std::collections::BTreeMap;

use samebits_oracle::ops::{Heads, Linear, Mix, Out, RmsNorm, Rope, Scores, Softmax, Tables};
use samebits_oracle::{Arithmetic, Config, Model};

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
        self.arithmetic.rms_norm(&RmsNorm { x, weight: &weight, eps })
    }

    fn linear(&self, site: &str, x: &[f64], k: usize) -> Out {
        let (weight, true_rows) = (self.weight(site), self.rows());
        self.arithmetic.linear(&Linear { x, weight: &weight, k, true_rows })
    }

    fn rope(&self, x: &[f64], heads: usize) -> Out {
        let (tables, head_dim) = (self.tables, self.config().head_dim);
        self.arithmetic.rope(&Rope { x, tables, heads, head_dim, first: self.first() })
    }

    /// Sizes of an op's terms where the exact op does not give them: the result times what an
    /// error of its argument does to an exponential, or the two terms of a rotation.
    pub fn terms(&self, site: &str, y: &[f64]) -> Option<Vec<f64>> {
        let (layer, op) = split(site)?;
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        match op {
            "q_rope" | "k_rope" => Some(self.rope_terms(site)),
            "silu" => {
                Some(y.iter().zip(x("gate_proj")).map(|(y, x)| y.abs() * (1.0 + x.abs())).collect())
            }
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
        let (dim, half) = (c.head_dim, c.head_dim / 2);
        let heads = x.len() / self.rows() / dim;
        let size = |i: usize| {
            let (row, at) = (i / (heads * dim), i % dim);
            let entry = (self.first() + row) * half + at % half;
            let other = i - at + (at + half) % dim;
            let (cos, sin) = (self.tables.cos[entry], self.tables.sin[entry]);
            (x[i] * cos).abs() + (x[other] * sin).abs()
        };
        (0..x.len()).map(size).collect()
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
        let copy = |op: &str| Out { values: x(op).to_vec(), magnitude: None };
        match op {
            "input_layernorm" => self.norm(site, stream()),
            "q_proj" | "k_proj" | "v_proj" => self.linear(site, x("input_layernorm"), c.hidden),
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

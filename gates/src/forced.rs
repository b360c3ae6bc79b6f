//! Teacher forcing: the exact result of every op on the very inputs that a run gave it.
//!
//! Absent: what an op may differ from it by, which the law has. The invariant: weights, epsilon,
//! scale, base and positions are the reference's own reading of the checkpoint, never the engine's.

use std::borrow::Cow;
use std::collections::BTreeMap;

use samebits_oracle::ops::{
    Conv, Decay, DeltaRule, Heads, Linear, Mix, Out, Scores, Softmax, Tables,
};
use samebits_oracle::{Arithmetic, Config, Hybrid, Ideal, Model, Rounded};

use crate::law::{delta, family};
use crate::sites::split;

/// A run's values, and what turns them into an op's exact result.
pub struct Forced<'a> {
    /// What rounds to the run's dtype: weights, and ops with one right answer.
    pub rounded: Rounded,
    /// Weights and config.
    pub model: &'a Model,
    /// What the run wrote, by site.
    pub values: &'a BTreeMap<String, Vec<f64>>,
    /// Ids of the rows.
    pub ids: &'a [u32],
    /// Rotary tables of all positions, in f32.
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

/// A rotated element: `x cos + turned sin`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The element itself.
    pub x: f64,
    /// Its table entry.
    pub cos: f64,
    /// The other of its pair, with its sign.
    pub turned: f64,
    /// The other's table entry.
    pub sin: f64,
    /// Whether it lies beyond the rotated width.
    pub passes: bool,
}

impl Forced<'_> {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn hybrid(&self) -> Option<&Hybrid> {
        self.config().hybrid.as_ref()
    }

    fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Keys at the end of the run.
    pub fn keys(&self) -> usize {
        self.past.len + self.rows()
    }

    fn dims(&self) -> Heads {
        let c = self.config();
        Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim }
    }

    /// The cache's rows from position 0 on.
    fn cached(&self, past: &[Vec<f64>], layer: usize, new: &[f64]) -> Vec<f64> {
        let mut all = past.get(layer).cloned().unwrap_or_default();
        all.extend_from_slice(new);
        all
    }

    /// A weight in the run's dtype.
    fn weight(&self, site: &str) -> Vec<f64> {
        self.parameter(site).into_iter().map(|v| self.rounded.round(v)).collect()
    }

    /// A weight that the default order keeps as the file has it.
    fn parameter(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("the reference has a weight for every op");
        weight.values(0..weight.count())
    }

    /// The residual stream before a layer.
    fn stream(&self, layer: usize) -> &[f64] {
        match layer {
            0 => &self.values["embed_tokens"],
            _ => &self.values[&format!("layers.{}.mlp_residual", layer - 1)],
        }
    }

    /// What another op of a site's layer wrote.
    fn beside(&self, site: &str, op: &str) -> &[f64] {
        let (layer, _) = split(site).expect("ops with neighbours are in layers");
        &self.values[&format!("layers.{layer}.{op}")]
    }

    /// Columns of every row of a convolution's output.
    fn part(&self, site: &str, columns: std::ops::Range<usize>) -> Vec<f64> {
        let channels = self.hybrid().map_or(1, |h| h.heads.channels());
        let rows = self.beside(site, "conv_silu").chunks_exact(channels);
        rows.flat_map(|row| &row[columns.clone()]).copied().collect()
    }

    /// What an op with one input reads.
    pub fn input(&self, site: &str) -> Cow<'_, [f64]> {
        let Some((layer, op)) = split(site) else {
            let last = self.config().layers;
            return Cow::Borrowed(match (site, self.values.get(KEPT)) {
                ("norm", _) => self.stream(last),
                // Where only some rows have logits, they stand under this name.
                (_, Some(kept)) => kept,
                _ => &self.values["norm"],
            });
        };
        let keys = self.hybrid().map_or(0, |h| h.heads.keys());
        let from = match op {
            "input_layernorm" => return Cow::Borrowed(self.stream(layer)),
            "q_norm" | "q_gate" if self.hybrid().is_some() => {
                let [query, gate] = halves(self.beside(site, "q_proj"), self.config().head_dim);
                return Cow::Owned(if op == "q_norm" { query } else { gate });
            }
            "q_l2" => return Cow::Owned(self.part(site, 0..keys)),
            "k_l2" => return Cow::Owned(self.part(site, keys..2 * keys)),
            "q_norm" => "q_proj",
            "k_norm" => "k_proj",
            "q_rope" => "q_norm",
            "k_rope" | "k_cache" => {
                if op == "k_rope" {
                    "k_norm"
                } else {
                    "k_rope"
                }
            }
            "v_cache" => "v_proj",
            "probs" => "scores",
            "o_proj" if self.hybrid().is_some() => "mix_gated",
            "o_proj" => "mix",
            "conv" => "in_proj_qkv",
            "conv_silu" => "conv",
            "gate_sigmoid" => "q_gate",
            "beta" => "in_proj_b",
            "g" => "in_proj_a",
            "gdn_norm" => "core",
            "out_proj" => "gdn_norm",
            "post_attention_layernorm" => "attn_residual",
            "gate_proj" | "up_proj" => "post_attention_layernorm",
            "silu" => "gate_proj",
            "down_proj" => "mul",
            _ => "input_layernorm",
        };
        Cow::Borrowed(self.beside(site, from))
    }

    /// The argument of an activation's exponential: a decay's has a bias.
    pub fn argument(&self, site: &str) -> Vec<f64> {
        let x = self.input(site);
        let Some((layer, "g")) = split(site) else { return x.into_owned() };
        let bias = self.weight(&format!("layers.{layer}.dt_bias"));
        x.iter().enumerate().map(|(i, a)| a + bias[i % bias.len()]).collect()
    }

    /// Terms of each sum of a linear.
    pub fn terms_of_row(&self, site: &str) -> usize {
        self.model.weight(site).map_or(0, |weight| weight.shape[1])
    }

    /// The exact sums or functions of a site, before any rounding.
    pub fn site(&self, site: &str) -> Out {
        let (rows, first, keys) = (self.rows(), self.past.len, self.keys());
        let op = split(site).map_or(site, |(_, op)| op);
        let layer = split(site).map_or(0, |(layer, _)| layer);
        match family(op) {
            "conv" => {
                let (x, weight) = (self.input(site), self.weight(site));
                let kernel = self.hybrid().map_or(1, |h| h.kernel);
                Ideal.conv(&Conv { x: &x, history: &[], weight: &weight, kernel })
            }
            "scores" => {
                let q = self.beside(site, "q_rope");
                let k = self.cached(&self.past.keys, layer, self.beside(site, "k_cache"));
                Ideal.scores(&Scores { q, k: &k, dims: self.dims(), first, true_rows: rows })
            }
            "probs" => {
                let scores = self.beside(site, "scores");
                Ideal.softmax(&Softmax { scores, rows, keys, first })
            }
            "mix" => {
                let probs = self.beside(site, "probs");
                let v = self.cached(&self.past.values, layer, self.beside(site, "v_cache"));
                Ideal.mix(&Mix { probs, v: &v, dims: self.dims(), first, true_rows: rows })
            }
            "silu" => Ideal.silu(&self.input(site)),
            "sigmoid" => Ideal.sigmoid(&self.input(site)),
            "decay" => {
                let own = |name: &str| format!("layers.{layer}.{name}");
                let (log, bias) = (self.parameter(&own("A_log")), self.weight(&own("dt_bias")));
                Ideal.decay(&Decay { a: &self.input(site), log: &log, bias: &bias })
            }
            _ => {
                let (x, weight, k) = (self.input(site), self.weight(site), self.terms_of_row(site));
                Ideal.linear(&Linear { x: &x, weight: &weight, k, true_rows: rows })
            }
        }
    }

    /// The one right answer of an op that has one.
    pub fn rounded_site(&self, site: &str) -> Vec<f64> {
        let Some((layer, op)) = split(site) else {
            let table = self.model.weight(site).expect("every model has an embedding");
            return self.rounded.embed(table, self.ids).values;
        };
        let x = |op: &str| self.beside(site, op);
        match op {
            "mul" => self.rounded.mul(x("silu"), x("up_proj")).values,
            "mix_gated" => self.rounded.mul(x("mix"), x("gate_sigmoid")).values,
            "attn_residual" => {
                let linear = self.hybrid().is_some_and(|h| h.linear[layer]);
                let from = if linear { "out_proj" } else { "o_proj" };
                self.rounded.add(self.stream(layer), x(from)).values
            }
            "mlp_residual" => self.rounded.add(x("attn_residual"), x("down_proj")).values,
            _ => self.input(site).into_owned(),
        }
    }

    /// The operands of a sum: those of element `i` of a linear, a convolution or a mix.
    pub fn terms(&self, site: &str, i: usize) -> Vec<(f32, f32)> {
        let narrow = |(x, w): (&f64, &f64)| (*x as f32, *w as f32);
        let (layer, op) = split(site).unwrap_or((0, site));
        if family(op) == "mix" {
            let (dims, keys) = (self.dims(), self.keys());
            let (row, head, c) =
                (i / dims.head_dim / dims.heads, i / dims.head_dim % dims.heads, i % dims.head_dim);
            let v = self.cached(&self.past.values, layer, self.beside(site, "v_cache"));
            let kv = head / (dims.heads / dims.kv_heads) * dims.head_dim + c;
            let column = v.iter().skip(kv).step_by(dims.kv_heads * dims.head_dim);
            let probs = &self.beside(site, "probs")[(head * self.rows() + row) * keys..][..keys];
            return probs.iter().zip(column).take(self.past.len + row + 1).map(narrow).collect();
        }
        let weight = self.model.weight(site).expect("the reference has a weight for every op");
        let (x, k) = (self.input(site), weight.count() / weight.shape[0]);
        let n = weight.shape[0];
        let own: Vec<f64> = weight
            .values(i % n * k..(i % n + 1) * k)
            .iter()
            .map(|w| self.rounded.round(*w))
            .collect();
        if family(op) == "conv" {
            let source = |tap: usize| (i / n + tap + 1).checked_sub(k);
            let x = |tap: usize| source(tap).map_or(0.0, |row| x[row * n + i % n]);
            return (0..k).map(|tap| (x(tap) as f32, own[tap] as f32)).collect();
        }
        x[i / n * k..][..k].iter().zip(&own).map(narrow).collect()
    }

    /// Weight, epsilon and width of a norm.
    pub fn norm_of(&self, site: &str) -> (Vec<f64>, f64, usize) {
        const UNDER_ROOT: f64 = 1e-6; // Of unit vectors, whatever the config says.
        let op = split(site).map_or(site, |(_, op)| op);
        match family(op) {
            "l2_norm" => (Vec::new(), UNDER_ROOT, self.hybrid().map_or(1, |h| h.heads.key_dim)),
            kind => {
                let gated = kind == "gated_norm";
                let weight = if gated { self.parameter(site) } else { self.weight(site) };
                let n = weight.len();
                (weight, self.config().eps, n)
            }
        }
    }

    /// The gate of a gated norm.
    pub fn gate_of(&self, site: &str) -> Vec<f64> {
        self.beside(site, "in_proj_z").to_vec()
    }

    /// Outputs of a delta rule and the rms of what f32 adds to them at `c` a rounding.
    pub fn delta(&self, site: &str, c: f64) -> Option<(Vec<f64>, Vec<f64>)> {
        let heads = self.hybrid()?.heads;
        let (v, state) = (self.part(site, 2 * heads.keys()..heads.channels()), heads.state());
        let x = |op: &str| self.beside(site, op);
        let state = vec![0.0; state];
        let (q, k, beta, g) = (x("q_l2"), x("k_l2"), x("beta"), x("g"));
        Some(delta::outputs(&DeltaRule { q, k, v: &v, beta, g, heads, state: &state }, c))
    }

    /// The pairs of a rotation.
    pub fn rope_pairs(&self, site: &str) -> Vec<Pair> {
        let c = self.config();
        let x = self.input(site);
        let (dim, width, half) = (c.head_dim, c.rotary_dim, c.rotary_dim / 2);
        let heads = x.len() / self.rows() / dim;
        let pair = |i: usize| {
            let (row, at) = (i / (heads * dim), i % dim);
            if at >= width {
                return Pair { x: x[i], cos: 1.0, turned: 0.0, sin: 0.0, passes: true };
            }
            let entry = (self.past.len + row) * half + at % half;
            let other = x[i - at + (at + half) % width];
            let turned = if at < half { -other } else { other };
            let (cos, sin) = (self.tables.cos[entry], self.tables.sin[entry]);
            Pair { x: x[i], cos, turned, sin, passes: false }
        };
        (0..x.len()).map(pair).collect()
    }
}

/// Of each pair of runs of `n` values, the first and the second.
fn halves(x: &[f64], n: usize) -> [Vec<f64>; 2] {
    [0, n].map(|at| x.chunks_exact(2 * n).flat_map(|x| &x[at..at + n]).copied().collect())
}

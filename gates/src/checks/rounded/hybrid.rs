//! Ops of a hybrid on the engine's own inputs: what differs from a dense model, and no more.
//!
//! The invariant: weights, epsilon and positions are the reference's own reading of the checkpoint.

use samebits_oracle::ops::{
    Conv, Decay, DeltaRule, GatedNorm, Linear, Out, PartialRope, RmsNorm, Rope,
};
use samebits_oracle::{Arithmetic, Config, Hybrid, Ideal};

use crate::forced::Forced;
use crate::sites::{op_of, split};

/// A hybrid's run, as [`Forced`] holds it.
pub struct ForcedHybrid<'a>(pub &'a Forced<'a>);

impl ForcedHybrid<'_> {
    fn config(&self) -> &Config {
        self.0.model.config()
    }

    fn hybrid(&self) -> &Hybrid {
        self.config().hybrid.as_ref().expect("the run is a hybrid's")
    }

    fn arithmetic(&self) -> &dyn Arithmetic {
        self.0.arithmetic
    }

    fn values(&self, layer: usize, op: &str) -> &[f64] {
        &self.0.values[&format!("layers.{layer}.{op}")]
    }

    /// What enters a layer.
    fn stream(&self, layer: usize) -> &[f64] {
        match layer {
            0 => &self.0.values["embed_tokens"],
            _ => self.values(layer - 1, "mlp_residual"),
        }
    }

    fn weight(&self, site: &str, cast: impl Fn(f64) -> f64) -> Vec<f64> {
        let weight = self.0.model.weight(site).expect("the reference has a weight for every op");
        weight.values(0..weight.count()).into_iter().map(cast).collect()
    }

    fn norm(&self, site: &str, x: &[f64]) -> Out {
        let weight = self.weight(site, |w| self.arithmetic().round(w));
        self.arithmetic().centred_norm(&RmsNorm { x, weight: &weight, eps: self.config().eps })
    }

    fn linear(&self, site: &str, x: &[f64]) -> Out {
        let weight = self.weight(site, |w| self.arithmetic().round(w));
        let true_rows = self.0.ids.len();
        let k = x.len() / true_rows;
        self.arithmetic().linear(&Linear { x, weight: &weight, k, true_rows })
    }

    fn rope(&self, x: &[f64], heads: usize) -> Out {
        let (tables, head_dim) = (self.0.tables, self.config().head_dim);
        let rope = Rope { x, tables, heads, head_dim, first: 0 };
        self.arithmetic().partial_rope(&PartialRope { rope, width: self.config().rotary_dim })
    }

    /// Each head's query or gate.
    fn half(&self, layer: usize, at: usize) -> Vec<f64> {
        let dim = self.config().head_dim;
        let heads = self.values(layer, "q_proj").chunks_exact(2 * dim);
        heads.flat_map(|head| head[at * dim..(at + 1) * dim].to_vec()).collect()
    }

    /// A part of each row of the activated convolution.
    fn channels(&self, layer: usize, range: std::ops::Range<usize>) -> Vec<f64> {
        let rows = self.values(layer, "conv_silu").chunks_exact(self.hybrid().heads.channels());
        rows.flat_map(|row| row[range.clone()].to_vec()).collect()
    }

    /// Sizes of an op's terms where the exact op does not give them: see [`Forced::terms`].
    pub fn terms(&self, site: &str, y: &[f64]) -> Option<Vec<f64>> {
        let (layer, op) = split(site)?;
        // An error of the argument moves an exponential by as much, relative to the result.
        let moved = |from: &str| {
            let x = self.values(layer, from);
            Some(y.iter().zip(x).map(|(y, x)| y.abs() * (1.0 + x.abs())).collect())
        };
        match op {
            "q_rope" | "k_rope" => Some(self.rope_terms(site)),
            "gate_sigmoid" => moved("q_gate"),
            "beta" => moved("in_proj_b"),
            "g" => moved("in_proj_a"),
            "conv_silu" => moved("conv"),
            "gdn_norm" => moved("in_proj_z"),
            "conv" => {
                let size = |values: &[f64]| values.iter().map(|v| v.abs()).collect::<Vec<f64>>();
                let weight = size(&self.weight(site, |w| w));
                let x = &size(self.values(layer, "in_proj_qkv"));
                let kernel = self.hybrid().kernel;
                Some(Ideal.conv(&Conv { x, history: &[], weight: &weight, kernel }).values)
            }
            "core" => Some(self.core_terms(layer)),
            _ => self.0.terms(site, y),
        }
    }

    /// What a rule reads is a sum over a column of its state, which is as exact as its largest
    /// element: sizes of the query times that.
    fn core_terms(&self, layer: usize) -> Vec<f64> {
        let h = self.hybrid().heads;
        let (channels, keys) = (h.channels(), h.keys());
        let x = |op: &str| self.values(layer, op);
        let v = self.channels(layer, 2 * keys..channels);
        let (mut state, mut sizes) = (vec![0.0; h.state()], Vec::new());
        for row in 0..self.0.ids.len() {
            let part = |values: &[f64], width: usize| values[row * width..][..width].to_vec();
            let (q, k) = (part(x("q_l2"), keys), part(x("k_l2"), keys));
            let (g, beta) = (part(x("g"), h.value_heads), part(x("beta"), h.value_heads));
            let (q, k, v, g, beta) = (&q, &k, &part(&v, h.values()), &g, &beta);
            let rule = DeltaRule { q, k, v, g, beta, heads: h, state: &state };
            state = Ideal.delta_rule(&rule).state;
            for (head, s) in state.chunks_exact(h.key_dim * h.value_dim).enumerate() {
                let at = head / (h.value_heads / h.key_heads) * h.key_dim;
                let query: f64 = q[at..at + h.key_dim].iter().map(|q| q.abs()).sum();
                let scaled = query / (h.key_dim as f64).sqrt();
                let column = |j: usize| s.iter().skip(j).step_by(h.value_dim);
                let largest = |j| column(j).fold(0.0, |m: f64, s| m.max(s.abs()));
                sizes.extend((0..h.value_dim).map(|j| scaled * largest(j)));
            }
        }
        sizes
    }

    /// Sizes of the two terms of each rotated element, added up; others pass.
    fn rope_terms(&self, site: &str) -> Vec<f64> {
        let c = self.config();
        let x = &self.0.values[&site.replace("_rope", "_norm")];
        let (dim, half) = (c.head_dim, c.rotary_dim / 2);
        let heads = x.len() / self.0.ids.len() / dim;
        let size = |i: usize| {
            let (row, at) = (i / (heads * dim), i % dim);
            if at >= 2 * half {
                return x[i].abs();
            }
            let entry = row * half + at % half;
            let other = i - at + (at + half) % (2 * half);
            let (cos, sin) = (self.0.tables.cos[entry], self.0.tables.sin[entry]);
            (x[i] * cos).abs() + (x[other] * sin).abs()
        };
        (0..x.len()).map(size).collect()
    }

    /// The result of the op that writes `site`.
    pub fn site(&self, site: &str) -> Out {
        let Some((layer, op)) = split(site) else {
            return match site {
                "norm" => self.norm(site, self.values(self.config().layers - 1, "mlp_residual")),
                _ => self.0.site(site),
            };
        };
        let (a, c, x) = (self.arithmetic(), self.config(), |op: &str| self.values(layer, op));
        let copy = |values: Vec<f64>| Out { values, magnitude: None };
        match op {
            "input_layernorm" => self.norm(site, self.stream(layer)),
            "post_attention_layernorm" => self.norm(site, x("attn_residual")),
            "q_gate" => copy(self.half(layer, 1)),
            "q_norm" => self.norm(site, &self.half(layer, 0)),
            "k_norm" => self.norm(site, x("k_proj")),
            "q_rope" => self.rope(x("q_norm"), c.heads),
            "k_rope" => self.rope(x("k_norm"), c.kv_heads),
            "gate_sigmoid" => a.sigmoid(x("q_gate")),
            "mix_gated" => a.mul(x("mix"), x("gate_sigmoid")),
            "o_proj" => self.linear(site, x("mix_gated")),
            "attn_residual" if self.hybrid().linear[layer] => {
                a.add(self.stream(layer), x("out_proj"))
            }
            _ if self.hybrid().linear[layer] => self.delta_net(site, layer),
            _ => self.0.site(site),
        }
    }

    fn delta_net(&self, site: &str, layer: usize) -> Out {
        let (a, h, x) = (self.arithmetic(), self.hybrid(), |op: &str| self.values(layer, op));
        let at = |op: &str| format!("layers.{layer}.{op}");
        let (keys, channels) = (h.heads.keys(), h.heads.channels());
        // The default order keeps these as the file has them.
        let kept = |op: &str| self.weight(&at(op), |w| w);
        match op_of(site) {
            "in_proj_qkv" | "in_proj_z" | "in_proj_b" | "in_proj_a" => {
                self.linear(site, x("input_layernorm"))
            }
            "conv" => {
                let weight = self.weight(site, |w| a.round(w));
                let (x, history, kernel) = (x("in_proj_qkv"), &[][..], h.kernel);
                a.conv(&Conv { x, history, weight: &weight, kernel })
            }
            "conv_silu" => a.silu(x("conv")),
            "beta" => a.sigmoid(x("in_proj_b")),
            "g" => {
                let (log, bias) = (kept("A_log"), self.weight(&at("dt_bias"), |w| a.round(w)));
                a.decay(&Decay { a: x("in_proj_a"), log: &log, bias: &bias })
            }
            "q_l2" => a.l2_norm(&self.channels(layer, 0..keys), h.heads.key_dim),
            "k_l2" => a.l2_norm(&self.channels(layer, keys..2 * keys), h.heads.key_dim),
            "core" => {
                let (q, k, beta, g) = (x("q_l2"), x("k_l2"), x("beta"), x("g"));
                let (v, heads) = (self.channels(layer, 2 * keys..channels), h.heads);
                let state = vec![0.0; heads.state()];
                a.delta_rule(&DeltaRule { q, k, v: &v, beta, g, heads, state: &state }).core
            }
            "gdn_norm" => {
                let (weight, eps) = (kept("gdn_norm"), self.config().eps);
                let (x, gate) = (x("core"), x("in_proj_z"));
                a.gated_norm(&GatedNorm { x, gate, weight: &weight, eps })
            }
            "out_proj" => self.linear(site, x("gdn_norm")),
            _ => self.0.site(site),
        }
    }
}

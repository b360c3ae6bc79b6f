//! The whole model, a line for each line of the paper, in any arithmetic.
//!
//! Deliberately absent: how a sequence is cut into forwards. Invariant: the same lines serve
//! prefill, continuation and cached steps.

use crate::arithmetic::Arithmetic;
use crate::config::{Config, Hybrid};
use crate::dtype::Array;
use crate::model::Model;
use crate::ops::{
    Batch, Conv, Decay, DeltaRule, GatedNorm, Heads, Linear, Mix, Out, Part, PartialRope, RmsNorm,
    Rope, Scores, Softmax, Tables,
};
use crate::trace::{Recorder, State, Trace};

/// Output rows of a weight that are widened to f64 at a time.
const WEIGHT_ROWS: usize = 8192;

/// What a layer carries from one forward to the next.
#[derive(Clone, Default)]
struct Cache {
    k: Vec<f64>,      // [keys, kv_heads, head_dim]
    v: Vec<f64>,      // [keys, kv_heads, head_dim]
    inputs: Vec<f64>, // [tokens, channels], before the convolution
    state: Vec<f64>,  // [value_heads, key_dim, value_dim]
}

/// A run in progress.
pub(crate) struct Run<'a> {
    model: &'a Model,
    c: &'a Config,
    arith: &'a dyn Arithmetic,
    batch: Batch,
    cache: Vec<Cache>, // by layer
    pub tables: Tables,
    pub recorder: Recorder<'a>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        model: &'a Model,
        arith: &'a dyn Arithmetic,
        batch: Batch,
        tables: Tables,
        recorder: Recorder<'a>,
    ) -> Self {
        let c = model.config();
        let state = c.hybrid.as_ref().map_or(0, |hybrid| hybrid.heads.state());
        let fresh = Cache { state: vec![0.0; state], ..Cache::default() };
        Self { model, c, arith, batch, cache: vec![fresh; c.layers], tables, recorder }
    }

    /// One forward of `ids` at positions `first..`, with logits for those `rows` of the sequence
    /// that are in it.
    pub(crate) fn forward(&mut self, ids: &[u32], first: usize, rows: &[usize]) {
        let (c, a, n) = (self.c, self.arith, ids.len());
        let hidden = [n, c.hidden];
        self.recorder.first = first;
        let embed = self.model.weight("embed_tokens").expect("a loaded model has every tensor");
        let mut x = self.put("embed_tokens", &hidden, a.embed(embed, ids));
        for layer in 0..c.layers {
            let at = |op: &str| format!("layers.{layer}.{op}");
            let h = self.norm(&at("input_layernorm"), &hidden, &x);
            let o = match &c.hybrid {
                Some(hybrid) if hybrid.linear[layer] => self.delta_net(hybrid, layer, n, &h),
                _ => self.attention(layer, n, &h),
            };
            x = self.put(&at("attn_residual"), &hidden, a.add(&x, &o));
            let h = self.norm(&at("post_attention_layernorm"), &hidden, &x);
            let down = self.mlp(layer, n, &h);
            x = self.put(&at("mlp_residual"), &hidden, a.add(&x, &down));
        }
        let h = self.norm("norm", &hidden, &x);
        let wanted = rows.iter().filter_map(|r| r.checked_sub(first)).filter(|r| *r < n);
        let wanted: Vec<usize> = wanted.collect();
        let h: Vec<f64> =
            wanted.iter().flat_map(|r| &h[r * c.hidden..][..c.hidden]).copied().collect();
        let logits = self.product("lm_head", n, &wanted, &h);
        self.put("lm_head", &[wanted.len(), c.vocab], logits);
    }

    fn attention(&mut self, layer: usize, n: usize, h: &[f64]) -> Vec<f64> {
        let (c, a, first) = (self.c, self.arith, self.recorder.first);
        let at = |op: &str| format!("layers.{layer}.{op}");
        let dims = Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let (query, key) = ([n, c.heads, c.head_dim], [n, c.kv_heads, c.head_dim]);
        let flat = [n, c.heads * c.head_dim];
        let q = self.linear(&at("q_proj"), n, h);
        let (q, gate) = match c.hybrid {
            Some(_) => halves(&q, c.head_dim),
            None => (q, Vec::new()),
        };
        let k = self.linear(&at("k_proj"), n, h);
        let v = self.linear(&at("v_proj"), n, h);
        let q = self.norm(&at("q_norm"), &query, &q);
        let k = self.norm(&at("k_norm"), &key, &k);
        let q = self.rope(&at("q_rope"), &query, &q);
        let k = self.rope(&at("k_rope"), &key, &k);
        let k = self.put(&at("k_cache"), &key, plain(k));
        let v = self.put(&at("v_cache"), &key, plain(v));
        self.cache[layer].k.extend(k);
        self.cache[layer].v.extend(v);
        let (Cache { k, v, .. }, keys) = (&self.cache[layer], first + n);
        let s = a.scores_in(&Scores { q: &q, k, dims, first, true_rows: n }, self.batch);
        let p = a.softmax(&Softmax { scores: &s.values, rows: n, keys, first });
        let mix = a.mix_in(&Mix { probs: &p.values, v, dims, first, true_rows: n }, self.batch);
        let square = [c.heads, n, keys];
        self.recorder.put_square(&at("scores"), square, &s, a.masked());
        self.recorder.put_square(&at("probs"), square, &p, 0.0);
        let mut mix = self.put(&at("mix"), &flat, mix);
        if c.hybrid.is_some() {
            let gate = self.put(&at("q_gate"), &flat, plain(gate));
            let gate = self.put(&at("gate_sigmoid"), &flat, a.sigmoid(&gate));
            mix = self.put(&at("mix_gated"), &flat, a.mul(&mix, &gate));
        }
        self.linear(&at("o_proj"), n, &mix)
    }

    fn delta_net(&mut self, hybrid: &Hybrid, layer: usize, n: usize, h: &[f64]) -> Vec<f64> {
        let (a, heads, kernel) = (self.arith, hybrid.heads, hybrid.kernel);
        let at = |op: &str| format!("layers.{layer}.{op}");
        let (keys, channels) = (heads.keys(), heads.channels());
        let (each, wide) = ([n, heads.value_heads], [n, channels]);
        let key = [n, heads.key_heads, heads.key_dim];
        let value = [n, heads.value_heads, heads.value_dim];
        let x = self.linear(&at("in_proj_qkv"), n, h);
        let z = self.shaped(&at("in_proj_z"), &value, h);
        let beta = self.linear(&at("in_proj_b"), n, h);
        let rate = self.linear(&at("in_proj_a"), n, h);
        let (weight, history) = (self.weight(&at("conv")), &self.cache[layer].inputs);
        let y = a.conv(&Conv { x: &x, history, weight: &weight, kernel });
        self.cache[layer].inputs.extend(x);
        let y = self.put(&at("conv"), &wide, y);
        let y = self.put(&at("conv_silu"), &wide, a.silu(&y));
        let part = |from: usize, to: usize| -> Vec<f64> {
            y.chunks_exact(channels).flat_map(|row| &row[from..to]).copied().collect()
        };
        let (q, k, v) = (part(0, keys), part(keys, 2 * keys), part(2 * keys, channels));
        let beta = self.put(&at("beta"), &each, a.sigmoid(&beta));
        let (log, bias) = (self.parameter(&at("A_log")), self.weight(&at("dt_bias")));
        let g = self.put(&at("g"), &each, a.decay(&Decay { a: &rate, log: &log, bias: &bias }));
        let q = self.put(&at("q_l2"), &key, a.l2_norm(&q, heads.key_dim));
        let k = self.put(&at("k_l2"), &key, a.l2_norm(&k, heads.key_dim));
        let state = &self.cache[layer].state;
        let (q, k, v, beta, g) = (&q, &k, &v, &beta, &g);
        let delta = a.delta_rule(&DeltaRule { q, k, v, beta, g, heads, state });
        self.cache[layer].state = delta.state;
        let core = self.put(&at("core"), &value, delta.core);
        let (weight, eps) = (self.parameter(&at("gdn_norm")), self.c.eps);
        let normed = a.gated_norm(&GatedNorm { x: &core, gate: &z, weight: &weight, eps });
        let normed = self.put(&at("gdn_norm"), &value, normed);
        self.linear(&at("out_proj"), n, &normed)
    }

    fn mlp(&mut self, layer: usize, n: usize, h: &[f64]) -> Vec<f64> {
        let (a, inner) = (self.arith, [n, self.c.intermediate]);
        let at = |op: &str| format!("layers.{layer}.{op}");
        let gate = self.linear(&at("gate_proj"), n, h);
        let up = self.linear(&at("up_proj"), n, h);
        let gate = self.put(&at("silu"), &inner, a.silu(&gate));
        let inside = self.put(&at("mul"), &inner, a.mul(&gate, &up));
        self.linear(&at("down_proj"), n, &inside)
    }

    fn norm(&mut self, site: &str, shape: &[usize], x: &[f64]) -> Vec<f64> {
        let weight = self.weight(site);
        let op = RmsNorm { x, weight: &weight, eps: self.c.eps };
        let centred = self.c.hybrid.is_some();
        let out = if centred { self.arith.centred_norm(&op) } else { self.arith.rms_norm(&op) };
        self.put(site, shape, out)
    }

    fn rope(&mut self, site: &str, shape: &[usize; 3], x: &[f64]) -> Vec<f64> {
        let (tables, [_, heads, head_dim]) = (&self.tables, *shape);
        let rope = Rope { x, tables, heads, head_dim, first: self.recorder.first };
        let out = self.arith.partial_rope(&PartialRope { rope, width: self.c.rotary_dim });
        self.put(site, shape, out)
    }

    /// The linear of a site on all rows of a forward of `new` tokens.
    fn linear(&mut self, site: &str, new: usize, x: &[f64]) -> Vec<f64> {
        let out = self.whole_product(site, new, x);
        let width = out.values.len() / new;
        self.put(site, &[new, width], out)
    }

    /// The linear of a site whose rows the trace shows as heads.
    fn shaped(&mut self, site: &str, shape: &[usize; 3], x: &[f64]) -> Vec<f64> {
        let out = self.whole_product(site, shape[0], x);
        self.put(site, shape, out)
    }

    fn whole_product(&self, site: &str, new: usize, x: &[f64]) -> Out {
        self.product(site, new, &(0..new).collect::<Vec<_>>(), x)
    }

    /// The linear of a site on those `tokens` of a forward of `new` that `x` holds.
    fn product(&self, site: &str, new: usize, tokens: &[usize], x: &[f64]) -> Out {
        let weight = self.model.weight(site).expect("a loaded model has every tensor");
        let (n, k) = (weight.shape[0], weight.shape[1]);
        let Batch { sequences, sequence } = self.batch;
        let rows: Vec<usize> = tokens.iter().map(|token| sequence * new + token).collect();
        let mut out = Out { values: vec![0.0; rows.len() * n], squares: None };
        for from in (0..n).step_by(WEIGHT_ROWS) {
            let to = n.min(from + WEIGHT_ROWS);
            let stored = weight.values(from * k..to * k);
            let cast: Vec<f64> = stored.into_iter().map(|x| self.arith.round(x)).collect();
            let op = Linear { x, weight: &cast, k, true_rows: sequences * new };
            let weight_start = weight.start();
            let part = Part { rows: &rows, first_column: from, columns: n, weight_start };
            let part = self.arith.linear_in(&op, &part);
            let columns = |whole: &mut [f64], part: &[f64]| {
                for (whole, part) in whole.chunks_mut(n).zip(part.chunks(to - from)) {
                    whole[from..to].copy_from_slice(part);
                }
            };
            columns(&mut out.values, &part.values);
            if let Some(part) = &part.squares {
                let whole = out.squares.get_or_insert_with(|| vec![0.0; rows.len() * n]);
                columns(whole, part);
            }
        }
        out
    }

    /// A weight, cast to the dtype of the run.
    fn weight(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("a loaded model has every tensor");
        weight.values(0..weight.count()).into_iter().map(|x| self.arith.round(x)).collect()
    }

    /// `A_log` or the weight of a gated norm, as the arithmetic casts it.
    fn parameter(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("a loaded model has every tensor");
        weight.values(0..weight.count()).into_iter().map(|x| self.arith.parameter(x)).collect()
    }

    fn put(&mut self, site: &str, shape: &[usize], out: Out) -> Vec<f64> {
        self.recorder.put(site, shape, out)
    }

    /// The trace, with what the layers carry at its end.
    pub(crate) fn finish(self) -> Trace {
        let mut trace = self.recorder.trace;
        let Some(hybrid) = &self.c.hybrid else { return trace };
        let (h, channels) = (hybrid.heads, hybrid.heads.channels());
        let linear = self.cache.into_iter().enumerate().filter(|(i, _)| hybrid.linear[*i]);
        for (layer, cache) in linear {
            let tokens = cache.inputs.len() / channels;
            let input = |i: usize| {
                let (c, ago) = (i / hybrid.kernel, hybrid.kernel - i % hybrid.kernel);
                tokens.checked_sub(ago).map_or(0.0, |row| cache.inputs[row * channels + c])
            };
            let conv = (0..channels * hybrid.kernel).map(input).collect();
            let array = |shape: Vec<usize>, values| Array { shape, values, squares: None };
            let delta = vec![h.value_heads, h.key_dim, h.value_dim];
            let state = State {
                conv: array(vec![channels, hybrid.kernel], conv),
                delta: array(delta, cache.state),
            };
            trace.states.insert(layer, state);
        }
        trace
    }
}

/// Of each pair of runs of `n` values, the first and the second.
fn halves(x: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let half = |at: usize| x.chunks_exact(2 * n).flat_map(|x| &x[at..at + n]).copied().collect();
    (half(0), half(n))
}

fn plain(values: Vec<f64>) -> Out {
    Out { values, squares: None }
}

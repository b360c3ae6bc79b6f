//! Each op on the engine's own inputs against exact arithmetic rounded where the model rounds.
//!
//! bf16: the share of elements that differ from the rounded exact result, per site. f32: the
//! largest error in units of u times the sum of the terms' sizes, per site. The worst site is
//! reported, and a site is never pooled with another.

use std::collections::BTreeMap;

use samebits::contract::{Dtype, Order};
use samebits_fixtures::prompt_ids;
use samebits_oracle::ops::{Heads, Linear, Mix, Out, RmsNorm, Rope, Scores, Softmax, Tables};
use samebits_oracle::{Arithmetic, Config, Ideal, Model, Rounded};
use samebits_reports::Num;

use super::{CheckError, Measure, Outcome};
use crate::compare::{at, in_order};
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::manifest::Source;
use crate::sites::{Dims, Sites, keyed, oracle_dtype, split};

/// The engine's values, and what turns them into an op's exact result.
struct Forced<'a> {
    arithmetic: &'a dyn Arithmetic,
    model: &'a Model,
    values: &'a BTreeMap<String, Vec<f64>>,
    ids: &'a [u32],
    tables: &'a Tables,
}

impl Forced<'_> {
    fn config(&self) -> &Config {
        self.model.config()
    }

    fn rows(&self) -> usize {
        self.ids.len()
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
        self.arithmetic.rope(&Rope { x, tables, heads, head_dim, first: 0 })
    }

    /// Sizes of an op's terms where the exact op does not give them: the result times what an
    /// error of its argument does to an exponential, or the two terms of a rotation.
    fn terms(&self, site: &str, y: &[f64]) -> Option<Vec<f64>> {
        let (layer, op) = split(site)?;
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        match op {
            "q_rope" | "k_rope" => Some(self.rope_terms(site)),
            "silu" => {
                Some(y.iter().zip(x("gate_proj")).map(|(y, x)| y.abs() * (1.0 + x.abs())).collect())
            }
            "probs" => {
                let rows = y.chunks(self.rows()).zip(x("scores").chunks(self.rows()));
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
            let entry = row * half + at % half;
            let other = i - at + (at + half) % dim;
            let (cos, sin) = (self.tables.cos[entry], self.tables.sin[entry]);
            (x[i] * cos).abs() + (x[other] * sin).abs()
        };
        (0..x.len()).map(size).collect()
    }

    /// The result of the op that writes `site`.
    fn site(&self, site: &str) -> Out {
        let (c, rows) = (self.config(), self.rows());
        let Some((layer, op)) = split(site) else { return self.outside(site) };
        let x = |op: &str| self.values[&format!("layers.{layer}.{op}")].as_slice();
        let stream = || match layer {
            0 => self.values["embed_tokens"].as_slice(),
            _ => self.values[&format!("layers.{}.mlp_residual", layer - 1)].as_slice(),
        };
        let dims = || Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let (first, true_rows, keys) = (0, rows, rows);
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
                let (q, k) = (x("q_rope"), x("k_cache"));
                self.arithmetic.scores(&Scores { q, k, dims: dims(), first, true_rows })
            }
            "probs" => self.arithmetic.softmax(&Softmax { scores: x("scores"), rows, keys, first }),
            "mix" => {
                let (probs, v) = (x("probs"), x("v_cache"));
                self.arithmetic.mix(&Mix { probs, v, dims: dims(), first, true_rows })
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
            _ => self.linear(site, x("norm"), c.hidden),
        }
    }
}

/// What one site measures, and its worst element.
struct Measured {
    value: f64,
    worst: usize,
    want: f64,
}

/// The share of elements that are not the rounded exact result.
fn misrounds(forced: &Forced<'_>, site: &str, got: &[f64]) -> Measured {
    let want = forced.site(site).values;
    assert_eq!(want.len(), got.len(), "{site}: the reference and the engine differ in shape");
    let differs = |i: &usize| want[*i].to_bits() != got[*i].to_bits();
    let worst = (0..got.len()).find(differs).unwrap_or(0);
    let count = (0..got.len()).filter(|i| differs(i)).count();
    Measured { value: count as f64 / got.len() as f64, worst, want: want[worst] }
}

/// The largest error in units of u times the sum of the terms' sizes. Where the exact op has no
/// terms, the size is that of the result.
fn units(forced: &Forced<'_>, site: &str, got: &[f64]) -> Measured {
    let Out { values, mut magnitude } = forced.site(site);
    if let Some(terms) = forced.terms(site, &values) {
        magnitude = Some(terms);
    }
    assert_eq!(values.len(), got.len(), "{site}: the reference and the engine differ in shape");
    let unit = f64::from(f32::EPSILON) / 2.0;
    let mut found = Measured { value: 0.0, worst: 0, want: values[0] };
    let (heads, rows) = (forced.config().heads, forced.rows());
    for (i, (y, g)) in values.iter().zip(got).enumerate() {
        let hidden = keyed(site) && i % rows > i / rows % rows && i < heads * rows * rows;
        if hidden || y.to_bits() == g.to_bits() {
            continue;
        }
        let size = magnitude.as_ref().map_or(y.abs(), |m| m[i].max(y.abs()));
        let value = (g - y).abs() / (unit * size.max(f64::from(f32::MIN_POSITIVE)));
        if value > found.value || value.is_nan() {
            found = Measured { value, worst: i, want: *y };
        }
    }
    found
}

/// Measures every op of a run on the run's own inputs.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    dtype: Dtype,
    prompt: usize,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let (model, reference) = (ctx.load(folder.path(), dtype)?, ctx.reference(folder.path())?);
    let dims = Dims::of(reference.config());
    let ids = prompt_ids(ctx.seed, dims.vocab, prompt);
    let expected = dims.elements(prompt, prompt);
    let rounded = Rounded { dtype: oracle_dtype(dtype) };
    let config = reference.config();
    let tables = rounded.rotary(config.theta, config.head_dim, prompt);
    Ok(Box::new(move |plant| {
        let keep = folder.path();
        let setup = Setup::new(Order::Invariant, "engine");
        let traces = trace(&model, &setup, std::slice::from_ref(&ids), plant)?;
        let sites: &Sites = &traces.sequences[0];
        let values = sites.iter().map(|(name, bits)| (name.clone(), bits.values())).collect();
        let arithmetic: &dyn Arithmetic = if dtype == Dtype::Bf16 { &rounded } else { &Ideal };
        let forced =
            Forced { arithmetic, model: &reference, values: &values, ids: &ids, tables: &tables };
        let statistic = if dtype == Dtype::Bf16 { "misround_rate_max" } else { "err_ua_max" };
        let mut outcome = Outcome {
            statistic,
            measured: -1.0,
            compared: 0,
            expected,
            first: None,
            paths: vec![traces.proof],
            hits: Some(traces.hits),
            alarm: None,
        };
        for name in in_order(sites) {
            let got = &forced.values[name];
            let found = match dtype {
                Dtype::Bf16 => misrounds(&forced, name, got),
                Dtype::F32 => units(&forced, name, got),
            };
            outcome.compared += got.len() as u64;
            if found.value > outcome.measured || found.value.is_nan() {
                outcome.measured = found.value;
                let row = if keyed(name) {
                    found.worst / prompt % prompt
                } else {
                    found.worst / (got.len() / prompt)
                };
                let mut first = at(name, Some(row));
                first.element = Some((found.worst % (got.len() / prompt)) as u64);
                first.want = Some(Num(found.want));
                first.got = Some(Num(got[found.worst]));
                first.text = format!("worst site, {statistic} {}", found.value);
                outcome.first = Some(first);
            }
        }
        if dtype == Dtype::Bf16 && outcome.measured == 0.0 {
            let what = keep.display();
            outcome.alarm =
                Some(format!("too good: no op of {what} rounds unlike exact arithmetic"));
        }
        Ok(outcome)
    }))
}

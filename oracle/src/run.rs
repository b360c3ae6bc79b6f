//! The whole model, a line for each line of the paper, in any arithmetic.
//!
//! Deliberately absent: batches (sequences never meet; only their number enters a rule) and
//! sampling. Invariant: the same loop serves prefill and cached steps, and what is kept or left
//! out of a trace changes no value.

use std::collections::{BTreeMap, BTreeSet};

use crate::arithmetic::Arithmetic;
use crate::dtype::Array;
use crate::model::{Model, OracleError};
use crate::ops::{Heads, Linear, Mix, Out, RmsNorm, Rope, Scores, Softmax, Tables};
use crate::real::rounded_tables;

/// Output rows of a weight that are widened to f64 at a time.
const WEIGHT_ROWS: usize = 8192;

/// Which sites a trace holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// `lm_head` alone.
    #[default]
    Logits,
    /// Every site.
    All,
    /// The named sites and `lm_head`.
    Only(BTreeSet<String>),
}

/// How a model is run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Which sites the trace holds.
    pub keep: Keep,
    /// Token rows, ascending, that `lm_head` is computed for; all if absent. Changes no value.
    pub logit_rows: Option<Vec<usize>>,
    /// The first so many ids are one forward, the others go one by one through a cache.
    pub decode_from: Option<usize>,
    /// Sequences in each forward (1 if absent): the true rows of a linear are batch x new tokens.
    pub batch: Option<usize>,
    /// cos and sin in place of the arithmetic's own, each `[positions, head_dim / 2]`; they are
    /// rounded to the dtype of the run.
    pub rotary: Option<(Vec<f32>, Vec<f32>)>,
}

/// What a run wrote, by site. Rows of the forwards of a cached run are joined; `scores` and
/// `probs` are `[heads, tokens, tokens]`, filled up with the masked score and 0.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Kept sites.
    pub sites: BTreeMap<String, Array>,
}

impl Trace {
    /// The logits, `[rows, vocab]`.
    pub fn logits(&self) -> &Array {
        &self.sites["lm_head"]
    }
}

/// Runs the model on one sequence.
///
/// # Errors
/// An empty sequence, an id outside the vocabulary, a prefill of no token or of more than there
/// are, logit rows that are not ascending rows of the sequence, injected tables of a wrong length.
pub fn run(
    model: &Model,
    arith: &dyn Arithmetic,
    tokens: &[u32],
    opts: &RunOptions,
) -> Result<Trace, OracleError> {
    let prefill = opts.decode_from.unwrap_or(tokens.len());
    let rows: Vec<usize> = opts.logit_rows.clone().unwrap_or_else(|| (0..tokens.len()).collect());
    check(model, tokens, prefill, &rows, opts)?;
    let c = model.config();
    let tables = match &opts.rotary {
        Some(tables) => rounded_tables(arith, tables.clone()),
        None => arith.rotary(c.theta, c.head_dim, tokens.len()),
    };
    let mut run = Run {
        model,
        arith,
        keep: &opts.keep,
        tokens: tokens.len(),
        batch: opts.batch.unwrap_or(1),
        tables,
        cache: vec![<_>::default(); c.layers],
        trace: Trace::default(),
    };
    for (site, t) in [("rotary.cos", &run.tables.cos), ("rotary.sin", &run.tables.sin)] {
        if run.keeps(site) {
            let shape = vec![t.len() / (c.head_dim / 2), c.head_dim / 2];
            let array = Array { shape, values: t.clone(), magnitude: None };
            run.trace.sites.insert(site.into(), array);
        }
    }
    let (prompt, steps) = tokens.split_at(prefill);
    run.forward(prompt, 0, &rows);
    for (i, step) in steps.chunks(1).enumerate() {
        run.forward(step, prefill + i, &rows);
    }
    Ok(run.trace)
}

fn check(
    model: &Model,
    tokens: &[u32],
    prefill: usize,
    rows: &[usize],
    opts: &RunOptions,
) -> Result<(), OracleError> {
    let c = model.config();
    let table = tokens.len() * c.head_dim / 2;
    let long = |t: &(Vec<f32>, Vec<f32>)| t.0.len() >= table && t.1.len() == t.0.len();
    let whole = |t: &(Vec<f32>, Vec<f32>)| t.0.len().is_multiple_of(c.head_dim / 2);
    let demands = [
        (!tokens.is_empty(), "no token"),
        (tokens.iter().all(|&t| (t as usize) < c.vocab), "an id is outside the vocabulary"),
        ((1..=tokens.len()).contains(&prefill), "decode_from is not within the sequence"),
        (opts.batch != Some(0), "a batch of no sequence"),
        (rows.is_sorted_by(|a, b| a < b), "logit rows do not ascend"),
        (rows.iter().all(|&r| r < tokens.len()), "a logit row is outside the sequence"),
        (opts.rotary.as_ref().is_none_or(|t| long(t) && whole(t)), "rotary tables do not fit"),
    ];
    match demands.into_iter().find(|(good, _)| !good) {
        Some((_, why)) => Err(OracleError::Request(why)),
        None => Ok(()),
    }
}

/// A run in progress.
struct Run<'a> {
    model: &'a Model,
    arith: &'a dyn Arithmetic,
    keep: &'a Keep,
    tokens: usize, // of all forwards together
    batch: usize,
    tables: Tables,
    cache: Vec<(Vec<f64>, Vec<f64>)>, // k and v of each layer, [keys, kv_heads, head_dim]
    trace: Trace,
}

impl Run<'_> {
    /// One forward of `ids` at positions `first..`, with logits for those `rows` of the sequence
    /// that are in it.
    fn forward(&mut self, ids: &[u32], first: usize, rows: &[usize]) {
        let (c, a, n) = (self.model.config(), self.arith, ids.len());
        let dims = Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let (hidden, inner) = ([n, c.hidden], [n, c.intermediate]);
        let (query, key) = ([n, c.heads, c.head_dim], [n, c.kv_heads, c.head_dim]);
        let rope = |x: &[f64], heads, tables: &Tables| {
            a.rope(&Rope { x, tables, heads, head_dim: c.head_dim, first })
        };
        let embed = self.model.weight("embed_tokens").expect("a loaded model has every tensor");
        let mut x = self.put("embed_tokens", &hidden, a.embed(embed, ids));
        for layer in 0..c.layers {
            let at = |op: &str| format!("layers.{layer}.{op}");
            let h = self.norm(&at("input_layernorm"), &hidden, &x);
            let q = self.linear(&at("q_proj"), n, &h);
            let k = self.linear(&at("k_proj"), n, &h);
            let v = self.linear(&at("v_proj"), n, &h);
            let q = self.norm(&at("q_norm"), &query, &q);
            let k = self.norm(&at("k_norm"), &key, &k);
            let q = self.put(&at("q_rope"), &query, rope(&q, c.heads, &self.tables));
            let k = self.put(&at("k_rope"), &key, rope(&k, c.kv_heads, &self.tables));
            let (k, v) = (
                self.put(&at("k_cache"), &key, plain(k)),
                self.put(&at("v_cache"), &key, plain(v)),
            );
            self.cache[layer].0.extend(k);
            self.cache[layer].1.extend(v);
            let (k, v) = &self.cache[layer];
            let keys = first + n;
            let s = a.scores(&Scores { q: &q, k, dims, first, true_rows: n });
            let p = a.softmax(&Softmax { scores: &s.values, rows: n, keys, first });
            let mix = a.mix(&Mix { probs: &p.values, v, dims, first, true_rows: n });
            self.put_square(&at("scores"), n, first, &s, a.masked());
            self.put_square(&at("probs"), n, first, &p, 0.0);
            let mix = self.put(&at("mix"), &[n, c.heads * c.head_dim], mix);
            let o = self.linear(&at("o_proj"), n, &mix);
            x = self.put(&at("attn_residual"), &hidden, a.add(&x, &o));
            let h = self.norm(&at("post_attention_layernorm"), &hidden, &x);
            let gate = self.linear(&at("gate_proj"), n, &h);
            let up = self.linear(&at("up_proj"), n, &h);
            let gate = self.put(&at("silu"), &inner, a.silu(&gate));
            let inside = self.put(&at("mul"), &inner, a.mul(&gate, &up));
            let down = self.linear(&at("down_proj"), n, &inside);
            x = self.put(&at("mlp_residual"), &hidden, a.add(&x, &down));
        }
        let h = self.norm("norm", &hidden, &x);
        let wanted = rows.iter().filter_map(|r| r.checked_sub(first)).filter(|r| *r < n);
        let h: Vec<f64> = wanted.flat_map(|r| &h[r * c.hidden..][..c.hidden]).copied().collect();
        self.linear("lm_head", n, &h);
    }

    fn norm(&mut self, site: &str, shape: &[usize], x: &[f64]) -> Vec<f64> {
        let weight = self.model.weight(site).expect("a loaded model has every tensor");
        let weight = self.widened(weight.values(0..weight.count()));
        let eps = self.model.config().eps;
        let out = self.arith.rms_norm(&RmsNorm { x, weight: &weight, eps });
        self.put(site, shape, out)
    }

    /// The linear of a site on the given rows of a forward of `new` tokens.
    fn linear(&mut self, site: &str, new: usize, x: &[f64]) -> Vec<f64> {
        let weight = self.model.weight(site).expect("a loaded model has every tensor");
        let (n, k) = (weight.shape[0], weight.shape[1]);
        let rows = x.len() / k;
        let mut out = Out { values: vec![0.0; rows * n], magnitude: None };
        for from in (0..n).step_by(WEIGHT_ROWS) {
            let to = n.min(from + WEIGHT_ROWS);
            let part = self.widened(weight.values(from * k..to * k));
            let op = Linear { x, weight: &part, k, true_rows: self.batch * new };
            let part = self.arith.linear(&op);
            let columns = |whole: &mut [f64], part: &[f64]| {
                for (whole, part) in whole.chunks_mut(n).zip(part.chunks(to - from)) {
                    whole[from..to].copy_from_slice(part);
                }
            };
            columns(&mut out.values, &part.values);
            if let Some(part) = &part.magnitude {
                let whole = out.magnitude.get_or_insert_with(|| vec![0.0; rows * n]);
                columns(whole, part);
            }
        }
        self.put(site, &[rows, n], out)
    }

    /// Stored values cast to the dtype of the run.
    fn widened(&self, stored: Vec<f64>) -> Vec<f64> {
        stored.into_iter().map(|x| self.arith.round(x)).collect()
    }

    fn keeps(&self, site: &str) -> bool {
        match self.keep {
            Keep::Logits => site == "lm_head",
            Keep::All => true,
            Keep::Only(sites) => site == "lm_head" || sites.contains(site),
        }
    }

    /// Joins the rows of a forward to the site's and hands the values on.
    fn put(&mut self, site: &str, shape: &[usize], out: Out) -> Vec<f64> {
        if self.keeps(site) {
            let array = self.trace.sites.entry(site.to_owned()).or_insert_with(|| Array {
                shape: [&[0], &shape[1..]].concat(),
                values: Vec::new(),
                magnitude: out.magnitude.as_ref().map(|_| Vec::new()),
            });
            array.shape[0] += shape[0];
            array.values.extend(&out.values);
            if let (Some(whole), Some(part)) = (&mut array.magnitude, &out.magnitude) {
                whole.extend(part);
            }
        }
        out.values
    }

    /// Places `[heads, n, first + n]` into the site's `[heads, tokens, tokens]`.
    fn put_square(&mut self, site: &str, n: usize, first: usize, out: &Out, fill: f64) {
        if !self.keeps(site) {
            return;
        }
        let (t, heads) = (self.tokens, self.model.config().heads);
        let array = self.trace.sites.entry(site.to_owned()).or_insert_with(|| Array {
            shape: vec![heads, t, t],
            values: vec![fill; heads * t * t],
            magnitude: out.magnitude.as_ref().map(|_| vec![0.0; heads * t * t]),
        });
        let keys = first + n;
        let place = |whole: &mut [f64], part: &[f64]| {
            for (i, row) in part.chunks(keys).enumerate() {
                let at = ((i / n) * t + first + i % n) * t;
                whole[at..at + keys].copy_from_slice(row);
            }
        };
        place(&mut array.values, &out.values);
        if let (Some(whole), Some(part)) = (&mut array.magnitude, &out.magnitude) {
            place(whole, part);
        }
    }
}

fn plain(values: Vec<f64>) -> Out {
    Out { values, magnitude: None }
}

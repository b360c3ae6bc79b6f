//! Spans of ops whose inside a trace does not hold, judged from end to end.
//!
//! A fused attention shows q, k, v and the mix, a fused MLP gate, up and their product. What lies
//! between may be rounded at every step, as Transformers does, or not at all. `attention` has the
//! law of the first; `logits` that of a whole run. Absent: products after a span. The invariant:
//! what is rebuilt is used as an input and never judged.

mod attention;
pub mod logits;

use std::collections::BTreeSet;

use samebits::contract::Dtype;
use samebits_oracle::{Arithmetic, Config, Dtype as OracleDtype, Model, Rounded};

use attention::{Attention, Vectors};

use super::forced::{ForcedError, Judged, Verdict, judge as judge_ops};
use super::names::stream_before;
use super::{Spot, past};
use crate::law::{
    Law,
    sum::{U, rounded},
};
use crate::limits::Limits;
use crate::sites::{Bits, Dims, Sites, op_of, rank, split};
use crate::stats::ulp;

/// Judges every op of a trace that starts at position 0, and the spans whose inside it lacks.
///
/// # Errors
/// A trace that does not fit the model, and a constant that is not in the limits file.
pub fn judge(
    sites: &Sites,
    model: &Model,
    ids: Option<&[u32]>,
    limits: &Limits,
) -> Result<Verdict, ForcedError> {
    let config = model.config();
    let mut full = sites.clone();
    let aside = set_aside(&mut full);
    let made = rebuild(&mut full, config);
    let mut verdict = match judge_ops(&full, model, ids, limits) {
        Err(ForcedError::Rows) => {
            let blind = full.keys().filter(|site| rank(site).is_some()).cloned().collect();
            Verdict { blind, ..Verdict::default() }
        }
        verdict => verdict?,
    };
    verdict.ops.retain(|op| !made.contains(&op.site));
    verdict.unjudged.retain(|(site, _)| !made.contains(site));
    let law = Law::of(limits)?;
    for site in std::mem::take(&mut verdict.blind) {
        match span(&site, &full, config, &law) {
            Some(judged) => verdict.ops.push(judged),
            None if !made.contains(&site) => verdict.blind.push(site),
            None => {}
        }
    }
    verdict.ops.sort_by_key(|op| rank(&op.site));
    verdict.unjudged.extend(aside);
    Ok(verdict)
}

/// Ops that look at positions before their own row.
const BACKWARD: [&str; 8] =
    ["q_rope", "k_rope", "k_cache", "scores", "probs", "mix", "conv", "core"];

/// Takes out what cannot be judged: of a run that goes on from a cache the ops that read it, and
/// logits of the last rows only. Says why.
fn set_aside(sites: &mut Sites) -> Vec<(String, String)> {
    let stream = ["embed_tokens", "input_layernorm", "attn_residual", "mlp_residual"];
    let all = sites.iter().find(|(name, _)| stream.contains(&op_of(name)));
    let all = all.map(|(name, bits)| bits.row_count(name));
    let after = past(sites);
    let why = |name: &str, bits: &Bits| match name {
        "norm" | "lm_head" if all.is_some_and(|all| all != bits.row_count(name)) => {
            Some("it holds the last rows only".to_owned())
        }
        _ if after > 0 && BACKWARD.contains(&op_of(name)) => {
            Some(format!("the trace lacks the {after} positions before its first row"))
        }
        _ => None,
    };
    let out: Vec<(String, String)> =
        sites.iter().filter_map(|(name, bits)| Some((name.clone(), why(name, bits)?))).collect();
    sites.retain(|name, _| !out.iter().any(|(out, _)| out == name));
    out
}

/// Puts in what follows exactly from what is there: copies into the cache, residual sums, the
/// product of an MLP. Returns what it made.
fn rebuild(sites: &mut Sites, config: &Config) -> BTreeSet<String> {
    let mut made = BTreeSet::new();
    let dims = Dims::of(config);
    let heads = |bits: &Bits| {
        let rows = bits.shape[0];
        bits.clone().reshaped(&[rows, dims.kv_heads, dims.head_dim])
    };
    for layer in 0..config.layers {
        let own = |op: &str| format!("layers.{layer}.{op}");
        let mut put = |sites: &mut Sites, op: &str, bits: Option<Bits>| {
            if let (Some(bits), false) = (bits, sites.contains_key(&own(op))) {
                sites.insert(own(op), bits);
                made.insert(own(op));
            }
        };
        let of = |sites: &Sites, op: &str| sites.get(&own(op)).cloned();
        let gate = of(sites, "q_proj").filter(|_| dims.gated).map(|bits| gates(&bits, &dims));
        put(sites, "q_gate", gate);
        let copy = of(sites, "v_proj").map(|bits| heads(&bits));
        put(sites, "v_cache", copy);
        let copy = of(sites, "k_rope");
        put(sites, "k_cache", copy);
        let copy = of(sites, "k_cache");
        put(sites, "k_rope", copy);
        let out = if config.is_linear(layer) { "out_proj" } else { "o_proj" };
        let both = |sites: &Sites, a: String, b: &str, f: fn(f64, f64) -> f64| {
            pairwise(sites.get(&a)?, sites.get(&own(b))?, f)
        };
        let sum = both(sites, stream_before(layer), out, |a, b| a + b);
        put(sites, "attn_residual", sum);
        let product = both(sites, own("silu"), "up_proj", |a, b| a * b);
        put(sites, "mul", product);
        let product = both(sites, own("mix"), "gate_sigmoid", |a, b| a * b);
        put(sites, "mix_gated", product);
        let sum = both(sites, own("attn_residual"), "down_proj", |a, b| a + b);
        put(sites, "mlp_residual", sum);
    }
    made
}

/// The gates of a fused projection: the second half of each head.
fn gates(bits: &Bits, dims: &Dims) -> Bits {
    let n = dims.head_dim;
    let heads = bits.bits.chunks_exact(2 * n);
    let half: Vec<u32> = heads.flat_map(|head| &head[n..]).copied().collect();
    let shape = vec![bits.shape[0], dims.heads * n];
    Bits { dtype: bits.dtype, shape, bits: half }
}

/// An op of one rounding on two tensors.
fn pairwise(a: &Bits, b: &Bits, f: fn(f64, f64) -> f64) -> Option<Bits> {
    if a.dtype != b.dtype || a.bits.len() != b.bits.len() {
        return None;
    }
    let bit = |i: usize| {
        let y = rounded(a.dtype, f(a.value(i), b.value(i)));
        match a.dtype {
            Dtype::Bf16 => u32::from(half::bf16::from_f64(y).to_bits()),
            Dtype::F32 => (y as f32).to_bits(),
        }
    };
    let bits = (0..a.bits.len()).map(bit).collect();
    Some(Bits { dtype: a.dtype, shape: a.shape.clone(), bits })
}

/// Judges the span that ends at a site, if the trace holds where it starts.
fn span(site: &str, sites: &Sites, config: &Config, law: &Law) -> Option<Judged> {
    let (layer, op) = split(site)?;
    let values = |op: &str| Some(sites.get(&format!("layers.{layer}.{op}"))?.values());
    let got = sites.get(site)?;
    match op {
        "mix" | "mix_gated" => {
            let dims = Dims::of(config);
            let rows = got.bits.len() / (dims.heads * dims.head_dim);
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let gate = match op {
                "mix" => Vec::new(),
                _ => values("q_gate")?.into_iter().map(sigmoid).collect(),
            };
            let wide = Rounded { dtype: OracleDtype::F32 };
            let tables = wide.rotary(config.theta, dims.rotary_dim, rows);
            let rounding = law.most * half_step(got.dtype);
            let vectors = |after: &str, before: &str, heads: usize| match values(after) {
                Some(values) => Some(Vectors::held(values)),
                None => Some(Vectors::rotated(&values(before)?, heads, &dims, &tables, rounding)),
            };
            let q = vectors("q_rope", "q_norm", dims.heads)?;
            let k = vectors("k_cache", "k_norm", dims.kv_heads)?;
            let v = values("v_cache")?;
            Some(Attention { q, k, v, gate, dims, dtype: got.dtype }.judge(site, got, law))
        }
        "mul" => Some(product(site, got, &values("gate_proj")?, &values("up_proj")?)),
        _ => None,
    }
}

/// Half a step of a dtype at 1.
fn half_step(dtype: Dtype) -> f64 {
    ulp(dtype, 1.0) / 2.0
}

/// The least error before its one rounding that explains an output.
fn excess(dtype: Dtype, got: f64, y: f64) -> f64 {
    ((got - y).abs() - ulp(dtype, got) / 2.0).max(0.0)
}

/// gate, up to `silu(gate) up`: one rounding inside at most, and silu's own error.
fn product(site: &str, got: &Bits, gate: &[f64], up: &[f64]) -> Judged {
    let u = half_step(got.dtype);
    let over = |i: usize| {
        let (x, out) = (gate[i], got.value(i));
        let y = x / (1.0 + (-x).exp()) * up[i];
        // A silu that is subnormal in the dtype is short of half its least step.
        let least = ulp(got.dtype, 0.0) * up[i].abs();
        let bound = y.abs() * (u + 4.0 * U * (1.0 + x.abs())) * (1.0 + u) + least;
        let error = excess(got.dtype, out, y);
        if error <= 0.0 { 0.0 } else { error / bound }
    };
    let (worst, over) = largest((0..got.bits.len()).map(over));
    let text = format!("error from gate, up to the product over that of two roundings: {over:.2}");
    Judged { site: site.to_owned(), over, text, worst: Spot::of(site, &got.shape, worst) }
}

/// The largest of some ratios and where it stands; a NaN is larger than all.
fn largest(all: impl Iterator<Item = f64>) -> (usize, f64) {
    let mut worst = (0, 0.0f64);
    for (i, over) in all.enumerate() {
        if over.is_nan() {
            return (i, f64::INFINITY);
        }
        if over > worst.1 {
            worst = (i, over);
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A draw in -1 to 1.
    fn draws(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / 2f64.powi(23) - 1.0
        }
    }

    fn law() -> Law {
        Law::of(&Limits::load(&crate::context::data("limits.json")).expect("limits"))
            .expect("constants")
    }

    /// An attention of the run's dtype whose scores have a gain, rounded at each step or only at
    /// its end.
    fn ran(a: &Attention, gain: f64, inside: bool) -> Bits {
        let Dims { heads, kv_heads, head_dim: n, .. } = a.dims;
        let rows = a.q.values.len() / heads / n;
        let round = |x: f64| if inside { rounded(a.dtype, x) } else { x };
        let mut bits = Vec::new();
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let at = |key: usize, e: usize| (key * kv_heads + head / (heads / kv_heads)) * n + e;
            let score = |key: usize| -> f64 {
                (0..n)
                    .map(|e| a.q.values[(row * heads + head) * n + e] * a.k.values[at(key, e)])
                    .sum()
            };
            let s: Vec<f64> =
                (0..=row).map(|key| round(round(score(key)) * gain / (n as f64).sqrt())).collect();
            let total: f64 = s.iter().map(|s| s.exp()).sum();
            for e in 0..n {
                let y: f64 =
                    (0..=row).map(|key| round(s[key].exp() / total) * a.v[at(key, e)]).sum();
                bits.push(u32::from(half::bf16::from_f64(y).to_bits()));
            }
        }
        Bits { dtype: a.dtype, shape: vec![rows, heads * n], bits }
    }

    #[test]
    fn a_scale_two_percent_off_is_seen_and_legal_roundings_are_not() {
        let dims = Dims { heads: 4, kv_heads: 2, head_dim: 32, ..Dims::DENSE };
        for seed in 0..8 {
            let mut draw = draws(seed);
            let mut many = |n: usize, size: f64| -> Vec<f64> {
                (0..n).map(|_| rounded(Dtype::Bf16, size * draw())).collect()
            };
            let rows = 24;
            let (q, k) = (many(rows * 128, 1.7), many(rows * 64, 1.7));
            let v = many(rows * 64, 1.0);
            let (q, k) = (Vectors::held(q), Vectors::held(k));
            let a = Attention { q, k, v, gate: Vec::new(), dims, dtype: Dtype::Bf16 };
            for (gain, inside, legal) in
                [(1.0, true, true), (1.0, false, true), (1.02, true, false), (0.98, false, false)]
            {
                let judged = a.judge("layers.0.mix", &ran(&a, gain, inside), &law());
                let said = format!("seed {seed}, gain {gain}, inside {inside}: {judged:?}");
                assert_eq!(judged.over <= 1.0, legal, "{said}");
                assert!(!legal || judged.over > 0.01, "no rounding at all: {said}");
            }
        }
    }

    #[test]
    fn a_product_of_gate_and_up_may_round_inside_and_not_be_another_function() {
        let mut draw = draws(3);
        let mut many =
            |n: usize| -> Vec<f64> { (0..n).map(|_| rounded(Dtype::Bf16, 4.0 * draw())).collect() };
        let (gate, up) = (many(4096), many(4096));
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let bits = |f: &dyn Fn(usize) -> f64| Bits {
            dtype: Dtype::Bf16,
            shape: vec![16, 256],
            bits: (0..4096).map(|i| u32::from(half::bf16::from_f64(f(i)).to_bits())).collect(),
        };
        let silu = |i: usize| gate[i] * sigmoid(gate[i]);
        let at = |bits: Bits| product("layers.0.mul", &bits, &gate, &up).over;
        assert!(at(bits(&|i| silu(i) * up[i])) <= 1.0);
        assert!(at(bits(&|i| rounded(Dtype::Bf16, silu(i)) * up[i])) <= 1.0);
        assert!(at(bits(&|i| silu(i) * up[i] * 1.02)) > 1.0);
        assert!(at(bits(&|i| gate[i] * sigmoid(1.702 * gate[i]) * up[i])) > 1.0);
    }
}

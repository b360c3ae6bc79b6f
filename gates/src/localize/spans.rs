//! Spans of ops whose inside a trace does not hold, judged from end to end.
//!
//! A fused attention shows q, k, v and the mix, a fused MLP gate, up and their product. What lies
//! between may be rounded at every step, as Transformers does, or not at all. Exact arithmetic gives
//! the end, and carries along the variance of all roundings that any of them may make: a score's
//! error moves the whole row of the mix by `p (v - mix)`, a probability's by `p v`. A rounding is
//! uniform, hence its tail is no heavier than a normal's of its own variance.
//!
//! Three tests: each element; the squares of a head over what is expected; and the slope of a head
//! along the derivative of its scale, which sees a systematic error that no element shows. Absent:
//! rotations inside a span, and the products after it. The invariant: what is rebuilt is used as an
//! input and never judged.

use std::collections::BTreeSet;

use samebits::contract::Dtype;
use samebits_oracle::{Config, Model};

use super::Spot;
use super::forced::{ForcedError, Judged, Verdict, judge as judge_ops};
use super::names::stream_before;
use crate::law::{
    Law,
    sum::{Sum, U, rounded},
};
use crate::limits::Limits;
use crate::sites::{Bits, Dims, Sites, rank, split};
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
    let made = rebuild(&mut full, config);
    let mut verdict = judge_ops(&full, model, ids, limits)?;
    verdict.ops.retain(|op| !made.contains(&op.site));
    verdict.unjudged.retain(|(site, _)| !made.contains(site));
    let law = Law::of(limits)?;
    let blind = std::mem::take(&mut verdict.blind);
    for site in blind {
        match span(&site, &full, config, &law) {
            Some(judged) => verdict.ops.push(judged),
            None if !made.contains(&site) => verdict.blind.push(site),
            None => {}
        }
    }
    verdict.ops.sort_by_key(|op| rank(&op.site));
    Ok(verdict)
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
        "mix" => {
            let [q, k, v] = [values("q_rope")?, values("k_cache")?, values("v_cache")?];
            let attention = Attention { q, k, v, dims: Dims::of(config), dtype: got.dtype };
            Some(attention.judge(site, got, law))
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

/// An attention of which scores and probabilities are not known, at position 0.
struct Attention {
    q: Vec<f64>, // [rows, heads, head_dim]
    k: Vec<f64>, // [rows, kv_heads, head_dim]
    v: Vec<f64>, // [rows, kv_heads, head_dim]
    dims: Dims,
    dtype: Dtype,
}

/// One query's exact mix, and what its roundings may do to it.
struct Row {
    mix: Vec<f64>,               // [head_dim]
    own: Vec<f64>,               // [head_dim]: variance of errors that only one element has
    shared: Vec<f64>,            // [head_dim]: variance by scores, which move all elements of a row
    slope: Vec<f64>,             // [head_dim]: derivative by the logarithm of the scale
    moves: Vec<(f64, Vec<f64>)>, // of each key: variance of its score, and p (v - mix)
    curve: f64,                  // what the second order may add to the first
}

/// Sums over the rows of a head.
#[derive(Default)]
struct Head {
    squares: f64,  // of errors over their variance
    elements: f64, // of a variance that is not 0
    along: f64,    // error times slope over variance
    length: f64,   // slope squared over variance
    spread: f64,   // variance of `along`
}

impl Attention {
    fn row(&self, row: usize, head: usize, law: &Law) -> Row {
        let Dims { heads, kv_heads, head_dim: n, .. } = self.dims;
        let (c, u, kv) = (law.most, half_step(self.dtype), head / (heads / kv_heads));
        let scale = 1.0 / (n as f64).sqrt();
        let q = &self.q[(row * heads + head) * n..][..n];
        let at = |x: &'_ [f64], key: usize| x[(key * kv_heads + kv) * n..][..n].to_vec();
        let mut scores = Vec::with_capacity(row + 1);
        for key in 0..=row {
            let terms = at(&self.k, key);
            let products = q.iter().zip(&terms).map(|(a, b)| a * b * scale);
            let (y, square) = products.fold((0.0, 0.0), |(y, s), t| (y + t, s + t * t));
            // The sum's own error, its rounding, and that of the scaled score.
            let sum = Sum { y, q: square, k: n as f64 }.sigma(c);
            scores.push((y, sum * sum + 2.0 * (c * u * y).powi(2)));
        }
        let most = scores.iter().fold(f64::NEG_INFINITY, |most, (s, _)| most.max(*s));
        let weights: Vec<f64> = scores.iter().map(|(s, _)| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let p: Vec<f64> = weights.iter().map(|w| w / total).collect();
        let v: Vec<Vec<f64>> = (0..=row).map(|key| at(&self.v, key)).collect();
        let mean: f64 = p.iter().zip(&scores).map(|(p, (s, _))| p * s).sum();
        let mix: Vec<f64> = (0..n).map(|e| (0..=row).map(|j| p[j] * v[j][e]).sum()).collect();
        let (mut own, mut shared, mut slope) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        let mut moves = Vec::with_capacity(row + 1);
        for j in 0..=row {
            let (s, variance) = scores[j];
            let entry = (c * u).powi(2) + (U * (4.0 + most - s)).powi(2);
            let moved: Vec<f64> = (0..n).map(|e| p[j] * (v[j][e] - mix[e])).collect();
            for e in 0..n {
                own[e] += (p[j] * v[j][e]).powi(2) * entry;
                shared[e] += moved[e].powi(2) * variance;
                slope[e] += moved[e] * (s - mean);
            }
            moves.push((variance, moved));
        }
        for e in 0..n {
            let square = (0..=row).map(|j| (p[j] * v[j][e]).powi(2)).sum();
            own[e] += Sum { y: mix[e], q: square, k: (row + 1) as f64 }.sigma(c).powi(2);
        }
        let furthest = scores.iter().fold(0.0f64, |far, (s, _)| far.max(s.abs()));
        Row { mix, own, shared, slope, moves, curve: (4.0 * u * furthest).exp() }
    }

    /// The largest of the three tests over their limits.
    fn judge(&self, site: &str, got: &Bits, law: &Law) -> Judged {
        let Dims { heads, head_dim: n, .. } = self.dims;
        let rows = got.shape[0];
        let tests = (2.0 * got.bits.len() as f64).max(1.0) / law.alarm;
        let deviations = (2.0 * tests.ln()).sqrt();
        let (mut over, mut worst) = (0.0f64, 0);
        let mut text = "error over that of the law: 0".to_owned();
        let mut sums: Vec<Head> = (0..heads).map(|_| Head::default()).collect();
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let start = (row * heads + head) * n;
            let exact = self.row(row, head, law);
            for e in 0..n {
                let sigma = (exact.own[e] + exact.shared[e]).sqrt();
                let error = excess(self.dtype, got.value(start + e), exact.mix[e]);
                let bound = deviations * sigma * exact.curve + ulp(self.dtype, 0.0);
                let ratio = if error.is_nan() { f64::INFINITY } else { error / bound };
                if ratio > over {
                    (over, worst) = (ratio, start + e);
                    text =
                        format!("error from q, k, v to the mix over that of the law: {ratio:.2}");
                }
            }
            sums[head].add(&exact, |e| got.value(start + e), self.dtype, law.most);
        }
        for (head, sums) in sums.iter().enumerate() {
            let (ratio, said) = sums.over((rows, heads), law);
            if ratio > over {
                (over, worst, text) = (ratio, head * n, format!("head {head}: {said}"));
            }
        }
        let (position, head, element) = (worst / n / heads, worst / n % heads, worst % n);
        let worst = Spot { batch: 0, position, head: Some(head), element };
        Judged { site: site.to_owned(), over, text, worst }
    }
}

impl Head {
    /// Takes in a row.
    fn add(&mut self, row: &Row, got: impl Fn(usize) -> f64, dtype: Dtype, c: f64) {
        let rounding = |e: usize| (c * half_step(dtype) * row.mix[e]).powi(2);
        let mut weight = vec![0.0; row.mix.len()];
        for (e, weight) in weight.iter_mut().enumerate() {
            let alone = row.own[e] + rounding(e);
            let variance = alone + row.shared[e];
            if variance <= 0.0 {
                continue;
            }
            let error = got(e) - row.mix[e];
            *weight = row.slope[e] / variance;
            self.squares += error * error / variance;
            self.elements += 1.0;
            self.along += error * *weight;
            self.length += row.slope[e] * *weight;
            self.spread += weight.powi(2) * alone;
        }
        for (variance, moved) in &row.moves {
            let all: f64 = moved.iter().zip(&weight).map(|(moved, w)| moved * w).sum();
            self.spread += variance * all * all;
        }
    }

    /// The larger of the test of squares and that of the slope, over its limit, and its words. A
    /// row's errors may all be one: its elements count as one.
    fn over(&self, (rows, heads): (usize, usize), law: &Law) -> (f64, String) {
        let nats = (2.0 * heads as f64 / law.alarm).ln();
        let free = nats / rows.max(1) as f64;
        let limit = 1.0 + 2.0 * free.sqrt() + 2.0 * free;
        let squares = if self.elements > 0.0 { self.squares / self.elements } else { 0.0 };
        let slope = if self.length > 0.0 { self.along / self.length } else { 0.0 };
        let spread = if self.length > 0.0 { self.spread.sqrt() / self.length } else { 0.0 };
        let most = (2.0 * nats).sqrt() * spread;
        let gain = if spread > 0.0 { slope.abs() / most } else { 0.0 };
        if gain > squares / limit {
            let text = format!(
                "scores are {:+.3} % of what q and k give, roundings explain {:.3} %",
                100.0 * slope,
                100.0 * most
            );
            return (gain, text);
        }
        (squares / limit, format!("squares of errors are {squares:.2} times those expected"))
    }
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
        let rows = a.q.len() / heads / n;
        let round = |x: f64| if inside { rounded(a.dtype, x) } else { x };
        let mut bits = Vec::new();
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let at = |key: usize, e: usize| (key * kv_heads + head / (heads / kv_heads)) * n + e;
            let score = |key: usize| -> f64 {
                (0..n).map(|e| a.q[(row * heads + head) * n + e] * a.k[at(key, e)]).sum()
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
            let a = Attention { q, k, v, dims, dtype: Dtype::Bf16 };
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

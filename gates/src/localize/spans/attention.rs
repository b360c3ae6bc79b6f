//! A fused attention from its queries, keys and values to its mix.
//!
//! Exact arithmetic gives the mix, and carries along the variance of all roundings that any of the
//! steps between may make: a score's error moves the whole row by `p (v - mix)`, a probability's by
//! `p v`. A rounding is uniform, hence its tail is no heavier than a normal's of its own variance.
//!
//! Three tests: each element; the squares of a head over what is expected; and the slope of a head
//! along the derivative of its scale, which sees a systematic error that no element shows. The
//! invariant: errors that may be one (a query's over all keys, a key's over all rows) add as sizes,
//! the others as squares.

use samebits::contract::Dtype;
use samebits_oracle::ops::Tables;

use super::super::Spot;
use super::super::forced::Judged;
use super::{excess, half_step};
use crate::law::{
    Law,
    sum::{Sum, U},
};
use crate::sites::{Bits, Dims};
use crate::stats::ulp;

/// Vectors of heads, and the variance of each element where they were rounded on the way.
#[derive(Clone, Debug, Default)]
pub struct Vectors {
    /// `[rows, heads, head_dim]`.
    pub values: Vec<f64>,
    /// The same, or empty where the trace holds the values.
    pub variance: Vec<f64>,
}

/// An attention of which scores and probabilities are not known, at position 0.
pub struct Attention {
    /// Queries, rotated.
    pub q: Vectors,
    /// Keys, rotated.
    pub k: Vectors,
    /// Values.
    pub v: Vec<f64>,
    /// What the mix is multiplied by, `[rows, heads, head_dim]`; empty where it is not.
    pub gate: Vec<f64>,
    /// Sizes of the model.
    pub dims: Dims,
    /// The run's dtype.
    pub dtype: Dtype,
}

impl Vectors {
    /// Vectors as the trace holds them.
    pub fn held(values: Vec<f64>) -> Self {
        Self { values, variance: Vec::new() }
    }

    /// Rotates heads that the trace holds before their rotation. Entries of the table, products and
    /// sums may each be rounded.
    pub fn rotated(x: &[f64], heads: usize, dims: &Dims, tables: &Tables, rounding: f64) -> Self {
        let (n, width, half) = (dims.head_dim, dims.rotary_dim, dims.rotary_dim / 2);
        let mut all = Self::held(x.to_vec());
        all.variance = vec![0.0; x.len()];
        for i in (0..x.len()).filter(|i| i % n < width) {
            let (at, row) = (i % n, i / n / heads);
            let other = x[i - at + (at + half) % width];
            let turned = if at < half { -other } else { other };
            let entry = row * half + at % half;
            let (a, b) = (x[i] * tables.cos[entry], turned * tables.sin[entry]);
            all.values[i] = a + b;
            let squares = 2.0 * (a * a + b * b) + (a + b) * (a + b);
            all.variance[i] = rounding * rounding * squares;
        }
        all
    }

    /// The variance that these vectors' own errors give a product with `other`.
    fn spread(&self, at: usize, other: &[f64]) -> f64 {
        let own = self.variance.get(at..at + other.len()).unwrap_or(&[]);
        own.iter().zip(other).map(|(variance, y)| variance * y * y).sum()
    }
}

/// A key of one query: how its score moves the row.
struct Key {
    moved: Vec<f64>, // [head_dim]: p (v - mix)
    alone: f64,      // variance of the score's own roundings
    query: f64,      // deviation of the score by the query's, the same for all keys
    key: f64,        // deviation by the key's, the same for all rows
}

/// One query's exact mix, and what its roundings may do to it.
struct Row {
    mix: Vec<f64>,    // [head_dim]
    own: Vec<f64>,    // [head_dim]: variance of errors that only one element has
    shared: Vec<f64>, // [head_dim]: variance by scores, which move all elements
    slope: Vec<f64>,  // [head_dim]: derivative by the logarithm of the scale
    keys: Vec<Key>,
    curve: f64, // what the second order may add to the first, as a factor
}

impl Row {
    /// The variance of an element before its last rounding.
    fn variance(&self, e: usize) -> f64 {
        self.own[e] + self.shared[e]
    }
}

/// Sums over the rows of a head.
#[derive(Default)]
struct Head {
    squares: f64,     // of errors over their variance
    elements: f64,    // of a variance that is not 0
    along: f64,       // error times slope over variance
    length: f64,      // slope squared over variance
    spread: f64,      // variance of `along` by errors of one row
    by_key: Vec<f64>, // deviation of `along` by each key's error
}

impl Attention {
    /// A query's exact scores with their errors; `moved` is filled in later.
    fn scores(&self, row: usize, head: usize, c: f64) -> Vec<(f64, Key)> {
        let Dims { heads, kv_heads, head_dim: n, .. } = self.dims;
        let (u, kv) = (half_step(self.dtype), head / (heads / kv_heads));
        let scale = 1.0 / (n as f64).sqrt();
        let from = (row * heads + head) * n;
        let q = &self.q.values[from..][..n];
        let score = |key: usize| {
            let at = (key * kv_heads + kv) * n;
            let k = &self.k.values[at..][..n];
            let products = q.iter().zip(k).map(|(a, b)| a * b * scale);
            let (y, square) = products.fold((0.0, 0.0), |(y, s), t| (y + t, s + t * t));
            // The sum's own error, its rounding, and that of the scaled score.
            let sum = Sum { y, q: square, k: n as f64 }.sigma(c);
            let alone = sum * sum + 2.0 * (c * u * y).powi(2);
            let query = scale * self.q.spread(from, k).sqrt();
            let key = scale * self.k.spread(at, q).sqrt();
            (y, Key { moved: Vec::new(), alone, query, key })
        };
        (0..=row).map(score).collect()
    }

    /// A query's row of the mix.
    fn row(&self, row: usize, head: usize, c: f64) -> Row {
        let Dims { heads, kv_heads, head_dim: n, .. } = self.dims;
        let (u, kv) = (half_step(self.dtype), head / (heads / kv_heads));
        let scores = self.scores(row, head, c);
        let most = scores.iter().fold(f64::NEG_INFINITY, |most, (s, _)| most.max(*s));
        let furthest = scores.iter().fold(0.0f64, |far, (s, _)| far.max(s.abs()));
        let mut p: Vec<f64> = scores.iter().map(|(s, _)| (s - most).exp()).collect();
        let total: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= total);
        let v = |key: usize| &self.v[(key * kv_heads + kv) * n..][..n];
        let mean: f64 = p.iter().zip(&scores).map(|(p, (s, _))| p * s).sum();
        let zero = || vec![0.0; n];
        let (mut mix, mut squares) = (zero(), zero());
        let (mut own, mut shared, mut slope, mut common) = (zero(), zero(), zero(), zero());
        for (key, p) in p.iter().enumerate() {
            // A probability's rounding, and the error of softmax before it.
            let entry = (c * u).powi(2) + (U * (4.0 + most - scores[key].0)).powi(2);
            for (e, v) in v(key).iter().enumerate() {
                mix[e] += p * v;
                squares[e] += (p * v).powi(2);
                own[e] += (p * v).powi(2) * entry;
            }
        }
        let mut keys = Vec::with_capacity(row + 1);
        for (key, (s, mut errors)) in scores.into_iter().enumerate() {
            errors.moved = v(key).iter().zip(&mix).map(|(v, mix)| p[key] * (v - mix)).collect();
            let variance = errors.alone + errors.key * errors.key;
            for (e, moved) in errors.moved.iter().enumerate() {
                shared[e] += moved * moved * variance;
                common[e] += moved.abs() * errors.query;
                slope[e] += moved * (s - mean);
            }
            keys.push(errors);
        }
        for e in 0..n {
            shared[e] += common[e] * common[e];
            own[e] += Sum { y: mix[e], q: squares[e], k: (row + 1) as f64 }.sigma(c).powi(2);
        }
        let mut found = Row { mix, own, shared, slope, keys, curve: (4.0 * u * furthest).exp() };
        if let Some(gate) = self.gate.get((row * heads + head) * n..(row * heads + head + 1) * n) {
            found.multiply(gate, c * u);
        }
        found
    }

    /// The largest of the three tests over their limits.
    pub fn judge(&self, site: &str, got: &Bits, law: &Law) -> Judged {
        let Dims { heads, head_dim: n, .. } = self.dims;
        let rows = got.bits.len() / (heads * n);
        let tests = (2.0 * got.bits.len() as f64).max(1.0) / law.alarm;
        let deviations = (2.0 * tests.ln()).sqrt();
        let (mut over, mut worst) = (0.0f64, 0);
        let mut text = "no error from q, k, v to the mix".to_owned();
        let mut sums: Vec<Head> = (0..heads).map(|_| Head::default()).collect();
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let start = (row * heads + head) * n;
            let exact = self.row(row, head, law.most);
            for e in 0..n {
                let error = excess(self.dtype, got.value(start + e), exact.mix[e]);
                let sigma = exact.variance(e).sqrt();
                let bound = deviations * sigma * exact.curve + ulp(self.dtype, 0.0);
                let ratio = if error.is_nan() { f64::INFINITY } else { error / bound };
                if ratio > over {
                    (over, worst) = (ratio, start + e);
                    text = format!("error from q, k, v to the mix over its limit: {ratio:.2}");
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

impl Row {
    /// Multiplies the row by its gate: the mix and the gate may each have been rounded before.
    fn multiply(&mut self, gate: &[f64], rounding: f64) {
        for (e, gate) in gate.iter().enumerate() {
            self.mix[e] *= gate;
            self.slope[e] *= gate;
            self.shared[e] *= gate * gate;
            self.own[e] = self.own[e] * gate * gate + 2.0 * (rounding * self.mix[e]).powi(2);
            self.keys.iter_mut().for_each(|key| key.moved[e] *= gate);
        }
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
        self.by_key.resize(row.keys.len().max(self.by_key.len()), 0.0);
        let mut query = 0.0;
        for (key, by_key) in row.keys.iter().zip(&mut self.by_key) {
            let all: f64 = key.moved.iter().zip(&weight).map(|(moved, w)| moved * w).sum();
            self.spread += key.alone * all * all;
            query += key.query * all.abs();
            *by_key += key.key * all.abs();
        }
        self.spread += query * query;
    }

    /// The larger of the test of squares and that of the slope, over its limit, and its words. A
    /// row's errors may all be one: its elements count as one.
    fn over(&self, (rows, heads): (usize, usize), law: &Law) -> (f64, String) {
        if self.elements == 0.0 || self.length <= 0.0 {
            return (0.0, String::new());
        }
        let nats = (2.0 * heads as f64 / law.alarm).ln();
        let free = nats / rows.max(1) as f64;
        // The tail of a sum of as many squares as there are rows.
        let limit = 1.0 + 2.0 * free.sqrt() + 2.0 * free;
        let squares = self.squares / self.elements;
        let slope = self.along / self.length;
        let spread = self.spread + self.by_key.iter().map(|s| s * s).sum::<f64>();
        let most = (2.0 * nats * spread).sqrt() / self.length;
        let gain = if most > 0.0 { slope.abs() / most } else { 0.0 };
        if gain > squares / limit {
            let [slope, most] = [100.0 * slope, 100.0 * most];
            let text = format!("its scores are off by {slope:+.3} %, roundings explain {most:.3}");
            return (gain, text);
        }
        (squares / limit, format!("squares of errors are {squares:.2} times those expected"))
    }
}

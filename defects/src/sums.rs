//! Sums in orders other than the contract's: legal ones, and accumulators that are too short.
//!
//! Every op that sums is computed again on the host, in plain f32. Deliberately absent: flushing,
//! which no operand here needs. The invariant: a legal order changes nothing but the order of
//! additions, whether products are fused, and how wide the sum is.

use std::cell::RefCell;
use std::rc::Rc;

use half::bf16;
use samebits::contract::Element;
use samebits::op::{Backend, Heads, NormForm, Op, Out, Site, Span};
use samebits::tensor::Tensor;
use serde::Deserialize;

use crate::host::round_sums;
use crate::sums_delta;

/// An order of summation.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Tree {
    /// First to last.
    Forward,
    /// Last to first.
    Reversed,
    /// Contiguous blocks of this length, their sums added in order.
    Blocks(usize),
    /// This many strided lanes, added by halving.
    Lanes(usize),
    /// This many contiguous parts, their sums added in order.
    Split(usize),
    /// Halves, down to single terms.
    Pairwise,
    /// A permutation drawn from this seed.
    Shuffled(u64),
    /// First to last in f64, rounded once.
    Wide,
}

/// How a legal variant sums.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Legal {
    /// The order.
    pub tree: Tree,
    /// Whether a product is rounded before it is added.
    pub fused: bool,
}

impl Legal {
    /// The sum of `n` products.
    pub fn sum(&self, n: usize, term: impl Fn(usize) -> (f32, f32)) -> f32 {
        let chain = |terms: &mut dyn Iterator<Item = usize>| {
            terms.fold(0.0f32, |acc, i| {
                let (a, b) = term(i);
                if self.fused { a.mul_add(b, acc) } else { acc + a * b }
            })
        };
        let parts = |len: usize| {
            let len = len.max(1);
            let starts = (0..n).step_by(len);
            starts.map(|at| chain(&mut (at..n.min(at + len)))).fold(0.0f32, |acc, sum| acc + sum)
        };
        match self.tree {
            Tree::Forward => chain(&mut (0..n)),
            Tree::Reversed => chain(&mut (0..n).rev()),
            Tree::Blocks(len) => parts(len),
            Tree::Split(count) => parts(n.div_ceil(count)),
            Tree::Lanes(lanes) => {
                let mut sums: Vec<f32> =
                    (0..lanes).map(|lane| chain(&mut (lane..n).step_by(lanes))).collect();
                while sums.len() > 1 {
                    let half = sums.len().div_ceil(2);
                    for i in half..sums.len() {
                        sums[i - half] += sums[i];
                    }
                    sums.truncate(half);
                }
                sums.first().copied().unwrap_or(0.0)
            }
            Tree::Pairwise => pairwise(0, n, &|i| term(i).0 * term(i).1),
            Tree::Shuffled(seed) => chain(&mut shuffled(n, seed).iter().copied()),
            Tree::Wide => {
                let terms = (0..n).map(|i| f64::from(term(i).0) * f64::from(term(i).1));
                terms.sum::<f64>() as f32
            }
        }
    }
}

fn pairwise(from: usize, to: usize, product: &dyn Fn(usize) -> f32) -> f32 {
    match to - from {
        0 => 0.0,
        1 => product(from),
        n => pairwise(from, from + n / 2, product) + pairwise(from + n / 2, to, product),
    }
}

thread_local! {
    /// The last permutation asked for: all sums of an op have the same length.
    static LAST: RefCell<(u64, Rc<[usize]>)> = RefCell::new((0, Rc::from([])));
}

/// A permutation of `0..n`, by sorting on SplitMix64.
fn shuffled(n: usize, seed: u64) -> Rc<[usize]> {
    let last = LAST.with_borrow(|(of, order)| (*of == seed).then(|| Rc::clone(order)));
    if let Some(order) = last.filter(|order| order.len() == n) {
        return order;
    }
    let key = |i: usize| {
        let mut z = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB)
    };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|i| key(*i));
    let order: Rc<[usize]> = order.into();
    LAST.set((seed, Rc::clone(&order)));
    order
}

/// Executes a sum in a legal order; `false` where the op has no sum.
pub fn legal<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, how: Legal) -> bool {
    match op {
        Op::Linear { .. } => rows_of_linear(b, op, |x, w, k| how.sum(k, |i| (x[i], w[i]))),
        Op::RmsNorm { .. } => norm(b, op, how),
        Op::Scores { .. } => {
            b.exec(site, op);
            scores(b, op, |q, k| how.sum(q.len(), |i| (q[i], k[i])));
        }
        Op::Softmax { .. } => {
            b.exec(site, op);
            softmax(b, op, how);
        }
        Op::Mix { .. } => {
            b.exec(site, op);
            mix(b, op, how);
        }
        _ => return sums_delta::legal(b, site, op, how),
    }
    true
}

/// A linear whose sums are rounded to bf16 after every `terms` products, in its last row.
pub fn accumulator<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, terms: usize) -> bool {
    let Op::Linear { rows, .. } = op else { return false };
    let mut right = None;
    let last = rows.count - 1;
    if last > 0 {
        b.exec(site, op);
        right = Some(written(b, op));
    }
    let short = |x: &[f32], w: &[f32], _| {
        x.chunks(terms).zip(w.chunks(terms)).fold(0.0f32, |acc, (x, w)| {
            let sum = x.iter().zip(w).fold(acc, |acc, (x, w)| x.mul_add(*w, acc));
            bf16::nearest(sum).widen()
        })
    };
    rows_of_linear(b, op, short);
    if let Some(right) = right {
        let wrong = written(b, op);
        let width = right.len() / (last + 1);
        let mut both = right.slice(0, last * width);
        both.extend(&wrong.slice(last * width, width));
        overwrite(b, op, &both);
    }
    true
}

fn written<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> Tensor {
    let Op::Linear { out, rows, width, .. } = op else { unreachable!("the op is a linear") };
    b.mem().read(out, 0, rows.count * *width)
}

fn overwrite<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, data: &Tensor) {
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        part.write(b.mem(), act, data);
    }
}

/// Every row of a linear by `sum(x, w, k)`, rounded as sums are.
fn rows_of_linear<B: Backend>(
    b: &mut B,
    op: &mut Op<'_, B::M>,
    sum: impl Fn(&[f32], &[f32], usize) -> f32,
) {
    let Op::Linear { x, weight, rows, width, .. } = op else { unreachable!("the op is a linear") };
    let (_, k) = b.mem().weight_shape(weight);
    let x = b.mem().read(x, rows.first * k, rows.count * k);
    let w = b.mem().read_weight(weight, 0, *width).to_f32();
    let mut sums = Vec::with_capacity(rows.count * *width);
    for x in x.to_f32().chunks(k) {
        sums.extend(w.chunks(k).map(|w| sum(x, w, k)));
    }
    overwrite(b, op, &round_sums(x.dtype(), &sums));
}

fn norm<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::RmsNorm { x, weight, eps, form, rows, width, .. } = op else { return };
    let (eps, form, n) = (*eps, *form, *width);
    let x = b.mem().read(x, 0, *rows * n);
    let weight = b.mem().read_weight(weight, 0, n).to_f32();
    let mut units = Vec::with_capacity(x.len());
    for row in x.to_f32().chunks(n) {
        let mean = how.sum(n, |i| (row[i], row[i])) / n as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        units.extend(row.iter().map(|x| x * scale));
    }
    let units = match form {
        NormForm::RoundThenScale => Tensor::from_f32(x.dtype(), &units).to_f32(),
        NormForm::ScaleThenRound | NormForm::ZeroCentred => units,
    };
    let more = if form == NormForm::ZeroCentred { 1.0 } else { 0.0 };
    let scaled = units.iter().enumerate().map(|(i, u)| (more + weight[i % n]) * u);
    let scaled: Vec<f32> = scaled.collect();
    overwrite(b, op, &Tensor::from_f32(x.dtype(), &scaled));
}

/// One row of one head: what it is and which keys it sees.
struct Row {
    sequence: usize,
    head: usize,
    row: usize,  // within the op
    seen: usize, // keys from 0 on
}

/// Every row of every head, in the order of scores.
fn rows_of<B: Backend>(b: &mut B, span: &Span<'_, B::M>) -> (Vec<Row>, usize) {
    let Heads { batch, query, .. } = span.heads;
    let positions = b.mem().read_ints(span.positions, batch * span.rows.of);
    let keys = b.mem().read_ints(span.keys, 1)[0] as usize;
    let mut rows = Vec::new();
    for sequence in 0..batch {
        for head in 0..query {
            for row in 0..span.rows.count {
                let position = positions[sequence * span.rows.of + span.rows.first + row];
                rows.push(Row { sequence, head, row, seen: keys.min(position as usize + 1) });
            }
        }
    }
    (rows, keys)
}

/// Scores of the keys that are seen, by `dot(q, k)`.
fn scores<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, dot: impl Fn(&[f32], &[f32]) -> f32) {
    let Op::Scores { q, cache, scale, span, .. } = op else { return };
    let (scale, Heads { batch, query, kv, dim }) = (*scale, span.heads);
    let (rows, keys) = rows_of(b, span);
    let data = b.mem().read(q, 0, batch * span.rows.of * query * dim);
    let (dtype, q) = (data.dtype(), data.to_f32());
    let k = matrices(b, &cache.k, (cache.capacity, keys), span.heads);
    let (of, first) = (span.rows.of, span.rows.first);
    let exact = values_of(b, op);
    let mut values = exact.to_f32();
    for (at, row) in rows.iter().enumerate() {
        let from = ((row.sequence * of + first + row.row) * query + row.head) * dim;
        let matrix = &k[row.sequence * kv + row.head / (query / kv)];
        let sums: Vec<f32> = (0..row.seen)
            .map(|key| dot(&q[from..from + dim], &matrix[key * dim..][..dim]))
            .collect();
        let scaled: Vec<f32> =
            round_sums(dtype, &sums).to_f32().iter().map(|sum| sum * scale).collect();
        let scaled = Tensor::from_f32(dtype, &scaled).to_f32();
        values[at * keys..][..row.seen].copy_from_slice(&scaled);
    }
    overwrite(b, op, &Tensor::from_f32(dtype, &values));
}

/// Scores whose product is not rounded before it is scaled.
pub fn scores_unrounded<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>) -> bool {
    let Op::Scores { scale, .. } = op else { return false };
    let scale = *scale;
    b.exec(site, op);
    // Dividing by the scale afterwards would round again: the one rounding is taken here.
    let how = Legal { tree: Tree::Forward, fused: true };
    let Op::Scores { out, q, cache, span, .. } = op else { unreachable!("matched above") };
    let mut unscaled =
        Op::Scores { out: &mut **out, q: *q, cache: *cache, scale: 1.0, span: *span };
    scores(b, &mut unscaled, |q, k| how.sum(q.len(), |i| (q[i], k[i])) * scale);
    true
}

fn values_of<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> Tensor {
    for out in op.outs() {
        if let Out::Act { act, part, .. } = out {
            return part.read(b.mem(), act).data;
        }
    }
    unreachable!("attention writes activations")
}

/// The first `keys` rows of every matrix of a cache.
fn matrices<B: Backend>(
    b: &mut B,
    cache: &<B::M as samebits::op::Mem>::Act,
    (capacity, keys): (usize, usize),
    heads: Heads,
) -> Vec<Vec<f32>> {
    let read = |i| b.mem().read(cache, i * capacity * heads.dim, keys * heads.dim).to_f32();
    (0..heads.batch * heads.kv).map(read).collect()
}

fn softmax<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::Softmax { x, span, .. } = op else { return };
    let (rows, keys) = rows_of(b, span);
    let x = b.mem().read(x, 0, rows.len() * span.stride);
    let stride = span.stride;
    let mut values = vec![0.0f32; rows.len() * keys];
    for (at, row) in rows.iter().enumerate() {
        let scores: Vec<f32> = (0..row.seen).map(|key| x.get(at * stride + key)).collect();
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f32> = scores.iter().map(|s| f64::from(s - most).exp() as f32).collect();
        let sum = how.sum(e.len(), |i| (e[i], 1.0));
        for (value, e) in values[at * keys..].iter_mut().zip(&e) {
            *value = if how.fused { e * (1.0 / sum) } else { e / sum };
        }
    }
    overwrite(b, op, &Tensor::from_f32(x.dtype(), &values));
}

fn mix<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, how: Legal) {
    let Op::Mix { probs, cache, span, .. } = op else { return };
    let Heads { batch, query, kv, dim } = span.heads;
    let (rows, keys) = rows_of(b, span);
    let p = b.mem().read(probs, 0, rows.len() * span.stride);
    let v = matrices(b, &cache.v, (cache.capacity, keys), span.heads);
    let (stride, count) = (span.stride, span.rows.count);
    let mut sums = vec![0.0f32; batch * count * query * dim];
    for (at, row) in rows.iter().enumerate() {
        let matrix = &v[row.sequence * kv + row.head / (query / kv)];
        let to = ((row.sequence * count + row.row) * query + row.head) * dim;
        for (i, sum) in sums[to..to + dim].iter_mut().enumerate() {
            *sum = how.sum(row.seen, |key| (p.get(at * stride + key), matrix[key * dim + i]));
        }
    }
    overwrite(b, op, &round_sums(p.dtype(), &sums));
}

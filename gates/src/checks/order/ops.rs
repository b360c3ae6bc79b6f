//! The ops that sum, on probes of `case.k` terms each, under the names of sites that run them.

use samebits::op::{Backend, Heads, Kv, Layout, Mem, NormForm, Op, Rows, Site, Span};
use samebits::tensor::Tensor;

use super::Case;

fn act<B: Backend>(b: &mut B, case: Case, values: &[f32]) -> <B::M as Mem>::Act {
    let mut act = b.mem().alloc(values.len(), case.dtype, Layout::RowMajor);
    b.mem().write(&mut act, 0, &Tensor::from_f32(case.dtype, values));
    act
}

/// Probes and zeros beyond them: in `Order::Transformers` the last outputs of a product whose
/// outputs are no multiple of four, and those of one of few, follow other trees.
fn whole(case: Case, probes: &[f32]) -> (usize, Vec<f32>) {
    const FEW: usize = 12;
    let count = (probes.len() / case.k).next_multiple_of(4).max(FEW);
    let mut all = probes.to_vec();
    all.resize(count * case.k, 0.0);
    (count, all)
}

/// The outputs of the probes, without those of the zeros.
fn probed(case: Case, probes: &[f32], out: &[f32]) -> Vec<f32> {
    let (all, own) = (out.len() / case.rows, probes.len() / case.k);
    out.chunks_exact(all).flat_map(|row| &row[..own]).copied().collect()
}

/// `[rows, probes]`.
pub fn linear<B: Backend>(b: &mut B, case: Case, probes: &[f32]) -> Vec<f32> {
    let (width, all) = whole(case, probes);
    let mut weight = b.mem().alloc_weight(width, Some(case.k), case.dtype);
    b.mem().write_weight(&mut weight, 0, &Tensor::from_f32(case.dtype, &all));
    let x = act(b, case, &vec![1.0; case.rows * case.k]);
    let mut out = act(b, case, &vec![0.0; case.rows * width]);
    let rows = Rows::all(case.rows);
    let op = Op::Linear { out: &mut out, x: &x, weight: &weight, rows, width };
    b.run(Site::global("o_proj"), op);
    probed(case, probes, &b.mem().read(&out, 0, case.rows * width).to_f32())
}

/// `[rows, probes]`: every probe is a key.
pub fn scores<B: Backend>(b: &mut B, case: Case, probes: &[f32]) -> Vec<f32> {
    let (capacity, all) = whole(case, probes);
    let heads = Heads { batch: 1, query: 1, kv: 1, dim: case.k };
    let cache = cache(b, case, heads, Layout::Keys(heads), &all);
    let q = act(b, case, &vec![1.0; case.rows * case.k]);
    let mut out = act(b, case, &vec![0.0; case.rows * capacity]);
    let (positions, keys) = ints(b, case.rows, capacity);
    let rows = Rows::all(case.rows);
    let span = Span { heads, rows, positions: &positions, keys: &keys, stride: capacity };
    let op = Op::Scores { out: &mut out, q: &q, cache: &cache, scale: 1.0, span };
    b.run(Site::global("scores"), op);
    probed(case, probes, &b.mem().read(&out, 0, case.rows * capacity).to_f32())
}

/// `[rows, probes]`: every probe is one dimension of the values.
pub fn mix<B: Backend>(b: &mut B, case: Case, probes: &[f32]) -> Vec<f32> {
    let (dim, all) = whole(case, probes);
    let heads = Heads { batch: 1, query: 1, kv: 1, dim };
    let values: Vec<f32> = (0..all.len()).map(|i| all[i % dim * case.k + i / dim]).collect();
    let cache = cache(b, case, heads, Layout::Values(heads), &values);
    let probs = act(b, case, &vec![1.0; case.rows * case.k]);
    let mut out = act(b, case, &vec![0.0; case.rows * dim]);
    let (positions, keys) = ints(b, case.rows, case.k);
    let rows = Rows::all(case.rows);
    let span = Span { heads, rows, positions: &positions, keys: &keys, stride: case.k };
    let op = Op::Mix { out: &mut out, probs: &probs, cache: &cache, span };
    b.run(Site::global("mix"), op);
    probed(case, probes, &b.mem().read(&out, 0, case.rows * dim).to_f32())
}

/// `[probes, k]`: one query row and many heads, or many rows of one head.
pub fn softmax<B: Backend>(b: &mut B, case: Case, x: &[f32]) -> Vec<f32> {
    let count = x.len() / case.k;
    let (query, rows) = if case.rows == 1 { (count, 1) } else { (1, count) };
    let heads = Heads { batch: 1, query, kv: 1, dim: 1 };
    let (positions, keys) = ints(b, rows, case.k);
    let rows = Rows::all(rows);
    let span = Span { heads, rows, positions: &positions, keys: &keys, stride: case.k };
    let (data, mut out) = (act(b, case, x), act(b, case, &vec![0.0; x.len()]));
    b.run(Site::global("probs"), Op::Softmax { out: &mut out, x: &data, span });
    b.mem().read(&out, 0, x.len()).to_f32()
}

/// `[probes, k]`, with a weight of ones.
pub fn rms_norm<B: Backend>(b: &mut B, case: Case, x: &[f32], eps: f32) -> Vec<f32> {
    let (rows, width) = (x.len() / case.k, case.k);
    let mut weight = b.mem().alloc_weight(width, None, case.dtype);
    b.mem().write_weight(&mut weight, 0, &Tensor::from_f32(case.dtype, &vec![1.0; width]));
    let (data, mut out) = (act(b, case, x), act(b, case, &vec![0.0; x.len()]));
    let (x, weight, form) = (&data, &weight, NormForm::RoundThenScale);
    let op = Op::RmsNorm { out: &mut out, x, weight, eps, form, rows, width };
    b.run(Site::global("input_layernorm"), op);
    b.mem().read(&out, 0, rows * width).to_f32()
}

/// A cache of which only what the op reads is written: keys or values, `[capacity, dim]`.
fn cache<B: Backend>(b: &mut B, case: Case, heads: Heads, read: Layout, data: &[f32]) -> Kv<B::M> {
    let [k, v] = [Layout::Keys(heads), Layout::Values(heads)].map(|layout| {
        let mut act = b.mem().alloc(data.len(), case.dtype, layout);
        if layout == read {
            b.mem().write(&mut act, 0, &Tensor::from_f32(case.dtype, data));
        }
        act
    });
    Kv { k, v, capacity: data.len() / heads.dim }
}

/// Positions of rows that all see every key, and the number of keys.
fn ints<B: Backend>(b: &mut B, rows: usize, keys: usize) -> (Ints<B>, Ints<B>) {
    let (mut positions, mut count) = (b.mem().alloc_ints(rows), b.mem().alloc_ints(1));
    b.mem().write_ints(&mut positions, &vec![keys as u32 - 1; rows]);
    b.mem().write_ints(&mut count, &[keys as u32]);
    (positions, count)
}

type Ints<B> = <<B as Backend>::M as Mem>::Ints;

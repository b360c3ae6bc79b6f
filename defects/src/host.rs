//! Faults that no field of an op expresses: the op runs, then the host computes it wrongly again.
//!
//! The sums here are the contract's own, written once more in plain loops, so that what differs
//! from the engine is the planted fault and nothing else.

use half::bf16;
use samebits::contract::sum_of_squares;
use samebits::contract::{Dtype, Element, Order, exp_s, fma_flush, linear_block, mix_block, silu};
use samebits::op::{Backend, Heads, Op, Out, Site};
use samebits::tensor::Tensor;

use crate::altered::last;
use crate::fault::{Activation, Softmax};

/// One product: chains of `block` terms, summed in order. f32, not yet rounded.
pub fn chain(x: &[f32], w: &[f32], dtype: Dtype, block: usize) -> f32 {
    let blocks = x.chunks(block).zip(w.chunks(block)).map(|(x, w)| match dtype {
        Dtype::F32 => x.iter().zip(w).fold(0.0f32, |acc, (x, w)| x.mul_add(*w, acc)),
        Dtype::Bf16 => x.chunks(2).zip(w.chunks(2)).fold(0.0f32, |acc, (x, w)| {
            let odd = if x.len() == 2 { (x[1], w[1]) } else { (0.0, 0.0) };
            fma_flush(x[0], w[0], fma_flush(odd.0, odd.1, acc))
        }),
    });
    blocks.reduce(|total, block| total + block).expect("a product has terms")
}

/// One product in f64, rounded to f32 once.
fn exact(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() as f32
}

/// Sums of a product, rounded as a product's sums are.
pub fn round_sums(dtype: Dtype, sums: &[f32]) -> Tensor {
    match dtype {
        Dtype::Bf16 => Tensor::Bf16(sums.iter().map(|s| bf16::nearest_sum(*s)).collect()),
        Dtype::F32 => Tensor::F32(sums.iter().map(|s| f32::nearest_sum(*s)).collect()),
    }
}

/// Runs a linear, then sums its last row again in blocks of `terms`.
pub fn block<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, terms: usize) -> bool {
    if !matches!(op, Op::Linear { .. }) {
        return false;
    }
    b.exec(site, op);
    let Some((x, w, dtype)) = last_row(b, op) else { return false };
    let sums: Vec<f32> = w.chunks(x.len()).map(|w| chain(&x, w, dtype, terms)).collect();
    write_last_row(b, op, &round_sums(dtype, &sums));
    true
}

/// Runs a linear or a mix, then multiplies sums by `factor` before rounding: those of a linear's
/// last row, or those of the first head.
pub fn gain<B: Backend>(b: &mut B, site: Site, op: &mut Op<'_, B::M>, factor: f32) -> bool {
    match op {
        Op::Linear { .. } => {
            b.exec(site, op);
            let Some((x, w, dtype)) = last_row(b, op) else { return false };
            let blocks = |rows| {
                [Order::Invariant, Order::Transformers]
                    .map(|o| linear_block(o, dtype, x.len(), rows))
            };
            let of = if let Op::Linear { rows, .. } = op { rows.of } else { 1 };
            let right = read_last_row(b, op);
            let by_row = |sum: &dyn Fn(&[f32]) -> f32| w.chunks(x.len()).map(sum).collect();
            let in_blocks = |block| by_row(&|w| chain(&x, w, dtype, block));
            let sums = matching(blocks(of), dtype, &right, in_blocks, || by_row(&|w| exact(&x, w)));
            let more: Vec<f32> = sums.iter().map(|s| s * factor).collect();
            write_last_row(b, op, &round_sums(dtype, &more));
        }
        Op::Mix { .. } => {
            b.exec(site, op);
            gain_of_first_head(b, op, factor);
        }
        _ => return false,
    }
    true
}

/// The sums that round to `right`, by the first of `blocks` that reproduces it. A backend that sums
/// in another legal order has unrounded sums that nobody can see: there the exact ones take their
/// place, from which its own differ by less than the weakest gain.
fn matching(
    blocks: [usize; 2],
    dtype: Dtype,
    right: &Tensor,
    sums: impl Fn(usize) -> Vec<f32>,
    exact: impl FnOnce() -> Vec<f32>,
) -> Vec<f32> {
    let same = |sums: &[f32]| {
        let rounded = round_sums(dtype, sums);
        (0..right.len()).all(|i| rounded.bits(i) == right.bits(i))
    };
    blocks.into_iter().map(sums).find(|sums| same(sums)).unwrap_or_else(exact)
}

fn gain_of_first_head<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, factor: f32) {
    let Op::Mix { probs, cache, span, .. } = op else { return };
    let (span, Heads { batch, query, kv, dim }) = (*span, span.heads);
    let keys = b.mem().read_ints(span.keys, 1)[0] as usize;
    let count = span.rows.count;
    let mut rows = Vec::new(); // x and columns of each row of the first head
    for sequence in 0..batch {
        let v = b.mem().read(&cache.v, sequence * kv * cache.capacity * dim, keys * dim);
        let columns: Vec<f32> = (0..dim * keys).map(|i| v.get(i % keys * dim + i / keys)).collect();
        for row in 0..count {
            let at = (sequence * query * count + row) * span.stride;
            rows.push((b.mem().read(probs, at, keys).to_f32(), columns.clone(), v.dtype()));
        }
    }
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        let written = part.read(b.mem(), act);
        let mut values = written.data.to_f32();
        for (at, (p, columns, dtype)) in rows.iter().enumerate() {
            let blocks = [Order::Invariant, Order::Transformers]
                .map(|o| mix_block(o, *dtype, keys, span.rows.of));
            let right = written.data.slice(at * query * dim, dim);
            let by_column = |sum: &dyn Fn(&[f32]) -> f32| columns.chunks(keys).map(sum).collect();
            let in_blocks = |block| by_column(&|v| chain(p, v, *dtype, block));
            let sums = matching(blocks, *dtype, &right, in_blocks, || by_column(&|v| exact(p, v)));
            let more: Vec<f32> = sums.iter().map(|s| s * factor).collect();
            let more = round_sums(*dtype, &more).to_f32();
            values[at * query * dim..][..dim].copy_from_slice(&more);
        }
        part.write(b.mem(), act, &Tensor::from_f32(written.data.dtype(), &values));
    }
}

/// The last row of a linear's input, its whole weight, and the dtype.
fn last_row<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> Option<(Vec<f32>, Vec<f32>, Dtype)> {
    let Op::Linear { x, weight, rows, width, .. } = op else { return None };
    let (_, k) = b.mem().weight_shape(weight);
    let x = b.mem().read(x, last(*rows) * k, k);
    let w = b.mem().read_weight(weight, 0, *width);
    Some((x.to_f32(), w.to_f32(), x.dtype()))
}

fn read_last_row<B: Backend>(b: &mut B, op: &Op<'_, B::M>) -> Tensor {
    let Op::Linear { out, rows, width, .. } = op else { unreachable!("the op is a linear") };
    b.mem().read(out, (rows.count - 1) * width, *width)
}

fn write_last_row<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, row: &Tensor) {
    let Op::Linear { out, rows, width, .. } = op else { unreachable!("the op is a linear") };
    b.mem().write(out, (rows.count - 1) * *width, row);
}

/// A norm whose epsilon is added to the root, or whose mean is a sum.
pub fn wrong_root<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, sum: bool) -> bool {
    let Op::RmsNorm { out, x, weight, eps, rows, width, .. } = op else { return false };
    let (eps, width) = (*eps, *width);
    let x = b.mem().read(x, 0, *rows * width);
    let weight = b.mem().read_weight(weight, 0, width).to_f32();
    let mut values = Vec::with_capacity(x.len());
    for x in x.to_f32().chunks(width) {
        let squares = sum_of_squares(|i| x[i], width);
        let mean = squares / width as f32;
        let root = if sum { (squares + eps).sqrt() } else { mean.sqrt() + eps };
        let scale = 1.0 / root;
        let units: Vec<f32> = x.iter().map(|x| x * scale).collect();
        values.extend(units.iter().zip(&weight).map(|(u, w)| (*u, *w)));
    }
    let units: Vec<f32> = values.iter().map(|(u, _)| *u).collect();
    let units = Tensor::from_f32(x.dtype(), &units).to_f32();
    let scaled: Vec<f32> = units.iter().zip(&values).map(|(u, (_, w))| w * u).collect();
    b.mem().write(out, 0, &Tensor::from_f32(x.dtype(), &scaled));
    true
}

/// A norm or a rotation that copies its input.
pub fn skip<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> bool {
    let (out, x, len) = match op {
        Op::RmsNorm { out, x, rows, width, .. } => (out, x, *rows * *width),
        Op::Rope { out, x, rows, heads, dim, .. } => (out, x, *rows * *heads * *dim),
        _ => return false,
    };
    let x = b.mem().read(x, 0, len);
    b.mem().write(out, 0, &x);
    true
}

/// Another activation instead of SiLU.
pub fn activation<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, form: Activation) -> bool {
    let Op::Silu { out, x, rows, width } = op else { return false };
    let x = b.mem().read(x, 0, *rows * *width);
    let f = |x: f32| match form {
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
        }
        Activation::GeluSigmoid => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::Clipped => silu(x.clamp(-8.0, 8.0)),
    };
    let values: Vec<f32> = x.to_f32().into_iter().map(f).collect();
    b.mem().write(out, 0, &Tensor::from_f32(x.dtype(), &values));
    true
}

/// `silu(gate) * up` with one rounding instead of two.
pub fn unrounded<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>, gate: &Tensor) -> bool {
    let Op::Mul { out, b: up, rows, width, .. } = op else { return false };
    let up = b.mem().read(up, 0, *rows * *width).to_f32();
    let values: Vec<f32> = gate.to_f32().into_iter().zip(up).map(|(g, u)| silu(g) * u).collect();
    b.mem().write(out, 0, &Tensor::from_f32(gate.dtype(), &values));
    true
}

/// One row of softmax gone wrong.
pub fn softmax_row(x: &[f32], form: Softmax) -> Vec<f32> {
    let most = |x: &[f32]| x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let max = match form {
        Softmax::NoMax => 0.0,
        Softmax::FirstMax(n) => most(&x[..n.min(x.len())]),
        Softmax::Half | Softmax::HalfSum => most(x),
    };
    let narrow = |short: bool, e: f32| if short { bf16::nearest(e).widen() } else { e };
    let half = form == Softmax::Half;
    let e: Vec<f32> = x.iter().map(|x| narrow(half, exp_s(x - max))).collect();
    let sum = narrow(half || form == Softmax::HalfSum, e.iter().sum());
    e.iter().map(|e| narrow(half, e / sum)).collect()
}

/// Runs a softmax, then computes it wrongly over the keys that are not masked; with a `sentinel`
/// rightly, but over all keys.
pub fn softmax<B: Backend>(
    b: &mut B,
    site: Site,
    op: &mut Op<'_, B::M>,
    (form, sentinel): (Softmax, Option<f32>),
) -> bool {
    let Op::Softmax { x, span, .. } = op else { return false };
    let (span, Heads { batch, query, .. }) = (*span, span.heads);
    let keys = b.mem().read_ints(span.keys, 1)[0] as usize;
    let rows = batch * query * span.rows.count;
    let x = b.mem().read(x, 0, rows * span.stride);
    b.exec(site, op);
    let masked = Tensor::from_f32(x.dtype(), &[f32::MIN]).get(0);
    let masked = if x.dtype() == Dtype::Bf16 { bf16::MASKED.widen() } else { masked };
    let mut values = Vec::with_capacity(rows * keys);
    for row in 0..rows {
        let x: Vec<f32> = (0..keys).map(|k| x.get(row * span.stride + k)).collect();
        let x: Vec<f32> = match sentinel {
            Some(value) => x.iter().map(|x| if *x > masked { *x } else { value }).collect(),
            None => x,
        };
        let seen: Vec<f32> = x.iter().copied().filter(|x| *x > masked).collect();
        let mut probs = softmax_row(&seen, form).into_iter();
        let mut prob = |x: &f32| if *x > masked { probs.next() } else { None }.unwrap_or(0.0);
        values.extend(x.iter().map(&mut prob));
    }
    for out in op.outs() {
        let Out::Act { act, part, .. } = out else { continue };
        part.write(b.mem(), act, &Tensor::from_f32(x.dtype(), &values));
    }
    true
}

/// The highest index among the largest of each row.
pub fn argmax_last<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> bool {
    let Op::Argmax { out, x, rows, width } = op else { return false };
    let x = b.mem().read(x, 0, *rows * *width).to_f32();
    let last = |row: &[f32]| {
        let best = (0..row.len()).fold(0, |best, i| if row[i] >= row[best] { i } else { best });
        if row.iter().any(|x| x.is_nan()) { u32::MAX } else { best as u32 }
    };
    let ids: Vec<u32> = x.chunks(*width).map(last).collect();
    b.mem().write_ints(out, &ids);
    true
}

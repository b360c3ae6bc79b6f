//! The scalars of the contract `sb1`: f32 operations one by one, in the order that is their value.
//!
//! Deliberately absent: shapes, threads, platform libm (`mul_add`, `sqrt` and `round_ties_even` are
//! exact IEEE operations). Invariant: nothing flushes but the FMAs of a bf16 product and the
//! rounding that ends it.

use crate::dtype::{Dtype, Order};
pub use crate::exact::{exp, log1p};
pub use crate::rotary::{cos_sin_bf16, inverse_frequencies, rotary_table, rotary_table_bf16};

/// f32 to the nearest bf16, ties to even; subnormals stay, NaN becomes `0x7FC0`.
pub fn round_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return f32::from_bits(0x7FC0_0000);
    }
    let u = x.to_bits();
    f32::from_bits((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF_0000)
}

/// A subnormal read as the zero of its sign.
pub fn daz(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x }
}

/// The rounding that ends a bf16 linear: a subnormal total becomes the zero of its sign.
pub fn round_bf16_flush(x: f32) -> f32 {
    round_bf16(daz(x))
}

/// `a * b + acc`, rounded once; subnormal operands are read as signed zero, and a result that is
/// subnormal after rounding with unbounded exponent becomes signed zero.
pub fn fma_flush(a: f32, b: f32, acc: f32) -> f32 {
    let (a, b, acc) = (daz(a), daz(b), daz(acc));
    let r = a.mul_add(b, acc);
    if r.abs() > f32::MIN_POSITIVE || r == 0.0 || r.is_nan() {
        return r;
    }
    // Near the smallest normal number: 24 bits of unbounded exponent reach it from half a step
    // (2^-151) below, f32 itself already from 2^-150 below. Scaled by 2^64 nothing here is tiny.
    let up = 2f32.powi(64);
    let scaled =
        if a.abs() < b.abs() { (a * up).mul_add(b, acc * up) } else { a.mul_add(b * up, acc * up) };
    if scaled.abs() < 2f32.powi(-62) { 0f32.copysign(scaled) } else { r }
}

/// The chain of a bf16 product: blocks of `block`, within one pairs ascending, odd element first,
/// FMA from 0; an odd length is filled with 0 x 0; blocks added in order. f32, not yet rounded.
pub fn dot_bf16(x: &[f32], w: &[f32], block: usize) -> f32 {
    let chain = |x: &[f32], w: &[f32]| {
        let pairs = x.chunks(2).zip(w.chunks(2));
        pairs.fold(0f32, |acc, (x, w)| {
            let odd = if x.len() == 2 { (x[1], w[1]) } else { (0.0, 0.0) };
            fma_flush(x[0], w[0], fma_flush(odd.0, odd.1, acc))
        })
    };
    blocks(x, w, block, chain)
}

/// The chain of an f32 product: blocks of `block`, within one ascending FMA from 0; blocks added
/// in order. Nothing flushes.
pub fn dot_f32(x: &[f32], w: &[f32], block: usize) -> f32 {
    let chain =
        |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0f32, |acc, (&x, &w)| x.mul_add(w, acc));
    blocks(x, w, block, chain)
}

fn blocks(x: &[f32], w: &[f32], block: usize, chain: impl Fn(&[f32], &[f32]) -> f32) -> f32 {
    assert_eq!(x.len(), w.len(), "dot: two lengths");
    let sums = x.chunks(block).zip(w.chunks(block)).map(|(x, w)| chain(x, w));
    sums.reduce(|total, sum| total + sum).unwrap_or(0.0)
}

/// Length of the blocks of a linear of `k` terms in a forward of `true_rows` rows.
pub fn linear_block(order: Order, dtype: Dtype, k: usize, true_rows: usize) -> usize {
    match dtype {
        Dtype::Bf16 if k <= 1024 => 512,
        Dtype::Bf16 if order == Order::Transformers && true_rows == 1 => 512,
        Dtype::Bf16 => 1024,
        Dtype::F32 if k <= 192 => k.max(1),
        Dtype::F32 if k < 384 => k / 2,
        Dtype::F32 => 192,
    }
}

/// Length of the blocks of probabilities x V over `keys` keys for `true_rows` query rows.
pub fn mix_block(order: Order, dtype: Dtype, keys: usize, true_rows: usize) -> usize {
    match (order, dtype) {
        (Order::Transformers, _) => linear_block(order, dtype, keys, true_rows),
        (Order::Invariant, Dtype::Bf16) => 1024,
        (Order::Invariant, Dtype::F32) => 192,
    }
}

/// Mean of the squares: their cascade, then a division by the length.
pub fn mean_of_squares(x: &[f32]) -> f32 {
    sum_of_squares(x) / x.len() as f32
}

/// Sum of the squares: a cascade over 8 lanes (f32).
///
/// Vectors of 8 are dealt to 4 accumulators; each is summed in groups that carry into 3 higher
/// levels. Levels, left-over vectors, accumulators, scalar tail and lanes are added in that order.
pub fn sum_of_squares(x: &[f32]) -> f32 {
    let squares: Vec<f32> = x.iter().map(|x| x * x).collect();
    let (vectors, tail) = squares.as_chunks::<8>();
    let (quads, left_over) = vectors.as_chunks::<4>();
    let mut sums = cascade(quads);
    for v in left_over {
        sums[0] = plus(sums[0], *v);
    }
    let lanes = plus(plus(plus(sums[0], sums[1]), sums[2]), sums[3]);
    let tail = tail.iter().fold(0f32, |acc, x| acc + x);
    lanes.iter().fold(tail, |acc, x| acc + x)
}

type Quad = [[f32; 8]; 4];

fn plus(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
    std::array::from_fn(|i| a[i] + b[i])
}

fn cascade(quads: &[Quad]) -> Quad {
    let bits = quads.len().max(1).next_power_of_two().trailing_zeros();
    let power = (bits / 4).max(4);
    let add = |a: Quad, b: Quad| -> Quad { std::array::from_fn(|i| plus(a[i], b[i])) };
    let zero = [[0f32; 8]; 4];
    let mut level = [zero; 4];
    let groups = quads.chunks_exact(1 << power);
    let rest = groups.remainder();
    for (done, group) in (1usize..).zip(groups) {
        level[0] = group.iter().fold(level[0], |acc, v| add(acc, *v));
        for j in 1..4 {
            level[j] = add(level[j], level[j - 1]);
            level[j - 1] = zero;
            if done % (1 << (power * j as u32)) != 0 {
                break;
            }
        }
    }
    level[0] = rest.iter().fold(level[0], |acc, v| add(acc, *v));
    add(add(add(level[0], level[1]), level[2]), level[3])
}

/// `exp` in f32 by argument reduction with two-part ln 2 and a degree-5 polynomial, all FMA.
pub fn exp_s(x: f32) -> f32 {
    if x < -104.0 {
        return 0.0;
    }
    if x > 100.0 {
        return f32::INFINITY;
    }
    let q = (x * std::f32::consts::LOG2_E).round_ties_even();
    let s = q.mul_add(-0.693_145_75, x);
    let s = q.mul_add(-1.428_606_8e-6, s);
    let poly = [1.393_043_6e-3, 8.333_361e-3, 4.166_648_5e-2, 0.166_666_67, 0.5];
    let u = poly.iter().fold(1.985_276_2e-4_f32, |u, &c| u.mul_add(s, c));
    let u = 1.0 + (s * s).mul_add(u, s);
    let q = q as i32;
    u * power_of_two(q >> 1) * power_of_two(q - (q >> 1))
}

/// `2^q` for the exponents of normal numbers.
pub(crate) fn power_of_two(q: i32) -> f32 {
    f32::from_bits(((q + 127) as u32) << 23)
}

/// `x / (1 + exp_s(-x))` in f32.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp_s(-x))
}

/// Softmax of one row in f32: `exp_s(x - max)` times the reciprocal of the sum. The sum has 16
/// lanes (lane = index mod 16) and a halving tree; below 16 values it is sequential unless
/// `lanes_below_16`.
pub fn softmax(x: &[f32], lanes_below_16: bool) -> Vec<f32> {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    let e: Vec<f32> = x.iter().map(|x| exp_s(x - max)).collect();
    let sum = if x.len() < 16 && !lanes_below_16 {
        e.iter().copied().reduce(|acc, e| acc + e).unwrap_or(0.0)
    } else {
        let mut lanes = [0f32; 16];
        for (i, e) in e.iter().enumerate() {
            lanes[i % 16] += e;
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    };
    let reciprocal = 1.0 / sum;
    e.iter().map(|e| e * reciprocal).collect()
}

/// `1 / (1 + exp_s(-x))` in f32.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp_s(0.0 - x))
}

/// `-exp(log) * softplus(a + bias)` in f32: exp and log1p are correctly rounded, each by itself.
pub fn decay(a: f32, log: f32, bias: f32) -> f32 {
    let x = a + bias;
    let softplus = if x > 20.0 { x } else { log1p(exp(x)) };
    -exp(log) * softplus
}

//! Bodies of the row kernels, written once and compiled for each instruction set.
//!
//! Everything is `inline(always)` and made of IEEE operations in a fixed order, so that the tables
//! of [`super::kernels`] differ in speed and in nothing else.

use super::kernels::{ConvRow, DeltaStep};
use crate::contract::{
    Element, LANES, Order, exp_s, halving_tree, sigmoid as sigmoid_f32, silu as silu_f32,
    sum_of_squares,
};
use crate::op::NormForm;

/// `x / (1 + exp(-x))`, in f32, rounded once.
#[inline(always)]
pub fn silu<E: Element>(out: &mut [E], x: &[E]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = E::nearest(silu_f32(x.widen()));
    }
}

/// `1 / (1 + exp(-x))`, in f32, rounded once.
#[inline(always)]
pub fn sigmoid<E: Element>(out: &mut [E], x: &[E]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = E::nearest(sigmoid_f32(x.widen()));
    }
}

/// `a * b`, in f32, rounded once.
#[inline(always)]
pub fn mul<E: Element>(out: &mut [E], a: &[E], b: &[E]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = E::nearest(a.widen() * b.widen());
    }
}

/// `a + b`, in f32, rounded once.
#[inline(always)]
pub fn add<E: Element>(out: &mut [E], a: &[E], b: &[E]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = E::nearest(a.widen() + b.widen());
    }
}

/// One vector's RMSNorm: f32 sum of squares in the contract's cascade, then rounding as `form`
/// says.
#[inline(always)]
pub fn rms_norm<E: Element>(out: &mut [E], x: &[E], weight: &[E], eps: f32, form: NormForm) {
    let len = x.len();
    let mean = sum_of_squares(|i| x[i].widen(), len) / len as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        let unit = x.widen() * scale;
        *out = match form {
            NormForm::RoundThenScale => E::nearest(weight.widen() * E::nearest(unit).widen()),
            NormForm::ScaleThenRound => E::nearest(unit * weight.widen()),
            NormForm::ZeroCentred => E::nearest(unit * (1.0 + weight.widen())),
        };
    }
}

/// One head's rotation: three roundings an element. What lies beyond the tables' width is copied.
#[inline(always)]
pub fn rope<E: Element>(out: &mut [E], x: &[E], cos: &[E], sin: &[E]) {
    let half = cos.len();
    let (x, rest) = x.split_at(2 * half);
    let (out, out_rest) = out.split_at_mut(2 * half);
    out_rest.copy_from_slice(rest);
    let (low, high) = x.split_at(half);
    let (out_low, out_high) = out.split_at_mut(half);
    for i in 0..half {
        let (l, h, c, s) = (low[i].widen(), high[i].widen(), cos[i].widen(), sin[i].widen());
        let (lc, hs) = (E::nearest(l * c).widen(), E::nearest(-h * s).widen());
        let (hc, ls) = (E::nearest(h * c).widen(), E::nearest(l * s).widen());
        out_low[i] = E::nearest(lc + hs);
        out_high[i] = E::nearest(hc + ls);
    }
}

/// One row's softmax: f32 sum in 16 lanes (lane = key mod 16) and a halving tree, then times the
/// reciprocal. Below 16 keys, `Order::Transformers` sums one after another.
#[inline(always)]
pub fn softmax<E: Element>(out: &mut [E], x: &[E], order: Order) {
    let max = maximum(x);
    let mut lanes = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += exp_s(x.widen() - max);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += exp_s(x.widen() - max);
    }
    let sum = if order == Order::Transformers && x.len() < LANES {
        lanes[..x.len()].iter().fold(0.0, |sum, e| sum + e)
    } else {
        halving_tree(lanes)
    };
    let inverse = 1.0 / sum;
    for (out, x) in out.iter_mut().zip(x) {
        *out = E::nearest(exp_s(x.widen() - max) * inverse);
    }
}

/// The largest element. A NaN is passed over: it reaches the sum by itself.
#[inline(always)]
fn maximum<E: Element>(x: &[E]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if x.widen() > *lane { x.widen() } else { *lane };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = if x.widen() > *lane { x.widen() } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// One head's unit vector: f32 sum of squares in the contract's cascade, f32 out.
#[inline(always)]
pub fn l2_norm<E: Element>(out: &mut [f32], x: &[E]) {
    let scale = 1.0 / (sum_of_squares(|i| x[i].widen(), x.len()) + 1e-6).sqrt();
    for (out, x) in out.iter_mut().zip(x) {
        *out = x.widen() * scale;
    }
}

/// One head's gated norm: f32 sum of squares in the contract's cascade; rounded as a unit vector,
/// after the weight, and after the gate.
#[inline(always)]
pub fn gated_norm<E: Element>(out: &mut [E], x: &[E], z: &[E], weight: &[f32], eps: f32) {
    let len = x.len();
    let mean = sum_of_squares(|i| x[i].widen(), len) / len as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (((out, x), z), weight) in out.iter_mut().zip(x).zip(z).zip(weight) {
        let unit = E::nearest(x.widen() * scale).widen();
        let scaled = E::nearest(weight * unit).widen();
        *out = E::nearest(scaled * silu_f32(z.widen()));
    }
}

/// Channels that a convolution advances together.
const CHANNELS: usize = 32;

/// One row of a causal convolution: f32 FMA chain over the taps, the oldest first.
#[inline(always)]
pub fn conv<E: Element>(out: &mut [E], row: &ConvRow<'_, E>) {
    let width = out.len();
    for (block, out) in out.chunks_mut(CHANNELS).enumerate() {
        let first = block * CHANNELS;
        let mut sums = [0.0f32; CHANNELS];
        for tap in 0..row.kernel {
            // Row `row.at - (kernel - 1) + tap` of the input, of which the state holds the past.
            let at = row.at + tap + 1;
            let past = row.kernel;
            let from =
                if at < past { &row.state[at * width..] } else { &row.x[(at - past) * width..] };
            let inputs = &from[first..first + out.len()];
            for (channel, (sum, input)) in sums.iter_mut().zip(inputs).enumerate() {
                let weight = row.weight[(first + channel) * row.kernel + tap].widen();
                *sum = weight.mul_add(input.widen(), *sum);
            }
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = E::nearest(sum));
    }
}

/// Value channels that a delta rule advances together.
const WIDE: usize = 64;
const NARROW: usize = 8;

/// One position of one head's delta rule: f32 state, sums over the key dims by ascending FMA chains
/// from 0. Value channels are independent, so no bit depends on how many go together.
#[inline(always)]
pub fn delta_rule<E: Element>(out: &mut [E], state: &mut [f32], step: &DeltaStep<'_, E>) {
    let decay = exp_s(step.g);
    let width = out.len();
    let mut column = 0;
    while column + WIDE <= width {
        columns::<E, WIDE>(out, state, step, decay, column);
        column += WIDE;
    }
    while column + NARROW <= width {
        columns::<E, NARROW>(out, state, step, decay, column);
        column += NARROW;
    }
    while column < width {
        columns::<E, 1>(out, state, step, decay, column);
        column += 1;
    }
}

/// `S = S * decay; m = k S; d = (v - m) * beta; S = S + k d; o = q S` for `N` columns.
#[inline(always)]
fn columns<E: Element, const N: usize>(
    out: &mut [E],
    state: &mut [f32],
    step: &DeltaStep<'_, E>,
    decay: f32,
    column: usize,
) {
    let width = out.len();
    let mut predicted = [0.0f32; N];
    for (k, row) in step.k.iter().zip(state.chunks_exact(width)) {
        let row: &[f32; N] = row[column..column + N].try_into().expect("the slice has N");
        for n in 0..N {
            predicted[n] = k.mul_add(row[n] * decay, predicted[n]);
        }
    }
    let values = &step.v[column..column + N];
    let delta: [f32; N] = std::array::from_fn(|n| (values[n].widen() - predicted[n]) * step.beta);
    let mut read = [0.0f32; N];
    for ((q, k), row) in step.q.iter().zip(step.k).zip(state.chunks_exact_mut(width)) {
        let row: &mut [f32; N] = (&mut row[column..column + N]).try_into().expect("it has N");
        let q = q * step.scale;
        for n in 0..N {
            row[n] = k.mul_add(delta[n], row[n] * decay);
            read[n] = q.mul_add(row[n], read[n]);
        }
    }
    for (out, sum) in out[column..column + N].iter_mut().zip(read) {
        *out = E::nearest(sum);
    }
}

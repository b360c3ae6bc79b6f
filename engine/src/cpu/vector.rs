//! Bodies of the row kernels, written once and compiled for each instruction set.
//!
//! Everything is `inline(always)` and made of IEEE operations in a fixed order, so that the tables
//! of [`super::kernels`] differ in speed and in nothing else.

use crate::contract::{
    Element, LANES, Order, exp_s, halving_tree, silu as silu_f32, sum_of_squares,
};
use crate::op::NormForm;

/// `x / (1 + exp(-x))`, in f32, rounded once.
#[inline(always)]
pub fn silu<E: Element>(out: &mut [E], x: &[E]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = E::nearest(silu_f32(x.widen()));
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
        };
    }
}

/// One head's rotation: three roundings an element.
#[inline(always)]
pub fn rope<E: Element>(out: &mut [E], x: &[E], cos: &[E], sin: &[E]) {
    let half = x.len() / 2;
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

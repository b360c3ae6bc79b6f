//! The rotary table of the contract: inverse frequencies, angles, cos and sin in f32, and in bf16.
//!
//! Deliberately absent: scaled rotary kinds. Invariants: the first `32 * floor(n / 32)` of the
//! `n = head_dim / 2` powers come from the two-float scheme of a vector library, the rest are
//! correctly rounded; so are cos and sin in f32, and in bf16 but for the listed angles.

use crate::bits::{power_of_two, round_bf16};
use crate::exact;
use crate::rotary_exceptions::{COSINES, SINES};

/// An unevaluated sum of two f32, high part first.
type Two = (f32, f32);

/// `1 / theta^(2i / head_dim)` for `i` in `0..head_dim / 2`; exponent, power and quotient are f32.
pub fn inverse_frequencies(theta: f32, head_dim: usize) -> Vec<f32> {
    let n = head_dim / 2;
    let vectored = n / 32 * 32;
    let power = |i: usize| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        if i < vectored { two_float_pow(theta, exponent) } else { exact::pow(theta, exponent) }
    };
    (0..n).map(|i| 1.0 / power(i)).collect()
}

/// `(cos, sin)` of `inverse frequency * position`, f32, each `[positions, head_dim / 2]`.
pub fn rotary_table(theta: f32, head_dim: usize, positions: usize) -> (Vec<f32>, Vec<f32>) {
    angles(theta, head_dim, positions).into_iter().map(exact::cos_sin).unzip()
}

/// The same in bf16, as torch rounds its own cos and sin.
pub fn rotary_table_bf16(theta: f32, head_dim: usize, positions: usize) -> (Vec<f32>, Vec<f32>) {
    angles(theta, head_dim, positions).into_iter().map(cos_sin_bf16).unzip()
}

/// `(cos, sin)` of an angle in bf16: the exact value rounded once to f32 and once more, and at the
/// listed angles the other of its two neighbours.
pub fn cos_sin_bf16(angle: f32) -> (f32, f32) {
    let (cos, sin) = exact::cos_sin(angle);
    let round = |exact: f32, listed: &[u32]| match listed.binary_search(&angle.to_bits()) {
        Ok(_) => other_bf16(exact),
        Err(_) => round_bf16(exact),
    };
    (round(cos, &COSINES), round(sin, &SINES))
}

/// Of the two bf16 values around `x`, the one that it does not round to.
fn other_bf16(x: f32) -> f32 {
    let below = x.to_bits() & 0xFFFF_0000;
    let other = if round_bf16(x).to_bits() == below { below + 0x1_0000 } else { below };
    f32::from_bits(other)
}

fn angles(theta: f32, head_dim: usize, positions: usize) -> Vec<f32> {
    let inverse = inverse_frequencies(theta, head_dim);
    (0..positions).flat_map(|p| inverse.iter().map(move |i| i * p as f32)).collect()
}

fn two_float_pow(base: f32, exponent: f32) -> f32 {
    exp(mul_one(ln(base), exponent))
}

/// ln of a positive normal number: `2 atanh((m - 1) / (m + 1)) + e ln 2`, `m` in [0.75, 1.5).
fn ln(d: f32) -> Two {
    let e = ((d * (1.0 / 0.75)).to_bits() >> 23) as i32 - 127;
    let m = d * power_of_two(-e);
    let x = div(sum(-1.0, m), sum(1.0, m));
    let x2 = square(x);
    let t = [0.285_112_68_f32, 0.400_008].iter().fold(0.240_320_35_f32, |t, &c| t.mul_add(x2.0, c));
    let series = add(mul_one(x2, t), (0.666_666_6, 3.691_838_6e-9));
    let s = mul_one((std::f32::consts::LN_2, -1.904_654_3e-9), e as f32);
    let s = add_ordered(s, (x.0 * 2.0, x.1 * 2.0));
    add_ordered(s, mul(mul(x2, x), series))
}

/// exp of a two-float number whose result is a normal number.
fn exp(d: Two) -> f32 {
    let q = ((d.0 + d.1) * std::f32::consts::LOG2_E).round_ties_even();
    let s = add_one(d, q * -0.693_145_75);
    let s = add_one(s, q * -1.428_606_8e-6);
    let hi = s.0 + s.1;
    let s = (hi, (s.0 - hi) + s.1);
    let poly = [8.365_969e-3, 4.167_108_2e-2, 0.166_665_52, 0.499_999_85];
    let u = poly.iter().fold(1.363_246_5e-3_f32, |u, &c| u.mul_add(s.0, c));
    let t = add(s, mul_one(square(s), u));
    let hi = 1.0 + t.0;
    let t = (hi, ((1.0 - hi) + t.0) + t.1);
    (t.0 + t.1) * power_of_two(q as i32)
}

/// The exact sum of two numbers.
fn sum(x: f32, y: f32) -> Two {
    let s = x + y;
    let v = s - x;
    (s, (x - (s - v)) + (y - v))
}

fn add_one(x: Two, y: f32) -> Two {
    let (s, rest) = sum(x.0, y);
    (s, rest + x.1)
}

fn add(x: Two, y: Two) -> Two {
    let (s, rest) = sum(x.0, y.0);
    (s, rest + (x.1 + y.1))
}

/// The sum where `|x|` is at least `|y|`.
fn add_ordered(x: Two, y: Two) -> Two {
    let s = x.0 + y.0;
    (s, (((x.0 - s) + y.0) + x.1) + y.1)
}

fn mul(x: Two, y: Two) -> Two {
    let s = x.0 * y.0;
    (s, x.0.mul_add(y.1, x.1.mul_add(y.0, x.0.mul_add(y.0, -s))))
}

fn mul_one(x: Two, y: f32) -> Two {
    let s = x.0 * y;
    (s, x.1.mul_add(y, x.0.mul_add(y, -s)))
}

fn square(x: Two) -> Two {
    let s = x.0 * x.0;
    (s, (x.0 + x.0).mul_add(x.1, x.0.mul_add(x.0, -s)))
}

fn div(n: Two, d: Two) -> Two {
    let t = 1.0 / d.0;
    let s = n.0 * t;
    let u = t.mul_add(n.0, -s);
    let v = (-d.1).mul_add(t, (-d.0).mul_add(t, 1.0));
    (s, s.mul_add(v, n.1.mul_add(t, u)))
}

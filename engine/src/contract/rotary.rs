//! Rotary tables: f32 angles of f32 frequencies, and their correctly rounded cosines and sines; in
//! a bf16 run with torch's exceptions.

use super::Dtype;
use super::exact::{cos_f32, pow_f32, sin_f32};
use super::powf::pow_u10;
use super::rotary_exceptions::{cos_bf16, sin_bf16};

/// Entries that torch's vectorised `pow` takes at once; the rest go through libm's.
const VECTOR: usize = 32;

/// Inverse frequencies `1 / theta^(2 i / dim)` in f32, `dim / 2` of them.
///
/// The exponent, the power and the reciprocal are each one f32 operation, as in Transformers.
pub fn inv_freq(theta: f64, dim: usize) -> Vec<f32> {
    let (count, base) = (dim / 2, theta as f32);
    (0..count)
        .map(|i| {
            let exponent = (2 * i) as f32 / dim as f32;
            let vectorised = i < count / VECTOR * VECTOR;
            1.0 / if vectorised { pow_u10(base, exponent) } else { pow_f32(base, exponent) }
        })
        .collect()
}

/// The largest angle over `positions` positions; infinite where a frequency is no number.
pub fn largest_angle(theta: f64, dim: usize, positions: usize) -> f32 {
    let last = (positions - 1) as f32;
    inv_freq(theta, dim)
        .iter()
        .map(|freq| freq * last)
        .fold(0.0, |a: f32, b| if b.is_nan() { f32::INFINITY } else { a.max(b) })
}

/// Cosines and sines of every position: f32 numbers, in a bf16 run those of bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTables {
    /// Entries of a row: half the rotary width.
    pub half: usize,
    /// Cosines.
    pub cos: Vec<f32>, // [positions, half]
    /// Sines.
    pub sin: Vec<f32>, // [positions, half]
}

impl RotaryTables {
    /// Tables of a run's dtype for positions `0 .. positions`.
    pub fn new(dtype: Dtype, theta: f64, dim: usize, positions: usize) -> Self {
        use rayon::prelude::*;
        let freq = inv_freq(theta, dim);
        let angle = |i: usize| freq[i % freq.len()] * (i / freq.len()) as f32;
        let table = |f: fn(f32) -> f32, bf16: fn(f32, f32) -> f32| {
            let entry = |i: usize| match (angle(i), dtype) {
                (angle, Dtype::F32) => f(angle),
                (angle, Dtype::Bf16) => bf16(angle, f(angle)),
            };
            (0..positions * freq.len()).into_par_iter().map(entry).collect()
        };
        let (cos, sin) = (table(cos_f32, cos_bf16), table(sin_f32, sin_bf16));
        Self { half: freq.len(), cos, sin }
    }

    /// Positions the tables hold.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }
}

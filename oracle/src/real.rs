//! The two arithmetics on f64: `Ideal` never rounds further, `Rounded` does wherever Transformers
//! stores a tensor.
//!
//! Deliberately absent: blocks and lanes. Invariant: `Ideal` has none of the f32 islands of
//! Transformers; `Rounded` differs from Transformers only by the rounding of sums and functions.

use crate::arithmetic::Arithmetic;
use crate::dtype::Dtype;
use crate::ops::{Linear, Out, Tables};
use crate::product::product;
use crate::rotary::rotary_table;

/// f64 everywhere, exact rotary angles; gives magnitudes.
#[derive(Clone, Copy, Debug)]
pub struct Ideal;

/// f64 arithmetic, rounded to `dtype` at every stored tensor.
#[derive(Clone, Copy, Debug)]
pub struct Rounded {
    /// The dtype of the run.
    pub dtype: Dtype,
}

impl Arithmetic for Ideal {
    fn round(&self, x: f64) -> f64 {
        x
    }

    fn constant(&self, x: f64) -> f64 {
        x
    }

    fn masked(&self) -> f64 {
        f64::MIN
    }

    fn rotary(&self, theta: f64, head_dim: usize, positions: usize) -> Tables {
        let inverse = |i: usize| theta.powf(-((2 * i) as f64) / head_dim as f64);
        let angles =
            (0..positions).flat_map(|p| (0..head_dim / 2).map(move |i| inverse(i) * p as f64));
        let (cos, sin) = angles.map(|angle| (angle.cos(), angle.sin())).unzip();
        Tables { cos, sin }
    }

    fn dot(&self, x: &[f64], w: &[f64], _block: usize) -> f64 {
        dot(x, w)
    }

    fn softmax_row(&self, x: &[f64]) -> Vec<f64> {
        softmax_row(self, x)
    }

    fn gives_magnitudes(&self) -> bool {
        true
    }

    fn linear(&self, op: &Linear<'_>) -> Out {
        let magnitude = product(&absolute(op.x), &absolute(op.weight), op.k);
        Out { values: product(op.x, op.weight, op.k), magnitude: Some(magnitude) }
    }
}

impl Arithmetic for Rounded {
    fn round(&self, x: f64) -> f64 {
        self.dtype.round(x)
    }

    fn constant(&self, x: f64) -> f64 {
        f64::from(x as f32)
    }

    fn masked(&self) -> f64 {
        self.dtype.min()
    }

    fn rotary(&self, theta: f64, head_dim: usize, positions: usize) -> Tables {
        rounded_tables(self, rotary_table(theta as f32, head_dim, positions))
    }

    fn dot(&self, x: &[f64], w: &[f64], _block: usize) -> f64 {
        self.round(dot(x, w))
    }

    fn softmax_row(&self, x: &[f64]) -> Vec<f64> {
        softmax_row(self, x)
    }

    fn wide(&self, x: f64) -> f64 {
        Dtype::F32.round(x)
    }

    fn linear(&self, op: &Linear<'_>) -> Out {
        let sums = product(op.x, op.weight, op.k);
        Out { values: sums.into_iter().map(|x| self.round(x)).collect(), magnitude: None }
    }
}

/// f32 tables as an arithmetic stores them.
pub(crate) fn rounded_tables<A>(arith: &A, (cos, sin): (Vec<f32>, Vec<f32>)) -> Tables
where
    A: Arithmetic + ?Sized,
{
    let stored = |t: Vec<f32>| t.into_iter().map(|x| arith.round(f64::from(x))).collect();
    Tables { cos: stored(cos), sin: stored(sin) }
}

fn dot(x: &[f64], w: &[f64]) -> f64 {
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

fn absolute(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.abs()).collect()
}

fn softmax_row(arith: &impl Arithmetic, x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| arith.round(e / sum)).collect()
}

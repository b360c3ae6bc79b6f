//! The two arithmetics on f64: `Ideal` never rounds further, `Rounded` does wherever Transformers
//! stores a tensor.
//!
//! Deliberately absent: blocks and lanes. Invariant: `Ideal` has none of the f32 islands of
//! Transformers; `Rounded` differs from Transformers only by the rounding of sums and functions.

use crate::arithmetic::Arithmetic;
use crate::dtype::Dtype;
use crate::ops::{Heads, Linear, Mix, Out, Scores, Tables};
use crate::product::{product, product_of_squares};
use crate::rotary::rotary_table;

/// f64 everywhere, exact rotary angles; gives squares.
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

    fn gives_squares(&self) -> bool {
        true
    }

    fn linear(&self, op: &Linear<'_>) -> Out {
        let squares = product_of_squares(op.x, op.weight, op.k);
        Out { values: product(op.x, op.weight, op.k), squares: Some(squares) }
    }

    fn scores(&self, op: &Scores<'_>) -> Out {
        let ((rows, keys), Heads { heads, head_dim, .. }) = (op.extents(), op.dims);
        let scale = 1.0 / (head_dim as f64).sqrt();
        let mut out = Out { values: Vec::new(), squares: Some(Vec::new()) };
        for head in 0..heads {
            let q = gathered(op.q, (0..rows).map(|row| op.dims.query(row, head)));
            let k = gathered(op.k, (0..keys).map(|key| op.dims.key(key, head)));
            let hidden = |i: usize| i % keys > op.first + i / keys;
            let dots = product(&q, &k, head_dim).into_iter().enumerate();
            let squares = product_of_squares(&q, &k, head_dim).into_iter().enumerate();
            let score =
                |(i, dot): (usize, f64)| if hidden(i) { self.masked() } else { dot * scale };
            let square = |(i, q): (usize, f64)| if hidden(i) { 0.0 } else { q * scale * scale };
            out.values.extend(dots.map(score));
            out.squares.get_or_insert_default().extend(squares.map(square));
        }
        out
    }

    fn mix(&self, op: &Mix<'_>) -> Out {
        let ((rows, keys), Heads { heads, head_dim, .. }) = (op.extents(), op.dims);
        let width = heads * head_dim;
        let (mut values, mut squares) = (vec![0.0; rows * width], vec![0.0; rows * width]);
        for head in 0..heads {
            let seen = |row: usize| self.keys_summed(op.first + row, keys);
            let mut p = op.probs[head * rows * keys..][..rows * keys].to_vec();
            for (row, p) in p.chunks_exact_mut(keys).enumerate() {
                p[seen(row)..].fill(0.0); // What a row does not see is no term of its sum.
            }
            let value = |c: usize, key: usize| op.v[op.dims.key(key, head)][c];
            let v: Vec<f64> =
                (0..head_dim).flat_map(|c| (0..keys).map(move |key| value(c, key))).collect();
            let place = |whole: &mut [f64], part: Vec<f64>| {
                for (row, part) in part.chunks_exact(head_dim).enumerate() {
                    whole[row * width + head * head_dim..][..head_dim].copy_from_slice(part);
                }
            };
            place(&mut values, product(&p, &v, keys));
            place(&mut squares, product_of_squares(&p, &v, keys));
        }
        Out { values, squares: Some(squares) }
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
        Out { values: sums.into_iter().map(|x| self.round(x)).collect(), squares: None }
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

/// The vectors that lie at `places`, one after another.
fn gathered(x: &[f64], places: impl Iterator<Item = std::ops::Range<usize>>) -> Vec<f64> {
    places.flat_map(|at| &x[at]).copied().collect()
}

fn softmax_row(arith: &impl Arithmetic, x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| arith.round(e / sum)).collect()
}

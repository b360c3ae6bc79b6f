//! `Bits`: the contract `sb1` on rows, f32 operation by f32 operation, scalar.
//!
//! Deliberately absent: the scalars themselves (`bits`) and the shapes (`ops`). Invariant: every
//! f64 that enters or leaves holds a value of the run's dtype, so the conversions are exact.

use rayon::prelude::*;

use crate::arithmetic::Arithmetic;
use crate::dtype::{Dtype, Order};
use crate::few_rows::{Call, Rows, Spot};
use crate::ops::{Batch, Linear, Mix, Out, Part, Scores, Tables};
use crate::real::rounded_tables;
use crate::rotary::{rotary_table, rotary_table_bf16};
use crate::{attention, bits};

/// The contract `sb1` for one order and one dtype.
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// Which rules of blocks and short rows.
    pub order: Order,
    /// The dtype of the run.
    pub dtype: Dtype,
}

impl Bits {
    /// Whether products of few rows or columns have orders of their own.
    fn has_few_rows(&self) -> bool {
        self.order == Order::Transformers && self.dtype == Dtype::F32
    }

    /// One product with its last rounding.
    fn dot_f32(&self, x: &[f32], w: &[f32], block: usize) -> f64 {
        f64::from(match self.dtype {
            Dtype::Bf16 => bits::round_bf16_flush(bits::dot_bf16(x, w, block)),
            Dtype::F32 => bits::dot_f32(x, w, block),
        })
    }

    /// An f32 result as it is stored.
    fn store(&self, x: f32) -> f64 {
        match self.dtype {
            Dtype::Bf16 => f64::from(bits::round_bf16(x)),
            Dtype::F32 => f64::from(x),
        }
    }
}

impl Arithmetic for Bits {
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
        let table = match self.dtype {
            Dtype::Bf16 => rotary_table_bf16,
            Dtype::F32 => rotary_table,
        };
        rounded_tables(self, table(theta as f32, head_dim, positions))
    }

    fn dot(&self, x: &[f64], w: &[f64], block: usize) -> f64 {
        self.dot_f32(&narrow(x), &narrow(w), block)
    }

    fn softmax_row(&self, x: &[f64]) -> Vec<f64> {
        let probs = bits::softmax(&narrow(x), self.order == Order::Invariant);
        probs.into_iter().map(|p| self.store(p)).collect()
    }

    /// One operation on f32 operands: an f64 result of theirs rounds to f32 as if it were exact.
    fn step(&self, x: f64) -> f64 {
        f64::from(x as f32)
    }

    fn wide(&self, x: f64) -> f64 {
        f64::from(x as f32)
    }

    /// The default order keeps what the file holds; Transformers casts every parameter.
    fn parameter(&self, x: f64) -> f64 {
        if self.order == Order::Transformers { self.round(x) } else { x }
    }

    fn link(&self, a: f64, b: f64, acc: f64) -> f64 {
        f64::from((a as f32).mul_add(b as f32, acc as f32))
    }

    fn squares(&self, x: &[f64]) -> f64 {
        f64::from(bits::sum_of_squares(&narrow(x)))
    }

    fn exp(&self, x: f64) -> f64 {
        f64::from(bits::exp_s(x as f32))
    }

    fn decay_of(&self, a: f64, log: f64, bias: f64) -> f64 {
        f64::from(bits::decay(a as f32, log as f32, bias as f32))
    }

    fn dot_at(&self, x: &[f64], w: &[f64], block: usize, spot: &Spot) -> f64 {
        if !self.has_few_rows() {
            return self.dot(x, w, block);
        }
        f64::from(spot.order(x.len()).of(&narrow(x), &narrow(w), block))
    }

    /// All columns of the first rows of a forward.
    fn linear(&self, op: &Linear<'_>) -> Out {
        let (rows, columns) = op.extents();
        let rows: Vec<usize> = (0..rows).collect();
        self.linear_in(op, &Part { rows: &rows, first_column: 0, columns, weight_start: 0 })
    }

    /// The provided loop, with the operands converted once.
    fn linear_in(&self, op: &Linear<'_>, part: &Part<'_>) -> Out {
        let (rows, n) = op.extents();
        assert_eq!(rows, part.rows.len(), "linear: not a number for each row");
        let (x, w, k) = (narrow(op.x), narrow(op.weight), op.k);
        let block = self.linear_block(k, op.true_rows);
        let each = (0..rows * n).into_par_iter().with_min_len(16);
        let dot = |i: usize| {
            let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
            if !self.has_few_rows() {
                return self.dot_f32(x, w, block);
            }
            let spot = part.spot(op, i / n, i % n);
            f64::from(spot.order(k).of(x, w, block))
        };
        Out { values: each.map(dot).collect(), squares: None }
    }

    fn scores_in(&self, op: &Scores<'_>, batch: Batch) -> Out {
        attention::scores(self, op, batch)
    }

    fn mix_in(&self, op: &Mix<'_>, batch: Batch) -> Out {
        attention::mix(self, op, batch)
    }

    fn sums_hidden_keys(&self) -> bool {
        self.order == Order::Transformers
    }

    fn linear_block(&self, k: usize, true_rows: usize) -> usize {
        bits::linear_block(self.order, self.dtype, k, true_rows)
    }

    fn mix_block(&self, keys: usize, true_rows: usize) -> usize {
        bits::mix_block(self.order, self.dtype, keys, true_rows)
    }
}

impl Part<'_> {
    /// Where an element of the part stands. Transformers' rows begin at a 16-byte boundary.
    fn spot(&self, op: &Linear<'_>, row: usize, column: usize) -> Spot {
        let stride = op.k;
        Spot {
            call: Call::Linear,
            rows: op.true_rows,
            columns: self.columns,
            row: self.rows[row],
            column: self.first_column + column,
            x: Rows { start: 0, stride },
            w: Rows { start: self.weight_start, stride },
        }
    }
}

fn narrow(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&x| x as f32).collect()
}

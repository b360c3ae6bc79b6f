//! What an arithmetic says of numbers and rows, and the operations that follow by loops.
//!
//! Deliberately absent: the order in which a model calls the operations. Invariant: a row of any
//! result depends on that row's inputs and on `true_rows`, never on the rows beside it.

use rayon::prelude::*;

use crate::model::Tensor;
use crate::ops::{Heads, Linear, Mix, Out, RmsNorm, Rope, Scores, Softmax, Tables};

/// An arithmetic: how numbers are rounded, summed and exponentiated. The required methods work on
/// numbers and rows; the provided ones are the operations, by loops.
pub trait Arithmetic: Sync {
    /// Rounds to what this arithmetic stores; also the cast of a stored weight to the run's dtype.
    fn round(&self, x: f64) -> f64;

    /// A scalar constant (eps, the scale of scores) as this arithmetic sees it.
    fn constant(&self, x: f64) -> f64;

    /// The value of the scores of keys that a row does not see.
    fn masked(&self) -> f64;

    /// Rotary tables of positions `0..positions`, in what this arithmetic stores.
    fn rotary(&self, theta: f64, head_dim: usize, positions: usize) -> Tables;

    /// The sum of `x[i] * w[i]`, in blocks where that matters, rounded to what is stored.
    fn dot(&self, x: &[f64], w: &[f64], block: usize) -> f64;

    /// The norm of one row, times the weight.
    fn norm_row(&self, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64>;

    /// The softmax of one row.
    fn softmax_row(&self, x: &[f64]) -> Vec<f64>;

    /// `x / (1 + exp(-x))` of one number.
    fn silu_of(&self, x: f64) -> f64;

    /// `a * b` of two numbers.
    fn times(&self, a: f64, b: f64) -> f64 {
        self.round(a * b)
    }

    /// `a + b` of two numbers.
    fn plus(&self, a: f64, b: f64) -> f64 {
        self.round(a + b)
    }

    /// Whether sums come with the sum of their |terms|.
    fn gives_magnitudes(&self) -> bool {
        false
    }

    /// Whether keys after the query are masked and summed instead of left out.
    fn sums_hidden_keys(&self) -> bool {
        false
    }

    /// Length of the blocks of a linear of `k` terms in a forward of `true_rows` rows.
    fn linear_block(&self, k: usize, _true_rows: usize) -> usize {
        k.max(1)
    }

    /// Length of the blocks of probabilities x values over `keys` keys for `true_rows` query rows.
    fn mix_block(&self, keys: usize, _true_rows: usize) -> usize {
        keys.max(1)
    }

    /// Rows of an embedding table, `[ids, width]`.
    ///
    /// # Panics
    /// If an id is not a row of the table.
    fn embed(&self, table: &Tensor, ids: &[u32]) -> Out {
        let width = table.shape[1];
        let row = |id: &u32| table.values(*id as usize * width..(*id as usize + 1) * width);
        Out { values: ids.iter().flat_map(row).map(|x| self.round(x)).collect(), magnitude: None }
    }

    /// See [`RmsNorm`].
    fn rms_norm(&self, op: &RmsNorm<'_>) -> Out {
        let n = op.weight.len();
        assert_eq!(op.x.len() % n, 0, "rms_norm: rows are not as wide as the weight");
        let eps = self.constant(op.eps);
        let rows = op.x.par_chunks(n).flat_map_iter(|x| self.norm_row(x, op.weight, eps));
        let values: Vec<f64> = rows.collect();
        // The only sum is one of squares: nothing cancels.
        let size = || values.iter().map(|y| y.abs()).collect();
        Out { magnitude: self.gives_magnitudes().then(size), values }
    }

    /// See [`Linear`]; `[rows, n]`.
    fn linear(&self, op: &Linear<'_>) -> Out {
        let (rows, n) = op.extents();
        let block = self.linear_block(op.k, op.true_rows);
        let row = |i: usize, k: usize| i * k..(i + 1) * k;
        let each = (0..rows * n).into_par_iter().with_min_len(64).map(|i| {
            let (x, w) = (&op.x[row(i / n, op.k)], &op.weight[row(i % n, op.k)]);
            (self.dot(x, w, block), self.size(x, w))
        });
        out(self.gives_magnitudes(), each)
    }

    /// See [`Rope`]; `[rows, heads, head_dim]`.
    fn rope(&self, op: &Rope<'_>) -> Out {
        let half = op.head_dim / 2;
        assert_eq!(op.x.len() % (op.heads * op.head_dim), 0, "rope: rows are not heads x head_dim");
        let mut values = Vec::with_capacity(op.x.len());
        for (i, x) in op.x.chunks_exact(op.head_dim).enumerate() {
            let at = (op.first + i / op.heads) * half;
            let (cos, sin) = (&op.tables.cos[at..at + half], &op.tables.sin[at..at + half]);
            let turn = |j: usize, turned: f64| {
                let c = j % half;
                self.plus(self.times(x[j], cos[c]), self.times(turned, sin[c]))
            };
            values.extend((0..half).map(|j| turn(j, -x[j + half])));
            values.extend((half..op.head_dim).map(|j| turn(j, x[j - half])));
        }
        Out { values, magnitude: None }
    }

    /// See [`Scores`].
    fn scores(&self, op: &Scores<'_>) -> Out {
        let Heads { heads, head_dim, .. } = op.dims;
        let (rows, keys) = op.extents();
        let block = self.linear_block(head_dim, op.true_rows);
        let scale = self.constant(1.0 / (head_dim as f64).sqrt());
        let each = (0..heads * rows * keys).into_par_iter().with_min_len(64).map(|i| {
            let (head, row, key) = (i / keys / rows, i / keys % rows, i % keys);
            let hidden = key > op.first + row;
            if hidden && !self.sums_hidden_keys() {
                return (self.masked(), 0.0);
            }
            let q = &op.q[op.dims.query(row, head)];
            let k = &op.k[op.dims.key(key, head)];
            let mask = if hidden { self.masked() } else { 0.0 };
            let score = self.plus(self.times(self.dot(q, k, block), scale), mask);
            (score, self.size(q, k) * scale)
        });
        out(self.gives_magnitudes(), each)
    }

    /// See [`Softmax`].
    fn softmax(&self, op: &Softmax<'_>) -> Out {
        assert_eq!(op.scores.len() % (op.rows * op.keys), 0, "softmax: not [heads, rows, keys]");
        let rows = op.scores.par_chunks(op.keys).enumerate().flat_map_iter(|(i, scores)| {
            let seen = self.keys_summed(op.first + i % op.rows, op.keys);
            let mut probs = self.softmax_row(&scores[..seen]);
            probs.resize(op.keys, 0.0);
            probs
        });
        Out { values: rows.collect(), magnitude: None }
    }

    /// See [`Mix`].
    fn mix(&self, op: &Mix<'_>) -> Out {
        let Heads { heads, head_dim, .. } = op.dims;
        let (rows, keys) = op.extents();
        let block = self.mix_block(keys, op.true_rows);
        let columns: Vec<f64> = (0..op.dims.kv_heads * head_dim)
            .flat_map(|c| op.v.iter().skip(c).step_by(op.dims.kv_heads * head_dim).copied())
            .collect(); // [kv_heads, head_dim, keys]
        let each = (0..rows * heads * head_dim).into_par_iter().with_min_len(64).map(|i| {
            let (row, head, c) = (i / head_dim / heads, i / head_dim % heads, i % head_dim);
            let seen = self.keys_summed(op.first + row, keys);
            let p = (head * rows + row) * keys;
            let v = (op.dims.kv(head) * head_dim + c) * keys;
            let (p, v) = (&op.probs[p..p + seen], &columns[v..v + seen]);
            (self.dot(p, v, block), self.size(p, v))
        });
        out(self.gives_magnitudes(), each)
    }

    /// `silu` of every element.
    fn silu(&self, x: &[f64]) -> Out {
        let values = x.iter().map(|&x| self.silu_of(x)).collect();
        Out { values, magnitude: None }
    }

    /// The product, element by element.
    fn mul(&self, a: &[f64], b: &[f64]) -> Out {
        assert_eq!(a.len(), b.len(), "mul: two lengths");
        let values = a.iter().zip(b).map(|(&a, &b)| self.times(a, b)).collect();
        Out { values, magnitude: None }
    }

    /// The sum, element by element.
    fn add(&self, a: &[f64], b: &[f64]) -> Out {
        assert_eq!(a.len(), b.len(), "add: two lengths");
        let values = a.iter().zip(b).map(|(&a, &b)| self.plus(a, b)).collect();
        Out { values, magnitude: None }
    }

    /// Keys that take part in the sums of the query at `position`.
    fn keys_summed(&self, position: usize, keys: usize) -> usize {
        if self.sums_hidden_keys() { keys } else { keys.min(position + 1) }
    }

    /// The sum of `|x[i] * w[i]|` where magnitudes are given, else 0.
    fn size(&self, x: &[f64], w: &[f64]) -> f64 {
        let terms = || x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
        if self.gives_magnitudes() { terms() } else { 0.0 }
    }
}

fn out(magnitudes: bool, each: impl IndexedParallelIterator<Item = (f64, f64)>) -> Out {
    let (values, magnitude): (_, Vec<f64>) = each.unzip();
    Out { values, magnitude: magnitudes.then_some(magnitude) }
}

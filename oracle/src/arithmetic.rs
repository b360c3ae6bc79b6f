//! What an arithmetic says of numbers and rows, and the operations that follow by loops.
//!
//! Deliberately absent: the order in which a model calls the operations. Invariant: a row of any
//! result depends on that row's inputs, its place and `true_rows`, never on the rows beside it.

use rayon::prelude::*;

use crate::few_rows::Spot;
use crate::model::Tensor;
use crate::ops::{
    Batch, Conv, Decay, Delta, DeltaRule, GatedNorm, Linear, Mix, Out, Part, PartialRope, RmsNorm,
    Rope, Scores, Softmax, Tables,
};
use crate::{attention, hybrid};

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

    /// The same sum, of an element whose place in its product may decide the order.
    fn dot_at(&self, x: &[f64], w: &[f64], block: usize, _spot: &Spot) -> f64 {
        self.dot(x, w, block)
    }

    /// The softmax of one row.
    fn softmax_row(&self, x: &[f64]) -> Vec<f64>;

    /// The result of one f32 operation inside an operation that stores only its last.
    fn step(&self, x: f64) -> f64 {
        x
    }

    /// Rounds to what this arithmetic stores in a tensor that is f32 whatever the run's dtype.
    fn wide(&self, x: f64) -> f64 {
        x
    }

    /// The cast of a stored `A_log` or weight of a gated norm, which a file may hold in f32 beside
    /// bf16 weights.
    fn parameter(&self, x: f64) -> f64 {
        self.round(x)
    }

    /// `a * b + acc`, a link of a chain in f32.
    fn link(&self, a: f64, b: f64, acc: f64) -> f64 {
        a * b + acc
    }

    /// The sum of the squares.
    fn squares(&self, x: &[f64]) -> f64 {
        x.iter().map(|x| x * x).sum()
    }

    /// `exp(x)` where the contract takes its polynomial scheme.
    fn exp(&self, x: f64) -> f64 {
        x.exp()
    }

    /// `-exp(log) * softplus(a + bias)`; softplus is `x` above 20, else `log1p(exp(x))`.
    fn decay_of(&self, a: f64, log: f64, bias: f64) -> f64 {
        let x = self.wide(a + bias);
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        self.wide(self.wide(-log.exp()) * self.wide(softplus))
    }

    /// `1 / sqrt(mean(x^2) + eps)`.
    fn root_scale(&self, x: &[f64], eps: f64) -> f64 {
        let mean = self.step(self.squares(x) / x.len() as f64);
        self.step(1.0 / self.step(self.step(mean + eps).sqrt()))
    }

    /// The norm of one row: rounded, then times the weight.
    fn norm_row(&self, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        let scale = self.root_scale(x, eps);
        let scaled = x.iter().map(|x| self.round(self.step(x * scale)));
        scaled.zip(weight).map(|(x, w)| self.times(*w, x)).collect()
    }

    /// The zero-centred norm of one row: times `1 + weight`, then rounded.
    fn centred_row(&self, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        let scale = self.root_scale(x, eps);
        let each = |(x, w): (&f64, &f64)| self.step(x * scale) * self.step(1.0 + w);
        x.iter().zip(weight).map(each).map(|y| self.round(self.step(y))).collect()
    }

    /// `x / (1 + exp(-x))`, not yet rounded.
    fn silu_step(&self, x: f64) -> f64 {
        self.step(x / self.step(1.0 + self.exp(-x)))
    }

    /// `x / (1 + exp(-x))` of one number.
    fn silu_of(&self, x: f64) -> f64 {
        self.round(self.silu_step(x))
    }

    /// `1 / (1 + exp(-x))` of one number.
    fn sigmoid_of(&self, x: f64) -> f64 {
        self.round(self.step(1.0 / self.step(1.0 + self.exp(0.0 - x))))
    }

    /// `a * b` of two numbers.
    fn times(&self, a: f64, b: f64) -> f64 {
        self.round(self.step(a * b))
    }

    /// `a + b` of two numbers.
    fn plus(&self, a: f64, b: f64) -> f64 {
        self.round(self.step(a + b))
    }

    /// Whether sums come with the sum of the squares of their terms.
    fn gives_squares(&self) -> bool {
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
        Out { values: ids.iter().flat_map(row).map(|x| self.round(x)).collect(), squares: None }
    }

    /// See [`RmsNorm`].
    fn rms_norm(&self, op: &RmsNorm<'_>) -> Out {
        norm_rows(op, |x| self.norm_row(x, op.weight, self.constant(op.eps)))
    }

    /// As [`rms_norm`](Self::rms_norm) with the weight `1 + w`, and one rounding in all.
    fn centred_norm(&self, op: &RmsNorm<'_>) -> Out {
        norm_rows(op, |x| self.centred_row(x, op.weight, self.constant(op.eps)))
    }

    /// See [`Linear`]; `[rows, n]`.
    fn linear(&self, op: &Linear<'_>) -> Out {
        let (rows, n) = op.extents();
        let block = self.linear_block(op.k, op.true_rows);
        let row = |i: usize, k: usize| i * k..(i + 1) * k;
        let each = (0..rows * n).into_par_iter().with_min_len(64).map(|i| {
            let (x, w) = (&op.x[row(i / n, op.k)], &op.weight[row(i % n, op.k)]);
            (self.dot(x, w, block), self.spread(x, w))
        });
        out(self.gives_squares(), each)
    }

    /// Some rows and columns of a linear, told where they stand.
    fn linear_in(&self, op: &Linear<'_>, _part: &Part<'_>) -> Out {
        self.linear(op)
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
        Out { values, squares: None }
    }

    /// See [`Scores`]; one sequence.
    fn scores(&self, op: &Scores<'_>) -> Out {
        attention::scores(self, op, Batch::ALONE)
    }

    /// The scores of one sequence of a batch.
    fn scores_in(&self, op: &Scores<'_>, _batch: Batch) -> Out {
        self.scores(op)
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
        Out { values: rows.collect(), squares: None }
    }

    /// See [`Mix`]; one sequence.
    fn mix(&self, op: &Mix<'_>) -> Out {
        attention::mix(self, op, Batch::ALONE)
    }

    /// The mix of one sequence of a batch.
    fn mix_in(&self, op: &Mix<'_>, _batch: Batch) -> Out {
        self.mix(op)
    }

    /// `silu` of every element.
    fn silu(&self, x: &[f64]) -> Out {
        let values = x.iter().map(|&x| self.silu_of(x)).collect();
        Out { values, squares: None }
    }

    /// The product, element by element.
    fn mul(&self, a: &[f64], b: &[f64]) -> Out {
        assert_eq!(a.len(), b.len(), "mul: two lengths");
        let values = a.iter().zip(b).map(|(&a, &b)| self.times(a, b)).collect();
        Out { values, squares: None }
    }

    /// The sum, element by element.
    fn add(&self, a: &[f64], b: &[f64]) -> Out {
        assert_eq!(a.len(), b.len(), "add: two lengths");
        let values = a.iter().zip(b).map(|(&a, &b)| self.plus(a, b)).collect();
        Out { values, squares: None }
    }

    /// `1 / (1 + exp(-x))` of every element.
    fn sigmoid(&self, x: &[f64]) -> Out {
        Out { values: x.iter().map(|&x| self.sigmoid_of(x)).collect(), squares: None }
    }

    /// See [`Decay`].
    fn decay(&self, op: &Decay<'_>) -> Out {
        let heads = op.log.len();
        assert_eq!(op.bias.len(), heads, "decay: log and bias differ in length");
        assert!(op.a.len().is_multiple_of(heads), "decay: rows are not as wide as the heads");
        let each = op.a.iter().enumerate();
        let values = each.map(|(i, &a)| self.decay_of(a, op.log[i % heads], op.bias[i % heads]));
        Out { values: values.collect(), squares: None }
    }

    /// `x / sqrt(sum(x^2) + 1e-6)` for every `n` values, f32 whatever the dtype of the run.
    fn l2_norm(&self, x: &[f64], n: usize) -> Out {
        assert!(x.len().is_multiple_of(n), "l2_norm: not vectors of {n}");
        let unit = |x: &[f64]| {
            let sum = self.step(self.squares(x) + self.constant(1e-6));
            let scale = self.step(1.0 / self.step(sum.sqrt()));
            x.iter().map(|x| self.wide(x * scale)).collect::<Vec<_>>()
        };
        Out { values: x.chunks_exact(n).flat_map(unit).collect(), squares: None }
    }

    /// See [`PartialRope`]; `[rows, heads, head_dim]`.
    fn partial_rope(&self, op: &PartialRope<'_>) -> Out {
        hybrid::partial_rope(self, op)
    }

    /// See [`Conv`]; `[rows, channels]`.
    fn conv(&self, op: &Conv<'_>) -> Out {
        hybrid::conv(self, op)
    }

    /// See [`DeltaRule`]: decay first, the error from the decayed state, the output from the new.
    fn delta_rule(&self, op: &DeltaRule<'_>) -> Delta {
        hybrid::delta_rule(self, op)
    }

    /// See [`GatedNorm`]: rounded before its weight, after it, and after the gate.
    fn gated_norm(&self, op: &GatedNorm<'_>) -> Out {
        hybrid::gated_norm(self, op)
    }

    /// Keys that take part in the sums of the query at `position`.
    fn keys_summed(&self, position: usize, keys: usize) -> usize {
        if self.sums_hidden_keys() { keys } else { keys.min(position + 1) }
    }

    /// The sum of the squares of `x[i] * w[i]` where they are given, else 0.
    fn spread(&self, x: &[f64], w: &[f64]) -> f64 {
        let terms = || x.iter().zip(w).map(|(x, w)| (x * w).powi(2)).sum();
        if self.gives_squares() { terms() } else { 0.0 }
    }
}

/// A norm, row by row.
fn norm_rows(op: &RmsNorm<'_>, row: impl Fn(&[f64]) -> Vec<f64> + Sync + Send) -> Out {
    let n = op.weight.len();
    assert_eq!(op.x.len() % n, 0, "norm: rows are not as wide as the weight");
    Out { values: op.x.par_chunks(n).flat_map_iter(row).collect(), squares: None }
}

pub(crate) fn out(given: bool, each: impl IndexedParallelIterator<Item = (f64, f64)>) -> Out {
    let (values, squares): (_, Vec<f64>) = each.unzip();
    Out { values, squares: given.then_some(squares) }
}

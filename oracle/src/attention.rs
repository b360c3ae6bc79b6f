//! The two products of attention by loops, for any arithmetic.
//!
//! Deliberately absent: how a sum is taken (`Arithmetic::dot_at`). Invariant: each query head of
//! each sequence is a product of its own, of which every element is told where it stands.

use rayon::prelude::*;

use crate::arithmetic::{Arithmetic, out};
use crate::few_rows::{Call, Rows, Spot};
use crate::ops::{Batch, Heads, Mix, Out, Scores};

/// See [`Scores`].
pub(crate) fn scores<A: Arithmetic + ?Sized>(a: &A, op: &Scores<'_>, batch: Batch) -> Out {
    let Heads { heads, head_dim, .. } = op.dims;
    let (rows, keys) = op.extents();
    let block = a.linear_block(head_dim, op.true_rows);
    let (true_rows, above) = (op.true_rows, rows_above(op.first, op.true_rows, keys));
    let scale = a.constant(1.0 / (head_dim as f64).sqrt());
    let each = (0..heads * rows * keys).into_par_iter().with_min_len(64).map(|i| {
        let (head, row, key) = (i / keys / rows, i / keys % rows, i % keys);
        let hidden = key > op.first + row;
        if hidden && !a.sums_hidden_keys() {
            return (a.masked(), 0.0);
        }
        let q = &op.q[op.dims.query(row, head)];
        let k = &op.k[op.dims.key(key, head)];
        let mask = if hidden { a.masked() } else { 0.0 };
        let place = Place { head, row: above + row, column: key, columns: keys, true_rows };
        let dot = a.dot_at(q, k, block, &batch.scored(op.dims, place));
        (a.plus(a.times(dot, scale), mask), a.spread(q, k) * scale * scale)
    });
    out(a.gives_squares(), each)
}

/// See [`Mix`].
pub(crate) fn mix<A: Arithmetic + ?Sized>(a: &A, op: &Mix<'_>, batch: Batch) -> Out {
    let Heads { heads, head_dim, .. } = op.dims;
    let (rows, keys) = op.extents();
    let block = a.mix_block(keys, op.true_rows);
    let (true_rows, above) = (op.true_rows, rows_above(op.first, op.true_rows, keys));
    let columns: Vec<f64> = (0..op.dims.kv_heads * head_dim)
        .flat_map(|c| op.v.iter().skip(c).step_by(op.dims.kv_heads * head_dim).copied())
        .collect(); // [kv_heads, head_dim, keys]
    let each = (0..rows * heads * head_dim).into_par_iter().with_min_len(64).map(|i| {
        let (row, head, column) = (i / head_dim / heads, i / head_dim % heads, i % head_dim);
        let seen = a.keys_summed(op.first + row, keys);
        let p = (head * rows + row) * keys;
        let v = (op.dims.kv(head) * head_dim + column) * keys;
        let (p, v) = (&op.probs[p..p + seen], &columns[v..v + seen]);
        let place = Place { head, row: above + row, column, columns: head_dim, true_rows };
        (a.dot_at(p, v, block, &batch.by_columns(op.dims, place)), a.spread(p, v))
    });
    out(a.gives_squares(), each)
}

/// Rows of the forward before the one at position `first`: the forward's own end with the keys.
fn rows_above(first: usize, true_rows: usize, keys: usize) -> usize {
    (first + true_rows).saturating_sub(keys)
}

/// An element of one head's matrix.
#[derive(Clone, Copy)]
struct Place {
    head: usize,
    row: usize,
    column: usize,
    columns: usize,
    true_rows: usize,
}

impl Batch {
    /// torch copies the keys before the product where it cannot view them as one batch of
    /// matrices: several sequences whose heads all read one.
    fn scored(self, dims: Heads, place: Place) -> Spot {
        if self.sequences > 1 && dims.kv_heads == 1 && dims.heads > 1 {
            return self.by_columns(dims, place);
        }
        let matrix = self.sequence * dims.heads + place.head;
        // One sequence is viewed where it lies, several are copied, head by head.
        let (start, stride) = match self.sequences {
            1 => (place.head * dims.head_dim, dims.heads * dims.head_dim),
            _ => (matrix * place.true_rows * dims.head_dim, dims.head_dim),
        };
        let keys = matrix * place.columns * dims.head_dim;
        Spot {
            call: Call::Rows,
            x: Rows { start, stride },
            w: Rows { start: keys, stride: dims.head_dim },
            ..place.spot()
        }
    }

    fn by_columns(self, dims: Heads, place: Place) -> Spot {
        let matrix = self.sequence * dims.heads + place.head;
        let start = matrix * place.true_rows * place.columns;
        let w = Rows { start, stride: place.columns };
        Spot { call: Call::Columns, w, ..place.spot() }
    }
}

impl Place {
    fn spot(self) -> Spot {
        let Self { row, column, columns, true_rows: rows, .. } = self;
        let (x, w) = (Rows::default(), Rows::default());
        Spot { call: Call::Columns, rows, columns, row, column, x, w }
    }
}

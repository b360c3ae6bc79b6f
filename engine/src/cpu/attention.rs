//! Attention as three ops over a chunk of query rows, and the cache they read.

use rayon::prelude::*;

use super::kernels::{ROWS, Table, Tile, TileArgs};
use super::memory::{Act, CpuMem, Ints};
use super::panels::PANEL;
use super::simd::for_each_tile;
use crate::contract::{
    Dtype, Element, Order, SmallProduct, SmallSum, cannot_flush, linear_block, mix_block,
};
use crate::op::{Heads, Kv, Span};

/// Copies new keys and values to their positions of the cache.
pub fn append<E: Element>(
    cache: &mut Kv<CpuMem>,
    k: &Act,
    v: &Act,
    positions: &Ints,
    heads: Heads,
    rows: usize,
) {
    let width = heads.kv * heads.dim;
    let count = heads.batch * rows;
    let (k, v) = (k.rows::<E>(count, width), v.rows::<E>(count, width));
    cache.k.note(k);
    cache.v.note(v);
    let (key_panels, keys) = cache.k.panels_mut::<E>();
    let (value_panels, values) = cache.v.panels_mut::<E>();
    for row in 0..count {
        let position = positions.values()[row] as usize;
        assert!(position < cache.capacity, "append: position {position} is beyond the cache");
        for head in 0..heads.kv {
            let matrix = row / rows * heads.kv + head;
            let from = row * width + head * heads.dim;
            for d in 0..heads.dim {
                keys[matrix * key_panels.len() + key_panels.index(position, d)] = k[from + d];
                values[matrix * value_panels.len() + value_panels.index(d, position)] = v[from + d];
            }
        }
    }
}

/// Kernels, order and geometry of one attention op.
pub struct Attention<'a, E: Element> {
    /// Kernels.
    pub table: &'a Table<E>,
    /// Summation order.
    pub order: Order,
    /// Geometry, rows and keys.
    pub span: &'a Span<'a, CpuMem>,
}

impl<E: Element> Attention<'_, E> {
    /// Keys in the cache.
    fn keys(&self) -> usize {
        self.span.keys.values()[0] as usize
    }

    /// Keys that query row `row` of sequence `batch` attends to, itself included.
    fn visible(&self, batch: usize, row: usize) -> usize {
        let at = batch * self.span.rows.of + self.span.rows.first + row;
        self.span.positions.values()[at] as usize + 1
    }

    /// Keys that take part in the sums of a row.
    fn summed(&self, batch: usize, row: usize) -> usize {
        match self.order {
            Order::Invariant => self.visible(batch, row),
            Order::Transformers => self.keys(),
        }
    }

    /// The packed matrix of one sequence's and query head's keys or values.
    fn matrix(&self, batch: usize, head: usize) -> usize {
        let Heads { query, kv, .. } = self.span.heads;
        batch * kv + head / (query / kv)
    }

    /// Summed keys of `count` rows from `first`, for a tile.
    fn terms(&self, batch: usize, first: usize, count: usize) -> [usize; ROWS] {
        std::array::from_fn(|r| self.summed(batch, first + r.min(count - 1)))
    }

    /// The order of a score in a forward of few rows; none where chains run in blocks.
    fn few(&self, matrix: usize, row: usize, key: usize) -> Option<SmallSum> {
        if (self.order, E::DTYPE) != (Order::Transformers, Dtype::F32) {
            return None;
        }
        let (Heads { batch, query, kv, dim }, rows) = (self.span.heads, self.span.rows.of);
        let product = SmallProduct { rows, columns: self.keys(), terms: dim };
        // Keys that cannot be seen as one transposed matrix are copied.
        let copied = batch > 1 && (kv == 1 || (query == kv && self.keys() == rows));
        match copied {
            true => product.copied(matrix, row, key),
            false => product.score(row, key),
        }
    }

    /// Scores of all heads: `round(round(q k) * scale) + mask`, keys beyond the cache untouched.
    pub fn scores(&self, out: &mut Act, q: &Act, cache: &Kv<CpuMem>, scale: f32) {
        let Heads { batch, query, dim, .. } = self.span.heads;
        let (rows, stride) = (self.span.rows, self.span.stride);
        let q = q.rows::<E>(batch * rows.of, query * dim);
        let out = out.rows_mut::<E>(batch * query * rows.count, stride);
        let (panels, packed) = cache.k.panels::<E>();
        let block = linear_block(self.order, E::DTYPE, dim, rows.of);
        out.par_chunks_mut(rows.count * stride).enumerate().for_each(|(at, out)| {
            let (b, head) = (at / query, at % query);
            let keys = &packed[self.matrix(b, head) * panels.len()..][..panels.len()];
            let mut sums = Tile::new();
            for first in (0..rows.count).step_by(ROWS) {
                let count = (rows.count - first).min(ROWS);
                let x = &q[((b * rows.of + rows.first + first) * query + head) * dim..];
                let x = &x[..(count - 1) * query * dim + dim];
                let longest = self.terms(b, first, count)[count - 1];
                let exact = cannot_flush(E::lowest_exponent(x), cache.k.lowest_exponent());
                let small = self.few(at, rows.first + first, 0).is_some();
                for from in (0..longest).step_by(PANEL) {
                    let panel = &keys[from / PANEL * panels.panel_len()..][..panels.panel_len()];
                    let (stride, terms) = (query * dim, [dim; ROWS]);
                    let args = TileArgs { x, stride, rows: count, panel, terms, block, exact };
                    if small {
                        self.few_scores((at, first), &args, from, &mut sums);
                    } else {
                        (self.table.tile)(&args, &mut sums);
                    }
                    for r in 0..count {
                        let row = &mut out[(first + r) * self.span.stride..][..self.keys()];
                        let width = (longest - from).min(PANEL);
                        let visible = self.visible(b, first + r);
                        self.finish(&mut row[from..from + width], &sums.0[r], scale, visible, from);
                    }
                }
                for r in 0..count {
                    out[(first + r) * stride..][longest..self.keys()].fill(E::MASKED);
                }
            }
        });
    }

    /// The sums of a tile of scores in a forward of few rows.
    fn few_scores(
        &self,
        (matrix, first): (usize, usize),
        args: &TileArgs<'_, E>,
        from: usize,
        sums: &mut Tile,
    ) {
        let (dim, rows) = (self.span.heads.dim, self.span.rows);
        for r in 0..args.rows {
            for (key, sum) in sums.0[r].iter_mut().enumerate().take(self.keys() - from) {
                let order = self.few(matrix, rows.first + first + r, from + key);
                let order = order.expect("every score of few rows has an order");
                let x = &args.x[r * args.stride..];
                *sum = order.of(dim, |i| (x[i].widen(), args.panel[i * PANEL + key].widen()));
            }
        }
    }

    /// Rounds, scales and masks the scores of keys `from ..` of one row.
    fn finish(&self, out: &mut [E], sums: &[f32], scale: f32, visible: usize, from: usize) {
        for (i, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
            let scaled = E::nearest(E::nearest_sum(*sum).widen() * scale).widen();
            *out = match self.order {
                _ if from + i < visible => E::nearest(scaled + 0.0),
                Order::Transformers => E::nearest(scaled + E::MASKED.widen()),
                Order::Invariant => E::MASKED,
            };
        }
    }

    /// Probabilities of all heads; zero for keys that take no part.
    pub fn softmax(&self, out: &mut Act, x: &Act) {
        let Heads { batch, query, .. } = self.span.heads;
        let (count, stride, keys) = (self.span.rows.count, self.span.stride, self.keys());
        let x = x.rows::<E>(batch * query * count, stride);
        let out = out.rows_mut::<E>(batch * query * count, stride);
        out.par_chunks_mut(stride).zip(x.par_chunks(stride)).enumerate().for_each(
            |(at, (out, x))| {
                let summed = self.summed(at / (query * count), at % count);
                (self.table.softmax)(&mut out[..summed], &x[..summed], self.order);
                out[summed..keys].fill(E::ZERO);
            },
        );
    }

    /// Probabilities times values, heads side by side.
    pub fn mix(&self, out: &mut Act, probs: &Act, cache: &Kv<CpuMem>) {
        let Heads { batch, query, dim, .. } = self.span.heads;
        let (rows, stride) = (self.span.rows, self.span.stride);
        let probs = probs.rows::<E>(batch * query * rows.count, stride);
        let (panels, packed) = cache.v.panels::<E>();
        let block = mix_block(self.order, E::DTYPE, self.keys(), rows.of);
        // Values of fewer than four rows are summed in a plain loop, whatever the keys.
        let small = rows.of < 4 && (self.order, E::DTYPE) == (Order::Transformers, Dtype::F32);
        let width = query * dim;
        let out = out.rows_mut::<E>(batch * rows.of, width);
        for (b, out) in out.chunks_mut(rows.of * width).enumerate() {
            let out = &mut out[rows.first * width..][..rows.count * width];
            for_each_tile(out, width, [rows.count, dim], |mut task| {
                let head = task.first_column / dim;
                let values = &packed[self.matrix(b, head) * panels.len()..][..panels.len()];
                let mut sums = Tile::new();
                for first in (0..rows.count).step_by(ROWS) {
                    let count = (rows.count - first).min(ROWS);
                    let x = &probs[((b * query + head) * rows.count + first) * stride..];
                    let x = &x[..count * stride];
                    let terms = self.terms(b, first, count);
                    let lowest = |r: usize| E::lowest_exponent(&x[r * stride..][..terms[r]]);
                    let lowest = (0..count).map(lowest).min().expect("a tile has rows");
                    let exact = cannot_flush(lowest, cache.v.lowest_exponent());
                    for from in (0..dim).step_by(PANEL) {
                        let panel = &values[from / PANEL * panels.panel_len()..];
                        let panel = &panel[..panels.panel_len()];
                        let args = TileArgs { x, stride, rows: count, panel, terms, block, exact };
                        if small {
                            in_sequence(&args, &mut sums);
                        } else {
                            (self.table.tile)(&args, &mut sums);
                        }
                        for (r, sums) in sums.0[..count].iter().enumerate() {
                            let out = &mut task.row(first + r)[from..dim.min(from + PANEL)];
                            out.iter_mut().zip(sums).for_each(|(o, sum)| *o = E::nearest_sum(*sum));
                        }
                    }
                }
            });
        }
    }
}

/// The sums of a tile, one term after another.
fn in_sequence<E: Element>(args: &TileArgs<'_, E>, sums: &mut Tile) {
    for r in 0..args.rows {
        let x = &args.x[r * args.stride..];
        for (column, sum) in sums.0[r].iter_mut().enumerate() {
            let term = |i: usize| (x[i].widen(), args.panel[i * PANEL + column].widen());
            *sum = SmallSum::Sequence.of(args.terms[r], term);
        }
    }
}

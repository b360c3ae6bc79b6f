//! Scores and mix over a cache: some query rows of a forward, longer buffers than needed, NaN in
//! every place that must not count.

use samebits::cpu::{Act, Cpu, CpuMem, Ints};
use samebits::op::{Backend, Heads, Kv, Layout, Op, Rows, Site, Span};
use samebits_oracle::{Arithmetic, ops};

use super::Trial;
use super::draw::{Draw, Kind, Number, bits, bits_of, tensor, wide};
use super::product::{each, oracle};

const HERE: Site = Site::global("kernels");

/// Geometry of a case.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: Heads,
    /// Query rows computed, and rows of the forward.
    rows: Rows,
    /// Keys before the forward.
    past: usize,
    /// Keys the cache has room for.
    capacity: usize,
    /// Elements of a row of scores.
    stride: usize,
}

impl Shape {
    fn draw(draw: &mut Draw, long: (usize, usize)) -> Self {
        let kv = draw.within(1, 2);
        let many_keys = draw.one_in(24);
        let dim = if many_keys { draw.within(1, 6) } else { draw.within(1, long.0) };
        let heads = Heads { batch: draw.within(1, 2), query: kv * draw.within(1, 3), kv, dim };
        let of = draw.within(1, 9);
        let first = draw.within(0, of - 1);
        let rows = Rows { first, count: draw.within(1, of - first), of };
        let past = if many_keys { draw.within(200, 1200) } else { draw.within(0, long.1) };
        let keys = past + of;
        let capacity = keys + draw.within(0, 9);
        Self { heads, rows, past, capacity, stride: keys + draw.within(0, 5) }
    }

    fn keys(&self) -> usize {
        self.past + self.rows.of
    }

    fn dims(&self) -> ops::Heads {
        let Heads { query, kv, dim, .. } = self.heads;
        ops::Heads { heads: query, kv_heads: kv, head_dim: dim }
    }

    /// Rows of scores of one sequence.
    fn score_rows(&self) -> usize {
        self.heads.query * self.rows.count
    }

    /// A cache that holds `values` `[batch, keys, kv, dim]`, and NaN beyond them.
    fn cache<E: Number>(&self, b: &mut Cpu, values: &[f32]) -> Kv<CpuMem> {
        let Heads { batch, kv, dim, .. } = self.heads;
        let mut all = vec![f32::NAN; batch * kv * self.capacity * dim];
        for (i, value) in values.iter().enumerate() {
            let (head, key) = (i / dim % kv, i / dim / kv % self.keys());
            let sequence = i / dim / kv / self.keys();
            all[((sequence * kv + head) * self.capacity + key) * dim + i % dim] = *value;
        }
        let mut act = |layout| {
            let mut act = b.mem().alloc(all.len(), E::DTYPE, layout);
            b.mem().write(&mut act, 0, &tensor::<E>(&all));
            act
        };
        let (k, v) = (act(Layout::Keys(self.heads)), act(Layout::Values(self.heads)));
        Kv { k, v, capacity: self.capacity }
    }

    fn ints(&self, b: &mut Cpu) -> (Ints, Ints) {
        let of = self.rows.of;
        let (mut positions, mut keys) =
            (b.mem().alloc_ints(self.heads.batch * of), b.mem().alloc_ints(1));
        let row = |i: usize| (self.past + i % of) as u32;
        b.mem()
            .write_ints(&mut positions, &(0..self.heads.batch * of).map(row).collect::<Vec<_>>());
        b.mem().write_ints(&mut keys, &[self.keys() as u32]);
        (positions, keys)
    }
}

fn upload<E: Number>(b: &mut Cpu, values: &[f32]) -> Act {
    let mut act = b.mem().alloc(values.len(), E::DTYPE, Layout::RowMajor);
    b.mem().write(&mut act, 0, &tensor::<E>(values));
    act
}

/// Scores of all heads, the keys after the query included.
pub fn scores<E: Number>(draw: &mut Draw) -> Trial {
    let (order, kinds, shape) = (draw.order(), draw.kinds(), Shape::draw(draw, (140, 90)));
    let Heads { batch, query, kv, dim } = shape.heads;
    let Rows { first, count, of } = shape.rows;
    let mut q = draw.values::<E>(kinds[0], batch * of * query * dim);
    let mut k = draw.values::<E>(kinds[1], batch * shape.keys() * kv * dim);
    let cancelling = draw.one_in(2);
    if cancelling {
        // The first head's query of the first row computed, with every key that it reads.
        let row = first * query * dim;
        let keys = k[..shape.keys() * kv * dim].chunks_mut(kv * dim);
        keys.for_each(|k| draw.cancel::<E>(&mut q[row..row + dim], &mut k[..dim]));
    }
    let scale = (1.0 / (dim as f64).sqrt()) as f32;
    let tables = each(order, |b| {
        let (cache, q) = (shape.cache::<E>(b, &k), upload::<E>(b, &q));
        let mut out = upload::<E>(b, &vec![f32::NAN; batch * shape.score_rows() * shape.stride]);
        let (positions, keys) = shape.ints(b);
        let (heads, rows, stride) = (shape.heads, shape.rows, shape.stride);
        let span = Span { heads, rows, positions: &positions, keys: &keys, stride };
        b.run(HERE, Op::Scores { out: &mut out, q: &q, cache: &cache, scale, span });
        keyed(b, &out, &shape)
    });
    let per_sequence = |s: usize| {
        let q = wide(&q[(s * of + first) * query * dim..][..count * query * dim]);
        let k = wide(&k[s * shape.keys() * kv * dim..][..shape.keys() * kv * dim]);
        let (dims, first) = (shape.dims(), shape.past + first);
        let op = ops::Scores { q: &q, k: &k, dims, first, true_rows: of };
        let at = ops::Batch { sequences: batch, sequence: s };
        bits_of::<E>(&oracle(E::DTYPE, order).scores_in(&op, at).values)
    };
    let oracle = (0..batch).flat_map(per_sequence).collect();
    let what = format!("{shape:?}, {:?}, {order:?}, {kinds:?}, cancelling {cancelling}", E::DTYPE);
    Trial { what, tables, oracle }
}

/// Bits of the written keys of every row of scores.
fn keyed(b: &mut Cpu, out: &Act, shape: &Shape) -> Vec<u32> {
    let rows = shape.heads.batch * shape.score_rows();
    let all = b.mem().read(out, 0, rows * shape.stride);
    let written = |r: usize| (0..shape.keys()).map(move |k| r * shape.stride + k);
    (0..rows).flat_map(written).map(|i| all.bits(i)).collect()
}

/// Mixed values of all heads; rows of the forward that are not computed stay as they are.
pub fn mix<E: Number>(draw: &mut Draw) -> Trial {
    let (order, shape) = (draw.order(), Shape::draw(draw, (90, 130)));
    let probs = if draw.one_in(2) { Kind::Plain } else { draw.kind() };
    let kinds = [probs, draw.kind()];
    let Heads { batch, query, kv, dim } = shape.heads;
    let Rows { first, count, of } = shape.rows;
    let keys = shape.keys();
    let score_rows = batch * shape.score_rows();
    // Keys after the query have probability 0, and whatever value.
    let mut p = draw.values::<E>(kinds[0], score_rows * keys);
    for (r, row) in p.chunks_mut(keys).enumerate() {
        row[shape.past + first + r % count + 1..].fill(0.0);
    }
    let mut v = draw.values::<E>(kinds[1], batch * keys * kv * dim);
    let cancelling = draw.one_in(2);
    if cancelling {
        cancel_first_row::<E>(draw, &shape, &mut p[..keys], &mut v);
    }
    let tables = each(order, |b| {
        let mut padded = vec![f32::NAN; score_rows * shape.stride];
        for (padded, p) in padded.chunks_mut(shape.stride).zip(p.chunks(keys)) {
            padded[..keys].copy_from_slice(p);
        }
        let (cache, probs) = (shape.cache::<E>(b, &v), upload::<E>(b, &padded));
        let mut out = upload::<E>(b, &vec![0.5; batch * of * query * dim]);
        let (positions, keys) = shape.ints(b);
        let (heads, rows, stride) = (shape.heads, shape.rows, shape.stride);
        let span = Span { heads, rows, positions: &positions, keys: &keys, stride };
        b.run(HERE, Op::Mix { out: &mut out, probs: &probs, cache: &cache, span });
        bits(&b.mem().read(&out, 0, batch * of * query * dim))
    });
    let mut right = vec![0.5; batch * of * query * dim];
    for s in 0..batch {
        let per = shape.score_rows() * keys;
        let (probs, v) =
            (wide(&p[s * per..][..per]), wide(&v[s * keys * kv * dim..][..keys * kv * dim]));
        let (dims, at) = (shape.dims(), shape.past + first);
        let op = ops::Mix { probs: &probs, v: &v, dims, first: at, true_rows: of };
        let at = ops::Batch { sequences: batch, sequence: s };
        let values = oracle(E::DTYPE, order).mix_in(&op, at).values;
        right[(s * of + first) * query * dim..][..values.len()].copy_from_slice(&values);
    }
    let what = format!("{shape:?}, {:?}, {order:?}, {kinds:?}, cancelling {cancelling}", E::DTYPE);
    Trial { what, tables, oracle: bits_of::<E>(&right) }
}

/// Makes the last visible keys' values cancel the first row's mix, in every dimension.
fn cancel_first_row<E: Number>(draw: &mut Draw, shape: &Shape, p: &mut [f32], v: &mut [f32]) {
    let Heads { kv, dim, .. } = shape.heads;
    let seen = shape.past + shape.rows.first + 1;
    for d in 0..dim {
        let mut column: Vec<f32> = (0..seen).map(|key| v[key * kv * dim + d]).collect();
        draw.cancel::<E>(&mut p[..seen], &mut column);
        column.iter().enumerate().for_each(|(key, value)| v[key * kv * dim + d] = *value);
    }
}

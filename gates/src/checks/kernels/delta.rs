//! Ops of a gated delta net and of gated attention, with what they carry on.

use samebits::contract::{Dtype, Order};
use samebits::cpu::Cpu;
use samebits::op::{Backend, DeltaHeads, Layout, Op, Rotary, Site};
use samebits::tensor::Tensor;
use samebits_oracle::{Arithmetic, ops};

use super::Trial;
use super::draw::{Draw, Kind, Number, bits, bits_of, tensor, wide};
use super::product::{each, oracle};

const HERE: Site = Site::global("kernels");

type Act = <samebits::cpu::CpuMem as samebits::op::Mem>::Act;

fn upload(b: &mut Cpu, data: &Tensor) -> Act {
    let mut act = b.mem().alloc(data.len(), data.dtype(), Layout::RowMajor);
    b.mem().write(&mut act, 0, data);
    act
}

fn vector(b: &mut Cpu, data: &Tensor) -> <samebits::cpu::CpuMem as samebits::op::Mem>::Weight {
    let mut weight = b.mem().alloc_weight(data.len(), None, data.dtype());
    b.mem().write_weight(&mut weight, 0, data);
    weight
}

/// Sequences, rows of each, and whether they begin here.
#[derive(Clone, Copy, Debug)]
struct Run {
    batch: usize,
    rows: usize,
    begins: bool,
}

impl Run {
    fn draw(draw: &mut Draw) -> Self {
        Self { batch: draw.within(1, 2), rows: draw.within(1, 5), begins: draw.one_in(2) }
    }

    fn positions(self) -> Vec<u32> {
        let first = if self.begins { 0 } else { 7 };
        (0..self.batch).flat_map(|_| first..first + self.rows as u32).collect()
    }

    fn upload(self, b: &mut Cpu) -> <samebits::cpu::CpuMem as samebits::op::Mem>::Ints {
        let mut ints = b.mem().alloc_ints(self.batch * self.rows);
        b.mem().write_ints(&mut ints, &self.positions());
        ints
    }
}

/// Mostly narrow widths, now and then one that fills every block of a kernel.
fn width(draw: &mut Draw) -> usize {
    if draw.one_in(12) { draw.within(60, 80) } else { draw.within(1, 20) }
}

/// Causal convolutions, at a start and further on; the state is part of the answer.
pub fn conv<E: Number>(draw: &mut Draw) -> Trial {
    let (run, kinds) = (Run::draw(draw), draw.kinds());
    let key = draw.within(1, 2);
    let heads = DeltaHeads {
        key,
        value: key * draw.within(1, 3),
        key_dim: draw.within(1, 20),
        value_dim: draw.within(1, 20),
        kernel: draw.within(1, 8),
    };
    let (channels, kernel) = (heads.channels(), heads.kernel);
    let x = draw.values::<E>(kinds[0], run.batch * run.rows * channels);
    let before = draw.values::<E>(kinds[0], run.batch * kernel * channels);
    let w = draw.values::<E>(kinds[1], channels * kernel);
    let tables = each(Order::Invariant, |b| {
        let (x, mut state) = (upload(b, &tensor::<E>(&x)), upload(b, &tensor::<E>(&before)));
        let (weight, positions) = (vector(b, &tensor::<E>(&w)), run.upload(b));
        let len = run.batch * run.rows * channels;
        let mut out = b.mem().alloc(len, E::DTYPE, Layout::RowMajor);
        let Run { batch, rows, .. } = run;
        let (weight, positions) = (&weight, &positions);
        let (x, out_, state_) = (&x, &mut out, &mut state);
        b.run(
            HERE,
            Op::Conv { out: out_, state: state_, x, weight, positions, batch, rows, heads },
        );
        let answer = bits(&b.mem().read(&out, 0, len));
        [answer, bits(&b.mem().read(&state, 0, run.batch * kernel * channels))].concat()
    });
    let (mut right, mut states) = (Vec::new(), Vec::new());
    for sequence in 0..run.batch {
        let each = run.rows * channels;
        let x = wide(&x[sequence * each..][..each]);
        let kept = &before[sequence * kernel * channels..][..kernel * channels];
        let history = if run.begins { vec![0.0; kept.len()] } else { wide(kept) };
        let op = ops::Conv { x: &x, history: &history, weight: &wide(&w), kernel };
        right.extend(oracle(E::DTYPE, Order::Invariant).conv(&op).values);
        let all = [history, x].concat();
        states.extend(all[all.len() - kernel * channels..].to_vec());
    }
    right.extend(states);
    let what = format!("{run:?}, {heads:?}, {:?}, {kinds:?}", E::DTYPE);
    Trial { what, tables, oracle: bits_of::<E>(&right) }
}

/// Delta rules, at a start and further on; the state is part of the answer.
pub fn delta_rule<E: Number>(draw: &mut Draw) -> Trial {
    let (run, kinds) = (Run::draw(draw), draw.kinds());
    let key = draw.within(1, 3);
    let (value, key_dim) = (key * draw.within(1, 3), draw.within(1, 24));
    let heads = DeltaHeads { key, value, key_dim, value_dim: width(draw), kernel: 1 };
    let count = run.batch * run.rows;
    let q = draw.values::<f32>(kinds[0], count * heads.keys());
    let k = draw.values::<f32>(kinds[0], count * heads.keys());
    let qkv = draw.values::<E>(kinds[1], count * heads.channels());
    let mut g = draw.values::<f32>(kinds[1], count * value);
    if !draw.one_in(4) {
        g.iter_mut().for_each(|g| *g = -g.abs());
    }
    let beta = draw.values::<E>(Kind::Plain, count * value);
    let before = draw.values::<f32>(kinds[0], run.batch * value * key_dim * heads.value_dim);
    let scale = (1.0 / (key_dim as f64).sqrt()) as f32;
    let [q, k, g, before] = [q, k, g, before].map(Tensor::F32);
    let tables = each(Order::Invariant, |b| {
        let [q, k, g] = [&q, &k, &g].map(|data| upload(b, data));
        let [qkv, beta] = [&qkv, &beta].map(|data| upload(b, &tensor::<E>(data)));
        let (mut state, positions) = (upload(b, &before), run.upload(b));
        let len = count * heads.values();
        let mut out = b.mem().alloc(len, E::DTYPE, Layout::RowMajor);
        let Run { batch, rows, .. } = run;
        let (q, k, qkv, g, beta, positions) = (&q, &k, &qkv, &g, &beta, &positions);
        let (o, s) = (&mut out, &mut state);
        b.run(
            HERE,
            Op::DeltaRule {
                out: o,
                state: s,
                q,
                k,
                qkv,
                g,
                beta,
                scale,
                positions,
                batch,
                rows,
                heads,
            },
        );
        let answer = bits(&b.mem().read(&out, 0, len));
        [answer, bits(&b.mem().read(&state, 0, before.len()))].concat()
    });
    let what = format!("{run:?}, {heads:?}, {:?}, {kinds:?}", E::DTYPE);
    let inputs = [&q.to_f32(), &k.to_f32(), &g.to_f32(), &qkv, &beta].map(|v| wide(v));
    let oracle = ruled::<E>(run, heads, &inputs, &wide(&before.to_f32()));
    Trial { what, tables, oracle }
}

/// The oracle's answer to a delta rule, with its state.
fn ruled<E: Number>(
    run: Run,
    heads: DeltaHeads,
    [q, k, g, qkv, beta]: &[Vec<f64>; 5],
    before: &[f64],
) -> Vec<u32> {
    let (mut answer, mut states) = (Vec::new(), Vec::new());
    let oracle_heads = ops::DeltaHeads {
        key_heads: heads.key,
        value_heads: heads.value,
        key_dim: heads.key_dim,
        value_dim: heads.value_dim,
    };
    let left = oracle_heads.state();
    for sequence in 0..run.batch {
        let part = |all: &[f64], width: usize| {
            all[sequence * run.rows * width..][..run.rows * width].to_vec()
        };
        let rows = part(qkv, heads.channels());
        let values = rows.chunks_exact(heads.channels()).flat_map(|row| &row[2 * heads.keys()..]);
        let state = &before[sequence * left..][..left];
        let delta = oracle(E::DTYPE, Order::Invariant).delta_rule(&ops::DeltaRule {
            q: &part(q, heads.keys()),
            k: &part(k, heads.keys()),
            v: &values.copied().collect::<Vec<_>>(),
            beta: &part(beta, heads.value),
            g: &part(g, heads.value),
            heads: oracle_heads,
            state: &if run.begins { vec![0.0; left] } else { state.to_vec() },
        });
        answer.extend(bits_of::<E>(&delta.core.values));
        states.extend(bits_of::<f32>(&delta.state));
    }
    answer.extend(states);
    answer
}

/// Unit vectors of heads that lie anywhere in a row.
pub fn l2_norm<E: Number>(draw: &mut Draw) -> Trial {
    let (kind, rows, heads) = (draw.kind(), draw.within(1, 4), draw.within(1, 3));
    let (dim, first) = (draw.length(1), draw.within(0, 9));
    let stride = first + heads * dim + draw.within(0, 9);
    let mut x = draw.values::<E>(kind, rows * stride);
    if draw.one_in(3) {
        let amplitude = [1e-3, 1e-4, 1e-6][draw.within(0, 2)];
        x.iter_mut().for_each(|x| *x = E::nearest(*x * amplitude).widen());
    }
    let tables = each(Order::Invariant, |b| {
        let x = upload(b, &tensor::<E>(&x));
        let mut out = b.mem().alloc(rows * heads * dim, Dtype::F32, Layout::RowMajor);
        let x = &x;
        b.run(HERE, Op::L2Norm { out: &mut out, x, first, stride, rows, heads, dim });
        bits(&b.mem().read(&out, 0, rows * heads * dim))
    });
    let taken = x.chunks_exact(stride).flat_map(|row| &row[first..first + heads * dim]);
    let taken: Vec<f32> = taken.copied().collect();
    let right = oracle(E::DTYPE, Order::Invariant).l2_norm(&wide(&taken), dim).values;
    let what = format!("{rows} rows, {heads} x {dim} from {first} of {stride}, {kind:?}");
    Trial { what, tables, oracle: bits_of::<f32>(&right) }
}

/// Logarithms of decays; arguments spread over softplus's whole range.
pub fn decay<E: Number>(draw: &mut Draw) -> Trial {
    let (kinds, rows, heads) = (draw.kinds(), draw.within(1, 3), draw.within(1, 12));
    let spread = [1.0, 0.01, 8.0, 30.0][draw.within(0, 3)];
    let mut a = draw.values::<E>(kinds[0], rows * heads);
    if kinds[0] == Kind::Plain {
        a.iter_mut().for_each(|a| *a = E::nearest(*a * spread).widen());
    }
    let log = draw.values::<f32>(kinds[1], heads);
    let bias = draw.values::<E>(kinds[1], heads);
    let tables = each(Order::Invariant, |b| {
        let a = upload(b, &tensor::<E>(&a));
        let a_log = vector(b, &Tensor::F32(log.clone()));
        let dt_bias = vector(b, &tensor::<E>(&bias));
        let mut out = b.mem().alloc(rows * heads, Dtype::F32, Layout::RowMajor);
        let (a, a_log, dt_bias) = (&a, &a_log, &dt_bias);
        b.run(HERE, Op::Decay { out: &mut out, a, a_log, dt_bias, rows, heads });
        bits(&b.mem().read(&out, 0, rows * heads))
    });
    let op = ops::Decay { a: &wide(&a), log: &wide(&log), bias: &wide(&bias) };
    let right = oracle(E::DTYPE, Order::Invariant).decay(&op).values;
    let what = format!("{rows} rows, {heads} heads, {:?}, {kinds:?}, times {spread}", E::DTYPE);
    Trial { what, tables, oracle: bits_of::<f32>(&right) }
}

/// Gated norms of vectors.
pub fn gated_norm<E: Number>(draw: &mut Draw) -> Trial {
    let (kinds, rows, n) = (draw.kinds(), draw.within(1, 4), draw.length(1));
    let x = draw.values::<E>(kinds[0], rows * n);
    let z = draw.values::<E>(kinds[1], rows * n);
    // Weights of a file that keeps them in f32.
    let weight = draw.values::<f32>(kinds[1], n);
    let eps = [1e-6f32, 1e-5, 1e-12, 0.0][draw.within(0, 3)];
    let tables = each(Order::Invariant, |b| {
        let [x, z] = [&x, &z].map(|data| upload(b, &tensor::<E>(data)));
        let weight = vector(b, &Tensor::F32(weight.clone()));
        let mut out = b.mem().alloc(rows * n, E::DTYPE, Layout::RowMajor);
        let (x, z, weight, width) = (&x, &z, &weight, n);
        b.run(HERE, Op::GatedNorm { out: &mut out, x, z, weight, eps, rows, width });
        bits(&b.mem().read(&out, 0, rows * n))
    });
    let (x, gate, weight, eps_) = (wide(&x), wide(&z), wide(&weight), f64::from(eps));
    let op = ops::GatedNorm { x: &x, gate: &gate, weight: &weight, eps: eps_ };
    let right = oracle(E::DTYPE, Order::Invariant).gated_norm(&op).values;
    let what = format!("{rows} x {n}, {:?}, {kinds:?}, eps {eps:e}", E::DTYPE);
    Trial { what, tables, oracle: bits_of::<E>(&right) }
}

/// Queries and gates taken apart. The oracle has no such op; the rule is one line.
pub fn split_gate<E: Number>(draw: &mut Draw) -> Trial {
    let (kind, rows) = (draw.kind(), draw.within(1, 4));
    let (heads, dim) = (draw.within(1, 5), draw.within(1, 70));
    let x = draw.values::<E>(kind, rows * heads * 2 * dim);
    let len = rows * heads * dim;
    let tables = each(Order::Invariant, |b| {
        let x = upload(b, &tensor::<E>(&x));
        let [mut query, mut gate] =
            [(); 2].map(|()| b.mem().alloc(len, E::DTYPE, Layout::RowMajor));
        let (q, g, x) = (&mut query, &mut gate, &x);
        b.run(HERE, Op::SplitGate { query: q, gate: g, x, rows, heads, dim });
        [query, gate].map(|act| bits(&b.mem().read(&act, 0, len))).concat()
    });
    let half = |at: usize| x.chunks_exact(2 * dim).flat_map(move |head| &head[at..at + dim]);
    let right: Vec<f64> = half(0).chain(half(dim)).map(|x| f64::from(*x)).collect();
    let what = format!("{rows} rows, {heads} x {dim}, {:?}, {kind:?}", E::DTYPE);
    Trial { what, tables, oracle: bits_of::<E>(&right) }
}

/// Rotations of a part of each head, at any position.
pub fn partial_rope<E: Number>(draw: &mut Draw) -> Trial {
    let (kinds, rows, heads) = (draw.kinds(), draw.within(1, 4), draw.within(1, 3));
    let half = draw.within(1, 40);
    let (rotary, dim) = (2 * half, 2 * half + draw.within(0, 50));
    let (first, count) = (draw.within(0, 5), rows * heads * dim);
    let x = draw.values::<E>(kinds[0], count);
    let [cos, sin] = [(); 2].map(|()| draw.values::<E>(kinds[1], (first + rows) * half));
    let tables = each(Order::Invariant, |b| {
        let x = upload(b, &tensor::<E>(&x));
        let [cos, sin] = [&cos, &sin].map(|data| upload(b, &tensor::<E>(data)));
        let mut positions = b.mem().alloc_ints(rows);
        let at: Vec<u32> = (first as u32..(first + rows) as u32).collect();
        b.mem().write_ints(&mut positions, &at);
        let mut out = b.mem().alloc(count, E::DTYPE, Layout::RowMajor);
        let (x, table, positions) = (&x, &Rotary { cos, sin }, &positions);
        b.run(HERE, Op::Rope { out: &mut out, x, table, positions, rows, heads, dim, rotary });
        bits(&b.mem().read(&out, 0, count))
    });
    let own = ops::Tables { cos: wide(&cos), sin: wide(&sin) };
    let rope = ops::Rope { x: &wide(&x), tables: &own, heads, head_dim: dim, first };
    let right = oracle(E::DTYPE, Order::Invariant)
        .partial_rope(&ops::PartialRope { rope, width: rotary })
        .values;
    let what = format!("{rows} x {heads} x {dim}, {rotary} turn, from {first}, {kinds:?}");
    Trial { what, tables, oracle: bits_of::<E>(&right) }
}

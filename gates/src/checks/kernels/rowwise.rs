//! Kernels on one row, called through the tables themselves at unaligned starts.

use samebits::contract::Order;
use samebits::cpu::{Kernels, Table};
use samebits::op::NormForm;
use samebits_oracle::{Arithmetic, ops};

use super::draw::{Draw, Kind, Number, bits, bits_of, elements, wide};
use super::product::oracle;
use super::{Kernel, Trial};

/// Elements by which a slice may be off a vector's alignment.
const OFF: usize = 5;

/// Operands of a case: `a` has the output's length.
struct Operands {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    eps: f32,
    order: Order,
}

/// A case of one of the kernels on rows.
pub fn trial<E: Number>(kernel: Kernel, draw: &mut Draw) -> Trial {
    let kinds = draw.kinds();
    let len = match kernel {
        Kernel::Rope => 2 * draw.within(1, 100),
        _ => draw.length(1),
    };
    let halves = if kernel == Kernel::Rope { len / 2 } else { len };
    let mut operands = Operands {
        a: draw.values::<E>(kinds[0], len),
        b: draw.values::<E>(kinds[1], halves),
        c: draw.values::<E>(kinds[1], halves),
        eps: [1e-6, 1e-5, 1e-12, 0.0][draw.within(0, 3)],
        order: draw.order(),
    };
    if matches!(kernel, Kernel::Softmax | Kernel::Silu | Kernel::Sigmoid) {
        rescale::<E>(draw, kinds[0], &mut operands.a);
    }
    if matches!(kernel, Kernel::RmsNorm | Kernel::CentredNorm) && draw.one_in(3) {
        let amplitude = [0.03, 0.003, 1e-4][draw.within(0, 2)];
        operands.a.iter_mut().for_each(|a| *a = E::nearest(*a * amplitude).widen());
    }
    let off = draw.within(0, OFF);
    let tables = Kernels::supported()
        .into_iter()
        .map(|kernels| answer::<E>(kernel, E::table(kernels), &operands, off))
        .collect();
    let right = reference::<E>(kernel, &operands);
    let Operands { eps, order, .. } = operands;
    let what =
        format!("length {len}, {:?}, {order:?}, {kinds:?}, eps {eps:e}, {off} off", E::DTYPE);
    Trial { what, tables, oracle: bits_of::<E>(&right) }
}

/// Spreads arguments of the exponential over its whole range, masked scores included.
fn rescale<E: Number>(draw: &mut Draw, kind: Kind, x: &mut [f32]) {
    if kind != Kind::Plain {
        return;
    }
    let factor = [1.0, 0.01, 8.0, 30.0][draw.within(0, 3)];
    x.iter_mut().for_each(|x| *x = E::nearest(*x * factor).widen());
    if draw.one_in(3) {
        let seen = draw.within(1, x.len());
        x[seen..].fill(E::MASKED.widen());
    }
}

fn answer<E: Number>(
    kernel: Kernel,
    table: &Table<E>,
    operands: &Operands,
    off: usize,
) -> Vec<u32> {
    let shifted = |values: &[f32]| {
        let mut shifted = vec![E::ZERO; off];
        shifted.extend(elements::<E>(values));
        shifted
    };
    let [a, b, c] = [&operands.a, &operands.b, &operands.c].map(|v| shifted(v));
    let (a, b, c) = (&a[off..], &b[off..], &c[off..]);
    let mut out = vec![E::ZERO; OFF + a.len()];
    let start = OFF - off;
    let row = &mut out[start..start + a.len()];
    match kernel {
        Kernel::Softmax => (table.softmax)(row, a, operands.order),
        Kernel::RmsNorm => (table.rms_norm)(row, a, b, operands.eps, NormForm::RoundThenScale),
        Kernel::CentredNorm => (table.rms_norm)(row, a, b, operands.eps, NormForm::ZeroCentred),
        Kernel::Sigmoid => (table.sigmoid)(row, a),
        Kernel::Rope => (table.rope)(row, a, b, c),
        Kernel::Silu => (table.silu)(row, a),
        Kernel::Mul => (table.mul)(row, a, b),
        Kernel::Add => (table.add)(row, a, b),
        other => unreachable!("{} is no kernel on rows", other.name()),
    }
    bits(&E::tensor(row.to_vec()))
}

fn reference<E: Number>(kernel: Kernel, operands: &Operands) -> Vec<f64> {
    let oracle = oracle(E::DTYPE, operands.order);
    let [a, b, c] = [&operands.a, &operands.b, &operands.c].map(|v| wide(v));
    let len = a.len();
    match kernel {
        Kernel::Softmax => {
            oracle.softmax(&ops::Softmax { scores: &a, rows: 1, keys: len, first: len - 1 })
        }
        Kernel::RmsNorm => {
            let eps = f64::from(operands.eps);
            oracle.rms_norm(&ops::RmsNorm { x: &a, weight: &b, eps })
        }
        Kernel::CentredNorm => {
            let eps = f64::from(operands.eps);
            oracle.centred_norm(&ops::RmsNorm { x: &a, weight: &b, eps })
        }
        Kernel::Sigmoid => oracle.sigmoid(&a),
        Kernel::Rope => {
            let tables = ops::Tables { cos: b, sin: c };
            let (heads, head_dim, first) = (1, len, 0);
            oracle.rope(&ops::Rope { x: &a, tables: &tables, heads, head_dim, first })
        }
        Kernel::Silu => oracle.silu(&a),
        Kernel::Mul => oracle.mul(&a, &b),
        Kernel::Add => oracle.add(&a, &b),
        other => unreachable!("{} is no kernel on rows", other.name()),
    }
    .values
}

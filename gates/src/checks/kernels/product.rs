//! Linear layers, and the two ops that only pick: embedding and argmax.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::op::{Backend, Layout, Op, Rows, Site};
use samebits_oracle::{Arithmetic, Bits, ops};

use super::Trial;
use super::draw::{Draw, Kind, Number, bits, bits_of, tensor, wide};

const HERE: Site = Site::global("kernels");

/// The oracle for a dtype and an order of the engine.
pub fn oracle(dtype: Dtype, order: Order) -> Bits {
    Bits {
        dtype: match dtype {
            Dtype::Bf16 => samebits_oracle::Dtype::Bf16,
            Dtype::F32 => samebits_oracle::Dtype::F32,
        },
        order: match order {
            Order::Invariant => samebits_oracle::Order::Invariant,
            Order::Transformers => samebits_oracle::Order::Transformers,
        },
    }
}

/// What each table answers.
pub fn each(order: Order, answer: impl Fn(&mut Cpu) -> Vec<u32>) -> Vec<Vec<u32>> {
    Kernels::supported().into_iter().map(|k| answer(&mut Cpu::new(k, order))).collect()
}

/// Some rows of a forward, from an odd row on where it can be.
pub fn linear<E: Number>(draw: &mut Draw) -> Trial {
    let (order, kinds) = (draw.order(), draw.kinds());
    let k = draw.length(2);
    let n = if k > 256 { draw.within(1, 12) } else { draw.length(1).min(140) };
    let rows = Rows { first: draw.within(0, 3), count: draw.within(1, 8), of: 0 };
    let of = if draw.one_in(4) { 1 } else { rows.first + rows.count + draw.within(0, 3) };
    let rows = Rows { of, ..rows };
    let mut x = draw.values::<E>(kinds[0], (rows.first + rows.count) * k);
    let mut w = draw.values::<E>(kinds[1], n * k);
    let cancelling = draw.one_in(2);
    if cancelling {
        let row = rows.first * k;
        w.chunks_mut(k).for_each(|w| draw.cancel::<E>(&mut x[row..row + k], w));
    }
    let tables = each(order, |b| {
        let mut act = b.mem().alloc(x.len(), E::DTYPE, Layout::RowMajor);
        b.mem().write(&mut act, 0, &tensor::<E>(&x));
        let mut weight = b.mem().alloc_weight(n, Some(k), E::DTYPE);
        b.mem().write_weight(&mut weight, 0, &tensor::<E>(&w));
        let mut out = b.mem().alloc(rows.count * n, E::DTYPE, Layout::RowMajor);
        b.run(HERE, Op::Linear { out: &mut out, x: &act, weight: &weight, rows, width: n });
        bits(&b.mem().read(&out, 0, rows.count * n))
    });
    let x = wide(&x[rows.first * k..]);
    let op = ops::Linear { x: &x, weight: &wide(&w), k, true_rows: rows.of };
    let numbers: Vec<usize> = (rows.first..rows.first + rows.count).collect();
    let part = ops::Part { rows: &numbers, first_column: 0, columns: n, weight_start: 0 };
    let oracle = bits_of::<E>(&oracle(E::DTYPE, order).linear_in(&op, &part).values);
    let what = format!("k {k}, n {n}, {rows:?}, {order:?}, {kinds:?}, cancelling {cancelling}");
    Trial { what, tables, oracle }
}

/// Rows of a table, in any order.
pub fn embed<E: Number>(draw: &mut Draw) -> Trial {
    let (vocab, width, rows) = (draw.within(1, 150), draw.length(2), draw.within(1, 6));
    let kind = draw.kind();
    let values = draw.values::<E>(kind, vocab * width);
    let ids: Vec<u32> = (0..rows).map(|_| draw.within(0, vocab - 1) as u32).collect();
    let tables = each(Order::Invariant, |b| {
        let mut table = b.mem().alloc_weight(vocab, Some(width), E::DTYPE);
        b.mem().write_weight(&mut table, 0, &tensor::<E>(&values));
        let mut list = b.mem().alloc_ints(rows);
        b.mem().write_ints(&mut list, &ids);
        let mut out = b.mem().alloc(rows * width, E::DTYPE, Layout::RowMajor);
        b.run(HERE, Op::Embed { out: &mut out, table: &table, ids: &list, rows, width });
        bits(&b.mem().read(&out, 0, rows * width))
    });
    let table = match tensor::<E>(&values) {
        samebits::tensor::Tensor::Bf16(v) => {
            let bits = v.iter().map(|x| x.to_bits()).collect();
            samebits_oracle::Tensor::from_bf16(vec![vocab, width], bits)
        }
        samebits::tensor::Tensor::F32(v) => {
            samebits_oracle::Tensor::from_f32(vec![vocab, width], &v)
        }
    };
    let oracle = bits_of::<E>(&oracle(E::DTYPE, Order::Invariant).embed(&table, &ids).values);
    let what = format!("vocab {vocab}, width {width}, {rows} rows, {:?}, {kind:?}", E::DTYPE);
    Trial { what, tables, oracle }
}

/// Rows with ties. The oracle has no argmax; the rule is one line.
pub fn argmax<E: Number>(draw: &mut Draw) -> Trial {
    let (width, rows, kind) = (draw.length(1), draw.within(1, 6), draw.kind());
    let mut x = draw.values::<E>(kind, rows * width);
    if draw.one_in(2) {
        // Few different values, so that the largest is there more than once.
        let few = draw.values::<E>(Kind::Plain, 3);
        x.iter_mut().for_each(|x| *x = few[draw.within(0, 2)]);
    }
    let tables = each(Order::Invariant, |b| {
        let mut act = b.mem().alloc(x.len(), E::DTYPE, Layout::RowMajor);
        b.mem().write(&mut act, 0, &tensor::<E>(&x));
        let mut out = b.mem().alloc_ints(rows);
        b.run(HERE, Op::Argmax { out: &mut out, x: &act, rows, width });
        b.mem().read_ints(&out, rows)
    });
    let rule = |row: &[f32]| {
        let largest = |i: &usize| row.iter().all(|x| row[*i] >= *x);
        (0..row.len()).find(largest).map_or(u32::MAX, |i| i as u32)
    };
    let oracle = x.chunks(width).map(rule).collect();
    let what = format!("width {width}, {rows} rows, {:?}, {kind:?}", E::DTYPE);
    Trial { what, tables, oracle }
}

#[cfg(test)]
mod tests {
    use samebits::contract::Element;
    use samebits_oracle::bits::{dot_bf16, linear_block, round_bf16, round_bf16_flush};

    use super::*;

    /// A bf16 product by a rule that is not the contract's.
    type Wrong = fn(&[f32], &[f32], usize) -> f32;

    fn chain(x: &[f32], w: &[f32], step: impl Fn(&[f32], &[f32], f32) -> f32) -> f32 {
        x.chunks(2).zip(w.chunks(2)).fold(0.0, |acc, (x, w)| step(x, w, acc))
    }

    const WRONG: [(&str, Wrong); 5] = [
        ("no flush", |x, w, block| {
            let plain = |x: &[f32], w: &[f32], acc: f32| {
                let odd = if x.len() > 1 { x[1].mul_add(w[1], acc) } else { acc };
                x[0].mul_add(w[0], odd)
            };
            let sums = x.chunks(block).zip(w.chunks(block)).map(|(x, w)| chain(x, w, plain));
            round_bf16_flush(sums.reduce(|a, b| a + b).expect("terms"))
        }),
        ("even term first", |x, w, block| {
            let swap = |v: &[f32]| {
                let pairs = v.chunks(2).flat_map(|p| p.iter().rev());
                pairs.copied().collect::<Vec<f32>>()
            };
            let even = x.len() / 2 * 2;
            let (mut a, mut b) = (swap(&x[..even]), swap(&w[..even]));
            a.extend(&x[even..]);
            b.extend(&w[even..]);
            round_bf16_flush(dot_bf16(&a, &b, block))
        }),
        ("pair summed first", |x, w, block| {
            let pair = |x: &[f32], w: &[f32], acc: f32| {
                acc + x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>()
            };
            let sums = x.chunks(block).zip(w.chunks(block)).map(|(x, w)| chain(x, w, pair));
            round_bf16_flush(sums.reduce(|a, b| a + b).expect("terms"))
        }),
        ("one block", |x, w, _| round_bf16_flush(dot_bf16(x, w, x.len().next_multiple_of(2)))),
        ("subnormal result", |x, w, block| round_bf16(dot_bf16(x, w, block))),
    ];

    /// Inputs matter more than limits: each wrong rule must show in some of the cases.
    #[test]
    fn the_cases_tell_every_wrong_rule_apart() {
        let mut shown = [0; WRONG.len()];
        for case in 0..10_000 {
            let mut draw = Draw::new([7, 0, case]);
            let kinds = draw.kinds();
            let k = draw.length(2);
            let mut x = draw.values::<half::bf16>(kinds[0], k);
            let mut w = draw.values::<half::bf16>(kinds[1], k);
            if draw.one_in(2) {
                draw.cancel::<half::bf16>(&mut x, &mut w);
            }
            let (order, dtype) = (samebits_oracle::Order::Invariant, samebits_oracle::Dtype::Bf16);
            let block = linear_block(order, dtype, k, 2);
            let bits = |y: f32| half::bf16::nearest(y).to_bits();
            let right = bits(round_bf16_flush(dot_bf16(&x, &w, block)));
            for ((_, wrong), shown) in WRONG.iter().zip(&mut shown) {
                *shown += usize::from(bits(wrong(&x, &w, block)) != right);
            }
        }
        let report: Vec<_> = WRONG.iter().zip(shown).map(|((name, _), n)| (*name, n)).collect();
        assert!(shown.iter().all(|n| *n >= 5), "{report:?}");
    }
}

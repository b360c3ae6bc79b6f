//! Linear layers: tiles of rows by panels, spread over threads.

use rayon::prelude::*;

use super::kernels::{ROWS, Table, Tile, TileArgs};
use super::memory::{Act, Weight};
use super::panels::PANEL;
use super::simd::for_each_tile;
use crate::contract::{Dtype, Element, Order, SmallProduct, cannot_flush, linear_block};
use crate::op::Rows;

const TASK_ROWS: usize = 16 * ROWS;
const TASK_PANELS: usize = 4;

/// `out[r] = x[first + r] Wᵀ` for `rows.count` rows; bits depend on nothing but the row, its K and,
/// in `Order::Transformers`, whether the forward has one row.
pub fn linear<E: Element>(
    table: &Table<E>,
    order: Order,
    out: &mut Act,
    x: &Act,
    weight: &Weight,
    rows: Rows,
    width: usize,
) {
    let (panels, packed) = weight.panels::<E>();
    assert_eq!(panels.n, width, "linear: weight rows are not the output's width");
    let k = panels.k;
    let x = &x.rows::<E>(rows.first + rows.count, k)[rows.first * k..];
    let block = linear_block(order, E::DTYPE, k, rows.of);
    let out = out.rows_mut::<E>(rows.count, width);
    let product = SmallProduct { rows: rows.of, columns: width, terms: k };
    if few::<E>(order, product) {
        let weight = |n: usize, i: usize| packed[panels.index(n, i)].widen();
        return few_rows(out, x, (product, rows.first), weight);
    }
    for_each_tile(out, width, [TASK_ROWS, TASK_PANELS * PANEL], |mut task| {
        let mut sums = Tile::new();
        let groups = task.rows().div_ceil(ROWS);
        let exact: [bool; TASK_ROWS / ROWS] = std::array::from_fn(|group| {
            let first = task.first_row + group.min(groups - 1) * ROWS;
            let last = (first + ROWS).min(task.first_row + task.rows());
            cannot_flush(E::lowest_exponent(&x[first * k..last * k]), weight.lowest_exponent())
        });
        for column in (0..task.columns()).step_by(PANEL) {
            let index = (task.first_column + column) / PANEL;
            let panel = &packed[index * panels.panel_len()..][..panels.panel_len()];
            let columns = (task.columns() - column).min(PANEL);
            for row in (0..task.rows()).step_by(ROWS) {
                let count = (task.rows() - row).min(ROWS);
                let x = &x[(task.first_row + row) * k..][..count * k];
                let (terms, exact) = ([k; ROWS], exact[row / ROWS]);
                let args = TileArgs { x, stride: k, rows: count, panel, terms, block, exact };
                (table.tile)(&args, &mut sums);
                for (r, sums) in sums.0[..count].iter().enumerate() {
                    let out = &mut task.row(row + r)[column..column + columns];
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = E::nearest_sum(*sum));
                }
            }
        }
    });
}

/// Whether a linear takes the orders of few rows.
fn few<E: Element>(order: Order, product: SmallProduct) -> bool {
    let asked = (order, E::DTYPE) == (Order::Transformers, Dtype::F32);
    asked && product.order(0, 0).is_some()
}

/// A linear of few rows or outputs, of which `out` holds those from a row on.
fn few_rows<E: Element>(
    out: &mut [E],
    x: &[E],
    (product, first): (SmallProduct, usize),
    weight: impl Fn(usize, usize) -> f32 + Sync,
) {
    let SmallProduct { columns, terms, .. } = product;
    out.par_iter_mut().with_min_len(64).enumerate().for_each(|(at, out)| {
        let (row, column) = (at / columns, at % columns);
        let x = &x[row * terms..][..terms];
        let order = product.order(first + row, column).expect("few rows have an order each");
        *out = E::nearest_sum(order.of(terms, |i| (x[i].widen(), weight(column, i))));
    });
}

//! Linear layers: tiles of rows by panels, spread over threads.

use super::kernels::{ROWS, Table, Tile, TileArgs};
use super::memory::{Act, Weight};
use super::panels::PANEL;
use super::simd::for_each_tile;
use crate::contract::{Element, Order, cannot_flush, linear_block};
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
    for_each_tile(out, width, [TASK_ROWS, TASK_PANELS * PANEL], |mut task| {
        let mut sums = Tile::new();
        let groups = task.rows().div_ceil(ROWS);
        let lowest: [i32; TASK_ROWS / ROWS] = std::array::from_fn(|group| {
            let first = task.first_row + group.min(groups - 1) * ROWS;
            let last = (first + ROWS).min(task.first_row + task.rows());
            E::lowest_exponent(&x[first * k..last * k])
        });
        for column in (0..task.columns()).step_by(PANEL) {
            let index = (task.first_column + column) / PANEL;
            let panel = &packed[index * panels.panel_len()..][..panels.panel_len()];
            let columns = (task.columns() - column).min(PANEL);
            for row in (0..task.rows()).step_by(ROWS) {
                let count = (task.rows() - row).min(ROWS);
                let x = &x[(task.first_row + row) * k..][..count * k];
                let exact = cannot_flush(lowest[row / ROWS], weight.lowest_exponent(index));
                let terms = [k; ROWS];
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

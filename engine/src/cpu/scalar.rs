//! Portable products, one operation after another: right on any target.

use half::bf16;

use super::kernels::{Tile, TileArgs};
use super::panels::PANEL;
use crate::contract::{Element, fma_flush};

/// bf16 in, f32 chains of pairs with the odd term first, blocks added in order.
pub fn tile_bf16(args: &TileArgs<'_, bf16>, out: &mut Tile) {
    if args.exact { pairs(args, out, f32::mul_add) } else { pairs(args, out, fma_flush) }
}

fn pairs(args: &TileArgs<'_, bf16>, out: &mut Tile, fma: impl Fn(f32, f32, f32) -> f32) {
    blocks(args, out, |x, panel, acc, terms| {
        let odd = if terms > 1 { x[1].widen() } else { 0.0 };
        let even = x[0].widen();
        for (acc, pair) in acc.iter_mut().zip(panel.as_chunks::<2>().0) {
            let weight = if terms > 1 { pair[1].widen() } else { 0.0 };
            *acc = fma(even, pair[0].widen(), fma(odd, weight, *acc));
        }
    });
}

/// f32 in, f32 chains of ascending FMA, blocks added in order.
pub fn tile_f32(args: &TileArgs<'_, f32>, out: &mut Tile) {
    blocks(args, out, |x, panel, acc, _| {
        for (acc, weight) in acc.iter_mut().zip(panel) {
            *acc = x[0].mul_add(*weight, *acc);
        }
    });
}

/// Runs the block structure around `step`, which takes one group of terms.
fn blocks<E: Element>(
    args: &TileArgs<'_, E>,
    out: &mut Tile,
    step: impl Fn(&[E], &[E], &mut [f32; PANEL], usize),
) {
    for row in 0..args.rows {
        let terms = args.terms[row];
        let x = &args.x[row * args.stride..][..terms];
        let total = &mut out.0[row];
        for start in (0..terms).step_by(args.block) {
            let mut acc = [0.0; PANEL];
            let end = (start + args.block).min(terms);
            for k in (start..end).step_by(E::LANES) {
                let group = &args.panel[k * PANEL..][..PANEL * E::LANES];
                step(&x[k..], group, &mut acc, end - k);
            }
            if start == 0 {
                *total = acc;
            } else {
                total.iter_mut().zip(acc).for_each(|(total, acc)| *total += acc);
            }
        }
    }
}

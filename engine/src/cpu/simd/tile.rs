//! The frame of a product kernel, shared by the x86 instruction sets.

/// Defines a tile: blocks of all rows together as far as the shortest goes, then each to its own
/// end. `step` takes one group of terms for `R` rows and `vectors` vectors of columns; `finish` makes
/// a block's sum of what the steps left.
macro_rules! tile {
    (
        $tile:ident, $rows:ident, $chain:ident, $element:ty, $step:ident, $features:literal,
        $vector:ty, $width:literal, $vectors:literal,
        $zero:ident, $load:ident, $store:ident, $add:ident, $finish:ident
    ) => {
        fn $tile(args: &TileArgs<'_, $element>, out: &mut Tile) {
            // SAFETY: reached only through the table, which exists only if the CPU has all this.
            unsafe {
                match args.rows {
                    1 => $rows::<1>(args, out),
                    2 => $rows::<2>(args, out),
                    3 => $rows::<3>(args, out),
                    4 => $rows::<4>(args, out),
                    5 => $rows::<5>(args, out),
                    ROWS => $rows::<ROWS>(args, out),
                    rows => panic!("a tile of {rows} rows"),
                }
            }
        }

        #[target_feature(enable = $features)]
        fn $rows<const R: usize>(args: &TileArgs<'_, $element>, out: &mut Tile) {
            const LANES: usize = <$element as Element>::LANES;
            let terms: [usize; R] = std::array::from_fn(|r| args.terms[r]);
            let longest = terms.into_iter().max().expect("a tile has rows");
            let shortest = terms.into_iter().min().expect("a tile has rows");
            assert!(args.block.is_multiple_of(LANES), "blocks are whole groups");
            assert!(
                panel_len(longest, LANES).is_some_and(|len| args.panel.len() >= len),
                "panel too short"
            );
            for (r, terms) in terms.iter().enumerate() {
                assert!(
                    row_end(r, args.stride, *terms).is_some_and(|end| args.x.len() >= end),
                    "x too short"
                );
            }
            for column in (0..PANEL).step_by($vectors * $width) {
                for start in (0..longest).step_by(args.block) {
                    let end = start.saturating_add(args.block);
                    let common = shortest.min(end).max(start) / LANES * LANES;
                    let mut acc = [[$zero(); $vectors]; R];
                    // SAFETY: `start .. common` are whole groups within every row and the panel.
                    unsafe { $chain::<R>(args, column, 0, start, common, &mut acc) };
                    for r in 0..R {
                        if terms[r] <= start {
                            continue;
                        }
                        let mut own = [acc[r]];
                        let end = terms[r].min(end);
                        // SAFETY: `common .. end` lies within row `r` and the panel.
                        unsafe { $chain::<1>(args, column, r, common, end, &mut own) };
                        for (v, sum) in own[0].into_iter().enumerate() {
                            let sum = $finish(sum);
                            let total = &mut out.0[r][column + $width * v..][..$width];
                            // SAFETY: `total` is one vector's f32 of the tile.
                            unsafe {
                                let at = total.as_mut_ptr();
                                let sum = if start == 0 { sum } else { $add($load(at), sum) };
                                $store(at, sum);
                            }
                        }
                    }
                }
            }
        }

        /// Terms `start .. end` of rows `first .. first + R`; `start` begins a group.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $chain<const R: usize>(
            args: &TileArgs<'_, $element>,
            column: usize,
            first: usize,
            start: usize,
            end: usize,
            acc: &mut [[$vector; $vectors]; R],
        ) {
            const LANES: usize = <$element as Element>::LANES;
            let x = args.x.as_ptr().wrapping_add(first * args.stride);
            let panel = args.panel.as_ptr().wrapping_add(column * LANES);
            let mut k = start;
            while k + LANES <= end {
                // SAFETY: group `k` lies within the panel and within each row.
                unsafe { $step::<R>(x.add(k), args.stride, panel.add(k * PANEL), acc, !0) };
                k += LANES;
            }
            if k < end {
                // The missing odd term of an odd count is +0 x +0.
                let last = last_terms(args.x, first * args.stride + k, R, args.stride);
                let last = last.as_ptr().cast();
                // SAFETY: the panel holds the whole group; `last` holds `R` rows of two terms.
                unsafe { $step::<R>(last, 2, panel.add(k * PANEL), acc, 0xFFFF) };
            }
        }
    };
}

pub(super) use tile;

use half::bf16;

use crate::contract::Element;
use crate::cpu::kernels::ROWS;
use crate::cpu::panels::PANEL;

/// Elements of a panel that holds `terms` terms; none where no memory could.
pub fn panel_len(terms: usize, lanes: usize) -> Option<usize> {
    terms.checked_next_multiple_of(lanes)?.checked_mul(PANEL)
}

/// Where row `r` of `terms` terms ends; none where no memory could hold it.
pub fn row_end(r: usize, stride: usize, terms: usize) -> Option<usize> {
    r.checked_mul(stride)?.checked_add(terms)
}

/// The last term of `rows` rows, each followed by a zero. Only bf16 has groups of two.
pub fn last_terms<E: Element>(x: &[E], at: usize, rows: usize, stride: usize) -> [bf16; 2 * ROWS] {
    let mut last = [bf16::ZERO; 2 * ROWS];
    for r in 0..rows {
        last[2 * r] = bf16::nearest(x[at + r * stride].widen());
    }
    last
}

/// Compiles the bodies of [`crate::cpu::vector`] for an instruction set.
macro_rules! row_kernels {
    ($features:literal) => {
        row_kernels! { $features;
            silu(out: &mut [E], x: &[E]);
            sigmoid(out: &mut [E], x: &[E]);
            mul(out: &mut [E], a: &[E], b: &[E]);
            add(out: &mut [E], a: &[E], b: &[E]);
            rms_norm(out: &mut [E], x: &[E], weight: &[E], eps: f32, form: NormForm);
            rope(out: &mut [E], x: &[E], cos: &[E], sin: &[E]);
            softmax(out: &mut [E], x: &[E], order: Order);
            l2_norm(out: &mut [f32], x: &[E]);
            gated_norm(out: &mut [E], x: &[E], z: &[E], weight: &[f32], eps: f32);
            conv(out: &mut [E], row: &ConvRow<'_, E>);
            delta_rule(out: &mut [E], state: &mut [f32], step: &DeltaStep<'_, E>);
        }
    };
    ($features:literal; $($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        fn $name<E: Element>($($arg: $ty),*) {
            #[target_feature(enable = $features)]
            fn body<E: Element>($($arg: $ty),*) {
                vector::$name($($arg),*);
            }
            // SAFETY: reached only through a table, which exists only if the CPU has all this.
            unsafe { body($($arg),*) }
        }
    )*};
}

pub(super) use row_kernels;

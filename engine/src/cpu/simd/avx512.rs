//! AVX-512 with BF16: `vdpbf16ps` is the contract's pair step, flushing included.

use std::arch::x86_64::*;

use half::bf16;

use super::super::kernels::{Kernels, ROWS, Table, Tile, TileArgs};
use super::super::panels::PANEL;
use super::super::vector;
use crate::contract::{Element, Order};
use crate::op::NormForm;

/// The table, if this CPU can run it.
pub fn table() -> Option<&'static Kernels> {
    let has = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("fma");
    has.then_some(&AVX512)
}

static AVX512: Kernels =
    Kernels { name: "avx512", bf16: table_of(tile_bf16), f32: table_of(tile_f32) };

const fn table_of<E: Element>(tile: fn(&TileArgs<'_, E>, &mut Tile)) -> Table<E> {
    Table { tile, silu, mul, add, rms_norm, rope, softmax }
}

/// Compiles a body of [`vector`] with AVX-512.
macro_rules! vectorised {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        fn $name<E: Element>($($arg: $ty),*) {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
            fn body<E: Element>($($arg: $ty),*) {
                vector::$name($($arg),*);
            }
            // SAFETY: reached only through the table, which exists only if the CPU has all this.
            unsafe { body($($arg),*) }
        }
    )*};
}

vectorised! {
    silu(out: &mut [E], x: &[E]);
    mul(out: &mut [E], a: &[E], b: &[E]);
    add(out: &mut [E], a: &[E], b: &[E]);
    rms_norm(out: &mut [E], x: &[E], weight: &[E], eps: f32, form: NormForm);
    rope(out: &mut [E], x: &[E], cos: &[E], sin: &[E]);
    softmax(out: &mut [E], x: &[E], order: Order);
}

const VECTORS: usize = PANEL / 16;

type Sums = [__m512; VECTORS];

/// Defines the tile of one element type from the step that takes one group of terms.
macro_rules! tile {
    ($tile:ident, $rows:ident, $chain:ident, $element:ty, $step:ident) => {
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

        /// Blocks of all rows together as far as the shortest goes, then each to its own end.
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16,fma")]
        fn $rows<const R: usize>(args: &TileArgs<'_, $element>, out: &mut Tile) {
            const LANES: usize = <$element as Element>::LANES;
            let terms: [usize; R] = std::array::from_fn(|r| args.terms[r]);
            let longest = terms.into_iter().max().expect("a tile has rows");
            assert!(args.block.is_multiple_of(LANES), "blocks are whole groups");
            assert!(args.panel.len() >= longest.div_ceil(LANES) * LANES * PANEL, "panel too short");
            for (r, terms) in terms.iter().enumerate() {
                assert!(args.x.len() >= r * args.stride + terms, "x too short");
            }
            for start in (0..longest).step_by(args.block) {
                let end = start + args.block;
                let shortest = terms.into_iter().min().expect("a tile has rows").min(end);
                let common = shortest.max(start) / LANES * LANES;
                let mut acc = [[_mm512_setzero_ps(); VECTORS]; R];
                // SAFETY: `start .. common` are whole groups within every row and the panel.
                unsafe { $chain::<R>(args, 0, start, common, &mut acc) };
                for r in 0..R {
                    if terms[r] <= start {
                        continue;
                    }
                    let mut own = [acc[r]];
                    // SAFETY: `common .. terms[r]` lies within row `r` and the panel.
                    unsafe { $chain::<1>(args, r, common, terms[r].min(end), &mut own) };
                    for (v, sum) in own[0].into_iter().enumerate() {
                        let total = &mut out.0[r][16 * v..16 * v + 16];
                        // SAFETY: `total` is 16 f32 of the tile.
                        unsafe {
                            let at = total.as_mut_ptr();
                            let before = _mm512_loadu_ps(at);
                            let sum = if start == 0 { sum } else { _mm512_add_ps(before, sum) };
                            _mm512_storeu_ps(at, sum);
                        }
                    }
                }
            }
        }

        /// Terms `start .. end` of rows `first .. first + R`. `start` is a multiple of LANES.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16,fma")]
        unsafe fn $chain<const R: usize>(
            args: &TileArgs<'_, $element>,
            first: usize,
            start: usize,
            end: usize,
            acc: &mut [Sums; R],
        ) {
            const LANES: usize = <$element as Element>::LANES;
            let x = args.x.as_ptr().wrapping_add(first * args.stride);
            let mut k = start;
            while k + LANES <= end {
                // SAFETY: group `k` lies within the panel and within each row, as the caller says.
                unsafe {
                    $step::<R>(x.add(k), args.stride, args.panel.as_ptr().add(k * PANEL), acc, !0)
                };
                k += LANES;
            }
            if k < end {
                // The missing odd term of an odd count is +0 x +0.
                let last: Vec16 = last_group(args.x, first * args.stride + k, R, args.stride);
                // SAFETY: the panel holds the whole group; `last` holds `R` rows of two terms.
                unsafe {
                    $step::<R>(
                        last.0.as_ptr().cast(),
                        2,
                        args.panel.as_ptr().add(k * PANEL),
                        acc,
                        0xFFFF,
                    )
                };
            }
        }
    };
}

/// The last term of up to [`ROWS`] rows, each followed by a zero.
struct Vec16([bf16; 2 * ROWS]);

/// Collects the single last terms of `rows` rows; only bf16 has groups of two.
fn last_group<E: Element>(x: &[E], at: usize, rows: usize, stride: usize) -> Vec16 {
    let mut last = Vec16([bf16::ZERO; 2 * ROWS]);
    for r in 0..rows {
        last.0[2 * r] = bf16::nearest(x[at + r * stride].widen());
    }
    last
}

/// One pair of terms of `R` rows: odd, then even. `mask` selects the terms of the panel that count.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,fma")]
unsafe fn pair<const R: usize>(
    x: *const bf16,
    stride: usize,
    panel: *const bf16,
    acc: &mut [Sums; R],
    mask: i32,
) {
    let keep = _mm512_set1_epi32(mask);
    // SAFETY: the caller vouches for 128 elements of the panel and two of each row.
    unsafe {
        let w: [__m512i; VECTORS] = std::array::from_fn(|v| {
            _mm512_and_si512(_mm512_loadu_si512(panel.add(32 * v).cast()), keep)
        });
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = _mm512_set1_epi32(x.add(r * stride).cast::<i32>().read_unaligned());
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = _mm512_dpbf16_ps(*sum, as_bf16(x), as_bf16(w));
            }
        }
    }
}

/// The same bits under the type that the dot product takes.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn as_bf16(x: __m512i) -> __m512bh {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(x) }
}

/// One term of `R` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,fma")]
unsafe fn term<const R: usize>(
    x: *const f32,
    stride: usize,
    panel: *const f32,
    acc: &mut [Sums; R],
    _mask: i32,
) {
    // SAFETY: the caller vouches for 64 elements of the panel and one of each row.
    unsafe {
        let w: [__m512; VECTORS] = std::array::from_fn(|v| _mm512_loadu_ps(panel.add(16 * v)));
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = _mm512_set1_ps(*x.add(r * stride));
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = _mm512_fmadd_ps(x, w, *sum);
            }
        }
    }
}

tile!(tile_bf16, rows_bf16, chain_bf16, bf16, pair);
tile!(tile_f32, rows_f32, chain_f32, f32, term);

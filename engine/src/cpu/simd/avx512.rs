//! AVX-512, with and without BF16. `vdpbf16ps` is the contract's pair step, flushing included;
//! without it, two FMA give the same where no partial sum can be subnormal, and flush where one can.

use std::arch::x86_64::*;
use std::convert::identity;

use half::bf16;

use super::super::kernels::{ConvRow, DeltaStep, Kernels, ROWS, Table, Tile, TileArgs};
use super::super::panels::PANEL;
use super::super::{scalar, vector};
use super::tile::{last_terms, panel_len, row_end, row_kernels, tile};
use crate::contract::{Element, Order, flush};
use crate::op::NormForm;

/// The tables that this CPU can run, slower first.
pub fn tables() -> impl Iterator<Item = &'static Kernels> {
    let plain = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("fma");
    let dot = plain && is_x86_feature_detected!("avx512bf16");
    plain.then_some(&PLAIN).into_iter().chain(dot.then_some(&DOT))
}

static PLAIN: Kernels =
    Kernels { name: "avx512", bf16: table_of(tile_bf16), f32: table_of(tile_f32) };

static DOT: Kernels =
    Kernels { name: "avx512bf16", bf16: table_of(tile_dot), f32: table_of(tile_f32) };

const fn table_of<E: Element>(tile: fn(&TileArgs<'_, E>, &mut Tile)) -> Table<E> {
    Table {
        tile,
        silu,
        sigmoid,
        mul,
        add,
        rms_norm,
        rope,
        softmax,
        l2_norm,
        gated_norm,
        conv,
        delta_rule,
    }
}

row_kernels!("avx512f,avx512bw,avx512dq,avx512vl,fma");

const VECTORS: usize = PANEL / 16;

type Sums = [__m512; VECTORS];

/// bf16 in, f32 chains of pairs with the odd term first: two FMA, and a flush after each where a
/// partial sum may be subnormal.
fn tile_bf16(args: &TileArgs<'_, bf16>, out: &mut Tile) {
    if args.exact {
        return tile_pairs(args, out);
    }
    tile_flushed(args, out);
    if !out.is_finite(args.rows) {
        scalar::tile_bf16(args, out);
    }
}

/// One pair of terms of `R` rows by dot products: odd, then even. `mask` selects the terms of the
/// panel that count.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,fma")]
unsafe fn dot<const R: usize>(
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

/// One pair of terms of `R` rows by two FMA.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,fma")]
unsafe fn pair<const R: usize>(
    x: *const bf16,
    stride: usize,
    panel: *const bf16,
    acc: &mut [Sums; R],
    mask: i32,
) {
    let high = _mm512_set1_epi32(mask & !0xFFFF);
    // SAFETY: the caller vouches for 128 elements of the panel and two of each row.
    unsafe {
        let w: [__m512i; VECTORS] =
            std::array::from_fn(|v| _mm512_loadu_si512(panel.add(32 * v).cast()));
        let odd = w.map(|w| _mm512_castsi512_ps(_mm512_and_si512(w, high)));
        let even = w.map(|w| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)));
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = x.add(r * stride);
            let (x0, x1) = (_mm512_set1_ps((*x).widen()), _mm512_set1_ps((*x.add(1)).widen()));
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(x0, even[v], _mm512_fmadd_ps(x1, odd[v], *sum));
            }
        }
    }
}

/// Vectors of columns that a chain with flushes advances together: more do not fit the registers.
const FLUSHED: usize = 2;

/// Zero of the same sign where the value is below 2^-125: subnormal, were it half as large.
#[inline]
#[target_feature(enable = "avx512f")]
fn flush_doubled(value: __m512) -> __m512 {
    let bits = _mm512_castps_si512(value);
    let tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7F00_0000));
    _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, tiny, bits, _mm512_set1_epi32(i32::MIN)))
}

/// One pair of terms of `R` rows by two FMA that flush, on sums twice as large: there a result below
/// the smallest normal number still has all its bits, and is rounded once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,fma")]
unsafe fn pair_flushed<const R: usize>(
    x: *const bf16,
    stride: usize,
    panel: *const bf16,
    acc: &mut [[__m512; FLUSHED]; R],
    mask: i32,
) {
    let high = _mm512_set1_epi32(mask & !0xFFFF);
    // SAFETY: the caller vouches for 64 elements of the panel and two of each row.
    unsafe {
        let double = |w| flush_doubled(_mm512_add_ps(w, w));
        let w: [__m512i; FLUSHED] =
            std::array::from_fn(|v| _mm512_loadu_si512(panel.add(32 * v).cast()));
        let odd = w.map(|w| double(_mm512_castsi512_ps(_mm512_and_si512(w, high))));
        let even = w.map(|w| double(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(w))));
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = x.add(r * stride);
            let x0 = _mm512_set1_ps(flush((*x).widen()));
            let x1 = _mm512_set1_ps(flush((*x.add(1)).widen()));
            for (v, sum) in sums.iter_mut().enumerate() {
                let first = flush_doubled(_mm512_fmadd_ps(x1, odd[v], *sum));
                *sum = flush_doubled(_mm512_fmadd_ps(x0, even[v], first));
            }
        }
    }
}

/// A sum from what is twice as large.
#[inline]
#[target_feature(enable = "avx512f")]
fn halve(sum: __m512) -> __m512 {
    _mm512_mul_ps(sum, _mm512_set1_ps(0.5))
}

/// One term of `R` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,fma")]
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

tile!(
    tile_dot,
    rows_dot,
    chain_dot,
    bf16,
    dot,
    "avx512f,avx512bw,avx512bf16,fma",
    __m512,
    16,
    4,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    identity
);
tile!(
    tile_pairs,
    rows_pairs,
    chain_pairs,
    bf16,
    pair,
    "avx512f,avx512bw,fma",
    __m512,
    16,
    4,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    identity
);
tile!(
    tile_flushed,
    rows_flushed,
    chain_flushed,
    bf16,
    pair_flushed,
    "avx512f,avx512bw,fma",
    __m512,
    16,
    2,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    halve
);
tile!(
    tile_f32,
    rows_f32,
    chain_f32,
    f32,
    term,
    "avx512f,avx512bw,fma",
    __m512,
    16,
    4,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    identity
);

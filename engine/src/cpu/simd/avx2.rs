//! AVX2 with FMA: the contract's chains, two vectors of columns at a time.

use std::arch::x86_64::*;
use std::convert::identity;

use half::bf16;

use super::super::kernels::{ConvRow, DeltaStep, Kernels, ROWS, Table, Tile, TileArgs};
use super::super::panels::PANEL;
use super::super::{scalar, vector};
use super::tile::{last_terms, panel_len, row_end, row_kernels, tile};
use crate::contract::{Element, Order, flush};
use crate::op::NormForm;

/// The table, if this CPU can run it.
pub fn table() -> Option<&'static Kernels> {
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    has.then_some(&AVX2)
}

static AVX2: Kernels = Kernels { name: "avx2", bf16: table_of(tile_bf16), f32: table_of(tile_f32) };

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

row_kernels!("avx2,fma");

const VECTORS: usize = 2;

type Sums = [__m256; VECTORS];

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

/// One pair of terms of `R` rows by two FMA. `mask` selects the terms of the panel that count.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn pair<const R: usize>(
    x: *const bf16,
    stride: usize,
    panel: *const bf16,
    acc: &mut [Sums; R],
    mask: i32,
) {
    let high = _mm256_set1_epi32(mask & !0xFFFF);
    // SAFETY: the caller vouches for 32 elements of the panel and two of each row.
    unsafe {
        let w: [__m256i; VECTORS] =
            std::array::from_fn(|v| _mm256_loadu_si256(panel.add(16 * v).cast()));
        let odd = w.map(|w| _mm256_castsi256_ps(_mm256_and_si256(w, high)));
        let even = w.map(|w| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w)));
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = x.add(r * stride);
            let (x0, x1) = (_mm256_set1_ps((*x).widen()), _mm256_set1_ps((*x.add(1)).widen()));
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_fmadd_ps(x0, even[v], _mm256_fmadd_ps(x1, odd[v], *sum));
            }
        }
    }
}

/// Zero of the same sign where the value is below 2^-125: subnormal, were it half as large.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn flush_doubled(value: __m256) -> __m256 {
    let bits = _mm256_castps_si256(value);
    let exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7F00_0000));
    let tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_srli_epi32::<1>(tiny), bits))
}

/// One pair of terms of `R` rows by two FMA that flush, on sums twice as large: there a result below
/// the smallest normal number still has all its bits, and is rounded once.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn pair_flushed<const R: usize>(
    x: *const bf16,
    stride: usize,
    panel: *const bf16,
    acc: &mut [Sums; R],
    mask: i32,
) {
    let high = _mm256_set1_epi32(mask & !0xFFFF);
    // SAFETY: the caller vouches for 32 elements of the panel and two of each row.
    unsafe {
        let double = |w| flush_doubled(_mm256_add_ps(w, w));
        let w: [__m256i; VECTORS] =
            std::array::from_fn(|v| _mm256_loadu_si256(panel.add(16 * v).cast()));
        let odd = w.map(|w| double(_mm256_castsi256_ps(_mm256_and_si256(w, high))));
        let even = w.map(|w| double(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(w))));
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = x.add(r * stride);
            let x0 = _mm256_set1_ps(flush((*x).widen()));
            let x1 = _mm256_set1_ps(flush((*x.add(1)).widen()));
            for (v, sum) in sums.iter_mut().enumerate() {
                let first = flush_doubled(_mm256_fmadd_ps(x1, odd[v], *sum));
                *sum = flush_doubled(_mm256_fmadd_ps(x0, even[v], first));
            }
        }
    }
}

/// A sum from what is twice as large.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn halve(sum: __m256) -> __m256 {
    _mm256_mul_ps(sum, _mm256_set1_ps(0.5))
}

/// One term of `R` rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn term<const R: usize>(
    x: *const f32,
    stride: usize,
    panel: *const f32,
    acc: &mut [Sums; R],
    _mask: i32,
) {
    // SAFETY: the caller vouches for 16 elements of the panel and one of each row.
    unsafe {
        let w: [__m256; VECTORS] = std::array::from_fn(|v| _mm256_loadu_ps(panel.add(8 * v)));
        for (r, sums) in acc.iter_mut().enumerate() {
            let x = _mm256_set1_ps(*x.add(r * stride));
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = _mm256_fmadd_ps(x, w, *sum);
            }
        }
    }
}

tile!(
    tile_pairs,
    rows_pairs,
    chain_pairs,
    bf16,
    pair,
    "avx2,fma",
    __m256,
    8,
    2,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    identity
);
tile!(
    tile_flushed,
    rows_flushed,
    chain_flushed,
    bf16,
    pair_flushed,
    "avx2,fma",
    __m256,
    8,
    2,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    halve
);
tile!(
    tile_f32,
    rows_f32,
    chain_f32,
    f32,
    term,
    "avx2,fma",
    __m256,
    8,
    2,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    identity
);

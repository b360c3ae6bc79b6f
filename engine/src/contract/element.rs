//! Elements and their rounding. Round to nearest even; one NaN; subnormals kept, except where a
//! bf16 product is accumulated or rounded.

use half::bf16;

use super::Dtype;
use crate::cpu::{Kernels, Table};

/// An element type of a run.
pub trait Element: Copy + Send + Sync + PartialEq + 'static {
    /// The dtype this is.
    const DTYPE: Dtype;
    /// Terms of a product that sit side by side in a packed panel.
    const LANES: usize;
    /// The largest negative finite value, as masks use it.
    const MASKED: Self;
    /// Positive zero.
    const ZERO: Self;
    /// The value as f32, exactly.
    fn widen(self) -> f32;
    /// Rounds an elementwise result: subnormals are kept.
    fn nearest(value: f32) -> Self;
    /// Rounds a product's sum: in bf16, a sum that is subnormal in f32 becomes signed zero.
    fn nearest_sum(value: f32) -> Self;
    /// The same value with the contract's NaN.
    fn canonical(self) -> Self;
    /// The smallest exponent among non-zero elements: [`NO_EXPONENT`] for none, [`SUBNORMAL`]
    /// where a bf16 is subnormal. f32 chains never flush and answer [`NO_EXPONENT`].
    fn lowest_exponent(values: &[Self]) -> i32;
    /// The kernels for this element type.
    fn table(kernels: &Kernels) -> &Table<Self>;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    const LANES: usize = 2;
    const MASKED: Self = Self::MIN;
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        let bits = value.to_bits();
        let even = (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16;
        Self::from_bits(if value.is_nan() { 0x7FC0 } else { even })
    }

    #[inline(always)]
    fn nearest_sum(value: f32) -> Self {
        Self::nearest(flush(value))
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        if self.is_nan() { Self::from_bits(0x7FC0) } else { self }
    }

    fn lowest_exponent(values: &[Self]) -> i32 {
        // A zero wraps around to the largest magnitude of all.
        let smaller = |least: u16, v: &Self| least.min((v.to_bits() & 0x7FFF).wrapping_sub(1));
        let least = values.iter().fold(u16::MAX, smaller);
        match least.wrapping_add(1) >> 7 {
            _ if least == u16::MAX => NO_EXPONENT,
            0 => SUBNORMAL,
            biased => i32::from(biased) - 127,
        }
    }

    fn table(kernels: &Kernels) -> &Table<Self> {
        &kernels.bf16
    }
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    const LANES: usize = 1;
    const MASKED: Self = Self::MIN;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        value.canonical()
    }

    #[inline(always)]
    fn nearest_sum(value: f32) -> Self {
        value.canonical()
    }

    #[inline(always)]
    fn canonical(self) -> Self {
        if self.is_nan() { Self::from_bits(0x7FC0_0000) } else { self }
    }

    fn lowest_exponent(_values: &[Self]) -> i32 {
        NO_EXPONENT
    }

    fn table(kernels: &Kernels) -> &Table<Self> {
        &kernels.f32
    }
}

/// The exponent of operands that have none: all zero, or not bf16.
pub const NO_EXPONENT: i32 = 1000;
/// The exponent of operands with a subnormal, which a chain would read as zero.
pub const SUBNORMAL: i32 = -3000;

/// Whether no partial sum of products of bf16 operands with these smallest exponents can flush.
///
/// A bf16 of exponent e is a multiple of 2^(e-7), so that every partial sum is a multiple of
/// 2^(a+b-14): at least the smallest normal f32, or zero.
pub fn cannot_flush(a: i32, b: i32) -> bool {
    a + b >= -112
}

/// Zero of the same sign where the value is subnormal.
#[inline(always)]
pub fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(value) } else { value }
}

/// One step of a bf16 chain: `a * b + acc` as `vdpbf16ps` does it.
///
/// Subnormal operands and accumulators are read as signed zero; a result that is subnormal after
/// rounding becomes signed zero. `a` and `b` are bf16 values, so that their product is exact.
#[inline(always)]
pub fn fma_flush(a: f32, b: f32, acc: f32) -> f32 {
    let (a, b, acc) = (flush(a), flush(b), flush(acc));
    let sum = a.mul_add(b, acc);
    if sum.abs() > f32::MIN_POSITIVE || sum == 0.0 {
        return sum;
    }
    underflowed(a, b, acc, sum)
}

/// The result where `sum`, rounded on the subnormal grid, is at most the smallest normal number.
#[cold]
fn underflowed(a: f32, b: f32, acc: f32, sum: f32) -> f32 {
    if sum.is_nan() {
        return sum;
    }
    // The smallest normal number may have been reached only by rounding on the coarse grid of
    // subnormals; with an unbounded exponent the result stays below it. In f64 the sum keeps
    // enough bits to tell: below 2^-126 - 2^-151 it rounds down.
    let exact = (f64::from(a) * f64::from(b) + f64::from(acc)).abs();
    let limit = f64::from(f32::MIN_POSITIVE) - 2f64.powi(-151);
    if exact < limit { 0.0f32.copysign(sum) } else { f32::MIN_POSITIVE.copysign(sum) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even_and_keeps_subnormals() {
        for (value, want) in [
            (1.0f32, 0x3F80u16),
            (f32::from_bits(0x3F80_8000), 0x3F80),
            (f32::from_bits(0x3F81_8000), 0x3F82),
            (f32::from_bits(0x3F80_8001), 0x3F81),
            (f32::MAX, 0x7F80),
            (-f32::MAX, 0xFF80),
            (f32::from_bits(0xFFC0_1234), 0x7FC0),
            (f32::from_bits(0x0008_0000), 0x0008),
        ] {
            assert_eq!(bf16::nearest(value).to_bits(), want, "{value:e}");
        }
        assert_eq!(bf16::nearest_sum(f32::from_bits(0x807F_FFFF)).to_bits(), 0x8000);
    }

    #[test]
    fn lowest_exponents() {
        let values = |v: &[f32]| v.iter().map(|v| bf16::nearest(*v)).collect::<Vec<_>>();
        for (v, want) in [
            (values(&[]), NO_EXPONENT),
            (values(&[0.0, -0.0]), NO_EXPONENT),
            (values(&[0.0, -1.5, 8.0]), 0),
            (values(&[f32::NAN, 0.25]), -2),
            (values(&[f32::MIN_POSITIVE, 1.0]), -126),
            (values(&[1e-40, 1.0]), SUBNORMAL),
        ] {
            assert_eq!(bf16::lowest_exponent(&v), want, "{v:?}");
        }
        assert!(cannot_flush(-56, -56) && !cannot_flush(-56, -57) && !cannot_flush(SUBNORMAL, 127));
    }

    /// Values read off `vdpbf16ps` on Zen 4.
    #[test]
    fn flushes_as_the_dot_product_instruction_does() {
        let p = |e: i32| 2f32.powi(e);
        for (a, b, acc, want) in [
            (p(-70), p(-70), p(-126), 0x0080_0200u32),
            (-p(-70), p(-70), 0.0, 0x8000_0000),
            (1.5 * p(-63), p(-63), -p(-126), 0x0000_0000),
            (-1.25 * p(-75), p(-74), f32::from_bits(0x0080_0001), 0x0080_0000),
            (-1.375 * p(-75), p(-74), f32::from_bits(0x0080_0001), 0x0000_0000),
            (-1.0625 * p(-75), p(-74), f32::from_bits(0x0080_0001), 0x0080_0000),
            (0.0, 0.0, f32::from_bits(0x8000_1000), 0x0000_0000),
            (0.0, 0.0, -0.0, 0x0000_0000),
            (-0.0, 0.0, -0.0, 0x8000_0000),
        ] {
            assert_eq!(fma_flush(a, b, acc).to_bits(), want, "{a:e} * {b:e} + {acc:e}");
        }
    }
}

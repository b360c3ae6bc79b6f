//! The two storage types of a run, the two orders of the contract, and the tensor of a trace.
//!
//! Deliberately absent: f16 and f8. Invariant: an f64 holds every bf16 and f32 value exactly.

/// The dtype `D` of a run: what every site stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
}

/// The order of summation (and of one-row and short-row rules) of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    /// The bits of a row depend on nothing but the row.
    #[default]
    Invariant,
    /// The bits of eager Transformers, whose blocks depend on the number of rows.
    Transformers,
}

impl Dtype {
    /// Rounds once, to nearest even; subnormals stay, NaN becomes the f64 NaN.
    pub fn round(self, x: f64) -> f64 {
        match self {
            Self::F32 => f64::from(x as f32),
            Self::Bf16 => f64::from(crate::bits::round_bf16(to_odd_f32(x))),
        }
    }

    /// `finfo(D).min`, the value of a masked score.
    pub fn min(self) -> f64 {
        match self {
            Self::F32 => f64::from(f32::MIN),
            Self::Bf16 => f64::from(f32::from_bits(0xFF7F_0000)),
        }
    }
}

/// f64 to f32, inexact values to the neighbour with the odd last bit, so that a second rounding
/// to fewer bits rounds as if it were the first.
fn to_odd_f32(x: f64) -> f32 {
    let near = x as f32;
    let wide = f64::from(near);
    if wide == x || near.to_bits() & 1 == 1 || x.is_nan() {
        return near;
    }
    if wide.abs() < x.abs() {
        f32::from_bits(near.to_bits() + 1)
    } else {
        f32::from_bits(near.to_bits() - 1)
    }
}

/// One tensor of a trace, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Array {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Values; those of a bf16 or f32 run are exact.
    pub values: Vec<f64>,
    /// Sum of the squares of the terms of each value, where `Ideal` knows it.
    pub squares: Option<Vec<f64>>,
}

impl Array {
    /// Bit patterns in `dtype` (bf16 in the low 16 bits), every NaN as `0x7FC0` or `0x7FC0_0000`.
    /// Exact only for values that are already in `dtype`.
    pub fn bits(&self, dtype: Dtype) -> Vec<u32> {
        let bits = |x: f64| match (x.is_nan(), dtype) {
            (true, Dtype::F32) => 0x7FC0_0000,
            (true, Dtype::Bf16) => 0x7FC0,
            (false, Dtype::F32) => (x as f32).to_bits(),
            (false, Dtype::Bf16) => (x as f32).to_bits() >> 16,
        };
        self.values.iter().map(|&x| bits(x)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_happens_once() {
        // 1 + 2^-8 is the midpoint of two bf16 values: a second rounding would lose the excess.
        let tie = 1.0 + 2f64.powi(-8);
        assert_eq!(Dtype::Bf16.round(tie), 1.0);
        assert_eq!(Dtype::Bf16.round(tie + 2f64.powi(-40)), 1.0 + 2f64.powi(-7));
        assert_eq!(Dtype::Bf16.round(-tie - 2f64.powi(-40)), -1.0 - 2f64.powi(-7));
        assert_eq!(Dtype::Bf16.round(1e300), f64::INFINITY);
        assert_eq!(Dtype::Bf16.round(2f64.powi(-134) + 2f64.powi(-170)), 2f64.powi(-133));
        assert_eq!(Dtype::Bf16.round(2f64.powi(-134)), 0.0);
        assert_eq!(Dtype::F32.round(1.0 + 2f64.powi(-24)), 1.0);
    }

    #[test]
    fn nan_has_one_pattern() {
        let nan = f64::from(f32::from_bits(0xFFA5_0001));
        let a = Array { shape: vec![1], values: vec![nan], squares: None };
        assert_eq!(a.bits(Dtype::F32), [0x7FC0_0000]);
        assert_eq!(a.bits(Dtype::Bf16), [0x7FC0]);
    }
}

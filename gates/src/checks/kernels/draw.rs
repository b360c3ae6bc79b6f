//! Random shapes and values of a case.

use half::bf16;
use samebits::contract::{Dtype, Element, Order};
use samebits::tensor::Tensor;

/// An element type that a case can be drawn in.
pub trait Number: Element {
    /// The number of these values: `value` is one of them already, NaN included.
    fn exactly(value: f32) -> Self;
    /// A host tensor of these elements.
    fn tensor(values: Vec<Self>) -> Tensor;
}

impl Number for bf16 {
    fn exactly(value: f32) -> Self {
        Self::from_bits((value.to_bits() >> 16) as u16)
    }

    fn tensor(values: Vec<Self>) -> Tensor {
        Tensor::Bf16(values)
    }
}

impl Number for f32 {
    fn exactly(value: f32) -> Self {
        value
    }

    fn tensor(values: Vec<Self>) -> Tensor {
        Tensor::F32(values)
    }
}

/// Values as elements.
pub fn elements<E: Number>(values: &[f32]) -> Vec<E> {
    values.iter().map(|v| E::exactly(*v)).collect()
}

/// Values as a host tensor.
pub fn tensor<E: Number>(values: &[f32]) -> Tensor {
    E::tensor(elements(values))
}

/// Values as the oracle takes them.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Bits of a tensor, NaN canonical.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    (0..tensor.len()).map(|i| tensor.bits(i)).collect()
}

/// Bits of the oracle's values in `E`, NaN canonical.
pub fn bits_of<E: Number>(values: &[f64]) -> Vec<u32> {
    let narrow: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    bits(&tensor::<E>(&narrow))
}

/// What kind of values an operand has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Around 1, both signs.
    Plain,
    /// Any bits at all.
    Anything,
    /// Any finite bits.
    Finite,
    /// Around 2^-63, so that products and their sums fall around the smallest normal number.
    Underflow,
    /// Around 2^63, so that products and their sums fall around the largest number.
    Overflow,
    /// Zeros and subnormals.
    Subnormal,
    /// Around 1, with a few zeros, subnormals, infinities and NaN.
    Sprinkled,
}

/// A stream of random choices.
pub struct Draw(u64);

impl Draw {
    /// The stream of a case.
    pub fn new(parts: [u64; 3]) -> Self {
        let mut draw = Self(0);
        for part in parts {
            draw.0 = draw.0.wrapping_add(part).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            draw.0 = draw.word();
        }
        draw
    }

    /// 64 random bits: splitmix64.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low ..= high`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.word() % (high - low + 1) as u64) as usize
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.word().is_multiple_of(n)
    }

    /// A length from `low` on: mostly up to 200, now and then beyond 1,024.
    pub fn length(&mut self, low: usize) -> usize {
        match self.within(0, 31) {
            0 => self.within(1025, 1300),
            1..4 => self.within(200, 700),
            4..12 => self.within(low, low + 16),
            _ => self.within(low, 200),
        }
    }

    /// Either order.
    pub fn order(&mut self) -> Order {
        if self.one_in(2) { Order::Invariant } else { Order::Transformers }
    }

    /// A kind of values; plain ones in a third of all cases.
    pub fn kind(&mut self) -> Kind {
        match self.within(0, 8) {
            0 => Kind::Anything,
            1 => Kind::Finite,
            2 => Kind::Underflow,
            3 => Kind::Overflow,
            4 => Kind::Subnormal,
            5 => Kind::Sprinkled,
            _ => Kind::Plain,
        }
    }

    /// Kinds of two operands; the same one oftener than chance has it.
    pub fn kinds(&mut self) -> [Kind; 2] {
        let first = self.kind();
        [first, if self.one_in(3) { first } else { self.kind() }]
    }

    /// `len` values of `kind`, each a number of `E`.
    pub fn values<E: Number>(&mut self, kind: Kind, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value::<E>(kind)).collect()
    }

    fn value<E: Number>(&mut self, kind: Kind) -> f32 {
        let word = self.word();
        let (sign, fraction) = ((word as u32) << 31, (word >> 1) as u32 & 0x7F_FFFF);
        let choice = (word >> 32) as u32;
        let scaled = |exponent: u32| sign | exponent << 23 | fraction;
        let bits = match kind {
            Kind::Plain => scaled(124 + choice % 6),
            Kind::Anything => choice,
            Kind::Finite => scaled(choice % 255),
            Kind::Underflow if choice.is_multiple_of(16) => sign | fraction,
            Kind::Underflow => scaled(127 - 56 - choice % 16),
            Kind::Overflow => scaled(127 + 58 + choice % 8),
            Kind::Subnormal if choice.is_multiple_of(8) => sign,
            Kind::Subnormal => sign | fraction,
            Kind::Sprinkled => match choice % 64 {
                0 => sign,
                1 => sign | fraction,
                2 => sign | 0x7F80_0000,
                3 => sign | 0x7FC0_0000,
                _ => scaled(120 + choice / 64 % 12),
            },
        };
        let short = E::DTYPE == Dtype::Bf16;
        f32::from_bits(if short { bits & 0xFFFF_0000 } else { bits })
    }

    /// Makes the last terms of `x w` cancel the rest of it, where the values allow.
    pub fn cancel<E: Number>(&mut self, x: &mut [f32], w: &mut [f32]) {
        let last = if E::DTYPE == Dtype::Bf16 { 2 } else { 1 };
        let Some(start) = x.len().checked_sub(last) else { return };
        let product = |i: usize| f64::from(x[i]) * f64::from(w[i]);
        let mut rest: f64 = (0..start).map(product).sum();
        for i in start..x.len() {
            // The row keeps its own last terms, which other columns share.
            let near = E::nearest((-rest / f64::from(x[i])) as f32).widen();
            w[i] = if near.is_nan() { 0.0 } else { near };
            rest += f64::from(x[i]) * f64::from(w[i]);
        }
    }
}

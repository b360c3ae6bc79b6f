//! Correctly rounded f32 `pow`, `cos` and `sin`, for tables made on the host.
//!
//! Arithmetic is double-double (about 104 bits), so that a wrong rounding would need a value within
//! 2^-70 of a midpoint between two f32. Only IEEE operations: the same bits on any machine.

/// An unevaluated sum `hi + lo`, `|lo| <= ulp(hi) / 2`.
#[derive(Clone, Copy)]
pub(super) struct Double {
    pub hi: f64,
    pub lo: f64,
}

impl Double {
    const fn new(hi: f64, lo: f64) -> Self {
        Self { hi, lo }
    }

    pub const fn from(hi: f64) -> Self {
        Self { hi, lo: 0.0 }
    }

    /// Exact sum of two f64.
    pub fn sum(a: f64, b: f64) -> Self {
        let hi = a + b;
        let v = hi - a;
        Self { hi, lo: (a - (hi - v)) + (b - v) }
    }

    /// Exact product of two f64.
    fn product(a: f64, b: f64) -> Self {
        let hi = a * b;
        Self { hi, lo: a.mul_add(b, -hi) }
    }

    pub fn add(self, other: Self) -> Self {
        let high = Self::sum(self.hi, other.hi);
        let low = Self::sum(self.lo, other.lo);
        let mid = Self::sum(high.hi, high.lo + low.hi);
        Self::sum(mid.hi, mid.lo + low.lo)
    }

    pub fn mul(self, other: Self) -> Self {
        let p = Self::product(self.hi, other.hi);
        let cross = self.hi.mul_add(other.lo, self.lo * other.hi);
        Self::sum(p.hi, p.lo + cross)
    }

    pub fn div(self, other: Self) -> Self {
        let q = self.hi / other.hi;
        let rest = self.add(other.mul(Self::from(-q)));
        let r = rest.hi / other.hi;
        let rest = rest.add(other.mul(Self::from(-r)));
        Self::sum(q, r).add(Self::from(rest.hi / other.hi))
    }

    fn scale(self, factor: f64) -> Self {
        Self { hi: self.hi * factor, lo: self.lo * factor }
    }

    /// Rounds to f32 once. Rounding `hi` alone would round twice where it is a midpoint.
    pub fn to_f32(self) -> f32 {
        let near = self.hi as f32;
        let rest = self.add(Self::from(-f64::from(near)));
        let other = if rest.hi > 0.0 { near.next_up() } else { near.next_down() };
        let midpoint = (f64::from(near) + f64::from(other)) / 2.0;
        let past = self.add(Self::from(-midpoint));
        let beyond = if rest.hi > 0.0 { past.hi > 0.0 } else { past.hi < 0.0 };
        if rest.hi != 0.0 && beyond { other } else { near }
    }
}

const LN_2: Double = Double::new(std::f64::consts::LN_2, 2.319_046_813_846_299_6e-17);

/// exp(x) in double-double, |x| below 700.
pub(super) fn exp(x: Double) -> Double {
    let k = (x.hi / std::f64::consts::LN_2).round();
    // r = (x - k ln 2) / 256, then e^x = 2^k (e^r)^256.
    let r = x.add(LN_2.mul(Double::from(-k))).scale(1.0 / 256.0);
    let mut term = Double::from(1.0);
    let mut sum = Double::from(1.0);
    for n in 1..=14 {
        term = term.mul(r).div(Double::from(f64::from(n)));
        sum = sum.add(term);
    }
    for _ in 0..8 {
        sum = sum.mul(sum);
    }
    sum.scale(2f64.powi(k as i32))
}

/// ln(x) in double-double, for a positive normal x.
fn ln(x: f64) -> Double {
    // One f64 estimate by the series of atanh, then two Newton steps on exp(y) = x.
    let bits = x.to_bits();
    let exponent = ((bits >> 52) as i64 - 1023) as f64;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut power, mut series) = (t, 0.0);
    for n in 0..24 {
        series += power / f64::from(2 * n + 1);
        power *= t * t;
    }
    let mut y = Double::from(exponent * std::f64::consts::LN_2 + 2.0 * series);
    for _ in 0..2 {
        let ratio = Double::from(x).div(exp(y));
        y = y.add(ratio.add(Double::from(-1.0)));
    }
    y
}

/// `base` to the power `exponent`, correctly rounded to f32; `base` positive and finite.
pub fn pow_f32(base: f32, exponent: f32) -> f32 {
    assert!(base > 0.0 && base.is_finite() && exponent.is_finite(), "pow: out of domain");
    exp(ln(f64::from(base)).mul(Double::from(f64::from(exponent)))).to_f32()
}

/// Angles below this are reduced exactly: 2^20 quarters of a turn, less one.
pub const LARGEST_ANGLE: f32 = 1_647_098.0;

/// pi / 2 in three parts of 33 bits and a rest, so that `k` times a part is exact for k < 2^20.
const HALF_PI: [f64; 4] = [
    f64::from_bits(0x3FF9_21FB_5440_0000),
    f64::from_bits(0x3DD0_B461_1A60_0000),
    f64::from_bits(0x3BA3_198A_2E00_0000),
    f64::from_bits(0x397B_839A_2520_49C1),
];

/// `(quadrant, r)` with `x = quadrant * pi / 2 + r`, |r| <= pi / 4.
fn reduce(x: f32) -> (i64, Double) {
    let x = f64::from(x);
    let k = (x / std::f64::consts::FRAC_PI_2).round();
    assert!(x.abs() < f64::from(LARGEST_ANGLE), "angle {x} is beyond the range of the reduction");
    let r = HALF_PI.iter().fold(Double::from(x), |r, part| r.add(Double::product(-k, *part)));
    (k as i64, r)
}

/// sum of r^n / n! with alternating signs over n = first, first + 2, ...
fn alternating(r: Double, first: u32) -> Double {
    let square = r.mul(r).scale(-1.0);
    let mut term = if first == 0 { Double::from(1.0) } else { r };
    let mut sum = term;
    let mut n = first;
    while n < first + 28 {
        let below = f64::from((n + 1) * (n + 2));
        term = term.mul(square).div(Double::from(below));
        sum = sum.add(term);
        n += 2;
    }
    sum
}

/// Cosine of an f32 angle in radians, correctly rounded to f32. Panics beyond 1.6 million.
pub fn cos_f32(x: f32) -> f32 {
    quarter(x, 0)
}

/// Sine of an f32 angle in radians, correctly rounded to f32. Panics beyond 1.6 million.
pub fn sin_f32(x: f32) -> f32 {
    quarter(x, 3)
}

/// cos(x + quarters * pi / 2).
fn quarter(x: f32, quarters: i64) -> f32 {
    if x == 0.0 {
        return if quarters == 0 { 1.0 } else { x };
    }
    let (k, r) = reduce(x);
    let (first, sign) = match (k + quarters).rem_euclid(4) {
        0 => (0, 1.0),
        1 => (1, -1.0),
        2 => (0, -1.0),
        _ => (1, 1.0),
    };
    // One f64 series settles all but the values close to a midpoint between two f32.
    let near = sign * alternating_f64(r.hi, first);
    let error = near.abs() * 2f64.powi(-48);
    if (near - error) as f32 == (near + error) as f32 {
        return near as f32;
    }
    alternating(r, first).scale(sign).to_f32()
}

/// The series of `alternating` in f64, good to 2^-50 of its value for |r| <= pi / 4.
fn alternating_f64(r: f64, first: u32) -> f64 {
    let square = -r * r;
    let mut sum = 1.0;
    for n in (first + 2..=first + 20).rev().step_by(2) {
        sum = 1.0 + sum * square / f64::from(n * (n - 1));
    }
    if first == 0 { sum } else { sum * r }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(got: f32, want: f64) -> f64 {
        let ulp = f64::from(got.abs().next_up()) - f64::from(got.abs());
        (f64::from(got) - want).abs() / ulp
    }

    /// std's f64 functions are good to about one f64 ulp, 2^-29 of an f32 ulp: a result that is
    /// off by more than half an f32 ulp and that much is not correctly rounded.
    #[test]
    fn rounds_correctly_wherever_f64_can_tell() {
        let mut worst = [0.0f64; 3];
        for i in 1..200_000u32 {
            let x = (i as f32).mul_add(0.613_7, 0.01);
            worst[0] = worst[0].max(ulps(cos_f32(x), f64::from(x).cos()));
            worst[1] = worst[1].max(ulps(sin_f32(x), f64::from(x).sin()));
            let e = i as f32 / 200_000.0;
            let base = 10_000.0 + i as f32 * 37.0;
            worst[2] = worst[2].max(ulps(pow_f32(base, e), f64::from(base).powf(f64::from(e))));
        }
        for (name, worst) in ["cos", "sin", "pow"].iter().zip(worst) {
            assert!(worst <= 0.5 + 1e-6, "{name}: {worst} ulp");
        }
    }

    #[test]
    fn small_and_special_arguments() {
        assert_eq!(cos_f32(0.0), 1.0);
        assert_eq!(sin_f32(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(sin_f32(1e-20), 1e-20);
        assert_eq!(pow_f32(10_000.0, 0.0), 1.0);
        assert_eq!(pow_f32(10_000.0, 0.5), 100.0);
        assert_eq!(pow_f32(2.0, -126.0), f32::MIN_POSITIVE);
    }
}

//! Correctly rounded f32 cos, sin, pow, exp and log1p, by arithmetic on unevaluated sums of two
//! f64.
//!
//! Deliberately absent: platform libm and tables. Invariant: every result here has an error below
//! 2^-85 of its size before the one rounding that ends it; among the 2^32 f32 arguments of such a
//! function the value nearest to a rounding boundary is expected near 2^-57.

/// An unevaluated sum `hi + lo`, `|lo|` at most half an ulp of `hi`.
#[derive(Clone, Copy)]
struct Dd {
    hi: f64,
    lo: f64,
}

const LN_2: Dd = Dd { hi: std::f64::consts::LN_2, lo: 2.319_046_813_846_299_6e-17 };

/// pi/2 in four parts, the first three of 29 bits so that multiples below 2^24 are exact.
const HALF_PI: [f64; 4] = [
    1.570_796_325_802_803,
    9.920_935_774_287_987e-10,
    2.251_741_770_634_657_8e-18,
    3.521_559_865_183_2e-27,
];

impl Dd {
    fn new(hi: f64) -> Self {
        Self { hi, lo: 0.0 }
    }

    /// The exact sum of two f64.
    fn sum(a: f64, b: f64) -> Self {
        let hi = a + b;
        let v = hi - a;
        Self { hi, lo: (a - (hi - v)) + (b - v) }
    }

    fn add(self, b: Self) -> Self {
        let s = Self::sum(self.hi, b.hi);
        let t = Self::sum(self.lo, b.lo);
        let s = Self::sum(s.hi, s.lo + t.hi);
        Self::sum(s.hi, s.lo + t.lo)
    }

    fn mul(self, b: Self) -> Self {
        let hi = self.hi * b.hi;
        let lo = self.hi.mul_add(b.hi, -hi);
        Self::sum(hi, lo + (self.hi * b.lo + self.lo * b.hi))
    }

    fn div(self, b: Self) -> Self {
        let q = self.hi / b.hi;
        let r = self.add(b.mul(Self::new(-q)));
        let q2 = r.hi / b.hi;
        let r = r.add(b.mul(Self::new(-q2)));
        Self::sum(q, q2).add(Self::new(r.hi / b.hi))
    }

    /// Rounds once to f32: first to the f64 neighbour with the odd last bit, then to nearest.
    fn to_f32(self) -> f32 {
        let odd = if self.lo == 0.0 || self.hi.to_bits() & 1 == 1 {
            self.hi
        } else if (self.lo > 0.0) == (self.hi > 0.0) {
            f64::from_bits(self.hi.to_bits() + 1)
        } else {
            f64::from_bits(self.hi.to_bits() - 1)
        };
        odd as f32
    }
}

/// Sum of the alternating series `first - first x^2/(n+1)(n+2) + ..` for `|x|` below 0.8.
fn alternating(first: Dd, x: Dd, mut n: f64) -> Dd {
    let minus_x2 = x.mul(x).mul(Dd::new(-1.0));
    let (mut term, mut total) = (first, first);
    for _ in 0..15 {
        term = term.mul(minus_x2).div(Dd::new((n + 1.0) * (n + 2.0)));
        total = total.add(term);
        n += 2.0;
    }
    total
}

/// `(cos, sin)` of an angle, each correctly rounded.
///
/// # Panics
/// If the angle is not finite or is 2^24 or more in size.
pub fn cos_sin(angle: f32) -> (f32, f32) {
    assert!(angle.abs() < 16_777_216.0, "an angle of {angle} is beyond 2^24");
    let x = f64::from(angle);
    let turns = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let mut r = Dd::new(x - turns * HALF_PI[0]);
    for part in &HALF_PI[1..] {
        let hi = turns * part;
        r = r.add(Dd { hi: -hi, lo: -turns.mul_add(*part, -hi) });
    }
    let cos = alternating(Dd::new(1.0), r, 0.0).to_f32();
    let sin = if r.hi == 0.0 { angle } else { alternating(r, r, 1.0).to_f32() };
    match (turns as i64).rem_euclid(4) {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

/// `base ^ exponent`, correctly rounded.
///
/// # Panics
/// If the base is not a positive normal number.
pub fn pow(base: f32, exponent: f32) -> f32 {
    assert!(base.is_normal() && base > 0.0, "pow: a base of {base}");
    e_to(ln(Dd::new(f64::from(base))).mul(Dd::new(f64::from(exponent))))
}

/// `e ^ x`, correctly rounded.
pub fn exp(x: f32) -> f32 {
    match x {
        // Far outside the range of f32, where the steps of `e_to` would leave that of f64.
        x if x > 200.0 => f32::INFINITY,
        x if x < -200.0 => 0.0,
        x if x.is_nan() => x,
        x => e_to(Dd::new(f64::from(x))),
    }
}

/// `ln(1 + x)`, correctly rounded, for `x` of at least 0.
///
/// # Panics
/// If `x` is below 0.
pub fn log1p(x: f32) -> f32 {
    assert!(x >= 0.0 || x.is_nan(), "log1p of {x}");
    let wide = f64::from(x);
    match x {
        x if !x.is_finite() => x,
        // 1 + x would lose x itself: the series of s = x / (2 + x) keeps it.
        x if x < 0.25 => series(Dd::new(wide).div(Dd::sum(2.0, wide))).to_f32(),
        _ => ln(Dd::sum(1.0, wide)).to_f32(),
    }
}

/// `ln x` of a positive number, its exponent that of a normal f64.
fn ln(x: Dd) -> Dd {
    let mut e = (x.hi.to_bits() >> 52) as f64 - 1023.0;
    let mut m = f64::from_bits((x.hi.to_bits() & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (m, e) = (m / 2.0, e + 1.0);
    }
    let rest = Dd::new(x.lo * (m / x.hi)); // a power of two
    let above = Dd::sum(m, -1.0).add(rest);
    series(above.div(Dd::sum(m, 1.0).add(rest))).add(LN_2.mul(Dd::new(e)))
}

/// `2 (s + s^3/3 + s^5/5 + ..)`, the logarithm of `(1 + s) / (1 - s)`, for `s` below 0.172.
fn series(s: Dd) -> Dd {
    let (s2, mut power, mut total) = (s.mul(s), s, s);
    for n in 1..24 {
        power = power.mul(s2);
        total = total.add(power.div(Dd::new(f64::from(2 * n + 1))));
    }
    total.mul(Dd::new(2.0))
}

/// `e ^ x`, rounded once, for `x` within 700 of 0.
fn e_to(x: Dd) -> f32 {
    let q = (x.hi / std::f64::consts::LN_2).round_ties_even();
    let r = x.add(LN_2.mul(Dd::new(-q)));
    let (mut term, mut total) = (Dd::new(1.0), Dd::new(1.0));
    for n in 1..28 {
        term = term.mul(r).div(Dd::new(f64::from(n)));
        total = total.add(term);
    }
    let scale = f64::from_bits(((q + 1023.0) as u64) << 52);
    Dd { hi: total.hi * scale, lo: total.lo * scale }.to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_f64_cannot_hold_decides_a_tie() {
        let tie = 1.0 + 2f64.powi(-24);
        for (lo, want) in [(1e-20, 0x3F80_0001u32), (-1e-20, 0x3F80_0000)] {
            assert_eq!(Dd { hi: tie, lo }.to_f32().to_bits(), want);
            assert_eq!(Dd { hi: -tie, lo: -lo }.to_f32().to_bits(), want | 0x8000_0000);
        }
    }

    /// Values of a 200-bit library, rounded once; the angles sit next to multiples of pi/2.
    #[test]
    fn cos_and_sin_are_correctly_rounded() {
        let cases = [
            (0.0, 0x3F80_0000u32, 0x0000_0000u32),
            (1e-20, 0x3F80_0000, 0x1E3C_E508),
            (0.5, 0x3F60_A940, 0x3EF5_7744),
            (std::f32::consts::FRAC_PI_2, 0xB33B_BD2E, 0x3F80_0000),
            (std::f32::consts::PI, 0xBF80_0000, 0xB3BB_BD2E),
            (355.0, 0xBF80_0000, 0xB7FC_DE82),
            (710.0, 0x3F80_0000, 0x387C_DE82),
            (103_993.0, 0x3F80_0000, 0xB7A0_77F0),
            (131_071.0, 0xBF51_675E, 0xBF13_430A),
            (8_388_607.5, 0xBF15_89C3, 0x3F4F_C8CD),
            (16_777_215.0, 0xBEA2_9962, 0xBF72_BF60),
            (525.303_7, 0xBF4A_97B2, 0xBF1C_8000),
        ];
        for (angle, cos, sin) in cases {
            let (c, s) = cos_sin(angle);
            assert_eq!((c.to_bits(), s.to_bits()), (cos, sin), "angle {angle}");
            let (c, s) = cos_sin(-angle);
            assert_eq!((c.to_bits(), s.to_bits()), (cos, sin ^ 0x8000_0000), "angle -{angle}");
        }
    }

    /// The same for powers; 1000 is exact, and the last but two lies 0.0004 ulp from a midpoint.
    #[test]
    fn pow_is_correctly_rounded() {
        let cases = [
            (1e6, 0.5, 0x447A_0000u32),
            (1e4, 0.0, 0x3F80_0000),
            (1e4, 0.75, 0x447A_0000),
            (1e6, 0.578_125, 0x4537_EBA3),
            (150_000.0, 0.7, 0x4583_4120),
            (3.0, 0.333_333_3, 0x3FB8_9BA2),
            (5e5, 0.901_785_73, 0x4806_920C),
            (1.0, 0.3, 0x3F80_0000),
            (3e38, 0.968_75, 0x7D62_95D6),
        ];
        for (base, exponent, want) in cases {
            assert_eq!(pow(base, exponent).to_bits(), want, "{base} ^ {exponent}");
        }
    }

    /// The same for exp and log1p; the first six of each lie within 2e-6 ulp of a midpoint.
    #[test]
    fn exp_and_log1p_are_correctly_rounded() {
        let exps = [
            (0xC078_1533u32, 0x3CA9_CCB8u32),
            (0xC13D_6631, 0x36F2_8E33),
            (0x4026_0F0C, 0x4156_463A),
            (0xC13F_521D, 0x36D7_1B37),
            (0x4190_2323, 0x4C7E_CEA8),
            (0xC133_756B, 0x3761_BC65),
            (88.7f32.to_bits(), 0x7F7A_37FC),
            (89f32.to_bits(), 0x7F80_0000),
            ((-87.5f32).to_bits(), 0x006C_B2BC),
            ((-100f32).to_bits(), 0x0000_001B),
            ((-103.9f32).to_bits(), 0x0000_0001),
            ((-104f32).to_bits(), 0x0000_0000),
            (1e-30f32.to_bits(), 0x3F80_0000),
            (0, 0x3F80_0000),
            (f32::INFINITY.to_bits(), 0x7F80_0000),
            (f32::NEG_INFINITY.to_bits(), 0x0000_0000),
        ];
        for (x, want) in exps {
            assert_eq!(exp(f32::from_bits(x)).to_bits(), want, "exp of {}", f32::from_bits(x));
        }
        let logs = [
            (0x4BEB_5BEFu32, 0x4189_F4F9u32),
            (0x4C8F_4816, 0x4191_13AD),
            (0x48FC_B85D, 0x4152_82AE),
            (0x4120_1E84, 0x4019_8235),
            (0x33B5_04FE, 0x33B5_04FD),
            (0x3BA1_28CD, 0x3BA0_C3AD),
            (0x0001_16C2, 0x0001_16C2),
            (1e-10f32.to_bits(), 0x2EDB_E6FF),
            (0.25f32.to_bits(), 0x3E64_7FBE),
            (0x3E7F_FFFF, 0x3E64_7FBD),
            (4.851_652e8f32.to_bits(), 0x41A0_0000),
            (1f32.to_bits(), 0x3F31_7218),
            (0, 0),
            (f32::INFINITY.to_bits(), 0x7F80_0000),
        ];
        for (x, want) in logs {
            assert_eq!(log1p(f32::from_bits(x)).to_bits(), want, "log1p of {}", f32::from_bits(x));
        }
        assert!(exp(f32::NAN).is_nan() && log1p(f32::NAN).is_nan());
    }
}

//! The power function that torch's vectorised `pow` computes: SLEEF's powf to one ulp, on pairs of
//! f32. Used for those inverse frequencies that torch computes in full vectors. Coefficients are
//! written as f64, since a shortened f32 may round to a neighbour.

/// An unevaluated sum of two f32.
#[derive(Clone, Copy)]
struct Pair {
    hi: f32,
    lo: f32,
}

impl Pair {
    const fn new(hi: f32, lo: f32) -> Self {
        Self { hi, lo }
    }

    /// Sum of two f32, no order of magnitude assumed.
    fn sum(a: f32, b: f32) -> Self {
        let hi = a + b;
        let v = hi - a;
        Self::new(hi, (a - (hi - v)) + (b - v))
    }

    /// Sum with an f32, no order of magnitude assumed.
    fn plus(self, b: f32) -> Self {
        let sum = Self::sum(self.hi, b);
        Self::new(sum.hi, sum.lo + self.lo)
    }

    /// Sum of two pairs, no order of magnitude assumed.
    fn add(self, b: Self) -> Self {
        let sum = Self::sum(self.hi, b.hi);
        Self::new(sum.hi, sum.lo + (self.lo + b.lo))
    }

    /// Sum of two pairs where `self` is the larger.
    fn add_smaller(self, b: Self) -> Self {
        let hi = self.hi + b.hi;
        Self::new(hi, (((self.hi - hi) + b.hi) + self.lo) + b.lo)
    }

    fn mul(self, b: Self) -> Self {
        let hi = self.hi * b.hi;
        let low = self.lo.mul_add(b.hi, self.hi.mul_add(b.hi, -hi));
        Self::new(hi, self.hi.mul_add(b.lo, low))
    }

    fn times(self, b: f32) -> Self {
        let hi = self.hi * b;
        Self::new(hi, self.lo.mul_add(b, self.hi.mul_add(b, -hi)))
    }

    fn square(self) -> Self {
        let hi = self.hi * self.hi;
        let low = self.hi.mul_add(self.hi, -hi);
        Self::new(hi, (self.hi + self.hi).mul_add(self.lo, low))
    }

    fn div(self, d: Self) -> Self {
        let t = 1.0 / d.hi;
        let hi = self.hi * t;
        let u = t.mul_add(self.hi, -hi);
        let v = (-d.lo).mul_add(t, (-d.hi).mul_add(t, 1.0));
        Self::new(hi, hi.mul_add(v, self.lo.mul_add(t, u)))
    }

    fn normalised(self) -> Self {
        let hi = self.hi + self.lo;
        Self::new(hi, (self.hi - hi) + self.lo)
    }
}

/// Natural logarithm of a positive normal f32.
fn ln(d: f32) -> Pair {
    let exponent = unbiased_exponent(d * (1.0 / 0.75));
    let m = d * 2f32.powi(-exponent);
    let x = Pair::sum(-1.0, m).div(Pair::sum(1.0, m));
    let x2 = x.square();
    let mut t = 0.240_320_354_700_088_5_f64 as f32;
    t = t.mul_add(x2.hi, 0.285_112_679_004_669_2_f64 as f32);
    t = t.mul_add(x2.hi, 0.400_007_992_982_864_4_f64 as f32);
    let c = Pair::new(0.666_666_626_930_236_8_f64 as f32, 3.691_838_612_596_143e-9_f64 as f32);
    let s = Pair::new(0.693_147_182_464_599_6_f64 as f32, -1.904_654_323_148_236e-9_f64 as f32)
        .times(exponent as f32);
    let s = s.add_smaller(Pair::new(x.hi * 2.0, x.lo * 2.0));
    s.add_smaller(x2.mul(x).mul(x2.times(t).add(c)))
}

/// The exponent e of d = m 2^e with 1 <= m < 2, for a normal d.
fn unbiased_exponent(d: f32) -> i32 {
    ((d.to_bits() >> 23) & 0xFF) as i32 - 127
}

fn exp(d: Pair) -> f32 {
    let q = ((d.hi + d.lo) * std::f32::consts::LOG2_E).round_ties_even();
    let s = d.plus(q * -0.693_145_75).plus(q * -1.428_606_8e-6).normalised();
    let mut u = 0.001_363_246_468_827_128_4_f64 as f32;
    u = u.mul_add(s.hi, 0.008_365_969_173_610_21_f64 as f32);
    u = u.mul_add(s.hi, 0.041_671_082_377_433_78_f64 as f32);
    u = u.mul_add(s.hi, 0.166_665_524_244_308_47_f64 as f32);
    u = u.mul_add(s.hi, 0.499_999_850_988_388_06_f64 as f32);
    let t = s.add(s.square().times(u));
    let hi = 1.0 + t.hi;
    let lo = ((1.0 - hi) + t.hi) + t.lo;
    (hi + lo) * 2f32.powi(q as i32)
}

/// `base` to the power `exponent` for a base above 1 and exponents in 0 .. 1.
pub fn pow_u10(base: f32, exponent: f32) -> f32 {
    exp(ln(base).times(exponent))
}

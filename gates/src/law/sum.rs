//! The error of one f32 sum, from what exact arithmetic knows of it.
//!
//! Rounding a partial sum S errs by `c U |S|` rms, U = 2^-24. Partial sums of terms in random order
//! are a Brownian bridge from 0 to the sum, which gives a variance and a tail with nothing fitted.
//! Absent: which op has which sums. The invariant: a bound only grows with terms and digits.

use samebits::contract::Dtype;

use crate::stats::ulp;

/// Half a step of f32 at 1.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;

/// One sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// Its exact value.
    pub y: f64,
    /// The sum of the squares of its terms.
    pub q: f64,
    /// Terms that are not 0.
    pub k: f64,
}

impl Sum {
    /// The rms of the error of a chain whose every addition errs by `c U` times its result.
    pub fn sigma(&self, c: f64) -> f64 {
        // The first addition, to 0, is exact.
        let k = if self.k > 1.0 { self.k } else { 0.0 };
        c * U * (k * (self.q / 6.0 + self.y * self.y / 3.0)).sqrt()
    }

    /// The error that a chain exceeds with a chance below `exp(-nats)`: a closed form above the
    /// Chernoff bound of the bridge; six terms more stand for rounded products.
    pub fn bound(&self, c: f64, nats: f64) -> f64 {
        let spread = self.q.sqrt() * (nats + 3.5) / std::f64::consts::PI;
        let drift = self.y.abs() * (2.0 * (nats + 0.7) / 3.0).sqrt();
        c * U * (self.k + 6.0).sqrt() * (spread + drift)
    }
}

/// The nearest value of a dtype, ties to even.
pub fn rounded(dtype: Dtype, x: f64) -> f64 {
    let step = ulp(dtype, x);
    let r = (x / step).round_ties_even() * step;
    let most = match dtype {
        Dtype::Bf16 => f64::from(half::bf16::MAX),
        Dtype::F32 => f64::from(f32::MAX),
    };
    if r.abs() > most { f64::INFINITY.copysign(x) } else { r }
}

/// How far an exact result is from the nearest point where its rounding changes.
pub fn distance(dtype: Dtype, y: f64) -> f64 {
    let r = rounded(dtype, y).abs();
    let (half, below) = (ulp(dtype, r) / 2.0, ulp(dtype, r.next_down()) / 2.0);
    (r + half - y.abs()).min(y.abs() - (r - below)).max(0.0)
}

/// The chance that a normal error of deviation `sigma` crosses a distance.
pub fn crossing(distance: f64, sigma: f64) -> f64 {
    let z = distance / sigma;
    if sigma <= 0.0 || z > 9.0 {
        return 0.0;
    }
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

/// The complementary error function of a number that is not negative, to seven digits: Chebyshev's
/// fit of `ln(erfc(x)) + x^2` in `1 / (1 + x / 2)`.
fn erfc(x: f64) -> f64 {
    const FIT: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let t = 1.0 / (1.0 + 0.5 * x);
    let fit = FIT.iter().rev().fold(0.0, |sum, a| sum * t + a);
    t * (fit - x * x).exp()
}

/// `-log10` of the chance of `count` or more where `mean` are expected: the tail of Poisson's law.
pub fn digits(count: u64, mean: f64) -> f64 {
    let n = count as f64;
    if count == 0 || n <= mean {
        return 0.0;
    }
    if mean <= 0.0 {
        return f64::INFINITY;
    }
    // ln of the first term, then the ratio of each to the one before.
    let first = n * mean.ln() - mean - crate::stats::ln_factorial(n);
    let (mut term, mut total, mut next) = (1.0f64, 1.0f64, n);
    while term > total * f64::EPSILON {
        next += 1.0;
        term *= mean / next;
        total += term;
    }
    (-(first + total.ln()) / std::f64::consts::LN_10).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, share: f64) {
        assert!((got - want).abs() <= share * want.abs(), "{got} is not {want}");
    }

    /// The Chernoff bound of the bridge, searched: `E exp(s e) = sqrt(s / sin s) exp(t^2 (1 - s cot
    /// s) / 2)` in units of `c U sqrt(k q)`, both signs.
    fn chernoff(t: f64, nats: f64) -> f64 {
        let at = |s: f64| {
            let log = 0.5 * (s / s.sin()).ln() + t * t / 2.0 * (1.0 - s / s.tan());
            (nats + 2f64.ln() + log) / s
        };
        (1..3000).map(|i| at(f64::from(i) * std::f64::consts::PI / 3000.0)).fold(1e300, f64::min)
    }

    #[test]
    fn the_bound_lies_above_that_of_chernoff_and_near_it() {
        for nats in [14.0, 20.0, 30.0] {
            for t in [0.0, 0.3, 1.0, 3.0, 10.0, 100.0] {
                let sum = Sum { y: t, q: 1.0, k: 1e9 };
                let ratio = sum.bound(1.0, nats) / (U * 1e9f64.sqrt()) / chernoff(t, nats);
                assert!((1.0..1.29).contains(&ratio), "{ratio} at {nats} nats, {t}");
            }
        }
    }

    #[test]
    fn chains_in_random_order_err_as_the_law_says() {
        let (k, runs) = (512usize, 400);
        let mut state = 9u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / 2f64.powi(23) - 1.0
        };
        let (mut square, mut law) = (0.0, 0.0);
        for _ in 0..runs {
            let terms: Vec<f32> = (0..k).map(|_| draw() as f32).collect();
            let y: f64 = terms.iter().map(|x| f64::from(*x)).sum();
            let q = terms.iter().map(|x| f64::from(*x).powi(2)).sum();
            let chain = terms.iter().fold(0.0f32, |sum, x| sum + x);
            square += (f64::from(chain) - y).powi(2);
            law += Sum { y, q, k: k as f64 }.sigma(0.425).powi(2);
        }
        let ratio = (square / law).sqrt();
        assert!((0.85..1.15).contains(&ratio), "rms over law: {ratio}");
    }

    #[test]
    fn distances_are_those_to_the_next_rounding() {
        for (y, want) in [
            (1.0, 2f64.powi(-9)), // Below a power of two steps are half as long.
            (-1.0, 2f64.powi(-9)),
            (1.0 + 2f64.powi(-8), 0.0),
            (1.25, 2f64.powi(-8)),
            (1.25 + 2f64.powi(-9), 2f64.powi(-9)),
        ] {
            assert_eq!(distance(Dtype::Bf16, y), want, "{y}");
        }
        assert_eq!(rounded(Dtype::Bf16, 1.0 + 2f64.powi(-8)), 1.0);
        assert_eq!(rounded(Dtype::Bf16, 1e300), f64::INFINITY);
        assert_eq!(rounded(Dtype::F32, -1e39), f64::NEG_INFINITY);
        assert_eq!(rounded(Dtype::F32, 1.0 + 2f64.powi(-24)), 1.0);
        assert_eq!(rounded(Dtype::Bf16, 2f64.powi(-134)), 0.0);
    }

    #[test]
    fn tails_are_those_of_the_tables() {
        close(crossing(1.0, 1.0), 0.158_655_253_9, 1e-6);
        close(crossing(5.0, 1.0), 2.866_515_7e-7, 1e-6);
        assert_eq!(crossing(1.0, 0.0), 0.0);
        close(digits(1, 0.01), -(1.0 - (-0.01f64).exp()).log10(), 1e-12);
        close(digits(3, 1.0), -(1.0 - 2.5 * (-1f64).exp()).log10(), 1e-12);
        assert_eq!((digits(0, 0.0), digits(1, 0.0)), (0.0, f64::INFINITY));
        assert_eq!(digits(5, 6.0), 0.0);
        assert!(digits(2_000, 1_000.0) > 100.0);
    }
}

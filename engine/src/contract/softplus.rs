//! The decay of a gated delta net: correctly rounded f32 `exp` and `log1p`, and their use.
//!
//! A short f64 series settles all but the values close to a midpoint between two f32, which
//! double-double then decides. Only IEEE operations: the same bits on any machine.

use super::exact::{Double, exp as exp_double};

/// Relative error that the f64 series stay below, with room to spare.
const ERROR: f64 = 1.0 / (1u64 << 46) as f64;

/// ln 2 in two parts; the first has 32 bits, so that small multiples of it are exact.
const LN_2: [f64; 2] =
    [f64::from_bits(0x3FE6_2E42_FEE0_0000), f64::from_bits(0x3DEA_39EF_3579_3C76)];

/// `near` rounded to f32, or `exact` where its error leaves that open.
fn settle(near: f64, exact: impl FnOnce() -> Double) -> f32 {
    let error = near.abs() * ERROR;
    let (low, high) = ((near - error) as f32, (near + error) as f32);
    if low == high { low } else { exact().to_f32() }
}

/// e^x, correctly rounded to f32: subnormals included, infinite above 88.72.
pub fn exp_f32(x: f32) -> f32 {
    match x {
        _ if x.is_nan() => f32::NAN,
        _ if x > 89.0 => f32::INFINITY,
        _ if x < -104.0 => 0.0,
        _ => settle(exp_f64(f64::from(x)), || exp_double(Double::from(f64::from(x)))),
    }
}

/// e^x for |x| <= 104: 2^k times the series of e^r, |r| <= ln 2 / 2.
fn exp_f64(x: f64) -> f64 {
    let k = (x / std::f64::consts::LN_2).round();
    let r = (-k).mul_add(LN_2[0], x) - k * LN_2[1];
    let mut sum = 1.0;
    for n in (1..=14).rev() {
        sum = (sum * r).mul_add(1.0 / f64::from(n), 1.0);
    }
    sum * 2f64.powi(k as i32)
}

/// ln(1 + x) for x >= 0, correctly rounded to f32.
pub fn log1p_f32(x: f32) -> f32 {
    match x {
        _ if x.is_nan() || x < 0.0 => f32::NAN,
        _ if x == 0.0 || x == f32::INFINITY => x,
        _ => {
            let near = log1p_f64(f64::from(x));
            settle(near, || log1p_double(f64::from(x), near))
        }
    }
}

/// ln(1 + x) as k ln 2 + 2 artanh(s), with 1 + x = 2^k m and s = (m - 1) / (m + 1).
fn log1p_f64(x: f64) -> f64 {
    let mut k = 0;
    while (1.0 + x) * 2f64.powi(-k) >= 1.5 {
        k += 1;
    }
    // Exact where k is 0; beyond, the rounding of 1 + x is small beside the result.
    let (less, more) = match k {
        0 => (x, 2.0 + x),
        _ => ((1.0 + x) * 2f64.powi(-k) - 1.0, (1.0 + x) * 2f64.powi(-k) + 1.0),
    };
    let s = less / more;
    let mut series = 0.0;
    for n in (0..14).rev() {
        series = (series * s).mul_add(s, 1.0 / f64::from(2 * n + 1));
    }
    f64::from(k).mul_add(std::f64::consts::LN_2, 2.0 * s * series)
}

/// The same in double-double, from an estimate good to 2^-46.
fn log1p_double(x: f64, near: f64) -> Double {
    if x < 1.0 / f64::from(1 << 20) {
        // x - x^2 / 2 + x^3 / 3 - ..: what is left out is below 2^-120 of x.
        let x = Double::from(x);
        let mut sum = Double::from(0.0);
        for n in (1..=6).rev() {
            let sign = if n % 2 == 1 { 1.0 } else { -1.0 };
            let term = Double::from(sign).div(Double::from(f64::from(n)));
            sum = sum.mul(x).add(term);
        }
        return sum.mul(x);
    }
    // One Newton step on e^y = 1 + x doubles the good bits.
    let ratio = Double::sum(1.0, x).div(exp_double(Double::from(near)));
    Double::from(near).add(ratio.add(Double::from(-1.0)))
}

/// ln(1 + e^x): `log1p` of the rounded `exp`, x itself above 20. f32 in and out.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { log1p_f32(exp_f32(x)) }
}

/// The logarithm of a head's decay, `-exp(a_log) * softplus(a + dt_bias)`, in f32.
pub fn decay_log(a_log: f32, a: f32, dt_bias: f32) -> f32 {
    -exp_f32(a_log) * softplus(a + dt_bias)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(got: f32, want: f64) -> f64 {
        let ulp = f64::from(got.abs().next_up()) - f64::from(got.abs());
        (f64::from(got) - want).abs() / ulp
    }

    /// std's f64 functions are good to about 2^-29 of an f32 ulp.
    #[test]
    fn rounds_correctly_wherever_f64_can_tell() {
        let mut worst = [0.0f64; 2];
        for i in 0..400_000u32 {
            let x = (i as f32).mul_add(0.000_481_3, -103.9);
            if x < 88.7 {
                worst[0] = worst[0].max(ulps(exp_f32(x), f64::from(x).exp()));
            }
            let e = f32::from_bits(1 + i * 3217);
            worst[1] = worst[1].max(ulps(log1p_f32(e), f64::from(e).ln_1p()));
        }
        for (name, worst) in ["exp", "log1p"].iter().zip(worst) {
            assert!(worst <= 0.5 + 1e-6, "{name}: {worst} ulp");
        }
    }

    #[test]
    fn both_paths_agree() {
        for i in 0..20_000u32 {
            let x = (i as f32).mul_add(0.009_1, -90.0);
            if x < 88.0 {
                let slow = exp_double(Double::from(f64::from(x))).to_f32();
                assert_eq!(exp_f32(x).to_bits(), slow.to_bits(), "exp({x})");
            }
            let e = f32::from_bits(1 + i * 65_537);
            let wide = f64::from(e);
            let slow = log1p_double(wide, log1p_f64(wide)).to_f32();
            assert_eq!(log1p_f32(e).to_bits(), slow.to_bits(), "log1p({e:e})");
        }
    }

    #[test]
    fn edges_are_defined() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(88.73), f32::INFINITY);
        assert_eq!(exp_f32(-103.5).to_bits(), 1);
        assert_eq!(log1p_f32(1e-30), 1e-30);
        assert_eq!(softplus(20.5), 20.5);
        assert_eq!(softplus(-200.0), 0.0);
        let rate_of_zero = decay_log(f32::NEG_INFINITY, 3.0, 1.0);
        assert_eq!(rate_of_zero.to_bits(), (-0.0f32).to_bits());
        assert!(decay_log(f32::NAN, 0.0, 0.0).is_nan());
    }
}

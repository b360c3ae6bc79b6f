//! Numbers about numbers: steps of a dtype, and a logarithm of factorials.
//!
//! Absent: what is legal, which the law has. The invariant: nothing here knows an op.

use samebits::contract::Dtype;

/// The step from `|x|` to the next larger value of a dtype.
pub fn ulp(dtype: Dtype, x: f64) -> f64 {
    let (mantissa, least) = match dtype {
        Dtype::Bf16 => (7, -133),
        Dtype::F32 => (23, -149),
    };
    if x == 0.0 || !x.is_finite() {
        return 2f64.powi(least);
    }
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    2f64.powi((exponent - mantissa).max(least))
}

/// `ln n!`: exact products below 64, Stirling's series above.
pub fn ln_factorial(n: f64) -> f64 {
    if n < 64.0 {
        return (2..=n as u64).map(|i| (i as f64).ln()).sum();
    }
    let series = 1.0 / (12.0 * n) - 1.0 / (360.0 * n.powi(3)) + 1.0 / (1260.0 * n.powi(5));
    n * n.ln() - n + 0.5 * (2.0 * std::f64::consts::PI * n).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factorials_agree_where_the_series_begins() {
        let exact: f64 = (2..=64).map(|i| f64::from(i).ln()).sum();
        assert!((ln_factorial(64.0) - exact).abs() < 1e-9);
    }

    #[test]
    fn ulps_follow_the_dtype() {
        for (dtype, x, want) in [
            (Dtype::Bf16, 1.0, 2f64.powi(-7)),
            (Dtype::Bf16, -1.99, 2f64.powi(-7)),
            (Dtype::F32, 1.0, 2f64.powi(-23)),
            (Dtype::Bf16, 0.0, 2f64.powi(-133)),
            (Dtype::F32, 1e-45, 2f64.powi(-149)),
        ] {
            assert_eq!(ulp(dtype, x), want, "{dtype:?} {x}");
        }
    }
}

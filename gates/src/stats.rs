//! Statistics of residuals: what is kept of a tensor, and how surprising a count is.
//!
//! Absent: limits, which calibration finds. The invariants: a NaN is never within anything, an
//! empty tensor measures nothing and says so, and nothing is scaled by the device under test or by
//! the number of elements.

use samebits::contract::Dtype;

/// What is kept of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Elements compared.
    pub elements: u64,
    /// Elements that are not the expected ones.
    pub misrounds: u64,
    /// The largest error in the unit of the comparison; infinite beside a NaN.
    pub max: f64,
    /// Root of the mean of squared errors.
    pub rms: f64,
    /// Mean signed error.
    pub mean: f64,
    /// The element with the largest error.
    pub worst: usize,
}

impl Residual {
    /// Compares `got` with `want`; `unit(i)` is the size of a unit of error at element `i`, asked
    /// only where the two differ.
    ///
    /// # Panics
    /// If the two differ in length.
    pub fn of(got: &[f64], want: &[f64], unit: impl Fn(usize) -> f64) -> Self {
        assert_eq!(got.len(), want.len(), "residual: the two differ in length");
        let mut found = Self { elements: 0, misrounds: 0, max: 0.0, rms: 0.0, mean: 0.0, worst: 0 };
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            found.elements += 1;
            if g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()) {
                continue;
            }
            found.misrounds += 1;
            let error = if g == w { 0.0 } else { (g - w) / unit(i) };
            let size = if error.is_nan() { f64::INFINITY } else { error.abs() };
            if size > found.max {
                (found.max, found.worst) = (size, i);
            }
            found.rms += size * size;
            found.mean += if error.is_nan() { f64::INFINITY } else { error };
        }
        let n = found.elements as f64;
        if n > 0.0 {
            (found.rms, found.mean) = ((found.rms / n).sqrt(), found.mean / n);
        }
        found
    }

    /// The digits of surprise of the misrounds at a legal `rate`.
    pub fn surprise(&self, rate: f64) -> f64 {
        surprise(self.elements, self.misrounds, rate)
    }
}

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

/// `-log10` of the chance of `count` or more among `n`, each with chance `rate`: an exact binomial
/// tail. 0 where nothing was counted.
///
/// # Panics
/// If the rate is not within 0 to 1, or the count is above `n`.
pub fn surprise(n: u64, count: u64, rate: f64) -> f64 {
    assert!((0.0..=1.0).contains(&rate) && count <= n, "surprise: {count} of {n} at {rate}");
    if count == 0 || rate >= 1.0 {
        return 0.0;
    }
    if rate == 0.0 {
        return f64::INFINITY;
    }
    let mean = n as f64 * rate;
    if (count as f64) <= mean {
        return 0.0; // Above one half: no surprise worth a digit.
    }
    // ln of the first term, then the ratio of each term to the one before.
    let (k, rest) = (count as f64, (n - count) as f64);
    let choose = ln_factorial(n as f64) - ln_factorial(k) - ln_factorial(rest);
    let first = choose + k * rate.ln() + rest * (-rate).ln_1p();
    let (mut term, mut total) = (1.0f64, 1.0f64);
    for j in count..n {
        term *= (n - j) as f64 / (j + 1) as f64 * rate / (1.0 - rate);
        total += term;
        if term < total * f64::EPSILON {
            break;
        }
    }
    (-(first + total.ln()) / std::f64::consts::LN_10).max(0.0)
}

/// `ln n!`: exact products below 64, Stirling's series above.
fn ln_factorial(n: f64) -> f64 {
    if n < 64.0 {
        return (2..=n as u64).map(|i| (i as f64).ln()).sum();
    }
    let series = 1.0 / (12.0 * n) - 1.0 / (360.0 * n.powi(3)) + 1.0 / (1260.0 * n.powi(5));
    n * n.ln() - n + 0.5 * (2.0 * std::f64::consts::PI * n).ln() + series
}

/// The largest of the samples: the order statistic that a limit is. `None` of no samples.
pub fn order_statistic(samples: impl IntoIterator<Item = f64>) -> Option<f64> {
    samples.into_iter().fold(None, |most, x| {
        let x = if x.is_nan() { f64::INFINITY } else { x };
        Some(most.map_or(x, |most: f64| most.max(x)))
    })
}

/// Blocks whose maxima say how far the largest of a block may lie.
pub const BLOCKS: usize = 30;
/// The chance that the largest of another block lies beyond a limit.
pub const CHANCE: f64 = 1e-5;

/// The limit that the largest of a further block of samples exceeds with [`CHANCE`]: a Gumbel law
/// through the mean and the spread of the maxima of [`BLOCKS`] blocks, and never below the largest
/// sample, which is 0 or more. The largest alone where there are too few for blocks. `None` of no
/// samples.
///
/// A limit that is the largest of n samples is exceeded once in n + 1; a suite compares a few
/// thousand tensors in every run.
pub fn extreme(samples: &[f64]) -> Option<f64> {
    const EULER: f64 = 0.577_215_664_901_532_9;
    let most = order_statistic(samples.iter().copied())?;
    if samples.len() < 2 * BLOCKS || !most.is_finite() {
        return Some(most);
    }
    // Samples come sorted by run and op; every block shall hold some of each.
    let block = |i: usize| ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % BLOCKS;
    let mut maxima = vec![0.0f64; BLOCKS];
    for (i, sample) in samples.iter().enumerate() {
        maxima[block(i)] = maxima[block(i)].max(*sample);
    }
    let n = maxima.len() as f64;
    let mean = maxima.iter().sum::<f64>() / n;
    let variance = maxima.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let scale = (6.0 * variance).sqrt() / std::f64::consts::PI;
    Some(most.max(mean - scale * (EULER + (-(-CHANCE).ln_1p()).ln())))
}

/// The ceiling of any summation of `terms` products, in units of u times the terms' sizes.
pub fn gamma(terms: usize) -> f64 {
    let u = f64::from(f32::EPSILON) / 2.0;
    let n = terms as f64;
    n / (1.0 - n * u)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(got: &[f64], want: &[f64]) -> Residual {
        Residual::of(got, want, |_| 1.0)
    }

    #[test]
    fn what_must_not_pass_does_not() {
        let nan = f64::NAN;
        let infinite = f64::INFINITY;
        for (why, got, want, misrounds, max) in [
            ("equal", vec![1.0, 2.0], vec![1.0, 2.0], 0, 0.0),
            ("NaN", vec![nan, 2.0], vec![1.0, 2.0], 1, infinite),
            ("NaN wanted", vec![1.0], vec![nan], 1, infinite),
            ("both NaN", vec![nan], vec![nan], 0, 0.0),
            ("infinity", vec![infinite], vec![1.0], 1, infinite),
            ("infinity of the other sign", vec![infinite], vec![-infinite], 1, infinite),
            ("same infinity", vec![infinite], vec![infinite], 0, 0.0),
            ("zeros", vec![0.0, 0.0], vec![1.0, 2.0], 2, 2.0),
            ("signed zero", vec![-0.0], vec![0.0], 1, 0.0),
            ("empty", vec![], vec![], 0, 0.0),
        ] {
            let found = one(&got, &want);
            assert_eq!((found.misrounds, found.max), (misrounds, max), "{why}");
            assert_eq!(found.elements, got.len() as u64, "{why}");
        }
    }

    #[test]
    fn one_wrong_element_in_a_million_is_the_worst() {
        let want: Vec<f64> = (0..1_000_000).map(|i| f64::from(i) + 0.5).collect();
        let mut got = want.clone();
        got[777_777] += 3.0;
        let found = one(&got, &want);
        assert_eq!((found.misrounds, found.max, found.worst), (1, 3.0, 777_777));
    }

    #[test]
    fn a_permuted_row_is_seen_though_its_sum_is_the_same() {
        let want: Vec<f64> = (0..64).map(f64::from).collect();
        let mut got = want.clone();
        got.rotate_left(1);
        let found = one(&got, &want);
        assert_eq!((found.misrounds, found.mean), (64, 0.0));
        assert!(found.rms > 1.0 && found.max == 63.0);
    }

    #[test]
    fn the_mean_keeps_its_sign() {
        let found = one(&[1.0, 2.0, 3.0], &[1.5, 2.5, 3.5]);
        assert_eq!((found.mean, found.rms), (-0.5, 0.5));
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn lengths_must_agree() {
        one(&[1.0], &[]);
    }

    #[test]
    fn surprise_is_the_exact_tail() {
        // 1 or more of 2 at one half: 3/4, and below the mean there is none.
        assert_eq!(surprise(2, 1, 0.5), 0.0);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        close(surprise(2, 2, 0.5), -(0.25f64.log10()));
        close(surprise(3, 2, 0.1), -((3.0 * 0.01 * 0.9 + 0.001f64).log10()));
        close(surprise(1_000, 1, 1e-6), -((1.0 - (1.0 - 1e-6f64).powi(1_000)).log10()));
        assert_eq!(surprise(10, 0, 0.0), 0.0);
        assert_eq!(surprise(10, 1, 0.0), f64::INFINITY);
        assert!(surprise(1_000_000, 2_000, 1e-3) > 100.0);
        assert!(surprise(1_000_000, 1_050, 1e-3) < 2.0);
        close(ln_factorial(64.0), (2..=64).map(|i| f64::from(i).ln()).sum());
    }

    #[test]
    fn an_order_statistic_takes_nan_for_the_worst_and_nothing_for_none() {
        assert_eq!(order_statistic([]), None);
        assert_eq!(order_statistic([1.0, 3.0, 2.0]), Some(3.0));
        assert_eq!(order_statistic([1.0, f64::NAN]), Some(f64::INFINITY));
    }

    #[test]
    fn an_extreme_lies_beyond_all_samples_as_far_as_their_spread_says() {
        assert_eq!(extreme(&[]), None);
        assert_eq!(extreme(&[1.0, f64::NAN]), Some(f64::INFINITY));
        assert_eq!(extreme(&[2.0; 300]), Some(2.0), "no spread, no margin");
        // Exponential samples by quantiles in a scrambled order: maxima follow Gumbel's law with
        // scale 1 about ln of a block's length.
        let n = 30_000u64;
        let sample = |i: u64| -((i * 7_919 % n) as f64 + 0.5).ln() + (n as f64).ln();
        let samples: Vec<f64> = (0..n).map(sample).collect();
        let found = extreme(&samples).expect("there are samples");
        let exact = (1_000f64).ln() - (-(-CHANCE).ln_1p()).ln();
        assert!((found - exact).abs() < 0.25 * exact, "{found} is not near {exact}");
        let mut wild = samples.clone();
        wild[17] = 1e9;
        assert!(extreme(&wild).is_some_and(|limit| limit >= 1e9));
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

    #[test]
    fn the_ceiling_grows_with_the_terms() {
        assert!(gamma(1_024) > 1_024.0 && gamma(1_024) < 1_025.0);
    }
}

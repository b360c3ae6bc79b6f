//! Matrix products in f64, by a library.
//!
//! Deliberately absent: any promise about the order of summation. Invariant: the result of
//! `product` is that of the naive loop up to f64 rounding; a test holds it to that.

/// `x w^T` for `x` `[m, k]` and `w` `[n, k]`, row-major; `[m, n]`.
///
/// # Panics
/// If `x` or `w` is not a whole number of rows of `k`.
pub(crate) fn product(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    assert!(x.len().is_multiple_of(k) && w.len().is_multiple_of(k), "product: not rows of {k}");
    let (m, n) = (x.len() / k, w.len() / k);
    let mut out = vec![0f64; m * n];
    let threads = gemm::Parallelism::Rayon(0);
    // SAFETY: the three pointers cover m x k, k x n and m x n elements with the given strides, as
    // the assertion above and the allocation of `out` show; `out` overlaps neither input.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            x.as_ptr(),
            1,
            k as isize,
            w.as_ptr(),
            k as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::arithmetic::Arithmetic;
    use crate::ops::Linear;
    use crate::real::Ideal;

    /// Every shape around the tile sizes of a kernel, against one dot product an element.
    #[test]
    fn the_library_equals_the_naive_loop() {
        let mut state = 1u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / 2f64.powi(23) - 1.0
        };
        for (m, n, k) in [(1, 1, 1), (1, 37, 300), (2, 3, 5), (7, 65, 129), (33, 20, 1031)] {
            let x: Vec<f64> = (0..m * k).map(|_| number()).collect();
            let w: Vec<f64> = (0..n * k).map(|_| number()).collect();
            let got = Ideal.linear(&Linear { x: &x, weight: &w, k, true_rows: m });
            let sizes = got.magnitude.expect("Ideal gives magnitudes");
            for i in 0..m * n {
                let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                let limit = Ideal.size(x, w) * k as f64 * f64::EPSILON;
                assert!((got.values[i] - Ideal.dot(x, w, k)).abs() <= limit, "{m} {n} {k} at {i}");
                assert!((sizes[i] - Ideal.size(x, w)).abs() <= limit, "{m} {n} {k} at {i}");
            }
        }
    }
}

//! Matrix products in f64, by a library.
//!
//! Deliberately absent: any promise about the order of summation. Invariant: the result of
//! `product` is that of the naive loop up to f64 rounding; a test holds it to that.

/// `x w^T` for `x` `[m, k]` and `w` `[n, k]`, row-major; `[m, n]`.
///
/// # Panics
/// If `x` or `w` is not a whole number of rows of `k`.
pub(crate) fn product(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    multiply(x, w, k, 1.0)
}

/// The sums of the squares of the terms of [`product`], to about six digits: what they are for
/// needs no more, and f32 is twice as fast.
pub(crate) fn product_of_squares(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let ((x, x_scales), (w, w_scales)) = (squared(x, k), squared(w, k));
    let n = w_scales.len().max(1);
    let sums = multiply(&x, &w, k, 1.0f32).into_iter().enumerate();
    sums.map(|(i, q)| f64::from(q) * x_scales[i / n] * w_scales[i % n]).collect()
}

/// The squares of each row over the square of its largest element, and those of the rows' largest.
fn squared(x: &[f64], k: usize) -> (Vec<f32>, Vec<f64>) {
    let most = |row: &[f64]| row.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let scales: Vec<f64> = x.chunks_exact(k).map(most).collect();
    let row = |(row, most): (&[f64], f64)| {
        let inverse = if most > 0.0 { 1.0 / most } else { 0.0 };
        row.iter().map(|x| (x * inverse).powi(2) as f32).collect::<Vec<_>>()
    };
    let squares = x.chunks_exact(k).zip(scales.iter().copied()).flat_map(row).collect();
    (squares, scales.into_iter().map(|most| most * most).collect())
}

fn multiply<T: Copy + Default + 'static>(x: &[T], w: &[T], k: usize, one: T) -> Vec<T> {
    assert!(x.len().is_multiple_of(k) && w.len().is_multiple_of(k), "product: not rows of {k}");
    let (m, n) = (x.len() / k, w.len() / k);
    let mut out = vec![T::default(); m * n];
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
            T::default(),
            one,
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
            let squares = got.squares.expect("Ideal gives squares");
            for i in 0..m * n {
                let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                let (want, q) = (Ideal.dot(x, w, k), Ideal.spread(x, w));
                let limit = (q * k as f64).sqrt() * k as f64 * f64::EPSILON;
                assert!((got.values[i] - want).abs() <= limit, "{m} {n} {k} at {i}");
                assert!((squares[i] - q).abs() <= 1e-6 * q, "{m} {n} {k} at {i}");
            }
        }
    }
}

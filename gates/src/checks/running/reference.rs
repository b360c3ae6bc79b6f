//! A sampler written from the published rules, apart from the engine's.
//!
//! Absent: speed. The invariant: nothing here calls the engine's sampler or generator; weights are
//! the reference's own exponential, sums are f64 in the order of the ranking.

use samebits::generate::Sampling;
use samebits_oracle::bits::exp_s;

/// The filters behind the temperature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The k first of the ranking.
    TopK,
    /// The shortest head that reaches a probability.
    TopP,
    /// All within a factor of the first.
    MinP,
}

/// The order of Transformers.
pub const ORDER: [Filter; 3] = [Filter::TopK, Filter::TopP, Filter::MinP];

/// Tokens that may be drawn, ranked, with unnormalised probabilities.
pub fn candidates(rules: &Sampling, row: &[f32], order: [Filter; 3]) -> Vec<(u32, f64)> {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    let mut left: Vec<(u32, f64)> = Vec::new();
    for (id, x) in row.iter().enumerate() {
        left.push((id as u32, f64::from(exp_s((x - top) / rules.temperature))));
    }
    // A stable sort by falling probability leaves the lower id first among equals.
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    for filter in order {
        let total: f64 = left.iter().map(|(_, weight)| weight).sum();
        let mut kept = Vec::new();
        let mut above = 0.0;
        for (rank, (id, weight)) in left.iter().copied().enumerate() {
            let stays = match filter {
                Filter::TopK => rules.top_k == 0 || rank < rules.top_k,
                Filter::TopP => rules.top_p == 1.0 || above < f64::from(rules.top_p) * total,
                Filter::MinP => weight >= f64::from(rules.min_p) * left[0].1,
            };
            if stays || rank == 0 {
                kept.push((id, weight));
            }
            above += weight;
        }
        left = kept;
    }
    left
}

/// The token that a uniform falls on.
pub fn choose(candidates: &[(u32, f64)], uniform: f64) -> u32 {
    let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
    let mut left = uniform * total;
    for (id, weight) in candidates {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    candidates.last().map_or(0, |(id, _)| *id)
}

/// 53 random bits for a seed, a sequence and a position: Philox4x32-10, its first two words.
pub fn uniform(seed: u64, sequence: u32, position: u32) -> f64 {
    let (mut x, mut y, mut z, mut w) = (position, sequence, 0u32, 0u32);
    let (mut low, mut high) = ((seed & 0xFFFF_FFFF) as u32, (seed >> 32) as u32);
    for _ in 0..10 {
        let a = u64::from(x) * 0xD251_1F53;
        let b = u64::from(z) * 0xCD9E_8D57;
        (x, y, z, w) =
            ((b >> 32) as u32 ^ y ^ low, b as u32, (a >> 32) as u32 ^ w ^ high, a as u32);
        low = low.wrapping_add(0x9E37_79B9);
        high = high.wrapping_add(0xBB67_AE85);
    }
    let bits = (u64::from(x) << 32) | u64::from(y);
    (bits >> 11) as f64 / 9_007_199_254_740_992.0
}

/// ln of the probability of `hits` in `draws` at probability `p` each.
fn ln_binomial(ln_factorial: &[f64], draws: usize, hits: usize, p: f64) -> f64 {
    let ways = ln_factorial[draws] - ln_factorial[hits] - ln_factorial[draws - hits];
    let power = |x: f64, n: usize| if n == 0 { 0.0 } else { n as f64 * x.ln() };
    ways + power(p, hits) + power(1.0 - p, draws - hits)
}

/// Counts that are as likely as another to within the rounding of the sums above.
const EQUAL: f64 = 1e-9;

/// Exact two-sided p-value of counts: for each token the probability, under its binomial law, of
/// all counts no likelier than the one seen; the smallest of them times their number (Bonferroni).
///
/// A count of a token with probability 0 gives 0.
pub fn p_value(probabilities: &[f64], counts: &[usize]) -> f64 {
    let draws: usize = counts.iter().sum();
    let mut ln_factorial = vec![0.0];
    for n in 1..=draws {
        ln_factorial.push(ln_factorial[n - 1] + (n as f64).ln());
    }
    let tokens = probabilities.len() as f64;
    let one = |(p, seen): (&f64, &usize)| {
        let seen = ln_binomial(&ln_factorial, draws, *seen, *p);
        let all = (0..=draws).map(|hits| ln_binomial(&ln_factorial, draws, hits, *p));
        all.filter(|ln| *ln <= seen + EQUAL).map(f64::exp).sum::<f64>()
    };
    let least = probabilities.iter().zip(counts).map(one).fold(1.0, f64::min);
    (least * tokens).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_values_are_those_of_the_binomial_law() {
        // 8 of 10 at 1/2: 2 * (45 + 10 + 1) / 1024, times two tokens.
        let exact = 2.0 * 112.0 / 1024.0;
        assert!((p_value(&[0.5, 0.5], &[8, 2]) - exact).abs() < EQUAL);
        assert_eq!(p_value(&[0.5, 0.5], &[5, 5]), 1.0);
        assert_eq!(p_value(&[1.0, 0.0], &[9, 1]), 0.0);
        assert!(p_value(&[0.3, 0.7], &[400, 600]) < EQUAL);
    }

    #[test]
    fn filters_stay_in_their_order() {
        let row = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
        let rules = Sampling { temperature: 1.0, top_k: 2, top_p: 0.5, min_p: 0.0, seed: 0 };
        let ids = |order| -> Vec<u32> {
            candidates(&rules, &row, order).iter().map(|(id, _)| *id).collect()
        };
        assert_eq!(ids(ORDER), [0]);
        assert_eq!(ids([Filter::TopP, Filter::TopK, Filter::MinP]), [0, 1]);
    }
}

//! Choosing the next token: greedy, or from a filtered distribution with a counter-based stream.
//!
//! The order of filters is Transformers': temperature, top-k, top-p, min-p. Tokens are ranked by a
//! total order, probability descending and id ascending, so that ties never depend on a machine.
//! The invariant: a choice depends on the row of logits, the parameters, and (seed, sequence,
//! position) only.

use thiserror::Error;

use super::philox::uniform;
use crate::contract::exp_s;
use crate::tensor::Tensor;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// The lowest id among the largest logits.
    Greedy,
    /// One draw from a filtered distribution.
    Sample(Sampling),
}

/// Parameters of a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// Keeps the k most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the shortest head of the ranking that reaches this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as probable as the first; 0 keeps all.
    pub min_p: f32,
    /// Key of the random stream.
    pub seed: u64,
}

/// A parameter out of range.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SamplerError {
    /// A number outside its range.
    #[error("--{name} {value}: allowed is {range}")]
    Range {
        /// Which parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What is allowed.
        range: &'static str,
    },
}

/// A row that nothing can be chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the logits hold a NaN")]
pub struct NanError;

/// Which draw of the stream: one uniform is made for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Number of the sequence in the batch.
    pub sequence: u32,
    /// Position of the token to be chosen.
    pub position: u32,
}

impl Sampler {
    /// Checks the parameters; temperature 0 is greedy whatever the others say.
    ///
    /// # Errors
    /// The parameter that is out of range, and the range.
    pub fn new(sampling: Sampling) -> Result<Self, SamplerError> {
        let Sampling { temperature, top_p, min_p, .. } = sampling;
        let check = |name, value: f32, range, ok: bool| {
            if ok { Ok(()) } else { Err(SamplerError::Range { name, value, range }) }
        };
        let finite = temperature.is_finite();
        check("temperature", temperature, "0 or more", finite && temperature >= 0.0)?;
        check("top-p", top_p, "above 0 to 1", top_p > 0.0 && top_p <= 1.0)?;
        check("min-p", min_p, "0 to 1", (0.0..=1.0).contains(&min_p))?;
        Ok(if temperature == 0.0 { Self::Greedy } else { Self::Sample(sampling) })
    }
}

/// A token and its unnormalised probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// exp of the scaled logit less the largest.
    pub weight: f32,
}

impl Sampling {
    /// Chooses from one row of logits.
    ///
    /// # Errors
    /// A row with a NaN, or without a finite logit.
    pub fn pick(&self, logits: &Tensor, draw: Draw) -> Result<u32, NanError> {
        let kept = self.candidates(logits)?;
        let total: f64 = kept.iter().map(|c| f64::from(c.weight)).sum();
        let mut left = uniform(self.seed, draw.sequence, draw.position) * total;
        for candidate in &kept {
            left -= f64::from(candidate.weight);
            if left < 0.0 {
                return Ok(candidate.id);
            }
        }
        Ok(kept.last().expect("filters keep the first token").id)
    }

    /// The tokens that survive the filters, ranked. Sums are f64, in the order of the ranking.
    ///
    /// # Errors
    /// A row with a NaN, or without a finite logit.
    pub fn candidates(&self, logits: &Tensor) -> Result<Vec<Candidate>, NanError> {
        let row: Vec<f32> = (0..logits.len()).map(|i| logits.get(i)).collect();
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if row.iter().any(|x| x.is_nan()) || !max.is_finite() {
            return Err(NanError);
        }
        // The difference is taken first, so that no temperature overflows the largest logit.
        let weight = |x: &f32| exp_s((x - max) / self.temperature);
        let candidate = |(id, x): (usize, &f32)| Candidate { id: id as u32, weight: weight(x) };
        let mut ranked: Vec<Candidate> = row.iter().enumerate().map(candidate).collect();
        ranked.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
        if self.top_k > 0 {
            ranked.truncate(self.top_k);
        }
        let total: f64 = ranked.iter().map(|c| f64::from(c.weight)).sum();
        let mut before = 0.0;
        let head = ranked.iter().take_while(|c| {
            let keep = self.top_p >= 1.0 || before < f64::from(self.top_p) * total;
            before += f64::from(c.weight);
            keep
        });
        let head = head.count().max(1);
        ranked.truncate(head);
        let least = self.min_p * ranked[0].weight;
        let kept = ranked.iter().take_while(|c| c.weight >= least).count().max(1);
        ranked.truncate(kept);
        Ok(ranked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };

    fn ids(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
        let row = Tensor::F32(logits.to_vec());
        sampling.candidates(&row).expect("finite").iter().map(|c| c.id).collect()
    }

    #[test]
    fn filters_keep_what_they_say() {
        let row = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        for (why, sampling, want) in [
            ("all", ALL, vec![0, 1, 2, 3]),
            ("k cuts a tie at the lower id", Sampling { top_k: 3, ..ALL }, vec![0, 1, 2]),
            ("k beyond the row", Sampling { top_k: 9, ..ALL }, vec![0, 1, 2, 3]),
            ("the crossing token stays", Sampling { top_p: 0.6, ..ALL }, vec![0, 1]),
            ("a tiny p keeps one", Sampling { top_p: 1e-9, ..ALL }, vec![0]),
            ("p counts what k left", Sampling { top_k: 2, top_p: 0.66, ..ALL }, vec![0]),
            ("min-p is relative", Sampling { min_p: 0.3, ..ALL }, vec![0, 1]),
            ("min-p 1 keeps the ties of the first", Sampling { min_p: 1.0, ..ALL }, vec![0]),
        ] {
            assert_eq!(ids(sampling, &row), want, "{why}");
        }
        assert_eq!(ids(ALL, &[1.0, 2.0, 2.0]), vec![1, 2, 0]);
        assert_eq!(ids(Sampling { top_k: 1, ..ALL }, &[0.0; 3]), vec![0]);
    }

    #[test]
    fn out_of_range_is_refused_with_the_range() {
        for (bad, word) in [
            (Sampling { temperature: -1.0, ..ALL }, "temperature"),
            (Sampling { temperature: f32::NAN, ..ALL }, "temperature"),
            (Sampling { top_p: 0.0, ..ALL }, "top-p"),
            (Sampling { top_p: 1.5, ..ALL }, "top-p"),
            (Sampling { min_p: -0.1, ..ALL }, "min-p"),
        ] {
            let error = Sampler::new(bad).expect_err(word).to_string();
            assert!(error.contains(word) && error.contains("allowed"), "{error}");
        }
        assert_eq!(Sampler::new(Sampling { temperature: 0.0, ..ALL }), Ok(Sampler::Greedy));
    }

    #[test]
    fn nothing_is_chosen_from_a_nan() {
        for row in [vec![f32::NAN, 1.0], vec![f32::NEG_INFINITY; 2], vec![f32::INFINITY, 0.0]] {
            assert_eq!(
                ALL.pick(&Tensor::F32(row), Draw { sequence: 0, position: 0 }),
                Err(NanError)
            );
        }
    }

    #[test]
    fn draws_follow_the_distribution_and_the_counter() {
        let row = Tensor::F32([0.5f32, 0.25, 0.25].map(f32::ln).to_vec());
        let mut counts = [0u32; 3];
        for position in 0..20_000 {
            let draw = Draw { sequence: 0, position };
            counts[ALL.pick(&row, draw).expect("finite") as usize] += 1;
            assert_eq!(ALL.pick(&row, draw), ALL.pick(&row, draw));
        }
        for (count, p) in counts.iter().zip([0.5f64, 0.25, 0.25]) {
            let sigma = (20_000.0 * p * (1.0 - p)).sqrt();
            assert!((f64::from(*count) - 20_000.0 * p).abs() < 5.0 * sigma, "{counts:?}");
        }
    }
}

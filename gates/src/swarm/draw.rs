//! Cases from a seed.
//!
//! The invariant: case `n` of a seed is a pure function of both; no machine, clock or earlier case
//! takes part.

use samebits::contract::{Dtype, Order};
use samebits_fixtures::{Form, HybridSpec, Prefix, Spec, WeightDtype};

use super::{Asked, Case, Inputs, Shape};
use crate::checks::kernels::draw::Draw;

/// A stream of choices.
struct Choices(Draw);

impl Choices {
    fn within(&mut self, low: usize, high: usize) -> usize {
        self.0.within(low, high)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.0.one_in(n)
    }

    /// A width: odd or even, now and then 1 mod 64.
    fn width(&mut self, most: usize) -> usize {
        match self.within(0, 7) {
            0 => 64 * self.within(1, (most / 64).max(1)) + 1,
            1..4 => self.within(1, most.min(12)),
            _ => self.within(1, most),
        }
    }

    /// `total` rows cut into pieces.
    fn pieces(&mut self, total: usize) -> Vec<usize> {
        let (mut left, mut pieces) = (total, Vec::new());
        while left > 0 {
            let piece = if self.one_in(2) { self.within(1, left) } else { left.min(1) };
            pieces.push(piece);
            left -= piece;
        }
        pieces
    }

    fn inputs(&mut self) -> Inputs {
        match self.within(0, 7) {
            0 => Inputs::Needles,
            1 => Inputs::Subnormal,
            2 => Inputs::Dominating,
            _ => Inputs::Plain,
        }
    }

    fn shape(&mut self) -> Shape {
        // One width of a case is large at most, so that the reference stays affordable.
        let large = self.within(0, 9);
        let kv_heads = self.within(1, 3);
        let heads = kv_heads * self.within(1, 3);
        let mut spec = Spec {
            name: "swarm".to_owned(),
            hidden: self.width(80),
            layers: self.within(1, 3),
            heads,
            kv_heads,
            head_dim: 2 * self.within(1, 17),
            intermediate: self.width(200),
            vocab: self.within(2, 300),
            theta: 1e6,
            eps: 1e-6,
            tied: self.one_in(2),
            dtype: WeightDtype::Bf16,
            max_positions: 262_144,
        };
        match large {
            0 => {
                spec.vocab = self.within(60_000, 151_936);
                (spec.hidden, spec.layers) = (self.within(1, 12), 1);
            }
            1 | 2 => {
                spec.intermediate = self.within(513, 4_200);
                (spec.hidden, spec.layers) = (self.within(1, 24), 1);
            }
            3 => (spec.hidden, spec.layers) = (self.within(513, 2_100), 1),
            _ => {}
        }
        if large == 3 {
            spec.intermediate = spec.intermediate.min(40);
        }
        if self.one_in(3) { Shape::Hybrid(self.hybrid(spec)) } else { Shape::Dense(spec) }
    }

    fn hybrid(&mut self, spec: Spec) -> HybridSpec {
        let key_heads = self.within(1, 3);
        let layers = spec.layers + 1;
        HybridSpec {
            name: spec.name,
            hidden: spec.hidden,
            layers,
            // A model has one layer of attention at least.
            interval: self.within(1, layers),
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            partial: if spec.head_dim.is_multiple_of(4) { 0.5 } else { 1.0 },
            key_heads,
            value_heads: key_heads * self.within(1, 2),
            key_dim: self.within(1, 20),
            value_dim: self.within(1, 20),
            kernel: self.within(2, 5),
            intermediate: spec.intermediate,
            vocab: spec.vocab,
            theta: 1e7,
            eps: 1e-6,
            tied: spec.tied,
            dtype: WeightDtype::Bf16,
            log_dtype: if self.one_in(2) { WeightDtype::F32 } else { WeightDtype::Bf16 },
            form: Form::Composite,
            prefix: Prefix::LanguageModel,
            bystanders: false,
            max_positions: 262_144,
        }
    }

    fn asked(&mut self, vocab: usize) -> Asked {
        let sampled = !self.one_in(3);
        let stops = self.within(0, 3);
        Asked {
            new: self.within(1, 40),
            temperature: if sampled { [0.5, 1.0, 1.7][self.within(0, 2)] } else { 0.0 },
            top_k: if self.one_in(2) { self.within(1, 30) } else { 0 },
            top_p: if self.one_in(2) { [0.3, 0.8, 0.95][self.within(0, 2)] } else { 1.0 },
            min_p: if self.one_in(3) { [0.02, 0.2][self.within(0, 1)] } else { 0.0 },
            seed: self.0.word(),
            stop: (0..stops).map(|_| self.within(0, vocab - 1) as u32).collect(),
            resumed: self.one_in(2),
        }
    }
}

/// Keeps the choices apart from those of other gates under the same seed.
const STREAM: u64 = 0x5741_524D;

/// Case `number` of a seed.
pub fn case(seed: u64, number: u64) -> Case {
    let mut c = Choices(Draw::new([seed, STREAM, number]));
    let mut shape = c.shape();
    let asked = c.one_in(3);
    if asked {
        // Few ids, so that stop ids come up; one large vocabulary in a few stays as it is.
        let small = c.within(2, 40);
        match &mut shape {
            Shape::Dense(s) if s.vocab < 1_000 => s.vocab = small,
            Shape::Hybrid(s) if s.vocab < 1_000 => s.vocab = small,
            _ => {}
        }
    }
    let large = shape.vocab() > 1_000;
    let rows = match c.within(0, 5) {
        0 => 1,
        1 if !large => c.within(65, 140),
        _ => c.within(2, if large { 4 } else { 40 }),
    };
    let pieces = if c.one_in(2) || asked { vec![rows] } else { c.pieces(rows) };
    // A filled cache is for dense models in the default order.
    let warm = !asked && matches!(shape, Shape::Dense(_)) && c.one_in(4);
    let past = if warm { c.within(1, 9_000) } else { 0 };
    let free = c.one_in(3) && !warm;
    let asked = asked.then(|| c.asked(shape.vocab()));
    Case {
        inputs: c.inputs(),
        dtype: if c.one_in(2) { Dtype::Bf16 } else { Dtype::F32 },
        order: if free { Order::Transformers } else { Order::Invariant },
        table: c.within(0, 3),
        threads: c.within(1, 17),
        batch: if large { c.within(1, 3) } else { c.within(1, 17) },
        past,
        chunk: c.within(1, rows.max(2)),
        pieces: if warm { vec![rows.min(6)] } else { pieces },
        logits: false,
        seed: c.0.word() >> 1,
        asked,
        shape,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases are the same everywhere and differ from each other; all of them are models.
    #[test]
    fn cases_follow_from_seed_and_number() {
        let mut seen = Vec::new();
        for number in 0..300 {
            let one = case(1, number);
            assert_eq!(one, case(1, number));
            let checked = match &one.shape {
                Shape::Dense(spec) => spec.check(),
                Shape::Hybrid(spec) => spec.check(),
            };
            assert!(checked.is_ok(), "case {number}: {checked:?}");
            assert_eq!(serde_json::from_str::<Case>(&one.json()).expect("its own text"), one);
            seen.push(one);
        }
        assert_ne!(case(2, 0), seen[0]);
        let some = |holds: &dyn Fn(&Case) -> bool| seen.iter().filter(|c| holds(c)).count() > 4;
        assert!(some(&|c| c.past > 0) && some(&|c| c.asked.is_some()));
        assert!(some(&|c| c.batch > 8) && some(&|c| c.shape.vocab() > 65_536));
        assert!(some(&|c| matches!(c.shape, Shape::Hybrid(_)) && c.pieces.len() > 1));
        assert!(some(&|c| c.order == Order::Transformers) && some(&|c| c.threads > 15));
    }
}

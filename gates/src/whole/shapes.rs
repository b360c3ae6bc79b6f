//! The sizes of whole models that are judged: a grid of widths and prompts, and published shapes.
//!
//! Absent: weights, which recipes draw. The invariant: every shape is there as a dense model and as
//! a hybrid, with a full and a linear layer at least.

use std::path::Path;

use samebits_fixtures::{
    Error, Form, HybridSpec, Prefix, Recipe, Spec, WeightDtype, drawn, drawn_hybrid,
};

/// A checkpoint's dimensions.
#[derive(Clone, Debug)]
enum Model {
    Dense(Spec),
    Hybrid(HybridSpec),
}

/// A model and the length of its prompt.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Family and sizes, as a name.
    pub name: String,
    /// Ids of the prompt.
    pub ids: usize,
    model: Model,
}

/// A point of the grid.
struct Point {
    hidden: usize,
    intermediate: usize,
    layers: usize,
    head_dim: usize,
}

/// Widths and prompts of models: hidden, intermediate, layers, head_dim, ids.
const POINTS: [[usize; 5]; 10] = [
    [256, 704, 12, 64, 16],
    [256, 768, 4, 128, 512],
    [384, 1_000, 8, 96, 200],
    [512, 1_536, 12, 128, 64],
    [640, 2_560, 6, 80, 130],
    [832, 2_048, 3, 64, 320],
    [1_024, 3_072, 12, 128, 64],
    [1_280, 3_420, 4, 256, 90],
    [1_536, 6_144, 2, 128, 257],
    [2_048, 6_144, 2, 128, 40],
];
/// Rows of embedding and head.
const VOCAB: usize = 3_001;
/// Prompts of the published shapes.
const PROMPTS: [usize; 2] = [64, 300];

/// The grid, each point in both families.
pub fn grid() -> Vec<Shape> {
    let both = POINTS.map(|[hidden, intermediate, layers, head_dim, ids]| {
        let point = Point { hidden, intermediate, layers, head_dim };
        [Shape::dense(point.dense(), ids), Shape::hybrid(point.hybrid(), ids)]
    });
    both.into_iter().flatten().collect()
}

/// The published 0.6B and 0.8B-like shapes.
///
/// # Errors
/// A name that the fixtures do not know.
pub fn published() -> Result<Vec<Shape>, Error> {
    let (dense, hybrid) = (Spec::named("qwen3-0.6b")?, HybridSpec::named("qwen3.5-0.8b-like")?);
    let both = |ids| [Shape::dense(dense.clone(), ids), Shape::hybrid(hybrid.clone(), ids)];
    Ok(PROMPTS.into_iter().flat_map(both).collect())
}

impl Point {
    fn heads(&self) -> [usize; 2] {
        let kv = (self.hidden / self.head_dim / 2).max(1);
        [2 * kv, kv]
    }

    fn dense(&self) -> Spec {
        let [heads, kv_heads] = self.heads();
        Spec {
            name: String::new(),
            hidden: self.hidden,
            layers: self.layers,
            heads,
            kv_heads,
            head_dim: self.head_dim,
            intermediate: self.intermediate,
            vocab: VOCAB,
            theta: 1e6,
            eps: 1e-6,
            tied: false,
            dtype: WeightDtype::Bf16,
            max_positions: 40_960,
        }
    }

    fn hybrid(&self) -> HybridSpec {
        let [heads, kv_heads] = self.heads();
        let key_heads = (self.hidden / 256).max(1);
        HybridSpec {
            name: String::new(),
            hidden: self.hidden,
            layers: self.layers,
            interval: self.layers.min(4),
            heads,
            kv_heads,
            head_dim: self.head_dim,
            partial: 0.25,
            key_heads,
            value_heads: 2 * key_heads,
            key_dim: 128,
            value_dim: 128,
            kernel: 4,
            intermediate: self.intermediate,
            vocab: VOCAB,
            theta: 1e7,
            eps: 1e-6,
            tied: false,
            dtype: WeightDtype::Bf16,
            log_dtype: WeightDtype::F32,
            form: Form::Flat,
            prefix: Prefix::Model,
            bystanders: false,
            max_positions: 40_960,
        }
    }
}

impl Shape {
    /// A dense model.
    pub fn dense(spec: Spec, ids: usize) -> Self {
        let [hidden, inter, layers] = [spec.hidden, spec.intermediate, spec.layers];
        let name = format!("dense {hidden} x {inter} x {layers}");
        Self { name, ids, model: Model::Dense(spec) }
    }

    /// A hybrid.
    pub fn hybrid(spec: HybridSpec, ids: usize) -> Self {
        let [hidden, inter, layers] = [spec.hidden, spec.intermediate, spec.layers];
        let name = format!("hybrid {hidden} x {inter} x {layers}");
        Self { name, ids, model: Model::Hybrid(spec) }
    }

    /// Ids of the vocabulary.
    pub fn vocab(&self) -> usize {
        match &self.model {
            Model::Dense(spec) => spec.vocab,
            Model::Hybrid(spec) => spec.vocab,
        }
    }

    /// Writes its checkpoint.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn draw(&self, recipe: Recipe, seed: u64, folder: &Path) -> Result<(), Error> {
        match &self.model {
            Model::Dense(spec) => drawn(spec, recipe, seed, folder),
            Model::Hybrid(spec) => drawn_hybrid(spec, recipe, seed, folder),
        }
    }

    /// Products of a run and its judgement, to tell how long runs take from how long one took.
    pub fn work(&self) -> f64 {
        /// Drawing a weight and reading it costs about as much as so many rows of products.
        const DRAWN: usize = 40;
        let (hidden, inter, layers, vocab, heads, dim) = match &self.model {
            Model::Dense(s) => (s.hidden, s.intermediate, s.layers, s.vocab, s.heads, s.head_dim),
            Model::Hybrid(s) => (s.hidden, s.intermediate, s.layers, s.vocab, s.heads, s.head_dim),
        };
        let weights = layers * hidden * (3 * heads * dim + 3 * inter) + 2 * vocab * hidden;
        let attention = layers * heads * dim * self.ids * self.ids;
        weights as f64 * (self.ids + DRAWN) as f64 + attention as f64
    }
}

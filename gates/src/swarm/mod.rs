//! Random shapes and runs: whole runs of the engine against the contract, bit by bit.
//!
//! Here: what a case is. In the submodules: how a seed draws one (`draw`), the designed ones at
//! every boundary (`pins`), how a case is run and judged (`judge`, `warm`, `generation`), shrinks
//! (`shrink`), and which values of what the engine counts were reached (`coverage`).
//! Absent: limits, for there is no tolerance. The invariant: a case follows from seed and number
//! alone, on every machine, and what it is judged by never runs the engine's code.

pub mod coverage;
pub mod draw;
mod generation;
pub mod judge;
pub mod pins;
pub mod shrink;
mod warm;

use std::path::Path;

use samebits::contract::{Dtype, Order};
use samebits::cpu::Kernels;
use samebits_fixtures::{HybridSpec, Spec, container, synthetic, synthetic_hybrid};
use serde::{Deserialize, Serialize};

use crate::checks::CheckError;
use crate::context::data;
use crate::manifest::Lane;

/// Cases that found something, each with what it found.
const CORPUS: &str = "data/swarm.json";

/// An entry of the corpus.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Found {
    /// What it found.
    why: String,
    /// The case, as small as it got.
    case: Case,
}

/// The cases that found something, which run before all others.
///
/// # Errors
/// A file that cannot be read, is no list of cases or has one without a reason.
pub fn corpus() -> Result<Vec<Case>, CheckError> {
    let path = data(CORPUS);
    let text = std::fs::read(&path).map_err(CheckError::io(&path))?;
    let all: Vec<Found> = serde_json::from_slice(&text).map_err(CheckError::json(&path))?;
    if all.iter().any(|found| found.why.trim().is_empty()) {
        return Err(CheckError::missing("what a case found", path.display()));
    }
    Ok(all.into_iter().map(|found| found.case).collect())
}

/// The corpus and the designed cases of a lane, in a fixed order.
///
/// # Errors
/// Those of [`corpus`].
pub fn fixed(lane: Lane) -> Result<Vec<Case>, CheckError> {
    Ok([corpus()?, pins::all(lane)].concat())
}

/// The sizes of a case's checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Qwen3.
    Dense(Spec),
    /// Qwen3.5.
    Hybrid(HybridSpec),
}

/// What is unusual about a checkpoint's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// Nothing.
    Plain,
    /// A few elements of each embedding are 4,096 times the others.
    Needles,
    /// A third of the elements of each embedding are subnormal.
    Subnormal,
    /// Queries are so long that one key of a row takes all of its probability.
    Dominating,
}

/// What is generated after a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Most new ids of a sequence.
    pub new: usize,
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Key of the random stream.
    pub seed: u64,
    /// Ids that end a sequence.
    pub stop: Vec<u32>,
    /// Whether all sequences go on from where the first of them ended.
    pub resumed: bool,
}

/// One run, with all that decides its bits and its path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The checkpoint's sizes.
    pub shape: Shape,
    /// The checkpoint's values.
    pub inputs: Inputs,
    /// The run's dtype.
    pub dtype: Dtype,
    /// The order of both sides.
    pub order: Order,
    /// Number of the kernel table, the scalar one first; the best one where there are fewer.
    pub table: usize,
    /// Threads of the pool.
    pub threads: usize,
    /// Sequences.
    pub batch: usize,
    /// Positions of the cache that hold drawn keys and values.
    pub past: usize,
    /// Rows of each forward of a sequence.
    pub pieces: Vec<usize>,
    /// Query rows whose scores exist at once.
    pub chunk: usize,
    /// Only logits are looked at: for runs whose scores would not fit.
    pub logits: bool,
    /// Seed of weights, ids and the filled cache.
    pub seed: u64,
    /// What is generated; the pieces are then one, the prompt.
    #[serde(default)]
    pub asked: Option<Asked>,
}

impl Shape {
    /// Rows of the embedding.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Dense(spec) => spec.vocab,
            Self::Hybrid(spec) => spec.vocab,
        }
    }

    /// Lengths of the sums of all products, and widths of their outputs.
    pub fn products(&self) -> Vec<[usize; 2]> {
        let (h, i, v) = match self {
            Self::Dense(s) => (s.hidden, s.intermediate, s.vocab),
            Self::Hybrid(s) => (s.hidden, s.intermediate, s.vocab),
        };
        let (q, kv) = match self {
            Self::Dense(s) => (s.heads * s.head_dim, s.kv_heads * s.head_dim),
            Self::Hybrid(s) => (s.heads * s.head_dim, s.kv_heads * s.head_dim),
        };
        let wide = if matches!(self, Self::Hybrid(_)) { 2 * q } else { q };
        let mut all = vec![[h, wide], [h, kv], [q, h], [h, i], [i, h], [h, v]];
        if let Self::Hybrid(s) = self {
            all.extend([[h, s.channels()], [s.value_heads * s.value_dim, h], [h, s.value_heads]]);
        }
        all
    }

    /// Writes the checkpoint of a seed into an empty folder.
    ///
    /// # Errors
    /// Sizes that no model has, and what the folder answered.
    pub fn write(&self, inputs: Inputs, seed: u64, folder: &Path) -> Result<(), CheckError> {
        match self {
            Self::Dense(spec) => synthetic(spec, seed, folder)?,
            Self::Hybrid(spec) => synthetic_hybrid(spec, seed, folder)?,
        }
        let (name, scale, every): (&str, i32, usize) = match inputs {
            Inputs::Plain => return Ok(()),
            Inputs::Needles => ("embed_tokens", 12, 7),
            Inputs::Subnormal => ("embed_tokens", -128, 3),
            Inputs::Dominating => ("q_norm", 5, 1),
        };
        container::edit_tensors(&folder.join("model.safetensors"), |container| {
            let of = |entry: &&mut container::Entry| entry.name.contains(name);
            for entry in container.entries.iter_mut().filter(of) {
                for element in entry.bytes.chunks_exact_mut(2).step_by(every) {
                    let bits = u16::from_le_bytes([element[0], element[1]]);
                    let value = f64::from(half::bf16::from_bits(bits)) * 2f64.powi(scale);
                    let scaled = half::bf16::from_f64(value);
                    element.copy_from_slice(&scaled.to_bits().to_le_bytes());
                }
            }
        })?;
        Ok(())
    }
}

impl Case {
    /// New rows of a sequence.
    pub fn rows(&self) -> usize {
        self.pieces.iter().sum()
    }

    /// The kernel table of this machine.
    pub fn kernels(&self) -> &'static Kernels {
        let all = Kernels::supported();
        all[self.table.min(all.len() - 1)]
    }

    /// Ids of each sequence: drawn, but the first and the last of the vocabulary are among them.
    pub fn ids(&self) -> Vec<Vec<u32>> {
        let (vocab, rows) = (self.shape.vocab(), self.rows());
        let one = |i: usize| {
            let seed = self.seed.wrapping_add(i as u64);
            let mut ids = samebits_fixtures::prompt_ids(seed, vocab, rows);
            ids[i % rows] = vocab as u32 - 1;
            if rows > 1 {
                ids[(i + 1) % rows] = 0;
            }
            ids
        };
        (0..self.batch).map(one).collect()
    }

    /// Multiplications of the run, about: what its reference will cost.
    pub fn work(&self) -> u64 {
        let (layers, wide) = match &self.shape {
            Shape::Dense(s) => (s.layers, s.heads * s.head_dim),
            Shape::Hybrid(s) => (s.layers, s.heads * s.head_dim),
        };
        let products: usize = self.shape.products().iter().map(|[k, n]| k * n).sum();
        let rows = self.rows() + self.asked.as_ref().map_or(0, |asked| asked.new);
        let keys = self.past + rows;
        (self.batch * rows * layers * (products + 2 * keys * wide)) as u64
    }

    /// The case as the one argument of a command.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a case is plain data")
    }
}

//! What the parameters of a check may be.

use samebits_fixtures::{HybridSpec, Spec};
use serde::Deserialize;

/// Where a checkpoint comes from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// The trained tiny model; a dense `--model` replaces it.
    Embedded,
    /// The trained tiny hybrid; a hybrid `--model` replaces it.
    EmbeddedHybrid,
    /// A narrow checkpoint among the fixtures.
    Narrow(String),
    /// A synthetic checkpoint of a named shape, dense or hybrid.
    Named(String),
    /// A synthetic dense checkpoint of any shape.
    Spec(Spec),
    /// A synthetic hybrid of any shape.
    Hybrid(HybridSpec),
}

/// How a second run differs from the first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Variant {
    /// A prefill of `n` rows, then single rows through the cache.
    Cached(Vec<usize>),
    /// Query chunks of these sizes.
    Chunks(Vec<usize>),
    /// As one of a batch of this many sequences.
    Batch(usize),
    /// In pools of these many threads, after a run in a pool of one.
    Threads(Vec<usize>),
    /// On every kernel table.
    Kernels,
    /// Every split into two pieces, and this many random ones into more.
    Splits(usize),
}

/// Where a prompt is cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Places {
    /// Everywhere.
    Every,
    /// Near both ends, around multiples of 64 and of what a convolution reads.
    Edges,
}

/// End-to-end statistics against exact arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdealStatistic {
    /// Largest logit error over largest logit.
    ErrRelMax,
    /// Rms error over that of Transformers' own arithmetic.
    RmsRatio,
}

/// What a canary breathes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bird {
    /// One flipped bit must be seen, where it is.
    FlippedBit,
    /// The null defect must change no bit.
    NullDefect,
    /// A suite without gates must be an error.
    EmptySuite,
}

/// Surroundings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Perturbation {
    /// No address space layout randomisation.
    FixedLayout,
    /// Sixty thousand bytes more of environment.
    Environment,
    /// No environment at all.
    EmptyEnvironment,
    /// Another working folder.
    Folder,
    /// This many threads.
    Threads(usize),
    /// Blocks of memory filled as they are handed out and taken back.
    Memory,
    /// All cores busy with something else.
    Load,
}

/// Whose tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// The embedded model's.
    Embedded,
    /// The one that Qwen3 is published with.
    Qwen3,
}

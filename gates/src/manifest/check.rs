//! What a check does, with the parameters of each kind.

use samebits::contract::{Dtype, Order};
use samebits_fixtures::Spec;
use serde::Deserialize;

/// Where a checkpoint comes from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// The trained tiny model; `--model` replaces it.
    Embedded,
    /// A narrow checkpoint among the fixtures.
    Narrow(String),
    /// A synthetic checkpoint of a named shape.
    Named(String),
    /// A synthetic checkpoint of any shape.
    Spec(Spec),
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

/// What a check does, with its parameters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Check {
    /// Every op of a narrow checkpoint on the inputs Transformers had.
    Captured {
        /// Which checkpoint.
        narrow: String,
    },
    /// Whole runs of a narrow checkpoint against Transformers' tensors.
    Narrow {
        /// Which checkpoint.
        narrow: String,
        /// The run's dtype.
        dtype: Dtype,
        /// Lengths of the prompts.
        prompts: Vec<usize>,
        /// Whether the cached steps are compared too.
        cached: bool,
    },
    /// A run against hashes of what Transformers computed.
    Hashes {
        /// The file of hashes.
        file: String,
        /// The engine's order.
        order: Order,
        /// Length of the prompt, which names the run.
        prompt: usize,
        /// Whether the cached steps are compared too.
        cached: bool,
    },
    /// Logits of odd shapes against hashes of what Transformers computed.
    Strangers {
        /// Name of the shape; every one of the file must be a gate.
        name: String,
    },
    /// Every site of a run against the contract computed operation by operation.
    Contract {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// The order of both.
        order: Order,
        /// Ids of the prompt.
        prompt: usize,
        /// Further ids through the cache.
        steps: usize,
    },
    /// Kernel tables against each other and against the contract on random operands.
    Kernels {
        /// Which kernel.
        kernel: String,
        /// Random cases.
        cases: u64,
    },
    /// Two runs that must agree at every site.
    Invariance {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the prompt.
        prompt: usize,
        /// How they differ.
        variant: Variant,
    },
    /// Fresh processes that must agree in weights, activations and argmax.
    Determinism {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the prompt.
        prompt: usize,
        /// Processes.
        processes: usize,
    },
    /// End-to-end distance from exact arithmetic.
    Ideal {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of each prompt.
        prompts: Vec<usize>,
        /// What is measured.
        statistic: IdealStatistic,
    },
    /// Each op on the engine's own inputs against exact arithmetic rounded where the model rounds.
    Rounded {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the prompt.
        prompt: usize,
    },
    /// Exact values of RMSNorm over an amplitude ladder.
    Rmsnorm {
        /// The dtype.
        dtype: Dtype,
    },
    /// Summation trees revealed by masked probes.
    Order {
        /// The dtype.
        dtype: Dtype,
    },
    /// NaN in everything that a run has not written.
    Poison {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of a first request.
        long: usize,
        /// Ids of a second one in the same buffers.
        short: usize,
    },
    /// Checkpoints as users' disks hold them, each with its right verdict.
    Hostile,
    /// Every weight on the device against an independent reader.
    Weights {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
    },
    /// Who may know whom, what may stand where, and how large it may be.
    Tidy,
    /// A comparison that must be red.
    Canary {
        /// Which.
        bird: Bird,
    },
    /// The tables in the README are those of the accepted results.
    Readme,
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

impl Check {
    /// The checkpoint that `--model` replaces, if the check is about any checkpoint.
    pub fn generic(&self) -> bool {
        match self {
            Self::Contract { model, .. }
            | Self::Invariance { model, .. }
            | Self::Determinism { model, .. }
            | Self::Ideal { model, .. }
            | Self::Rounded { model, .. }
            | Self::Poison { model, .. }
            | Self::Weights { model, .. } => *model == Source::Embedded,
            _ => false,
        }
    }
}

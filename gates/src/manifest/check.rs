//! What a check does, with the parameters of each kind.

use samebits::checkpoint::Family;
use samebits::contract::{Dtype, Order};
use serde::Deserialize;

use super::Lane;
use super::choices::{Bird, IdealStatistic, Perturbation, Places, Source, Tokenizer, Variant};
use crate::probe::Probe;

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
    /// A run of a hybrid against hashes, on Transformers' own results of its delta rules.
    Injected {
        /// The file of hashes.
        file: String,
        /// Length of the prompt, which names the run.
        prompt: usize,
        /// Whether the cached steps are compared too.
        cached: bool,
    },
    /// Whole runs of a narrow hybrid: whether the engine or Transformers is nearer to exact.
    Parting {
        /// Which checkpoint.
        narrow: String,
        /// The run's dtype.
        dtype: Dtype,
        /// Lengths of the prompts.
        prompts: Vec<usize>,
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
    /// Prompts of many lengths, each cut in many ways.
    Lengths {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of each prompt.
        prompts: Vec<usize>,
        /// Where they are cut in two.
        places: Places,
    },
    /// Some defects and legal variants against some gates.
    Smoke {
        /// Ids of the catalogue.
        defects: Vec<String>,
        /// Ids of gates.
        gates: Vec<String>,
    },
    /// Each trap of the hybrid family, fallen into.
    Traps,
    /// Drift of logits from exact arithmetic.
    Drift {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the sequence.
        positions: usize,
    },
    /// Drift of recurrent states from exact arithmetic.
    Growth {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the sequence.
        positions: usize,
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
    /// The op that the localiser names first for each defect of the catalogue.
    Localize,
    /// Planted faults of the runner itself against its self-tests.
    Runner,
    /// Each op of a designed run on the run's own inputs, against calibrated limits.
    TeacherForced {
        /// The run.
        probe: Probe,
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
    Hostile {
        /// Whose table.
        #[serde(default)]
        hybrids: bool,
    },
    /// Every weight on the device against an independent reader.
    Weights {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// The order of runs that it is loaded for; the default one unless given.
        #[serde(default)]
        order: Option<Order>,
    },
    /// Who may know whom, what may stand where, and how large it may be.
    Tidy,
    /// Random and designed shapes and runs against the contract.
    Swarm {
        /// How far the designed ones go.
        lane: Lane,
        /// Random cases of the run's seed.
        cases: u64,
    },
    /// A comparison that must be red.
    Canary {
        /// Which.
        bird: Bird,
    },
    /// The tables in the README are those of the accepted results.
    Readme,
    /// The heap over decode steps.
    Allocator {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Decode steps.
        steps: usize,
        /// Sequences.
        batch: usize,
        /// Threads.
        threads: usize,
        /// Whether ids are drawn.
        sampled: bool,
    },
    /// Reads, writes and fences of decode steps.
    HostSync {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Decode steps.
        steps: usize,
        /// Sequences.
        batch: usize,
        /// Whether ids are drawn.
        sampled: bool,
    },
    /// Draws from single rows against a sampler written apart.
    Draws,
    /// Counts of many draws against the reference's softmax.
    Distribution,
    /// Greedy choices among equals.
    Ties,
    /// Draws of the generation loop against a sampler written apart.
    LoopDraws {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Sequences.
        batch: usize,
        /// New ids.
        steps: usize,
    },
    /// Generations of a batch against each sequence alone.
    GeneratedBatch {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Sequences.
        batch: usize,
        /// New ids.
        steps: usize,
    },
    /// A generation that is cut and resumed against the whole, in pools of several sizes.
    Resumed {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// New ids before the cut.
        before: usize,
        /// New ids after it.
        after: usize,
        /// Whether ids are drawn.
        sampled: bool,
    },
    /// Requests that share a process or buffers against each alone.
    Sessions {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the longer prompt.
        long: usize,
        /// Ids of the shorter one.
        short: usize,
        /// Greedy steps of each.
        steps: usize,
    },
    /// Fresh processes in other surroundings that must agree.
    Perturbed {
        /// The checkpoint.
        model: Source,
        /// The run's dtype.
        dtype: Dtype,
        /// Ids of the prompt.
        prompt: usize,
        /// The surroundings.
        how: Vec<Perturbation>,
    },
    /// Text and conversations against what Transformers made of them.
    Text {
        /// Whose tokenizer.
        tokenizer: Tokenizer,
    },
}

impl Check {
    /// The family whose `--model` takes the check's checkpoint's place, if the check is about any
    /// checkpoint of it.
    pub fn replaceable(&self) -> Option<Family> {
        let source = match self {
            Self::Contract { model, .. }
            | Self::Invariance { model, .. }
            | Self::Lengths { model, .. }
            | Self::Drift { model, .. }
            | Self::Growth { model, .. }
            | Self::Determinism { model, .. }
            | Self::Ideal { model, .. }
            | Self::Poison { model, .. }
            | Self::Weights { model, .. }
            | Self::HostSync { model, .. }
            | Self::LoopDraws { model, .. }
            | Self::GeneratedBatch { model, .. }
            | Self::Resumed { model, .. }
            | Self::Perturbed { model, .. }
            | Self::Sessions { model, .. } => model,
            _ => return None,
        };
        match source {
            Source::Embedded => Some(Family::Qwen3),
            Source::EmbeddedHybrid => Some(Family::Qwen3_5),
            _ => None,
        }
    }
}

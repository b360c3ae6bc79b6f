//! Gates as data: one JSON file a gate, parsed strictly.
//!
//! Here: the fields of a gate and the parameters of each kind of check. Absent: what the checks do.
//! The invariant: an unknown field, an empty `why` or a file under another name than its gate's id
//! is refused, so that a manifest never promises what no code reads.

use std::fs;
use std::path::{Path, PathBuf};

use samebits::contract::{Dtype, Order};
use samebits_fixtures::Spec;
use samebits_reports::Kind;
use serde::Deserialize;
use thiserror::Error;

/// Why the manifests cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// A file or folder that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is no gate.
    #[error("{}: {source}", path.display())]
    Json {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A gate without a reason to be.
    #[error("{}: `why` is empty", path.display())]
    NoWhy {
        /// Where.
        path: PathBuf,
    },
    /// A file that is not named for its gate.
    #[error("{}: holds gate {id}, which belongs in {want}", path.display())]
    Misnamed {
        /// Where.
        path: PathBuf,
        /// The id in it.
        id: String,
        /// The name it should have.
        want: String,
    },
    /// A folder without gates: an empty suite proves nothing.
    #[error("{}: holds no gate", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

/// When a gate runs without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Always.
    Default,
    /// Only with `--long` or `SAMEBITS_LONG=1`.
    Long,
}

/// What a gate cannot be measured without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A second kernel table beside the scalar one.
    TwoKernelTables,
}

/// A gate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Segments joined by `/`, the first one its kind's.
    pub id: String,
    /// What it belongs to in the report.
    pub kind: Kind,
    /// Which fault or promise it is there for.
    pub why: String,
    /// What it does.
    pub check: Check,
    /// The fault that must turn it red.
    pub control: Control,
    /// Name of its limit; without one, no difference at all is allowed.
    #[serde(default)]
    pub limit: Option<String>,
    /// When it runs.
    pub lane: Lane,
    /// What it cannot be measured without.
    #[serde(default)]
    pub needs: Vec<Need>,
}

/// The negative control of a gate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The fault that is planted.
    pub plant: Plant,
    /// The op that must diverge first; none where the check names no op.
    #[serde(default)]
    pub first: Option<String>,
    /// Which runs of a check that compares two runs of the engine carry the fault.
    #[serde(default)]
    pub side: Side,
}

/// Where a fault is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// In every run of the engine: the check must notice that the runs now disagree.
    #[default]
    Both,
    /// In the second run only.
    Variant,
}

/// A fault to plant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Plant {
    /// An entry of the catalogue.
    Defect(String),
    /// A fault of the check's own material, where no op is run: a wrong verdict, a bad source line.
    Material(String),
}

impl Plant {
    /// The name in reports.
    pub fn id(&self) -> &str {
        let (Self::Defect(id) | Self::Material(id)) = self;
        id
    }
}

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

impl Gate {
    /// The gate in a file.
    ///
    /// # Errors
    /// A file that is unreadable, no gate, misnamed or without a `why`.
    pub fn load(path: &Path) -> Result<Self, ManifestError> {
        let owned = || path.to_path_buf();
        let text =
            fs::read(path).map_err(|source| ManifestError::Read { path: owned(), source })?;
        let gate: Self = serde_json::from_slice(&text)
            .map_err(|source| ManifestError::Json { path: owned(), source })?;
        if gate.why.trim().is_empty() {
            return Err(ManifestError::NoWhy { path: owned() });
        }
        let want = format!("{}.json", gate.id.replace('/', "+"));
        if path.file_name().is_none_or(|name| name != want.as_str()) {
            return Err(ManifestError::Misnamed { path: owned(), id: gate.id, want });
        }
        Ok(gate)
    }

    /// All gates of a folder, by id.
    ///
    /// # Errors
    /// A folder that is unreadable or holds no gate, and what [`Gate::load`] refuses.
    pub fn all(folder: &Path) -> Result<Vec<Self>, ManifestError> {
        let read = |source| ManifestError::Read { path: folder.to_path_buf(), source };
        let mut gates = Vec::new();
        for entry in fs::read_dir(folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.extension().is_some_and(|e| e == "json") {
                gates.push(Self::load(&path)?);
            }
        }
        if gates.is_empty() {
            return Err(ManifestError::Empty { path: folder.to_path_buf() });
        }
        gates.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(gates)
    }
}

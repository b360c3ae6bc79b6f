//! Designed runs: a checkpoint, a warm cache and a prompt in pieces, made so that faults show.
//!
//! Here: what a probe is, how it runs, and the statistics of every site on the run's own inputs.
//! Absent: limits. The invariant: amplitudes are powers of two, so that a designed weight is as
//! exact as the drawn one, and everything follows from the seed.

mod measure;

pub use measure::{Known, SiteVerdict};

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{Carried, DEFAULT_CHUNK, Kept, Limits, Model, State, Step, feed, forward};
use samebits::op::Backend;
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective};
use samebits_fixtures::{container, paths, prompt_ids, synthetic, synthetic_hybrid};
use samebits_oracle::ops::Tables;
use samebits_oracle::{self as oracle, Arithmetic, Rounded};
use serde::Deserialize;
use tempfile::TempDir;

use crate::checks::CheckError;
use crate::forced::Past;
use crate::law::Setting;
use crate::manifest::Source;
use crate::sites::{Bits, Dims, Sites, op_of, rank};

/// A designed run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The checkpoint; trained ones have scores and states that drawn weights never make.
    pub model: Source,
    /// The run's dtype.
    pub dtype: Dtype,
    /// The residual stream is scaled by 2 to this.
    #[serde(default)]
    pub amplitude: i32,
    /// Weights of `q_norm` are scaled by 2 to this.
    #[serde(default)]
    pub sharpness: i32,
    /// Weights of `gate_proj` are scaled by 2 to this.
    #[serde(default)]
    pub heat: i32,
    /// Weights of `q_proj`, `k_proj` and `in_proj_qkv` are scaled by 2 to this: queries and keys
    /// before their norms.
    #[serde(default)]
    pub length: i32,
    /// Positions in the cache before the first row.
    #[serde(default)]
    pub past: usize,
    /// Rows of each forward.
    pub pieces: Vec<usize>,
    /// Sequences.
    pub batch: usize,
    /// Only the last row of each forward has logits.
    #[serde(default)]
    pub last: bool,
    /// Ops that are judged; all where empty.
    #[serde(default)]
    pub ops: Vec<String>,
}

/// A probe with its checkpoint in both readers' hands.
pub struct Stage {
    probe: Probe,
    model: Model<CpuMem>,
    reference: oracle::Model,
    tables: Tables,
    _folder: TempDir,
}

/// What a probe's run left.
pub struct Ran {
    /// Ids of each sequence.
    pub ids: Vec<Vec<u32>>,
    /// What the cache of each sequence held before.
    pub past: Vec<Past>,
    /// Taps of each sequence.
    pub sequences: Vec<Sites>,
    /// Argmax of every row of each sequence.
    pub argmax: Vec<Vec<u32>>,
    /// Ops at which a planted fault acted.
    pub hits: u64,
}

/// Elements of the probes' taps that are scaled, by the end of a tensor's name.
fn scaled(probe: &Probe, name: &str) -> i32 {
    match name.trim_end_matches(".weight").rsplit('.').next() {
        Some("embed_tokens" | "o_proj" | "out_proj" | "down_proj") => probe.amplitude,
        Some("q_proj" | "k_proj" | "in_proj_qkv") => probe.length,
        Some("q_norm") => probe.sharpness,
        Some("gate_proj") => probe.heat,
        _ => 0,
    }
}

/// Writes the probe's checkpoint into an empty folder.
fn checkpoint_in(folder: &Path, probe: &Probe, seed: u64) -> Result<(), CheckError> {
    let from = match &probe.model {
        Source::Spec(spec) => return drawn(folder, probe, || synthetic(spec, seed, folder)),
        Source::Hybrid(spec) => {
            return drawn(folder, probe, || synthetic_hybrid(spec, seed, folder));
        }
        Source::Named(name) => return Err(CheckError::missing(name, "the shapes of probes")),
        Source::Embedded => paths::tiny_qwen3(),
        Source::EmbeddedHybrid => paths::tiny_qwen3_5(),
        Source::Narrow(name) => paths::narrow(name),
    };
    for entry in fs::read_dir(&from).map_err(CheckError::io(&from))? {
        let path = entry.map_err(CheckError::io(&from))?.path();
        let name = path.file_name().unwrap_or_default();
        fs::copy(&path, folder.join(name)).map_err(CheckError::io(&path))?;
    }
    Ok(())
}

/// A drawn checkpoint, with the scales of the probe.
fn drawn(
    folder: &Path,
    probe: &Probe,
    draw: impl FnOnce() -> Result<(), samebits_fixtures::Error>,
) -> Result<(), CheckError> {
    draw()?;
    container::edit_tensors(&folder.join("model.safetensors"), |container| {
        for entry in &mut container.entries {
            let scale = scaled(probe, &entry.name);
            if scale == 0 {
                continue;
            }
            for element in entry.bytes.chunks_exact_mut(2) {
                let bits = u16::from_le_bytes([element[0], element[1]]);
                let value = half::bf16::from_bits(bits).to_f32() * 2f32.powi(scale);
                element.copy_from_slice(&half::bf16::from_f32(value).to_bits().to_le_bytes());
            }
        }
    })?;
    Ok(())
}

impl Stage {
    /// Builds the probe's checkpoint and reads it twice.
    ///
    /// # Errors
    /// A checkpoint that cannot be written or read.
    pub fn new(probe: &Probe, seed: u64) -> Result<Self, CheckError> {
        let folder = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
        checkpoint_in(folder.path(), probe, seed)?;
        let checkpoint =
            samebits::checkpoint::Checkpoint::open_as(folder.path(), Some(probe.dtype))?;
        let mut cpu = Cpu::new(Kernels::best(), Order::Invariant);
        let model = Model::load(&mut cpu, &checkpoint, Order::Invariant)?;
        let reference = oracle::Model::load(folder.path())?;
        let rounded = Rounded { dtype: oracle::Dtype::F32 };
        let config = reference.config();
        let positions = probe.past + probe.pieces.iter().sum::<usize>();
        let tables = rounded.rotary(config.theta, config.rotary_dim, positions);
        Ok(Self { probe: probe.clone(), model, reference, tables, _folder: folder })
    }

    /// Sizes of the model.
    pub fn dims(&self) -> Dims {
        Dims::of(self.reference.config())
    }

    /// Elements that a run must compare.
    pub fn expected(&self) -> u64 {
        let (dims, rows) = (self.dims(), self.rows());
        let keys = self.probe.past + rows;
        let all = self.probe.ops.is_empty();
        let judged = |op: &str| all || self.probe.ops.iter().any(|o| o == op);
        let layers = crate::sites::LAYER_OPS.iter().filter(|op| judged(op));
        let layers: usize = layers.map(|op| dims.layers_with(op) * dims.width(op, keys)).sum();
        let around = ["embed_tokens", "norm"].iter().filter(|op| judged(op));
        let around: usize = around.map(|op| dims.width(op, keys)).sum();
        let head = if judged("lm_head") { dims.vocab } else { 0 };
        let kept = self.kept() * (head + usize::from(judged("argmax")));
        (self.probe.batch * (rows * (layers + around) + kept)) as u64
    }

    /// Rows of a sequence that have logits.
    pub fn kept(&self) -> usize {
        if self.probe.last { self.probe.pieces.len() } else { self.rows() }
    }

    fn rows(&self) -> usize {
        self.probe.pieces.iter().sum()
    }

    /// Runs the probe with inputs of `seed` and perhaps a planted fault.
    ///
    /// # Errors
    /// What the engine answered.
    pub fn run(&self, seed: u64, defect: &Defect) -> Result<Ran, CheckError> {
        let (probe, dims, rows) = (&self.probe, self.dims(), self.rows());
        let draw = |i: usize| prompt_ids(seed.wrapping_add(i as u64), dims.vocab, rows);
        let ids: Vec<Vec<u32>> = (0..probe.batch).map(draw).collect();
        let mut b = Traced::new(
            Defective::new(Cpu::new(Kernels::best(), Order::Invariant), defect),
            probe.batch,
        );
        let most = probe.pieces.iter().copied().max().expect("a probe has pieces");
        let (positions, chunk) = (probe.past + rows, DEFAULT_CHUNK.min(most));
        let limits = Limits { batch: probe.batch, positions, rows: most, logit_rows: most, chunk };
        let mut state = State::new(&mut b, &self.model, limits, None);
        let filled = (probe.batch, probe.past);
        let past = fill(&mut b, &mut state, (dims, probe.dtype), filled, seed);
        let mut argmax = vec![Vec::new(); probe.batch];
        for piece in &probe.pieces {
            let at = state.len - probe.past;
            let fed: Vec<&[u32]> = ids.iter().map(|ids| &ids[at..at + piece]).collect();
            let (kept, each) = if probe.last { (Kept::Last, 1) } else { (Kept::All, *piece) };
            feed(&mut b, &mut state, &fed, kept);
            let step = Step { rows: *piece, kept: each * probe.batch };
            forward(&mut b, &self.model, &mut state, step)?;
            let found = b.mem().read_ints(&state.argmax, each * probe.batch);
            for (all, new) in argmax.iter_mut().zip(found.chunks(each)) {
                all.extend_from_slice(new);
            }
        }
        let (taps, defective) = b.finish();
        let sequences = (0..probe.batch).map(|i| self.sequence(&taps, i)).collect();
        Ok(Ran { ids, past, sequences, argmax, hits: defective.hits() })
    }

    fn sequence(&self, taps: &BTreeMap<String, Tap>, i: usize) -> Sites {
        let (dims, rows) = (self.dims(), self.rows());
        let keys = self.probe.past + rows;
        let shaped = |(name, tap): (&String, &Tap)| {
            let mut bits = Bits::of_tap(tap);
            let each = bits.bits.len() / self.probe.batch;
            bits.bits = bits.bits[i * each..][..each].to_vec();
            let rows = if name == "lm_head" { self.kept() } else { rows };
            (name.clone(), bits.reshaped(&dims.shape(op_of(name), rows, keys)))
        };
        taps.iter().filter(|(name, _)| rank(name).is_some()).map(shaped).collect()
    }

    /// The run whose sites are judged.
    pub fn setting(&self) -> Setting {
        let (dims, past, rows) = (self.dims(), self.probe.past, self.rows());
        Setting { dtype: self.probe.dtype, dims, past, rows }
    }

    /// The dtype of the run.
    pub fn dtype(&self) -> Dtype {
        self.probe.dtype
    }
}

/// Fills the first `past` positions of the caches of `batch` sequences with drawn keys and values.
pub(crate) fn fill<B: Backend<M = CpuMem>>(
    b: &mut B,
    state: &mut State<CpuMem>,
    (dims, dtype): (Dims, Dtype),
    (batch, past): (usize, usize),
    seed: u64,
) -> Vec<Past> {
    let (kv, dim) = (dims.kv_heads, dims.head_dim);
    let mut all = vec![Past { len: past, ..Past::default() }; batch];
    if past == 0 {
        return all;
    }
    for layer in 0..dims.layers {
        for (i, sequence) in all.iter_mut().enumerate() {
            if matches!(state.carried[layer], Carried::Gdn(_)) {
                sequence.keys.push(Vec::new());
                sequence.values.push(Vec::new());
                continue; // Its state starts from nothing.
            }
            for keys in [true, false] {
                let stream = (layer * batch + i) * 2 + usize::from(keys);
                let drawn = bell(seed, stream as u64, past * kv * dim);
                let drawn = Tensor::from_f32(dtype, &drawn); // [kv, past, dim]
                let cache = state.carried[layer].kv();
                let capacity = cache.capacity;
                let act = if keys { &mut cache.k } else { &mut cache.v };
                let mut values = vec![0.0; past * kv * dim]; // [past, kv, dim]
                for head in 0..kv {
                    let one = drawn.slice(head * past * dim, past * dim);
                    b.mem().write(act, (i * kv + head) * capacity * dim, &one);
                    for at in 0..past * dim {
                        values[(at / dim * kv + head) * dim + at % dim] =
                            f64::from(one.get(at));
                    }
                }
                if keys { &mut sequence.keys } else { &mut sequence.values }.push(values);
            }
        }
    }
    state.len = past;
    all
}

/// The seed of a probe's checkpoint.
pub const MODEL_SEED: u64 = 1;

/// `n` numbers of about a normal distribution, from a counter.
fn bell(seed: u64, stream: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(stream << 40);
    let mut draw = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    // Twelve uniform numbers have a variance of 1.
    (0..n).map(|_| (0..12).map(|_| draw()).sum()).collect()
}

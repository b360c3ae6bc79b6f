//! `samebits hash`: SHA-256 of all weights and activations, and the argmax of every row.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::failure::Failure;
use super::logits::rotary_taps;
use super::settings::ForwardArgs;
use crate::checkpoint::Checkpoint;
use crate::contract::CONTRACT;
use crate::cpu::{Cpu, CpuMem};
use crate::model::{Model, run};
use crate::op::{Backend, Memory};
use crate::tensor::hex;
use crate::trace::Traced;

/// Arguments of `hash`.
#[derive(Clone, Debug, clap::Args)]
pub struct HashArgs {
    /// Folder of the model; the embedded one unless given.
    pub model: Option<PathBuf>,
    /// The run.
    #[command(flatten)]
    pub run: ForwardArgs,
}

/// What `hash` prints. All but `run` is the same on every machine.
#[derive(Debug, Serialize)]
pub struct Hashes {
    schema: &'static str,
    contract: &'static str,
    order: &'static str,
    dtype: &'static str,
    /// How this run went about it; no hash depends on it.
    run: RunInfo,
    /// By tensor name, as held: in the run's dtype, or in f32 (rates and gated norms).
    weights: BTreeMap<String, String>,
    /// By site.
    activations: BTreeMap<String, String>,
    /// Of each sequence's rows.
    argmax: Vec<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct RunInfo {
    isa: &'static str,
    threads: usize,
    chunk: Option<usize>,
    pieces: Vec<usize>,
    bytes_read: u64,
}

/// Runs the command.
///
/// # Errors
/// Anything wrong with the words, the model or the output; a logit that is NaN.
pub fn command(args: &HashArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let settings = args.run.settings()?;
    let checkpoint = settings.open(args.model.as_deref())?;
    let (mut cpu, model) = settings.load(&checkpoint)?;
    let hashes = settings.pool.install(|| {
        let weights = weight_hashes(&mut cpu, &model, &checkpoint)?;
        let mut traced = Traced::new(cpu, settings.prompts.len());
        let logits = run(&mut traced, &model, &settings.prompts, &settings.plan)?;
        let mut taps = traced.finish().0;
        taps.extend(rotary_taps(&model.shape, model.dtype, &settings));
        let hash = |(site, tap): (String, crate::trace::Tap)| (site, tap.data.sha256());
        Ok::<_, Failure>(Hashes {
            schema: "samebits.hash/1",
            contract: CONTRACT,
            order: settings.order.name(),
            dtype: model.dtype.name(),
            run: RunInfo {
                isa: settings.kernels.name,
                threads: rayon::current_num_threads(),
                chunk: settings.plan.chunk,
                pieces: settings.plan.pieces.clone(),
                bytes_read: model.bytes_read,
            },
            weights,
            activations: taps.into_iter().map(hash).collect(),
            argmax: logits.argmax.chunks(logits.shape[1]).map(<[u32]>::to_vec).collect(),
        })
    })?;
    let text = serde_json::to_string_pretty(&hashes).expect("hashes are plain data");
    writeln!(out, "{text}").map_err(|e| Failure::io("stdout", e))?;
    match hashes.argmax.iter().flatten().position(|id| *id == u32::MAX) {
        Some(row) => Err(Failure::Mismatch(format!("the logits of row {row} hold a NaN"))),
        None => Ok(()),
    }
}

const PIECE_ROWS: usize = 4096;

/// SHA-256 of every weight as it lies in memory, row-major.
fn weight_hashes(
    cpu: &mut Cpu,
    model: &Model<CpuMem>,
    checkpoint: &Checkpoint,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut hashes = BTreeMap::new();
    let mem: &mut dyn Memory<CpuMem> = cpu.mem();
    model.for_each_weight(|role, weight| {
        let (rows, _) = mem.weight_shape(weight);
        let mut sha = Sha256::new();
        for first in (0..rows).step_by(PIECE_ROWS) {
            let count = PIECE_ROWS.min(rows - first);
            sha.update(mem.read_weight(weight, first, count).to_bytes());
        }
        hashes.insert(checkpoint.tensor(role).name.clone(), hex(&sha.finalize()));
    })?;
    Ok(hashes)
}

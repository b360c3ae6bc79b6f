//! `gates replay`: a run with the outputs of named sites replaced.
//!
//! The invariant: a tensor that does not belong where its name says is refused before anything
//! runs.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::tensor::View;
use samebits::checkpoint::Checkpoint;
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::model::{Model, Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Replayed, take_rotary};
use samebits_fixtures::golden;
use samebits_reports::write_atomic;

use super::{Failure, parse_ids};
use crate::checks::CheckError;
use crate::engine::{Setup, rotary_sites};
use crate::sites::{Bits, Dims, dtype_at, op_of, rank, split};

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the model.
    model: PathBuf,
    /// Token ids, separated by commas.
    #[arg(long)]
    ids: String,
    /// Tensors named for the sites they replace, in safetensors; also rotary.cos and rotary.sin.
    #[arg(long, value_name = "FILE")]
    inject: PathBuf,
    /// Write `logits` and one tensor a site here, in safetensors.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Dtype of the run; the checkpoint's own unless given.
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Summation order.
    #[arg(long, value_enum, default_value = "invariant")]
    order: Order,
    /// Run the first N ids as one prefill and the rest one by one through the cache.
    #[arg(long, value_name = "N")]
    decode_from: Option<usize>,
}

/// A stored tensor as a tap.
fn tap(name: &str, tensor: &golden::Tensor) -> Result<Tap, Failure> {
    let data = match tensor.dtype {
        golden::Dtype::Bf16 => {
            Tensor::Bf16(tensor.bf16_bits().into_iter().map(bf16::from_bits).collect())
        }
        golden::Dtype::F32 => Tensor::F32(tensor.f32s()),
        other => {
            let message = format!("{name}: dtype {other:?}, but a site holds bf16 or f32");
            return Err(Failure::Usage(message));
        }
    };
    Ok(Tap { shape: tensor.shape.clone(), data })
}

/// Checks a tensor against its site and gives it the shape in which the engine writes it.
fn fitted(name: &str, tap: Tap, dims: &Dims, rows: usize, dtype: Dtype) -> Result<Tap, Failure> {
    let layer = split(name).map_or(0, |(layer, _)| layer);
    if rank(name).is_none() || layer >= dims.layers {
        return Err(Failure::Usage(format!("{name}: no site of this model has that name")));
    }
    let (op, got) = (op_of(name), tap.data.dtype());
    let want = dims.shape(op, rows, rows);
    let flat = vec![rows, dims.width(op, rows)];
    let keyed = want.len() == 3 && want[1] == rows && matches!(op, "scores" | "probs");
    if tap.shape != want && (keyed || tap.shape != flat) {
        let shape = &tap.shape;
        return Err(Failure::Usage(format!(
            "{name}: shape {shape:?}, but the site holds {want:?}"
        )));
    }
    let site = dtype_at(name, dtype);
    if got != site {
        let (got, want) = (got.name(), site.name());
        return Err(Failure::Usage(format!("{name}: dtype {got}, but the site is {want}")));
    }
    let shape = match op {
        "q_norm" | "k_norm" => vec![tap.data.len() / dims.head_dim, dims.head_dim],
        "gdn_norm" => {
            let width = dims.delta.value_dim;
            vec![tap.data.len() / width, width]
        }
        _ if keyed => want,
        _ => flat,
    };
    Ok(Tap { shape, data: tap.data })
}

struct Stored(Bits);

impl View for Stored {
    fn dtype(&self) -> safetensors::Dtype {
        match self.0.dtype {
            Dtype::Bf16 => safetensors::Dtype::BF16,
            Dtype::F32 => safetensors::Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.bytes().into()
    }

    fn data_len(&self) -> usize {
        self.0.bits.len() * self.0.dtype.size()
    }
}

fn write(path: &Path, sites: BTreeMap<String, Bits>, order: Order) -> Result<(), Failure> {
    // One entry only: the crate writes them in an order of its own.
    let info = HashMap::from([("samebits".to_owned(), format!("{} order", order.name()))]);
    let stored = sites.into_iter().map(|(name, bits)| (name, Stored(bits)));
    let bytes = safetensors::serialize(stored, Some(info))
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
    Ok(write_atomic(path, &bytes)?)
}

/// Runs the command.
pub fn command(args: &Args) -> Result<u8, Failure> {
    let ids = parse_ids(&args.ids)?;
    let len = ids.len();
    if let Some(n) = args.decode_from.filter(|n| *n == 0 || *n > len) {
        return Err(Failure::Usage(format!("--decode-from {n}: the prompt has {len} ids")));
    }
    let checkpoint = Checkpoint::open_as(&args.model, args.dtype)?;
    let mut cpu = Cpu::new(Kernels::best(), args.order);
    let model = Model::load(&mut cpu, &checkpoint, args.order)?;
    let dims = Dims::of_shape(&model.shape);
    let tensors = golden::tensors(&args.inject).map_err(CheckError::from)?;
    let mut taps = BTreeMap::new();
    for (name, tensor) in &tensors {
        // `logits` is what commands call the site `lm_head`; a file of taps holds both.
        let site = if name == "logits" { "lm_head" } else { name };
        if site == name || !tensors.contains_key(site) {
            taps.insert(site.to_owned(), tap(name, tensor)?);
        }
    }
    let rotary = take_rotary(&mut taps).map_err(CheckError::from)?;
    let mut sites = BTreeMap::new();
    for (name, tap) in taps {
        let tap = fitted(&name, tap, &dims, len, model.dtype)?;
        sites.insert(name, tap);
    }
    let mut setup = Setup::new(args.order, "replay");
    setup.rotary = rotary;
    let pieces = args.decode_from.map(|n| Plan::decode_from(n, len).pieces).unwrap_or_default();
    let plan = Plan { pieces, chunk: None, rotary: setup.rotary.clone() };
    let mut b = Traced::new(Replayed::new(cpu, 1, sites), 1);
    run(&mut b, &model, &[ids], &plan)?;
    let (taps, replayed) = b.finish();
    replayed.finish().map_err(CheckError::from)?;
    let mut out = rotary_sites(&model, &setup, len);
    for (name, tap) in taps.iter().filter(|(name, _)| rank(name).is_some()) {
        let shape = dims.shape(op_of(name), len, len);
        out.insert(name.clone(), Bits::of_tap(tap).reshaped(&shape));
    }
    out.insert("logits".to_owned(), out["lm_head"].clone());
    write(&args.out, out, args.order)?;
    Ok(0)
}

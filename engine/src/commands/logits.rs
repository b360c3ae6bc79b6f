//! `samebits logits`: the logits of every row, and on request every tensor of the run.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::settings::{ForwardArgs, Settings};
use crate::contract::{CONTRACT, Dtype, RotaryTables};
use crate::model::{Logits, ROTARY_COS, ROTARY_SIN, Shape, run};
use crate::output::write_whole;
use crate::tensor::Tensor;
use crate::trace::{Tap, Traced};
use safetensors::tensor::View;

/// Arguments of `logits`.
#[derive(Clone, Debug, clap::Args)]
pub struct LogitsArgs {
    /// Folder of the model; the embedded one unless given.
    pub model: Option<PathBuf>,
    /// The run.
    #[command(flatten)]
    pub run: ForwardArgs,
    /// Write tensor `logits` `[rows, vocab]` here, in safetensors.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Also write one tensor a site, named as in `layers.3.q_proj`.
    #[arg(long)]
    pub taps: bool,
}

/// Runs the command.
///
/// # Errors
/// Anything wrong with the words, the model or the output; nothing is left half-written.
pub fn command(args: &LogitsArgs) -> Result<(), Failure> {
    let settings = args.run.settings()?;
    let checkpoint = settings.open(args.model.as_deref())?;
    let (mut cpu, model) = settings.load(&checkpoint)?;
    let batch = settings.prompts.len();
    let (logits, mut taps) = settings.pool.install(|| {
        if !args.taps {
            return Ok((
                run(&mut cpu, &model, &settings.prompts, &settings.plan)?,
                BTreeMap::new(),
            ));
        }
        let mut traced = Traced::new(cpu, batch);
        let logits = run(&mut traced, &model, &settings.prompts, &settings.plan)?;
        let mut taps = traced.finish().0;
        taps.remove("kept"); // Rows of `norm` once more.
        taps.iter_mut().for_each(|(site, tap)| split_heads(site, tap, &model.shape));
        taps.extend(rotary_taps(&model.shape, model.dtype, &settings));
        Ok::<_, Failure>((logits, taps))
    })?;
    taps.insert("logits".into(), logits_tap(logits));
    write(&args.out, taps, &settings, model.dtype)
}

/// The logits as a tensor; a batch of one has no leading axis.
fn logits_tap(logits: Logits) -> Tap {
    let [batch, rows, vocab] = logits.shape;
    let shape = if batch > 1 { vec![batch, rows, vocab] } else { vec![rows, vocab] };
    Tap { shape, data: logits.logits }
}

/// Gives tensors of heads their axis: `[rows, heads, head_dim]`, after the batch if there is one.
fn split_heads(site: &str, tap: &mut Tap, shape: &Shape) {
    let heads = match site.rsplit('.').next() {
        Some("q_norm" | "q_rope") => shape.heads,
        Some("k_norm" | "k_rope" | "k_cache" | "v_cache") => shape.kv_heads,
        _ => return,
    };
    let batch = tap.shape.len() - 2;
    let sequences: usize = tap.shape[..batch].iter().product();
    let rows = tap.data.len() / (sequences * heads * shape.head_dim);
    tap.shape.truncate(batch);
    tap.shape.extend([rows, heads, shape.head_dim]);
}

/// The rotary tables of a run, under their sites' names.
pub fn rotary_taps(shape: &Shape, dtype: Dtype, settings: &Settings) -> BTreeMap<String, Tap> {
    let positions = settings.prompts[0].len();
    let tables = RotaryTables::new(dtype, shape.theta, shape.rotary_dim, positions);
    let tap = |values: &[f32]| {
        let data = Tensor::from_f32(dtype, values);
        Tap { shape: vec![positions, tables.half], data }
    };
    let taps = [(ROTARY_COS, tap(&tables.cos)), (ROTARY_SIN, tap(&tables.sin))];
    taps.into_iter().map(|(site, tap)| (site.to_string(), tap)).collect()
}

/// A tap as the safetensors crate takes it.
struct Stored(Tap);

impl View for Stored {
    fn dtype(&self) -> safetensors::Dtype {
        match self.0.data.dtype() {
            Dtype::Bf16 => safetensors::Dtype::BF16,
            Dtype::F32 => safetensors::Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.data.to_bytes().into()
    }

    fn data_len(&self) -> usize {
        self.0.data.len() * self.0.data.dtype().size()
    }
}

/// Writes tensors and what they were made with.
fn write(
    out: &Path,
    taps: BTreeMap<String, Tap>,
    settings: &Settings,
    dtype: Dtype,
) -> Result<(), Failure> {
    // One entry only: the crate writes them in an order of its own.
    let made = format!("{CONTRACT}, {} order, {}", settings.order.name(), dtype.name());
    let info = HashMap::from([("samebits".to_string(), made)]);
    let tensors = taps.into_iter().map(|(name, tap)| (name, Stored(tap)));
    let fill = |path: &Path| {
        safetensors::serialize_to_file(tensors, Some(info), path).map_err(|e| match e {
            safetensors::SafeTensorError::IoError(e) => e,
            other => io::Error::other(other),
        })
    };
    write_whole(out, fill).map_err(|e| Failure::io(format!("--out {}", out.display()), e))
}

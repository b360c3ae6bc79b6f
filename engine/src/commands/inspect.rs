//! `samebits inspect`: what a checkpoint is, and that it is admitted.
//!
//! Here: the data of the verdict and its sentences. Absent: weights; nothing but headers is read,
//! except where a tied head is compared. The invariant: `--json` and the text say the same.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::checkpoint::pin::{PIN_FILE, Pin, PinError};
use crate::checkpoint::{Checkpoint, CheckpointError, LayerRole, PAGE_BYTES, Role, TensorInfo};
use crate::generate::StopIds;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// Folder of the model; the embedded one unless given.
    pub model: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why `inspect` stops.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The checkpoint is not admitted.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The output cannot be written.
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

/// What a checkpoint is.
#[derive(Debug, Serialize)]
pub struct Inspection {
    schema: &'static str,
    model: String,
    verdict: &'static str,
    config: Shape,
    rope: Rope,
    /// The mask of every layer.
    masks: Vec<&'static str>,
    head: Head,
    run_dtype: &'static str,
    eos_token_ids: Option<Vec<u32>>,
    /// What ends a generation, and the file that says so.
    stop_ids: Vec<u32>,
    stop_source: &'static str,
    /// By role; layers are counted together.
    roles: Vec<RoleRow>,
    /// By stored dtype.
    dtypes: BTreeMap<&'static str, Sum>,
    total: Sum,
    page_bytes: u64,
    pages: u64,
    /// Pages that each layer touches.
    layer_pages: Vec<u64>,
    files: Vec<FileRow>,
    notices: Vec<String>,
    pin: PinState,
}

#[derive(Debug, Serialize)]
struct Shape {
    model_type: &'static str,
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    rms_norm_eps: f64,
    max_positions: usize,
}

#[derive(Debug, Serialize)]
struct Rope {
    theta: f64,
    theta_source: &'static str,
    rope_type: &'static str,
    rotary_dims: usize,
    /// Length factor; the type "default" has none.
    factor: f64,
    attention_factor: f64,
}

#[derive(Debug, Serialize)]
struct Head {
    tied: bool,
    tie_word_embeddings: bool,
    tensor: String,
}

#[derive(Debug, Serialize)]
struct RoleRow {
    role: String,
    count: usize,
    shape: Vec<u64>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sum {
    tensors: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct FileRow {
    name: String,
    bytes: u64,
    tensors: usize,
}

/// A pin beside the model, compared by names and sizes only.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
enum PinState {
    None,
    Agrees { files: usize, tensors: usize },
    Differs { what: String },
    Unreadable { why: String },
}

/// Runs the command. A refusal with `--json` is also printed as data.
///
/// # Errors
/// The refusal, or a failing output.
pub fn run(args: &InspectArgs, out: &mut dyn Write) -> Result<(), InspectError> {
    let read = |checkpoint: Checkpoint| {
        let stop = StopIds::of(&checkpoint, &[])?;
        Ok((checkpoint, stop))
    };
    let named = Checkpoint::named(args.model.as_deref(), None).and_then(read);
    let (checkpoint, stop) = match named {
        Ok(both) => both,
        Err(error) => {
            if args.json {
                let reason = error.to_string();
                let schema = "samebits.inspect/1";
                let data = serde_json::json!({
                    "schema": schema, "verdict": "refused", "reason": reason,
                });
                writeln!(out, "{data:#}")?;
            }
            return Err(error.into());
        }
    };
    let inspection = Inspection::of(&checkpoint, stop);
    if args.json {
        let data = serde_json::to_string_pretty(&inspection).map_err(io::Error::from)?;
        writeln!(out, "{data}")?;
    } else {
        inspection.print(out)?;
    }
    Ok(())
}

impl Inspection {
    /// Gathers what `checkpoint` is.
    fn of(checkpoint: &Checkpoint, stop: StopIds) -> Self {
        let (config, index) = (checkpoint.config(), checkpoint.index());
        let layers = config.num_hidden_layers;
        let mut dtypes = BTreeMap::<_, Sum>::new();
        let mut total = Sum::default();
        for tensor in index.tensors() {
            dtypes.entry(tensor.dtype.name()).or_default().add(tensor);
            total.add(tensor);
        }
        let pages = |tensors: &mut dyn Iterator<Item = &TensorInfo>| {
            index.extents(tensors).iter().map(|extent| extent.pages).sum()
        };
        let full = |i| config.layer_kinds.is_full(i);
        let layer = |i| {
            let parts = LayerRole::all(full(i));
            parts.map(move |role| checkpoint.tensor(Role::Layer(i, role)))
        };
        let held = |file: usize| index.tensors().iter().filter(|t| t.file == file).count();
        let files = checkpoint.files().iter().enumerate();
        Self {
            schema: "samebits.inspect/1",
            model: checkpoint.dir().display().to_string(),
            verdict: "admitted",
            config: Shape {
                model_type: config.model_type,
                layers,
                hidden: config.hidden_size,
                intermediate: config.intermediate_size,
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim: config.head_dim,
                vocab: config.vocab_size,
                rms_norm_eps: config.rms_norm_eps,
                max_positions: config.max_position_embeddings,
            },
            rope: Rope {
                theta: config.rope_theta,
                theta_source: config.rope_theta_source,
                rope_type: "default",
                rotary_dims: config.rotary_dim,
                factor: 1.0,
                attention_factor: 1.0,
            },
            masks: (0..layers).map(|i| if full(i) { "full" } else { "linear" }).collect(),
            head: Head {
                tied: checkpoint.tied(),
                tie_word_embeddings: config.tie_word_embeddings,
                tensor: checkpoint.tensor(Role::LmHead).name.clone(),
            },
            run_dtype: checkpoint.dtype().name(),
            eos_token_ids: config.eos_token_ids.clone(),
            stop_source: stop.source.name(),
            stop_ids: stop.ids,
            roles: roles(checkpoint),
            dtypes,
            total,
            page_bytes: PAGE_BYTES,
            pages: pages(&mut index.tensors().iter()),
            layer_pages: (0..layers).map(|i| pages(&mut layer(i))).collect(),
            files: files
                .map(|(i, f)| FileRow { name: f.name.clone(), bytes: f.bytes, tensors: held(i) })
                .collect(),
            notices: checkpoint.notices().to_vec(),
            pin: PinState::of(checkpoint),
        }
    }

    /// Prints the sentences.
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let (c, r) = (&self.config, &self.rope);
        writeln!(out, "model     {}: admitted as {}", self.model, c.model_type)?;
        writeln!(
            out,
            "config    {} layers, hidden {}, intermediate {}, {} heads, {} kv heads, head_dim {}, \
             vocab {}, eps {:e}, {} positions",
            c.layers,
            c.hidden,
            c.intermediate,
            c.heads,
            c.kv_heads,
            c.head_dim,
            c.vocab,
            c.rms_norm_eps,
            c.max_positions
        )?;
        writeln!(
            out,
            "rope      theta {} (from {}), type {}, rotary dims {}, factor {}, attention factor {}",
            r.theta, r.theta_source, r.rope_type, r.rotary_dims, r.factor, r.attention_factor
        )?;
        writeln!(
            out,
            "mask      {}",
            mask("full attention", self.masks.iter().map(|mask| *mask == "full"))
        )?;
        let tie = if self.head.tied { "tied" } else { "untied" };
        writeln!(out, "head      {tie}, reads {}", self.head.tensor)?;
        writeln!(out, "dtype     {} run", self.run_dtype)?;
        match (&self.stop_ids[..], self.stop_source) {
            ([], source) => writeln!(out, "stop ids  none in {source}")?,
            (ids, source) => writeln!(out, "stop ids  {ids:?} ({source})")?,
        }
        for row in &self.roles {
            let (shape, role) = (format!("{:?}", row.shape), &row.role);
            writeln!(
                out,
                "tensors   {role:<31} {:>3} x {shape:<16} {} bytes",
                row.count, row.bytes
            )?;
        }
        for (dtype, sum) in &self.dtypes {
            writeln!(out, "stored    {dtype}: {} tensors, {} bytes", sum.tensors, sum.bytes)?;
        }
        let (low, high) = (self.layer_pages.iter().min(), self.layer_pages.iter().max());
        writeln!(
            out,
            "pages     {} of {} bytes in all, {} to {} a layer",
            self.pages,
            self.page_bytes,
            low.unwrap_or(&0),
            high.unwrap_or(&0)
        )?;
        for file in &self.files {
            writeln!(
                out,
                "file      {}: {} bytes, {} tensors",
                file.name, file.bytes, file.tensors
            )?;
        }
        for notice in &self.notices {
            writeln!(out, "notice    {notice}")?;
        }
        self.pin.print(out)
    }
}

impl Sum {
    fn add(&mut self, tensor: &TensorInfo) {
        self.tensors += 1;
        self.bytes += tensor.len;
    }
}

/// One row for each role, the layers taken together.
fn roles(checkpoint: &Checkpoint) -> Vec<RoleRow> {
    let config = checkpoint.config();
    let row = |name: &str, roles: &[Role]| {
        let bytes = roles.iter().map(|&role| checkpoint.tensor(role).len).sum();
        let shape = roles[0].shape(config);
        RoleRow { role: name.to_owned(), count: roles.len(), shape, bytes }
    };
    let mut rows = vec![row(&Role::EmbedTokens.tensor_name(), &[Role::EmbedTokens])];
    for part in LayerRole::every() {
        let has = |i: &usize| part.is_in(config.layer_kinds.is_full(*i));
        let layers = (0..config.num_hidden_layers).filter(has);
        let all: Vec<Role> = layers.map(|i| Role::Layer(i, part)).collect();
        if !all.is_empty() {
            rows.push(row(part.suffix(), &all));
        }
    }
    rows.push(row(&Role::Norm.tensor_name(), &[Role::Norm]));
    if !checkpoint.tied() {
        rows.push(row(&Role::LmHead.tensor_name(), &[Role::LmHead]));
    }
    rows
}

/// Which layers are `attention`, in words.
pub fn mask(attention: &str, full: impl Iterator<Item = bool>) -> String {
    let full: Vec<bool> = full.collect();
    let listed: Vec<String> = (0..full.len()).filter(|i| full[*i]).map(|i| i.to_string()).collect();
    match full.len() - listed.len() {
        0 => format!("{attention} in all {} layers", full.len()),
        linear => format!(
            "{attention} in layers {}, a gated delta net in the other {linear}",
            listed.join(", ")
        ),
    }
}

impl PinState {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::None => writeln!(out, "pin       none ({PIN_FILE} is not there)"),
            Self::Agrees { files, tensors } => writeln!(
                out,
                "pin       {files} files and {tensors} tensors, names and sizes agree (hashes: \
                 `samebits pin --check`)"
            ),
            Self::Differs { what } => writeln!(out, "pin       differs: {what}"),
            Self::Unreadable { why } => writeln!(out, "pin       {why}"),
        }
    }

    fn of(checkpoint: &Checkpoint) -> Self {
        let pin = match Pin::load(&checkpoint.dir().join(PIN_FILE)) {
            Ok(pin) => pin,
            Err(PinError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                return Self::None;
            }
            Err(error) => return Self::Unreadable { why: error.to_string() },
        };
        for file in checkpoint.files() {
            let pinned = pin.files.get(&file.name).map(|pinned| pinned.bytes);
            if pinned != Some(file.bytes) {
                let pinned = pinned.map_or("not pinned".to_owned(), |b| format!("{b} pinned"));
                let what = format!("{} has {} bytes, {pinned}", file.name, file.bytes);
                return Self::Differs { what };
            }
        }
        let tensors = checkpoint.index().tensors();
        if tensors.len() != pin.tensors.len() {
            let what = format!("{} tensors, {} pinned", tensors.len(), pin.tensors.len());
            return Self::Differs { what };
        }
        match tensors.iter().find(|t| !pin.tensors.contains_key(&t.name)) {
            Some(tensor) => Self::Differs { what: format!("{} is not pinned", tensor.name) },
            None => Self::Agrees { files: pin.files.len(), tensors: pin.tensors.len() },
        }
    }
}

//! `samebits sanity`: admit, load, run the reference prompt once, and say what came out.

use std::io::Write;
use std::path::PathBuf;

use super::failure::Failure;
use super::inspect::mask;
use super::settings::{RunArgs, Settings};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::pin::{Pin, Reference};
use crate::cpu::CpuMem;
use crate::model::{Logits, Model, run};
use crate::op::{Backend, Memory};
use crate::tensor::Tensor;

/// Arguments of `sanity`.
#[derive(Clone, Debug, clap::Args)]
pub struct SanityArgs {
    /// Folder of the model; the embedded one unless given.
    pub model: Option<PathBuf>,
    /// A pin whose reference answer must come out; a mismatch exits 1.
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
}

const PROMPT: u64 = 24;

/// The reference prompt: 24 ids spread over the vocabulary by a fixed rule.
pub fn reference_prompt(vocab: usize) -> Vec<u32> {
    (1..=PROMPT).map(|i| (i * i * 7919 % vocab as u64) as u32).collect()
}

/// The reference answer of a checkpoint, in the default order.
///
/// # Errors
/// A checkpoint that cannot be read or does not fit into memory.
pub fn reference(checkpoint: &Checkpoint) -> Result<Reference, Failure> {
    let settings = settings_for(checkpoint.config().vocab_size)?;
    let (mut cpu, model) = settings.load(checkpoint)?;
    let logits =
        settings.pool.install(|| run(&mut cpu, &model, &settings.prompts, &settings.plan))?;
    Ok(answer(&settings, &logits))
}

fn settings_for(vocab: usize) -> Result<Settings, Failure> {
    RunArgs::default().with_prompts(vec![reference_prompt(vocab)])
}

fn answer(settings: &Settings, logits: &Logits) -> Reference {
    Reference {
        ids: settings.prompts[0].clone(),
        argmax: logits.argmax.clone(),
        logits_sha256: logits.logits.sha256(),
    }
}

/// Runs the command.
///
/// # Errors
/// A refused checkpoint; an answer that holds a NaN or is not the expected one.
pub fn command(args: &SanityArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let expected = args.expect.as_ref().map(|file| Pin::load(file)).transpose()?;
    let checkpoint = Checkpoint::named(args.model.as_deref(), None)?;
    let config = checkpoint.config();
    let settings = settings_for(config.vocab_size)?;
    let (mut cpu, model) = settings.load(&checkpoint)?;
    let odd = non_finite(cpu.mem(), &model, &checkpoint)?;
    let logits =
        settings.pool.install(|| run(&mut cpu, &model, &settings.prompts, &settings.plan))?;
    let got = answer(&settings, &logits);
    let mut text = format!(
        "model     {}\nweights   {} tensors, {} bytes read, {}, head {}\nmask      {}\n",
        checkpoint.dir().display(),
        checkpoint.index().tensors().len(),
        model.bytes_read,
        model.dtype.name(),
        if checkpoint.tied() { "tied to the embedding" } else { "separate" },
        mask(
            "full causal attention",
            (0..config.num_hidden_layers).map(|i| config.layer_kinds.is_full(i))
        ),
    );
    for notice in checkpoint.notices().iter().chain(&odd) {
        text += &format!("notice    {notice}\n");
    }
    text += &format!("prompt    {}\nargmax    {}\n", list(&got.ids), list(&got.argmax));
    let (loss, uniform) = (loss(&logits, &got.ids), (config.vocab_size as f64).ln());
    text += &format!("loss      {loss:.4} nats a token (ln vocab is {uniform:.4})\n");
    if let Some(notice) = nothing_said(&logits, loss, uniform) {
        text += &format!("notice    {notice}\n");
    }
    text += &format!("logits    sha256 {}\n", got.logits_sha256);
    out.write_all(text.as_bytes()).map_err(|e| Failure::io("stdout", e))?;
    if let Some(row) = got.argmax.iter().position(|id| *id == u32::MAX) {
        return Err(Failure::Mismatch(format!("the logits of row {row} hold a NaN")));
    }
    expected.map_or(Ok(()), |pin| compare(&pin, &got))
}

/// Compares with the reference of a pin.
fn compare(pin: &Pin, got: &Reference) -> Result<(), Failure> {
    let Some(want) = &pin.reference else {
        return Err(Failure::Usage("the pin holds no reference answer".into()));
    };
    if want.ids != got.ids {
        let text = "the pin's reference prompt is not this model's: it was made for another one";
        return Err(Failure::Mismatch(text.into()));
    }
    if let Some(row) = (0..got.argmax.len()).find(|i| want.argmax.get(*i) != Some(&got.argmax[*i]))
    {
        let want = want.argmax.get(row).map_or("nothing".into(), u32::to_string);
        let text = format!("argmax of row {row} is {}, expected {want}", got.argmax[row]);
        return Err(Failure::Mismatch(text));
    }
    if want.logits_sha256 != got.logits_sha256 {
        let (want, got) = (&want.logits_sha256, &got.logits_sha256);
        let text = format!("logits differ: sha256 {got}, expected {want}; every argmax agrees");
        return Err(Failure::Mismatch(text));
    }
    Ok(())
}

/// One sentence for each weight that holds a NaN or an infinity.
fn non_finite(
    mem: &mut dyn Memory<CpuMem>,
    model: &Model<CpuMem>,
    checkpoint: &Checkpoint,
) -> Result<Vec<String>, Failure> {
    let mut notices = Vec::new();
    model.for_each_weight(|role, weight| {
        let (rows, _) = mem.weight_shape(weight);
        let finite = |t: Tensor| (0..t.len()).all(|i| t.get(i).is_finite());
        let count = (0..rows).filter(|row| !finite(mem.read_weight(weight, *row, 1))).count();
        if count > 0 {
            let name = &checkpoint.tensor(role).name;
            notices.push(format!("{name}: {count} of {rows} rows hold a NaN or an infinity"));
        }
    })?;
    Ok(notices)
}

/// Mean negative log-likelihood of each next id of the prompt.
fn loss(logits: &Logits, ids: &[u32]) -> f64 {
    let vocab = logits.shape[2];
    let rows = ids.len() - 1;
    let nll = |row: usize| {
        let at = |i: usize| f64::from(logits.logits.get(row * vocab + i));
        let max = (0..vocab).map(at).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..vocab).map(|i| (at(i) - max).exp()).sum();
        max + sum.ln() - at(ids[row + 1] as usize)
    };
    (0..rows).map(nll).sum::<f64>() / rows as f64
}

/// What a loss of ln(vocab) or rows of equal logits mean: the model answers nothing.
fn nothing_said(logits: &Logits, loss: f64, uniform: f64) -> Option<String> {
    let [_, rows, vocab] = logits.shape;
    let flat = |row: &usize| {
        let first = logits.logits.get(row * vocab);
        (1..vocab).all(|i| logits.logits.get(row * vocab + i) == first)
    };
    match (0..rows).filter(flat).count() {
        0 if loss.to_bits() == uniform.to_bits() => {
            Some("the loss is ln(vocab) to all digits: the logits carry nothing".into())
        }
        0 => None,
        all if all == rows => Some(
            "all logits of every row are equal: the loss is ln(vocab) to all digits and the \
             logits carry nothing"
                .into(),
        ),
        some => Some(format!("all logits of {some} of {rows} rows are equal: they carry nothing")),
    }
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

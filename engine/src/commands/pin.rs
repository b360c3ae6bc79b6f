//! `samebits pin`: writes down what a checkpoint's bytes are, or compares them with a pin.
//!
//! Here: the flow and the sentences. Absent: the engine; the reference answer that a new pin holds
//! comes from the caller. The invariant: `--check` names every difference, and compares the files
//! even of a folder that is not admitted any more.

use std::io::{self, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};

use crate::checkpoint::pin::{Difference, Pin, PinError, Reference};
use crate::checkpoint::{Checkpoint, CheckpointError, EMBEDDED, hashing};

/// Arguments of `pin`.
#[derive(Debug, clap::Args)]
pub struct PinArgs {
    /// Folder of the model, or the name of an embedded one.
    #[arg(default_value = EMBEDDED)]
    pub model: PathBuf,
    /// Write the pin here; otherwise it goes to stdout.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    pub out: Option<PathBuf>,
    /// Compare the model with this pin; exit 1 if anything differs.
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
}

/// How `pin` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A pin was made.
    Made,
    /// The model is what the pin says.
    Same,
    /// It is not.
    Differs,
}

impl Outcome {
    /// Exit code of the command.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Made | Self::Same => 0,
            Self::Differs => 1,
        }
    }
}

/// Why `pin` stops.
#[derive(Debug, thiserror::Error)]
pub enum PinCommandError<E: std::error::Error> {
    /// There is no pin.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The reference answer could not be computed.
    #[error("reference: {0}")]
    Reference(E),
    /// The output cannot be written.
    #[error("output: {0}")]
    Output(io::Error),
}

/// Runs the command; `reference` is asked once, and only when a pin is made.
///
/// # Errors
/// A refused checkpoint, an unreadable pin, a failing reference or output.
pub fn run<E: std::error::Error>(
    args: &PinArgs,
    out: &mut dyn Write,
    reference: impl FnOnce(&Checkpoint) -> Result<Reference, E>,
) -> Result<Outcome, PinCommandError<E>> {
    if let Some(file) = &args.check {
        let pinned = Pin::load(file)?;
        return check(args, &pinned, out);
    }
    let checkpoint = Checkpoint::find(&args.model, None).map_err(PinError::from)?;
    let skip: Vec<_> = args.out.as_deref().into_iter().collect();
    let bar = bar(hashing::total_bytes(&args.model, &skip).map_err(PinError::from)?);
    let mut pin = Pin::take(&checkpoint, &skip, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    pin.reference = Some(reference(&checkpoint).map_err(PinCommandError::Reference)?);
    match &args.out {
        Some(file) => pin.write(file)?,
        None => out.write_all(pin.to_json().as_bytes()).map_err(PinCommandError::Output)?,
    }
    Ok(Outcome::Made)
}

/// Prints every difference; a refusal counts only where nothing differs.
fn check<E: std::error::Error>(
    args: &PinArgs,
    pinned: &Pin,
    out: &mut dyn Write,
) -> Result<Outcome, PinCommandError<E>> {
    let skip: Vec<_> = args.check.as_deref().into_iter().collect();
    let bar = bar(hashing::total_bytes(&args.model, &skip).map_err(PinError::from)?);
    let hashes = hashing::hash_folder(&args.model, &skip, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let differences = pinned.differences(&hashes.map_err(PinError::from)?);
    for difference in &differences {
        writeln!(out, "{}", sentence(difference)).map_err(PinCommandError::Output)?;
    }
    let refused: Option<CheckpointError> = Checkpoint::find(&args.model, None).err();
    match refused {
        Some(error) if differences.is_empty() => Err(PinError::from(error).into()),
        Some(error) => {
            writeln!(out, "no longer admitted: {error}").map_err(PinCommandError::Output)?;
            Ok(Outcome::Differs)
        }
        None if !differences.is_empty() => Ok(Outcome::Differs),
        None => {
            let (files, tensors) = (pinned.files.len(), pinned.tensors.len());
            writeln!(out, "same: {files} files, {tensors} tensors")
                .map_err(PinCommandError::Output)?;
            Ok(Outcome::Same)
        }
    }
}

/// One difference in words.
fn sentence(difference: &Difference) -> String {
    match difference {
        Difference::FileChanged { name, want, got } if want.bytes != got.bytes => {
            format!("file {name}: changed, {} bytes, pinned {}", got.bytes, want.bytes)
        }
        Difference::FileChanged { name, want, got } => {
            format!("file {name}: changed, sha256 {}, pinned {}", got.sha256, want.sha256)
        }
        Difference::FileMissing(name) => format!("file {name}: missing"),
        Difference::FileAdded(name) => format!("file {name}: added"),
        Difference::TensorChanged { name, want, got }
            if (&want.dtype, &want.shape) != (&got.dtype, &got.shape) =>
        {
            format!(
                "tensor {name}: changed, {} {:?}, pinned {} {:?}",
                got.dtype, got.shape, want.dtype, want.shape
            )
        }
        Difference::TensorChanged { name, want, got } => {
            format!("tensor {name}: changed, sha256 {}, pinned {}", got.sha256, want.sha256)
        }
        Difference::TensorMissing(name) => format!("tensor {name}: missing"),
        Difference::TensorAdded(name) => format!("tensor {name}: added"),
    }
}

/// Progress on stderr, drawn only if that is a terminal.
fn bar(bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {eta}");
    ProgressBar::new(bytes).with_style(style.expect("the template is well formed"))
}

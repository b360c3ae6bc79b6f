//! `gates localize`: where two traces part.
//!
//! Exit codes: 1 where they part, 2 where they do not or cannot be compared.

use std::io::Write;
use std::path::{Path, PathBuf};

use samebits_fixtures::golden;

use super::Failure;
use crate::checks::CheckError;
use crate::localize::{localize, sentences, steady};
use crate::sites::{Bits, Sites};

/// Arguments of `localize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tensors of the reference's run, named for their sites, in safetensors.
    want: PathBuf,
    /// Tensors of the run in question.
    got: PathBuf,
    /// A second run of the one in question: refused as flaky where the two disagree.
    #[arg(long, value_name = "FILE")]
    again: Option<PathBuf>,
}

fn read(path: &Path) -> Result<Sites, Failure> {
    let tensors = golden::tensors(path).map_err(CheckError::from)?;
    let named = |name: &str| if name == "logits" { "lm_head" } else { name }.to_owned();
    let bits =
        |(name, tensor): (&String, &golden::Tensor)| Some((named(name), Bits::of_golden(tensor)?));
    Ok(tensors.iter().filter_map(bits).collect())
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let (want, got) = (read(&args.want)?, read(&args.got)?);
    if let Some(again) = &args.again {
        steady(&got, &read(again)?)?;
    }
    let found = localize(&want, &got)?;
    out.write_all(sentences(&found).as_bytes())?;
    Ok(1)
}

//! `gates sites`: the names and shapes of all sites of a model's run.

use std::io::Write;
use std::path::PathBuf;

use samebits_oracle::Model;

use super::Failure;
use crate::checks::CheckError;
use crate::sites::{Dims, LAYER_OPS};

/// Arguments of `sites`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the model, in Hugging Face layout.
    model: PathBuf,
    /// Rows of the run.
    #[arg(long, default_value_t = 1)]
    rows: usize,
}

/// Runs the command: one site a line, in the order of execution.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let model = Model::load(&args.model).map_err(CheckError::from)?;
    let (config, rows) = (model.config(), args.rows);
    let dims = Dims::of(config);
    writeln!(out, "embed_tokens {:?}", dims.shape("embed_tokens", rows, rows))?;
    for layer in 0..config.layers {
        let linear_layers = usize::from(config.is_linear(layer));
        let own = Dims { layers: 1, linear_layers, ..dims };
        for op in LAYER_OPS.iter().filter(|op| own.layers_with(op) > 0) {
            writeln!(out, "layers.{layer}.{op} {:?}", own.shape(op, rows, rows))?;
        }
    }
    writeln!(out, "norm {:?}", dims.shape("norm", rows, rows))?;
    writeln!(out, "lm_head {:?}", dims.shape("lm_head", rows, rows))?;
    Ok(0)
}

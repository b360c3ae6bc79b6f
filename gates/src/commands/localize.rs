//! `gates localize`: where two traces part, or what makes a gate red.
//!
//! Exit codes: 1 where something departs, 2 where nothing does or it cannot be told.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use samebits_fixtures::golden;

use super::{Failure, parse_ids};
use crate::checks::CheckError;
use crate::context::{Context, data, family};
use crate::limits::Limits;
use crate::localize::{forced, gate, localize, sentences, steady};
use crate::manifest::{Gate, Plant};
use crate::sites::{Bits, Sites};

/// Arguments of `localize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tensors of the reference's run and of the run in question, named for their sites, in
    /// safetensors.
    #[arg(num_args = 2, value_names = ["WANT", "GOT"], required_unless_present = "gate")]
    traces: Vec<PathBuf>,
    /// A second run of the one in question: refused as flaky where the two disagree.
    #[arg(long, value_name = "FILE")]
    again: Option<PathBuf>,
    /// Folder of the model: judge every op on the trace's own inputs, too.
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// Ids of the run, to judge the embedding as well.
    #[arg(long, value_name = "IDS", requires = "model")]
    ids: Option<String>,
    /// Start from this gate, which must be red.
    #[arg(long, value_name = "ID", conflicts_with_all = ["traces", "again", "ids"])]
    gate: Option<String>,
    /// Plant this defect of the catalogue first.
    #[arg(long, value_name = "DEFECT", requires = "gate")]
    plant: Option<String>,
    /// Seed of the gate's inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn read(path: &Path) -> Result<Sites, Failure> {
    let tensors = golden::tensors(path).map_err(CheckError::from)?;
    let named = |name: &str| if name == "logits" { "lm_head" } else { name }.to_owned();
    let bits =
        |(name, tensor): (&String, &golden::Tensor)| Some((named(name), Bits::of_golden(tensor)?));
    Ok(tensors.iter().filter_map(bits).collect::<BTreeMap<_, _>>())
}

fn from_gate(args: &Args, id: &str, out: &mut dyn Write) -> Result<u8, Failure> {
    let of = |path: &PathBuf| Ok::<_, Failure>((path.clone(), family(path)?));
    let model = args.model.as_ref().map(of).transpose()?;
    let ctx = Context::new(args.seed, model, std::env::current_exe()?)?;
    let gates = Gate::all(&data("manifest"))?;
    let Some(gate) = gates.iter().find(|gate| gate.id == id) else {
        return Err(Failure::Usage(format!("no gate is called {id}: see gates list")));
    };
    let plant = args.plant.clone().map(Plant::Defect);
    out.write_all(gate::follow(&ctx, gate, plant.as_ref())?.as_bytes())?;
    Ok(1)
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    if let Some(id) = &args.gate {
        return from_gate(args, id, out);
    }
    let [want, got] = args.traces.as_slice() else {
        return Err(Failure::Usage("two traces are compared: WANT and GOT".to_owned()));
    };
    let (want, got) = (read(want)?, read(got)?);
    if let Some(again) = &args.again {
        steady(&got, &read(again)?)?;
    }
    let found = localize(&want, &got)?;
    out.write_all(sentences(&found).as_bytes())?;
    if let Some(folder) = &args.model {
        let model = samebits_oracle::Model::load(folder).map_err(CheckError::from)?;
        let ids = args.ids.as_deref().map(parse_ids).transpose()?;
        let limits = Limits::load(&data("limits.json"))?;
        let judge = |sites| forced::judge(sites, &model, ids.as_deref(), &limits);
        let (want, got) = (judge(&want)?, judge(&got)?);
        out.write_all(forced::sentences(&want, &got, &found.site).as_bytes())?;
    }
    Ok(1)
}

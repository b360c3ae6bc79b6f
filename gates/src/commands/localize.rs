//! `gates localize`: where two traces part, or what makes a gate red.
//!
//! Exit codes: 0 where nothing departs, 1 where something does, 2 where it cannot be told.

use std::io::Write;
use std::path::PathBuf;

use samebits_oracle::Model;

use super::{Failure, parse_ids};
use crate::checks::CheckError;
use crate::compare::in_order;
use crate::context::{Context, data, replacement};
use crate::limits::Limits;
use crate::localize::read::{Trace, read};
use crate::localize::spans::{self, logits};
use crate::localize::{LocalizeError, forced, gate, localize, sentences, steady};
use crate::manifest::{Gate, Plant};
use crate::sites::Sites;

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
    /// Ids of the run, once for each sequence: judges the embedding and the logits, too.
    #[arg(long, value_name = "IDS", requires = "model")]
    ids: Vec<String>,
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

fn from_gate(args: &Args, id: &str, out: &mut dyn Write) -> Result<u8, Failure> {
    let ctx = Context::new(args.seed, replacement(args.model.as_ref())?, std::env::current_exe()?)?;
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
    let model = args.model.as_ref().map(|folder| Model::load(folder)).transpose();
    let model = model.map_err(CheckError::from)?;
    let open = |path| read(path, model.as_ref().map(Model::config));
    let (want, got) = (open(want)?, open(got)?);
    if let Some(again) = &args.again {
        for (one, again) in got.sequences.iter().zip(&open(again)?.sequences) {
            steady(one, again)?;
        }
    }
    for (side, trace) in [("want", &want), ("got", &got)] {
        out.write_all(said(side, trace).as_bytes())?;
    }
    let judge = match &model {
        None => None,
        Some(model) => {
            let ids: Vec<_> =
                args.ids.iter().map(|ids| parse_ids(ids)).collect::<Result<_, _>>()?;
            let (n, all) = (ids.len(), got.sequences.len());
            if n > 0 && n != all {
                return Err(Failure::Usage(format!("--ids {n} times for {all} sequences")));
            }
            Some(Judge { model, ids, limits: Limits::load(&data("limits.json"))? })
        }
    };
    sequences(&want, &got, judge.as_ref(), out)
}

/// What was converted on reading, and what was not understood.
fn said(side: &str, trace: &Trace) -> String {
    let mut text = String::new();
    for line in &trace.said {
        text += &format!("{side}: {line}\n");
    }
    for (name, why) in &trace.strange {
        text += &format!("{side}: not compared: {name}: {why}\n");
    }
    text
}

/// What judges a run.
struct Judge<'a> {
    model: &'a Model,
    ids: Vec<Vec<u32>>, // of each sequence, or none
    limits: Limits,
}

impl Judge<'_> {
    /// What is to be said of a sequence whose first difference is at `first`.
    fn say(&self, i: usize, want: &Sites, got: &Sites, first: &str) -> Result<String, Failure> {
        let ids = self.ids.get(i).map(Vec::as_slice);
        let of = |sites| spans::judge(sites, self.model, ids, &self.limits);
        let (want, verdict) = (of(want)?, of(got)?);
        let mut text = forced::sentences(&want, &verdict, first);
        text += &match (got.get("lm_head"), ids) {
            (None, _) => String::new(),
            (Some(_), None) => "not judged: the logits as a whole: no --ids\n".to_owned(),
            (Some(logits), Some(ids)) => {
                let name = logits::limit_name(logits.dtype);
                let limit = self.limits.get(name)?.value;
                let judged = logits::judge(logits, self.model, ids, limit);
                format!("{}\n", judged.map_err(CheckError::from)?)
            }
        };
        Ok(text)
    }
}

/// Compares and judges every sequence; the exit code.
fn sequences(
    want: &Trace,
    got: &Trace,
    judge: Option<&Judge<'_>>,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let (a, b) = (want.sequences.len(), got.sequences.len());
    if a != b {
        return Err(Failure::Usage(format!("{a} sequences in one trace, {b} in the other")));
    }
    let mut code = 0;
    for (i, (want, got)) in want.sequences.iter().zip(&got.sequences).enumerate() {
        if a > 1 {
            writeln!(out, "sequence {i}:")?;
        }
        out.write_all(unmatched(want, got).as_bytes())?;
        let mut found = match localize(want, got) {
            Err(equal @ LocalizeError::Equal(_)) => {
                writeln!(out, "{equal}")?;
                continue;
            }
            found => found?,
        };
        found.spot.batch = i;
        code = 1;
        out.write_all(sentences(&found).as_bytes())?;
        if let Some(judge) = judge {
            out.write_all(judge.say(i, want, got, &found.site)?.as_bytes())?;
        }
    }
    Ok(code)
}

/// Sites that only one of two traces holds.
fn unmatched(want: &Sites, got: &Sites) -> String {
    let only = |side: &str, a: &Sites, b: &Sites| {
        let names: Vec<&str> =
            in_order(a).into_iter().filter(|n| !b.contains_key(*n)).map(String::as_str).collect();
        if names.is_empty() {
            return String::new();
        }
        format!("only in {side}: {}\n", names.join(", "))
    };
    only("want", want, got) + &only("got", got, want)
}

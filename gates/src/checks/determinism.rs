//! Fresh processes that must agree in every weight, activation and argmax.
//!
//! The invariant: a process that crashed or answered something else than hashes is an error, never
//! a red that a planted fault could hide behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Parser;
use samebits::commands::generate::{self, GenerateArgs};
use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, Kernels};
use samebits::op::Backend;
use samebits_fixtures::prompt_ids;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, in_order};
use crate::context::Context;
use crate::engine::{Setup, rotary_sites, trace};
use crate::manifest::{Plant, Side, Source};
use crate::sites::{Dims, is_state};

/// What one process answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// SHA-256 of every weight, by role.
    pub weights: BTreeMap<String, String>,
    /// SHA-256 of every site, rotary tables and what the last forward left included.
    pub sites: BTreeMap<String, String>,
    /// Argmax of every row.
    pub argmax: Vec<u32>,
    /// Ids that `generate --json` prints for the prompt: greedy ones, then sampled ones.
    pub generated: Vec<u32>,
    /// Ops at which a planted fault acted.
    pub hits: u64,
}

/// What one process is asked.
pub struct Question<'a> {
    /// The checkpoint.
    pub model: &'a Path,
    /// The run's dtype.
    pub dtype: Dtype,
    /// The prompt.
    pub ids: &'a [u32],
    /// A planted fault.
    pub plant: Option<&'a Plant>,
}

/// Answers in this process.
pub fn answer(ctx: &Context, question: &Question<'_>) -> Result<Answer, CheckError> {
    let model = ctx.load(question.model, question.dtype)?;
    let mut cpu = Cpu::new(Kernels::best(), Order::Invariant);
    let mut weights = BTreeMap::new();
    model.for_each_weight(|role, weight| {
        let rows = cpu.mem().weight_shape(weight).0;
        let hash = cpu.mem().read_weight(weight, 0, rows).sha256();
        weights.insert(format!("{role:?}"), hash);
    })?;
    let setup = Setup::new(Order::Invariant, "process");
    let ids = question.ids.to_vec();
    let len = ids.len();
    let traces = trace(&model, &setup, &[ids], question.plant)?;
    let mut sites = traces.sequences[0].clone();
    sites.extend(rotary_sites(&model, &setup, len));
    sites.extend(traces.states[0].clone());
    let sites = sites.into_iter().map(|(name, bits)| (name, bits.sha256())).collect();
    let mut ids = generated(question, None)?;
    ids.extend(generated(question, Some(TEMPERATURE))?);
    Ok(Answer { weights, sites, argmax: traces.argmax, generated: ids, hits: traces.hits })
}

/// New ids of each of the two generations, and the temperature of the second.
const GENERATED: usize = 16;
const TEMPERATURE: f32 = 1.5;

/// The words of `generate`, parsed as the engine's binary parses them.
#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: GenerateArgs,
}

/// What `generate --json` prints, as far as a process reads it.
#[derive(Deserialize)]
struct Generation {
    sequences: Vec<Generated>,
}

#[derive(Deserialize)]
struct Generated {
    ids: Vec<u32>,
}

/// The ids that the engine's own command prints.
fn generated(question: &Question<'_>, temperature: Option<f32>) -> Result<Vec<u32>, CheckError> {
    let ids: Vec<String> = question.ids.iter().map(u32::to_string).collect();
    let mut words = vec!["generate".into(), question.model.as_os_str().to_os_string()];
    // No id ends a sequence: one outside the vocabulary is never generated.
    for (option, value) in [
        ("--ids", ids.join(",")),
        ("--dtype", question.dtype.name().to_owned()),
        ("--max-new", GENERATED.to_string()),
        ("--stop", u32::MAX.to_string()),
    ] {
        words.extend([option.into(), value.into()]);
    }
    if let Some(temperature) = temperature {
        words.extend(["--temperature".into(), temperature.to_string().into()]);
    }
    words.push("--json".into());
    let args = CommandLine::parse_from(words).args;
    let mut out = Vec::new();
    generate::command(&args, &mut out)?;
    let said: Generation =
        serde_json::from_slice(&out).map_err(CheckError::json(question.model))?;
    Ok(said.sequences.into_iter().flat_map(|sequence| sequence.ids).collect())
}

/// Asks a fresh process.
fn ask(ctx: &Context, index: usize, question: &Question<'_>) -> Result<Answer, CheckError> {
    ask_by(ctx, index, question, Command::new(&ctx.child))
}

/// Asks a process that `command` starts.
pub fn ask_by(
    ctx: &Context,
    index: usize,
    question: &Question<'_>,
    mut command: Command,
) -> Result<Answer, CheckError> {
    let ids: Vec<String> = question.ids.iter().map(u32::to_string).collect();
    command.arg("answer").arg(question.model).args(["--dtype", question.dtype.name()]);
    command.args(["--ids", &ids.join(",")]).stdin(Stdio::null());
    if let Some(plant) = question.plant {
        command.args(["--defect", plant.id()]);
    }
    output(ctx, &mut command, index)
}

/// What a process answers in JSON.
pub fn output<T: DeserializeOwned>(
    ctx: &Context,
    command: &mut Command,
    index: usize,
) -> Result<T, CheckError> {
    let output = command.output().map_err(CheckError::io(&ctx.child))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.lines().last().unwrap_or_default().to_owned();
        return Err(CheckError::Child { index, status: output.status.to_string(), stderr });
    }
    serde_json::from_slice(&output.stdout).map_err(CheckError::json(&ctx.child))
}

/// Which processes.
pub struct Case<'a> {
    /// The checkpoint.
    pub source: &'a Source,
    /// The run's dtype.
    pub dtype: Dtype,
    /// Ids of the prompt.
    pub prompt: usize,
    /// Processes.
    pub processes: usize,
    /// Which processes carry a planted fault; the variant is the last one.
    pub side: Side,
}

/// Compares the answers of all processes with that of the first.
pub fn prepare<'c>(ctx: &'c Context, case: &Case<'_>) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(case.source)?;
    let dims = Dims::of(ctx.reference(folder.path())?.config());
    let (dtype, processes, side) = (case.dtype, case.processes, case.side);
    let ids = prompt_ids(ctx.seed, dims.vocab, case.prompt);
    let expected = (processes as u64 - 1) * due(&dims, ids.len());
    let mut clean: Vec<Answer> = Vec::new();
    Ok(Box::new(move |plant| {
        let mut answers = Vec::new();
        for index in 0..processes {
            let planted = side == Side::Both || index + 1 == processes;
            // Processes beside the one that carries the fault are those of the clean run.
            if let (Some(known), Some(_), false) = (clean.get(index), plant, planted) {
                answers.push(known.clone());
                continue;
            }
            let plant = plant.filter(|_| planted);
            let question = Question { model: folder.path(), dtype, ids: &ids, plant };
            answers.push(ask(ctx, index, &question)?);
        }
        let (first, rest) = answers.split_first().expect("a determinism gate has processes");
        let mut found = Comparison::default();
        for (i, other) in rest.iter().enumerate() {
            found.then(compare(first, other).labelled(&format!("process {}:", i + 1)));
        }
        let hits = answers.iter().map(|answer| answer.hits).sum();
        let outcome = Outcome::bitwise(found, expected).with_hits(hits);
        if plant.is_none() {
            clean = answers;
        }
        Ok(Outcome { statistic: "hashes_differing", ..outcome })
    }))
}

/// Hashes and ids of one answer: of weights, sites, rotary tables and rows, and the new ids.
pub fn due(dims: &Dims, rows: usize) -> u64 {
    let sites = dims.sites() + dims.states() + 2;
    dims.weight_count() + sites + (rows + 2 * GENERATED) as u64
}

/// Compares the answers of two processes.
pub fn compare(first: &Answer, other: &Answer) -> Comparison {
    let mut found = Comparison::default();
    for (role, hash) in &first.weights {
        let text = format!("weight {role}");
        found.digest("weights", None, other.weights.get(role) == Some(hash), &text);
    }
    let states = first.sites.keys().filter(|site| is_state(site));
    for site in in_order(&first.sites).into_iter().chain(states) {
        let same = other.sites.get(site) == first.sites.get(site);
        found.digest(site, None, same, "hash of the whole site");
    }
    for (row, id) in first.argmax.iter().enumerate() {
        let got = other.argmax.get(row);
        found.digest("argmax", Some(row), got == Some(id), &format!("want id {id}, got {got:?}"));
    }
    for (step, id) in first.generated.iter().enumerate() {
        let got = other.generated.get(step);
        let text = format!("generated: want id {id}, got {got:?}");
        found.digest("generated", Some(step), got == Some(id), &text);
    }
    found
}

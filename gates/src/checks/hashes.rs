//! Runs against SHA-256 of what Transformers computed, site by site and row by row of logits.
//!
//! A hash tells no element; the report names the first site, layer and, of logits, the position.
//! The invariant: how many hashes must agree follows from the shape and the length of the prompt.

pub mod injected;
pub mod logits;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use samebits::contract::Order;
use samebits::cpu::CpuMem;
use samebits::model::Model;
use samebits_fixtures::Spec;
use samebits_fixtures::golden::{self, HashGolden, HashRun};

use super::{CheckError, Measure, Outcome, bitwise};
use crate::compare::{Comparison, in_order};
use crate::context::Context;
use crate::engine::{Setup, Traces, dtype_of, rotary_sites, trace};
use crate::sites::{Dims, Sites};

/// Compares one run of a file of hashes, in the given order.
pub fn recorded<'c>(
    ctx: &'c Context,
    file: &str,
    order: Order,
    prompt: usize,
    cached: bool,
) -> Result<Measure<'c>, CheckError> {
    let mut golden = golden::hashes(file)?;
    let at = golden.runs.iter().position(|run| run.prompt == prompt);
    let at = at.ok_or_else(|| CheckError::missing(format!("a prompt of {prompt}"), file))?;
    let mut run = golden.runs.swap_remove(at);
    golden.runs.clear();
    let sites = Dims::of_spec(&golden.spec).sites();
    let mut expected = sites + 2 + 2 * prompt as u64;
    if cached {
        expected += run.decode.len() as u64 * (sites + 2);
    } else {
        run.decode.clear();
    }
    measure(ctx, golden, vec![run], order, expected)
}

/// Compares all runs of one shape of the file of odd shapes: logits and argmax only.
pub fn stranger<'c>(ctx: &'c Context, name: &str) -> Result<Measure<'c>, CheckError> {
    let found = golden::strangers()?.into_iter().find(|golden| golden.spec.name == name);
    let mut golden = found.ok_or_else(|| CheckError::missing(name, "strangers.json"))?;
    let runs = std::mem::take(&mut golden.runs);
    let rows = |run: &HashRun| 2 * run.ids.len() as u64;
    let expected = runs.iter().map(rows).sum();
    measure(ctx, golden, runs, Order::Transformers, expected)
}

fn measure<'c>(
    ctx: &'c Context,
    golden: HashGolden,
    runs: Vec<HashRun>,
    order: Order,
    expected: u64,
) -> Result<Measure<'c>, CheckError> {
    let model = model_of(ctx, &golden)?;
    let rotary = golden.rotary.as_deref().map(bitwise::rotary).transpose()?;
    Ok(Box::new(move |plant| {
        let (mut found, mut paths, mut hits) = (Comparison::default(), Vec::new(), 0);
        for run in &runs {
            let mut setup = Setup::new(order, &format!("prompt={}", run.prompt));
            setup.rotary.clone_from(&rotary);
            let len = run.prompt + run.decode.len();
            let setup = if len > run.prompt { setup.decode_from(run.prompt, len) } else { setup };
            let ids = run.ids[..len].to_vec();
            let mut traces = trace(&model, &setup, &[ids], plant)?;
            let tables = rotary_sites(&model, &setup, len);
            traces.sequences[0].extend(tables);
            found.then(compare(run, &traces).labelled(&format!("prompt of {}:", run.prompt)));
            hits += traces.hits;
            paths.push(traces.proof);
        }
        let mut outcome = Outcome::bitwise(found, expected).with_paths(paths).with_hits(hits);
        outcome.statistic = "hashes_differing";
        Ok(outcome)
    }))
}

/// The checkpoint of a golden, as its maker had it.
fn model_of<R>(
    ctx: &Context,
    golden: &HashGolden<Spec, R>,
) -> Result<Arc<Model<CpuMem>>, CheckError> {
    let folder = ctx.synthetic(&golden.spec, golden.seed)?;
    for (file, want) in &golden.checkpoint {
        let path = folder.path().join(file);
        let got = samebits_reports::hash_file(&path);
        if got.as_ref().ok() != Some(want) {
            return Err(CheckError::missing(format!("{file} of sha256 {want}"), path.display()));
        }
    }
    let dtype = dtype_of(&golden.run_dtype)
        .ok_or_else(|| CheckError::missing(&golden.run_dtype, "the dtypes of a run"))?;
    ctx.load(folder.path(), dtype)
}

fn compare(run: &HashRun, traces: &Traces) -> Comparison {
    let (got, mut found) = (&traces.sequences[0], Comparison::default());
    forward(&mut found, &run.sites, got, 0..run.prompt);
    for (row, hash) in run.logits_rows.iter().enumerate() {
        logits(&mut found, got, row, hash);
        argmax(&mut found, traces, row, run.argmax[row]);
    }
    for (i, step) in run.decode.iter().enumerate() {
        let row = run.prompt + i;
        let mut one = Comparison::default();
        forward(&mut one, &step.sites, got, row..row + 1);
        logits(&mut one, got, row, &step.logits);
        argmax(&mut one, traces, row, step.argmax);
        found.then(one.labelled(&format!("cached step {i}:")));
    }
    found
}

fn forward(
    found: &mut Comparison,
    want: &BTreeMap<String, String>,
    got: &Sites,
    rows: Range<usize>,
) {
    for site in in_order(want) {
        let hash = got.get(site).map(|bits| bits.rows(site, rows.clone(), rows.end).sha256());
        let same = hash.as_ref() == Some(&want[site]);
        let text = format!("hash {} of rows {rows:?}", hash.as_deref().unwrap_or("absent"));
        let position = (rows.len() == 1).then_some(rows.start);
        found.digest(site, position, same, &text);
    }
}

fn logits(found: &mut Comparison, got: &Sites, row: usize, want: &str) {
    let hash = got["lm_head"].rows("lm_head", row..row + 1, row + 1).sha256();
    found.digest("lm_head", Some(row), hash == want, &format!("hash {hash} of the row"));
}

fn argmax(found: &mut Comparison, traces: &Traces, row: usize, want: u32) {
    let got = traces.argmax[row];
    found.digest("argmax", Some(row), got == want, &format!("want id {want}, got id {got}"));
}

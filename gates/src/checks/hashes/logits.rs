//! Logits of whole forwards against SHA-256 of what Transformers computed.
//!
//! Absent: sites, which would be of gigabytes at 17,000 positions. The invariant: no tensor but the
//! logits is kept of a run, and every row of them is under a hash.

use samebits::contract::{Order, RotaryTables};
use samebits::op::Site;
use samebits_fixtures::golden::{self, LongRun, PiecesRun};
use samebits_fixtures::{paths, prompt_ids};

use super::super::{CheckError, Measure, Outcome};
use crate::compare::Comparison;
use crate::context::Context;
use crate::engine::{Setup, Traces, trace_only};
use crate::sites::{Bits, op_of};

const HEAD: &str = "lm_head";

/// Compares all rows of a forward of `tokens` ids.
pub fn long<'c>(ctx: &'c Context, tokens: usize, order: Order) -> Result<Measure<'c>, CheckError> {
    let found = golden::long()?.into_iter().find(|g| g.runs.iter().any(|r| r.tokens == tokens));
    let golden =
        found.ok_or_else(|| CheckError::missing(format!("{tokens} ids"), "long.bf16.json"))?;
    let model = super::model_of(ctx, &golden)?;
    let vocab = golden.spec.vocab;
    let expected = golden.runs.iter().map(|run| run.blocks.len() + run.last.len()).sum::<usize>();
    Ok(Box::new(move |plant| {
        let (mut found, mut paths, mut hits) = (Comparison::default(), Vec::new(), 0);
        for run in &golden.runs {
            let ids = prompt_ids(run.ids_seed, vocab, run.tokens);
            let setup = Setup::new(order, &format!("prompt={tokens}"));
            let traces = trace_only(&model, &setup, &[ids], plant, head)?;
            compare_long(&mut found, run, &traces.sequences[0][HEAD]);
            hits += traces.hits;
            paths.push(traces.proof);
        }
        let outcome = Outcome::bitwise(found, expected as u64).with_paths(paths).with_hits(hits);
        Ok(Outcome { statistic: "hashes_differing", ..outcome })
    }))
}

/// Compares all runs of few rows of one shape.
pub fn few_rows<'c>(ctx: &'c Context, name: &str) -> Result<Measure<'c>, CheckError> {
    let found = golden::few_rows()?.into_iter().find(|golden| golden.spec.name == name);
    let golden = found.ok_or_else(|| CheckError::missing(name, "few-rows.f32.json"))?;
    let model = super::model_of(ctx, &golden)?;
    let file = golden.rotary.as_deref().ok_or_else(|| CheckError::missing("rotary", name))?;
    let rotary = tables(file, golden.spec.head_dim)?;
    let expected = golden.runs.iter().map(|run| run.logits.len()).sum::<usize>();
    Ok(Box::new(move |plant| {
        let (mut found, mut paths, mut hits) = (Comparison::default(), Vec::new(), 0);
        for run in &golden.runs {
            let label = format!("batch={} pieces={:?}", run.ids.len(), run.pieces);
            let mut setup = Setup::new(Order::Transformers, &label);
            setup.pieces.clone_from(&run.pieces);
            setup.rotary = Some(rotary.clone());
            let traces = trace_only(&model, &setup, &run.ids, plant, head)?;
            found.then(compare_pieces(run, &traces).labelled(&label));
            hits += traces.hits;
            paths.push(traces.proof);
        }
        let outcome = Outcome::bitwise(found, expected as u64).with_paths(paths).with_hits(hits);
        Ok(Outcome { statistic: "hashes_differing", ..outcome })
    }))
}

fn head(site: Site) -> bool {
    op_of(&site.to_string()) == HEAD
}

/// torch's tables for heads of a width, from a file that has several.
fn tables(file: &str, head_dim: usize) -> Result<RotaryTables, CheckError> {
    let tensors = golden::tensors(&paths::golden(file))?;
    let table = |name: &str| {
        let key = format!("{head_dim}.{name}");
        tensors.get(&key).ok_or_else(|| CheckError::missing(&key, file))
    };
    let (cos, sin) = (table("cos")?, table("sin")?);
    Ok(RotaryTables { half: cos.shape[1], cos: cos.f32s(), sin: sin.f32s() })
}

fn compare_long(found: &mut Comparison, run: &LongRun, logits: &Bits) {
    let rows = |from: usize, len: usize| {
        let to = run.tokens.min(from + len);
        logits.rows(HEAD, from..to, to).sha256()
    };
    for (i, want) in run.blocks.iter().enumerate() {
        let from = i * run.block;
        let got = rows(from, run.block);
        let text = format!("hash {got} of {} rows from here", run.block);
        found.digest(HEAD, Some(from), got == *want, &text);
    }
    let from = run.tokens - run.last.len();
    for (row, want) in (from..).zip(&run.last) {
        let got = rows(row, 1);
        found.digest(HEAD, Some(row), got == *want, &format!("hash {got} of the row"));
    }
}

fn compare_pieces(run: &PiecesRun, traces: &Traces) -> Comparison {
    let (mut found, mut from) = (Comparison::default(), 0);
    for (n, want) in run.pieces.iter().zip(&run.logits) {
        let part =
            |sequence: &crate::sites::Sites| sequence[HEAD].rows(HEAD, from..from + n, from + n);
        let mut parts = traces.sequences.iter().map(part);
        let mut all = parts.next().expect("a run has a sequence");
        parts.for_each(|part| all.bits.extend(part.bits));
        let got = all.sha256();
        let text = format!("hash {got} of the {n} rows from here, all sequences");
        found.digest(HEAD, Some(from), got == *want, &text);
        from += n;
    }
    found
}

//! A request: what is run, how it is cut into forwards, and what is kept of it.
//!
//! Deliberately absent: batches (sequences never meet; only their number enters a rule) and
//! sampling. Invariant: every request that cannot be run is refused before the first forward, but
//! for an injected tensor of a site that no forward writes.

use std::collections::{BTreeMap, BTreeSet};

use crate::arithmetic::Arithmetic;
use crate::dtype::Array;
use crate::forward::Run;
use crate::model::{Model, OracleError};
use crate::ops::Batch;
use crate::real::rounded_tables;
use crate::trace::{Recorder, Trace};

/// Which sites a trace holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// `lm_head` alone.
    #[default]
    Logits,
    /// Every site.
    All,
    /// The named sites and `lm_head`.
    Only(BTreeSet<String>),
}

/// How a model is run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Which sites the trace holds.
    pub keep: Keep,
    /// Token rows, ascending, that `lm_head` is computed for; all if absent. Changes no value.
    pub logit_rows: Option<Vec<usize>>,
    /// The first so many ids are one forward, the others go one by one through a cache.
    pub decode_from: Option<usize>,
    /// Tokens of each forward, in order, in place of what `decode_from` says.
    pub pieces: Option<Vec<usize>>,
    /// Sequences in each forward (1 if absent): the true rows of a linear are batch x new tokens.
    pub batch: Option<usize>,
    /// Which sequence of the batch this is: in f32, few rows of a width that is no multiple of 4
    /// are summed by their place in the forward.
    pub sequence: usize,
    /// cos and sin in place of the arithmetic's own, each `[positions, rotary_dim / 2]`; they are
    /// rounded to the dtype of the run.
    pub rotary: Option<(Vec<f32>, Vec<f32>)>,
    /// By site, the rows of all tokens, which take the place of what the site would hold; any site
    /// but `scores`, `probs`, `lm_head` and the tables.
    pub inject: BTreeMap<String, Vec<f64>>,
}

/// Runs the model on one sequence.
///
/// # Errors
/// An empty sequence, an id outside the vocabulary, forwards that are not the sequence, logit rows
/// that are not ascending rows of it, tables of a wrong length, an injected site that is not there.
///
/// # Panics
/// If an injected tensor has another length than its site.
pub fn run(
    model: &Model,
    arith: &dyn Arithmetic,
    tokens: &[u32],
    opts: &RunOptions,
) -> Result<Trace, OracleError> {
    let rows: Vec<usize> = opts.logit_rows.clone().unwrap_or_else(|| (0..tokens.len()).collect());
    let pieces = opts.pieces.clone().unwrap_or_else(|| {
        let prefill = opts.decode_from.unwrap_or(tokens.len());
        [vec![prefill], vec![1; tokens.len().saturating_sub(prefill)]].concat()
    });
    check(model, tokens, &pieces, &rows, opts)?;
    let c = model.config();
    let tables = match &opts.rotary {
        Some(tables) => rounded_tables(arith, tables.clone()),
        None => arith.rotary(c.theta, c.rotary_dim, tokens.len()),
    };
    let recorder = Recorder {
        keep: &opts.keep,
        inject: &opts.inject,
        injected: BTreeSet::new(),
        tokens: tokens.len(),
        first: 0,
        trace: Trace::default(),
    };
    let batch = Batch { sequences: opts.batch.unwrap_or(1), sequence: opts.sequence };
    let mut run = Run::new(model, arith, batch, tables, recorder);
    for (site, t) in [("rotary.cos", &run.tables.cos), ("rotary.sin", &run.tables.sin)] {
        if run.recorder.keeps(site) {
            let shape = vec![t.len() / (c.rotary_dim / 2), c.rotary_dim / 2];
            let array = Array { shape, values: t.clone(), squares: None };
            run.recorder.trace.sites.insert(site.into(), array);
        }
    }
    let mut first = 0;
    for n in pieces {
        run.forward(&tokens[first..first + n], first, &rows);
        first += n;
    }
    if run.recorder.injected.len() < opts.inject.len() {
        return Err(OracleError::Request("an injected site is written by no forward"));
    }
    Ok(run.finish())
}

fn check(
    model: &Model,
    tokens: &[u32],
    pieces: &[usize],
    rows: &[usize],
    opts: &RunOptions,
) -> Result<(), OracleError> {
    let c = model.config();
    let half = c.rotary_dim / 2;
    let table = tokens.len() * half;
    let long = |t: &(Vec<f32>, Vec<f32>)| t.0.len() >= table && t.1.len() == t.0.len();
    let whole = |t: &(Vec<f32>, Vec<f32>)| t.0.len().is_multiple_of(half);
    let cut = pieces.iter().sum::<usize>() == tokens.len() && !pieces.contains(&0);
    let demands = [
        (!tokens.is_empty(), "no token"),
        (tokens.iter().all(|&t| (t as usize) < c.vocab), "an id is outside the vocabulary"),
        (cut, "the forwards are not the sequence"),
        (opts.batch != Some(0), "a batch of no sequence"),
        (opts.sequence < opts.batch.unwrap_or(1).max(1), "a sequence outside the batch"),
        (rows.is_sorted_by(|a, b| a < b), "logit rows do not ascend"),
        (rows.iter().all(|&r| r < tokens.len()), "a logit row is outside the sequence"),
        (opts.rotary.as_ref().is_none_or(|t| long(t) && whole(t)), "rotary tables do not fit"),
        (!opts.inject.contains_key("lm_head"), "logits cannot be injected"),
    ];
    match demands.into_iter().find(|(good, _)| !good) {
        Some((_, why)) => Err(OracleError::Request(why)),
        None => Ok(()),
    }
}

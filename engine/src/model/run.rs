//! Runs: prompts in any split, with logits of every row.

use thiserror::Error;

use super::decoder::{Step, forward};
use super::state::{Limits, State};
use super::weights::Model;
use crate::checkpoint::CheckpointError;
use crate::contract::RotaryTables;
use crate::op::Backend;
use crate::tensor::Tensor;

/// Query rows whose scores exist at once, unless a run says otherwise.
pub const DEFAULT_CHUNK: usize = 128;

/// How a run cuts its prompts up. No bit of the default order depends on it.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rows of each forward, in order; empty runs each prompt in one.
    pub pieces: Vec<usize>,
    /// Query rows whose scores exist at once; none takes [`DEFAULT_CHUNK`].
    pub chunk: Option<usize>,
    /// Rotary tables to use instead of the contract's own.
    pub rotary: Option<RotaryTables>,
}

impl Plan {
    /// A prefill of `first` rows, then `len - first` single rows through the cache.
    pub fn decode_from(first: usize, len: usize) -> Self {
        let pieces = std::iter::once(first).chain((first..len).map(|_| 1)).collect();
        Self { pieces, ..Self::default() }
    }
}

/// Why a run was refused or stopped.
#[derive(Debug, Error)]
pub enum RunError {
    /// No sequence, or one without ids.
    #[error("prompt {0} is empty: at least one token id is needed")]
    Empty(usize),
    /// A batch needs sequences of one length.
    #[error("prompt {at} has {got} ids and prompt 0 has {want}: a batch needs equal lengths")]
    Lengths {
        /// Which prompt.
        at: usize,
        /// Its length.
        got: usize,
        /// Length of the first.
        want: usize,
    },
    /// An id that is no row of the embedding.
    #[error("id {id} at position {position} of prompt {at} is outside the vocabulary of {vocab}")]
    Id {
        /// Which prompt.
        at: usize,
        /// Where in it.
        position: usize,
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// Pieces that do not make up the prompt.
    #[error("pieces {pieces:?} do not make up a prompt of {len} ids")]
    Pieces {
        /// The pieces.
        pieces: Vec<usize>,
        /// Length of the prompt.
        len: usize,
    },
    /// A chunk of no rows.
    #[error("a chunk needs at least one row")]
    Chunk,
    /// Injected tables that do not fit.
    #[error("rotary tables are [{rows}, {half}], the run needs [{len} or more, {need}]")]
    Rotary {
        /// Rows of the tables.
        rows: usize,
        /// Entries of a row.
        half: usize,
        /// Positions of the run.
        len: usize,
        /// Half the rotary width.
        need: usize,
    },
    /// The checkpoint's files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// What a run computed.
#[derive(Clone, Debug)]
pub struct Logits {
    /// Logits of every row.
    pub logits: Tensor, // [batch, rows, vocab]
    /// Argmax of every row; `u32::MAX` where a logit is NaN.
    pub argmax: Vec<u32>, // [batch, rows]
    /// Sequences, rows of each, and vocabulary.
    pub shape: [usize; 3],
}

/// Runs `prompts` through `model`, keeping the logits of every row.
///
/// # Errors
/// Prompts, pieces, chunk or tables that do not fit the model, before anything runs; what the
/// checkpoint's files answered.
pub fn run<B: Backend>(
    b: &mut B,
    model: &Model<B::M>,
    prompts: &[Vec<u32>],
    plan: &Plan,
) -> Result<Logits, RunError> {
    let len = check(model.shape.vocab, model.shape.rotary_dim, prompts, plan)?;
    let (batch, vocab) = (prompts.len(), model.shape.vocab);
    let pieces = if plan.pieces.is_empty() { vec![len] } else { plan.pieces.clone() };
    let rows = pieces.iter().copied().max().expect("a plan has pieces");
    let chunk = plan.chunk.unwrap_or(DEFAULT_CHUNK).min(rows);
    let limits = Limits { batch, positions: len, rows, logit_rows: rows, chunk };
    let mut state = State::new(b, model, limits, plan.rotary.as_ref());
    let mut parts = vec![Tensor::zeros(model.dtype, 0); batch];
    let mut argmax = vec![Vec::new(); batch];
    for rows in pieces {
        let ids: Vec<&[u32]> = prompts.iter().map(|p| &p[state.len..state.len + rows]).collect();
        feed(b, &mut state, &ids, Kept::All);
        forward(b, model, &mut state, Step { rows, kept: batch * rows })?;
        let ids = b.mem().read_ints(&state.argmax, batch * rows);
        for (i, part) in parts.iter_mut().enumerate() {
            let span = rows * vocab;
            part.extend(&b.mem().read(&state.acts.logits, i * span, span));
            argmax[i].extend_from_slice(&ids[i * rows..][..rows]);
        }
    }
    let mut parts = parts.into_iter();
    let mut logits = parts.next().expect("a batch has a sequence");
    parts.for_each(|part| logits.extend(&part));
    Ok(Logits { logits, argmax: argmax.concat(), shape: [batch, len, vocab] })
}

/// Which rows of a forward have their logits computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Every row.
    All,
    /// The last row of each sequence.
    Last,
}

/// Writes the ids of a forward, their positions, and which rows' logits are kept.
pub fn feed<B: Backend>(b: &mut B, state: &mut State<B::M>, ids: &[&[u32]], kept: Kept) {
    let (first, rows) = (state.len as u32, ids[0].len() as u32);
    let positions: Vec<u32> = ids.iter().flat_map(|_| first..first + rows).collect();
    let all = 0..positions.len() as u32;
    let kept: Vec<u32> = match kept {
        Kept::All => all.collect(),
        Kept::Last => all.filter(|row| row % rows == rows - 1).collect(),
    };
    let mem = b.mem();
    mem.write_ints(&mut state.ids, &ids.concat());
    mem.write_ints(&mut state.positions, &positions);
    mem.write_ints(&mut state.keys, &[first + rows]);
    mem.write_ints(&mut state.kept_rows, &kept);
}

/// Checks prompts against a vocabulary; returns their common length.
///
/// # Errors
/// No prompt, an empty one, unequal lengths, or an id outside the vocabulary.
pub fn check_prompts(vocab: usize, prompts: &[Vec<u32>]) -> Result<usize, RunError> {
    let want = prompts.first().ok_or(RunError::Empty(0))?.len();
    for (at, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(RunError::Empty(at));
        }
        if prompt.len() != want {
            return Err(RunError::Lengths { at, got: prompt.len(), want });
        }
        if let Some(position) = prompt.iter().position(|id| *id as usize >= vocab) {
            return Err(RunError::Id { at, position, id: prompt[position], vocab });
        }
    }
    Ok(want)
}

/// Checks all that a caller may get wrong; returns the prompts' length.
fn check(
    vocab: usize,
    rotary_dim: usize,
    prompts: &[Vec<u32>],
    plan: &Plan,
) -> Result<usize, RunError> {
    let want = check_prompts(vocab, prompts)?;
    let whole = plan.pieces.iter().sum::<usize>() == want && !plan.pieces.contains(&0);
    if !plan.pieces.is_empty() && !whole {
        return Err(RunError::Pieces { pieces: plan.pieces.clone(), len: want });
    }
    if plan.chunk == Some(0) {
        return Err(RunError::Chunk);
    }
    if let Some(tables) = &plan.rotary
        && (tables.half != rotary_dim / 2 || tables.positions() < want)
    {
        let (rows, half) = (tables.positions(), tables.half);
        return Err(RunError::Rotary { rows, half, len: want, need: rotary_dim / 2 });
    }
    Ok(want)
}

//! The generation loop: one prefill, then one row a step for each sequence.
//!
//! A step reads one id for each sequence when greedy, one row of logits when sampling. The
//! invariant: batch, threads and where a generation was resumed change nothing, since rows are
//! independent and draws are counted by position.

use thiserror::Error;

use super::sampler::{Draw, Sampler};
use crate::checkpoint::CheckpointError;
use crate::model::{
    DEFAULT_CHUNK, Kept, Limits, Model, RunError, State, Step, check_prompts, feed, forward,
};
use crate::op::Backend;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompts of equal length.
    pub prompts: Vec<Vec<u32>>,
    /// Most new tokens of a sequence.
    pub max_new: usize,
    /// Most positions of a sequence, prompt included.
    pub context: usize,
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// Ids that end a sequence. The id itself is part of the output.
    pub stop: Vec<u32>,
    /// Query rows whose scores exist at once; none takes the default.
    pub chunk: Option<usize>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was generated.
    Stop,
    /// As many tokens as were asked for, or the end of the context.
    Length,
}

impl Finish {
    /// The reason in outputs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// One generated sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// New ids, a stop id included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Why a generation was refused or stopped.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// Prompts that do not fit the model, or the checkpoint's files.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A prompt beyond the context.
    #[error("a prompt of {len} ids is longer than the context of {context} positions")]
    Context {
        /// Length of the prompt.
        len: usize,
        /// Positions there are.
        context: usize,
    },
    /// Logits that nothing can be chosen from.
    #[error("the logits of sequence {sequence} at position {position} hold a NaN")]
    Nan {
        /// Which sequence.
        sequence: usize,
        /// Position of the token that was to be chosen.
        position: usize,
    },
}

/// Generates; `token` is called with sequence and id as each is chosen.
///
/// # Errors
/// A request that does not fit the model, before anything runs; logits that hold a NaN; what
/// `token` answered.
pub fn generate<B: Backend, E: From<GenerateError>>(
    b: &mut B,
    model: &Model<B::M>,
    request: &Request,
    mut token: impl FnMut(usize, u32) -> Result<(), E>,
) -> Result<Vec<Sequence>, E> {
    let room = room(model.shape.vocab, request)?;
    let (batch, len) = (request.prompts.len(), request.prompts[0].len());
    let fresh = || Sequence { ids: Vec::with_capacity(room), finish: Finish::Length };
    let mut sequences: Vec<Sequence> = (0..batch).map(|_| fresh()).collect();
    if room == 0 {
        return Ok(sequences);
    }
    let chunk = request.chunk.unwrap_or(DEFAULT_CHUNK).min(len);
    let limits = Limits { batch, positions: len + room - 1, rows: len, logit_rows: 1, chunk };
    let mut state = State::new(b, model, limits, None);
    let prompts: Vec<&[u32]> = request.prompts.iter().map(Vec::as_slice).collect();
    feed(b, &mut state, &prompts, Kept::Last);
    let mut next = vec![0; batch];
    for step in 0..room {
        let rows = if step == 0 { len } else { 1 };
        forward(b, model, &mut state, Step { rows, kept: batch }).map_err(failed)?;
        choose(b, &mut state, request.sampler, &mut next)?;
        let mut open = false;
        for (i, sequence) in sequences.iter_mut().enumerate() {
            if sequence.finish == Finish::Stop {
                continue;
            }
            sequence.ids.push(next[i]);
            token(i, next[i])?;
            if request.stop.contains(&next[i]) {
                sequence.finish = Finish::Stop;
            }
            open |= sequence.finish == Finish::Length;
        }
        if !open {
            break;
        }
        if step + 1 < room {
            state.feed_one(b, &next);
        }
    }
    Ok(sequences)
}

/// Most new tokens of each sequence. The context ends generation: it never wraps, and no id of the
/// prompt is ever dropped.
///
/// # Errors
/// A request that does not fit the model; nothing of it need be loaded to know.
pub fn room(vocab: usize, request: &Request) -> Result<usize, GenerateError> {
    let (len, context) = (check_prompts(vocab, &request.prompts)?, request.context);
    let left = context.checked_sub(len).ok_or(GenerateError::Context { len, context })?;
    Ok(request.max_new.min(left))
}

fn failed<E: From<GenerateError>>(error: CheckpointError) -> E {
    GenerateError::Run(RunError::from(error)).into()
}

/// The next id of each sequence: read back when greedy, drawn from a row of logits otherwise.
fn choose<B: Backend>(
    b: &mut B,
    state: &mut State<B::M>,
    sampler: Sampler,
    next: &mut [u32],
) -> Result<(), GenerateError> {
    let position = state.len;
    match sampler {
        Sampler::Greedy => {
            b.mem().fetch_ints(&state.argmax, next);
            if let Some(sequence) = next.iter().position(|id| *id == u32::MAX) {
                return Err(GenerateError::Nan { sequence, position });
            }
        }
        Sampler::Sample(sampling) => {
            for (sequence, next) in next.iter_mut().enumerate() {
                let row = state.logits_row(b, sequence);
                let draw = Draw { sequence: sequence as u32, position: position as u32 };
                let nan = |_| GenerateError::Nan { sequence, position };
                *next = sampling.pick(&row, draw).map_err(nan)?;
            }
        }
    }
    Ok(())
}

//! Whether the output head is the embedding.
//!
//! | `tie_word_embeddings` | file holds | |
//! |---|---|---|
//! | true | embedding | tied |
//! | true | both, equal after the cast to the run's dtype | tied |
//! | true | both, different | refused: the reference unties them with a warning |
//! | true | head | tied, the embedding is the head's tensor |
//! | false | both | separate |
//! | false | one | refused: the reference fills the other with random numbers |
//! | any | neither | refused |
//!
//! Equal is what `torch.equal` calls equal, so zeros of either sign are, except that equal NaN
//! bits are too: the tied and the untied model are the same function then.

use half::bf16;

use super::config::Config;
use super::dtype::StorageDtype;
use super::error::{CheckpointError, Refusal};
use super::folder::Folder;
use super::mapping::WeightMap;
use super::pages::{PageIndex, TensorInfo};
use super::roles::Role;
use crate::contract::Dtype;

/// Elements compared at a time.
const CHUNK: u64 = 1 << 20;

/// How embedding and head contradict the configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error("neither model.embed_tokens.weight nor lm_head.weight is there")]
    Neither,
    #[error("tie_word_embeddings is false, but there is no lm_head.weight")]
    NoHead,
    #[error("tie_word_embeddings is false, but there is no model.embed_tokens.weight")]
    NoEmbedding,
    /// The first place where they differ.
    #[error(
        "tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight \
         at [{row}, {column}]: {head} and {embedding}"
    )]
    Different { row: u64, column: u64, head: f32, embedding: f32 },
}

/// Fills both roles of `map` by the table; whether they are tied.
pub(super) fn resolve(
    config: &Config,
    folder: &Folder,
    index: &PageIndex,
    map: &mut WeightMap,
    dtype: Dtype,
) -> Result<bool, CheckpointError> {
    let refuse = |error| Err(Refusal::Head(error).of(folder.path()));
    match (config.tie_word_embeddings, map.get(Role::EmbedTokens), map.get(Role::LmHead)) {
        (_, None, None) => return refuse(HeadError::Neither),
        (false, Some(_), Some(_)) => return Ok(false),
        (false, Some(_), None) => return refuse(HeadError::NoHead),
        (false, None, Some(_)) => return refuse(HeadError::NoEmbedding),
        (true, Some(embedding), None) => map.set(Role::LmHead, embedding),
        (true, None, Some(head)) => map.set(Role::EmbedTokens, head),
        (true, Some(embedding), Some(head)) => {
            let tensors = index.tensors();
            if let Some(error) = difference(index, &tensors[embedding], &tensors[head], dtype)? {
                return refuse(error);
            }
            map.set(Role::LmHead, embedding);
        }
    }
    Ok(true)
}

/// The first difference of two tensors of one shape after the cast to `dtype`.
fn difference(
    index: &PageIndex,
    embedding: &TensorInfo,
    head: &TensorInfo,
    dtype: Dtype,
) -> Result<Option<HeadError>, CheckpointError> {
    let columns = head.shape[1];
    let mut start = 0;
    while start < head.elements() {
        let n = CHUNK.min(head.elements() - start);
        let (ours, theirs) =
            (cast(index, head, start, n, dtype)?, cast(index, embedding, start, n, dtype)?);
        let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && a != b;
        if let Some(i) = ours.iter().zip(&theirs).position(differ) {
            let at = start + i as u64;
            let (row, column) = (at / columns, at % columns);
            return Ok(Some(HeadError::Different {
                row,
                column,
                head: ours[i],
                embedding: theirs[i],
            }));
        }
        start += n;
    }
    Ok(None)
}

/// `n` elements of `tensor` from element `start` on, rounded to `dtype`, widened to f32.
fn cast(
    index: &PageIndex,
    tensor: &TensorInfo,
    start: u64,
    n: u64,
    dtype: Dtype,
) -> Result<Vec<f32>, CheckpointError> {
    let size = tensor.dtype.bits() / 8;
    let mut bytes = vec![0; (n * size) as usize];
    index.read(tensor, start * size, &mut bytes)?;
    let stored: Vec<f32> = match tensor.dtype {
        StorageDtype::Bf16 => {
            bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
        }
        StorageDtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        StorageDtype::Other(other) => unreachable!("{other:?} is refused before"),
    };
    Ok(match dtype {
        Dtype::F32 => stored,
        Dtype::Bf16 => stored.into_iter().map(|v| bf16::from_f32(v).to_f32()).collect(),
    })
}

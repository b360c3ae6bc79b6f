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
///
/// The embedding's name depends on the family and on who exported the file; the head's does not.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    #[error("neither {embedding} nor lm_head.weight is there")]
    Neither { embedding: String },
    #[error("tie_word_embeddings is false, but there is no lm_head.weight")]
    NoHead,
    #[error("tie_word_embeddings is false, but there is no {embedding}")]
    NoEmbedding { embedding: String },
    #[error("tie_word_embeddings is true, but lm_head.weight differs from {embedding} at {place}")]
    Different { embedding: String, place: Place },
}

/// The first place where embedding and head differ, and what is there.
#[derive(Debug, thiserror::Error)]
#[error("[{row}, {column}]: {head} and {embedding}")]
pub(super) struct Place {
    row: u64,
    column: u64,
    head: f32,
    embedding: f32,
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
    let embedding_name = || map.name(Role::EmbedTokens);
    match (config.tie_word_embeddings, map.get(Role::EmbedTokens), map.get(Role::LmHead)) {
        (_, None, None) => return refuse(HeadError::Neither { embedding: embedding_name() }),
        (false, Some(_), Some(_)) => return Ok(false),
        (false, Some(_), None) => return refuse(HeadError::NoHead),
        (false, None, Some(_)) => {
            return refuse(HeadError::NoEmbedding { embedding: embedding_name() });
        }
        (true, Some(embedding), None) => map.set(Role::LmHead, embedding),
        (true, None, Some(head)) => map.set(Role::EmbedTokens, head),
        (true, Some(embedding), Some(head)) => {
            let tensors = index.tensors();
            if let Some(place) = difference(index, &tensors[embedding], &tensors[head], dtype)? {
                return refuse(HeadError::Different { embedding: embedding_name(), place });
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
) -> Result<Option<Place>, CheckpointError> {
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
            return Ok(Some(Place { row, column, head: ours[i], embedding: theirs[i] }));
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

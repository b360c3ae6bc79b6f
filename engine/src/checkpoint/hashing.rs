//! SHA-256 of files and tensors, in one pass over the bytes.
//!
//! Here: hashing over the descriptors of the page index, and what a Hugging Face cache states
//! about itself: its revision, and blobs that are named by their SHA-256. The invariant: every file
//! is rechecked after its last byte, so a hash never mixes two states of a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::error::{CheckpointError, Refusal};
use super::folder::Folder;
use super::pages::{PageIndex, TensorInfo, unchanged};
use super::pin::{FilePin, PIN_FILE, TensorPin};
use super::source::Source;

/// Bytes read and hashed at a time.
const CHUNK: u64 = 4 << 20;

/// Hashes of what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// Every file of the folder.
    pub files: BTreeMap<String, FilePin>,
    /// Every tensor of the weight files.
    pub tensors: BTreeMap<String, TensorPin>,
}

/// What is done while hashing: called with bytes as they are done, from any thread.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// Hashes of what a user calls `model`, admitted or not; without tensors where the weight files
/// cannot be indexed.
///
/// # Errors
/// A file that cannot be read or changes meanwhile.
pub fn hash_folder(
    model: &Path,
    skip: &[&Path],
    progress: Progress<'_>,
) -> Result<Hashes, CheckpointError> {
    let folder = Folder::find(model)?;
    let index = super::index(&folder, &mut Vec::new()).ok();
    hash(&folder, index.as_ref(), skip, progress)
}

/// Sum of the sizes in bytes of what a pin hashes.
///
/// # Errors
/// A file that cannot be opened.
pub fn total_bytes(model: &Path, skip: &[&Path]) -> Result<u64, CheckpointError> {
    let folder = Folder::find(model)?;
    let mut bytes = 0;
    for name in pinned_names(&folder, skip)? {
        bytes += folder.open(&name)?.map_or(0, |source| source.size());
    }
    Ok(bytes)
}

/// Files that a pin covers: all but pins.
fn pinned_names(folder: &Folder, skip: &[&Path]) -> Result<Vec<String>, CheckpointError> {
    let skipped: Vec<PathBuf> = skip.iter().filter_map(|p| fs::canonicalize(p).ok()).collect();
    let mut names = folder.names()?;
    names.retain(|name| {
        let path = fs::canonicalize(folder.file(name));
        name != PIN_FILE && !path.is_ok_and(|path| skipped.contains(&path))
    });
    Ok(names)
}

/// Hashes of `folder`, and of the tensors of `index`.
pub(super) fn hash(
    folder: &Folder,
    index: Option<&PageIndex>,
    skip: &[&Path],
    progress: Progress<'_>,
) -> Result<Hashes, CheckpointError> {
    let names = pinned_names(folder, skip)?;
    let one = |name: &String| -> Result<_, CheckpointError> {
        let indexed =
            index.and_then(|ix| Some((ix, ix.files().iter().position(|f| f.name == *name)?)));
        let opened;
        let (source, tensors) = match indexed {
            Some((ix, file)) => {
                let mut tensors: Vec<_> = ix.tensors().iter().filter(|t| t.file == file).collect();
                tensors.sort_by_key(|t| (t.offset, t.len));
                (ix.files()[file].source(), tensors)
            }
            None => {
                opened = folder.open(name)?.ok_or_else(|| Refusal::NoFile.of(folder.file(name)))?;
                (&*opened, Vec::new())
            }
        };
        hash_file(source, &tensors, progress).map(|(file, tensors)| (name.clone(), file, tensors))
    };
    let hashed: Vec<_> = names.par_iter().map(one).collect::<Result<_, _>>()?;
    let mut hashes = Hashes::default();
    for (name, file, tensors) in hashed {
        hashes.files.insert(name, file);
        hashes.tensors.extend(tensors);
    }
    Ok(hashes)
}

/// Hashes a file and its `tensors`, which are sorted and do not overlap, in one pass.
fn hash_file(
    source: &dyn Source,
    tensors: &[&TensorInfo],
    progress: Progress<'_>,
) -> Result<(FilePin, Vec<(String, TensorPin)>), CheckpointError> {
    let mut whole = Sha256::new();
    let mut pins = Vec::new();
    let mut buffer = vec![0; CHUNK.min(source.size()) as usize];
    let mut at = 0;
    // Hashes the bytes up to `end`, into the whole and, if they are a tensor's, into its own.
    let mut pass = |end: u64| -> Result<String, CheckpointError> {
        let mut part = Sha256::new();
        while at < end {
            let chunk = &mut buffer[..CHUNK.min(end - at) as usize];
            source.read_at(at, chunk).map_err(|e| Refusal::Read(e).of(source.path()))?;
            rayon::join(|| whole.update(&*chunk), || part.update(&*chunk));
            at += chunk.len() as u64;
            progress(chunk.len() as u64);
        }
        Ok(hex(part))
    };
    for tensor in tensors {
        pass(tensor.offset)?;
        let sha256 = pass(tensor.offset + tensor.len)?;
        let (dtype, shape) = (tensor.dtype.name().to_owned(), tensor.shape.clone());
        pins.push((tensor.name.clone(), TensorPin { dtype, shape, sha256 }));
    }
    pass(source.size())?;
    unchanged(source)?;
    Ok((FilePin { bytes: source.size(), sha256: hex(whole) }, pins))
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The revision, if `folder` is `models--*/snapshots/<revision>` of a hub cache.
pub(super) fn revision(folder: &Folder) -> Option<String> {
    let path = fs::canonicalize(folder.path()).ok()?;
    let snapshots = path.parent()?;
    let cached =
        snapshots.file_name()? == "snapshots" && snapshots.parent()?.join("blobs").is_dir();
    cached.then(|| path.file_name().map(|name| name.to_string_lossy().into_owned()))?
}

/// Refuses a file whose blob is named by another SHA-256 than it has.
pub(super) fn blobs_agree(folder: &Folder, hashes: &Hashes) -> Result<(), CheckpointError> {
    for (name, file) in &hashes.files {
        if let Some(blob) = blob(folder, name).filter(|blob| *blob != file.sha256) {
            let got = file.sha256.clone();
            return Err(Refusal::Blob { blob, got }.of(folder.file(name)));
        }
    }
    Ok(())
}

/// The SHA-256 that the name of the blob behind a link states, if it states one.
fn blob(folder: &Folder, name: &str) -> Option<String> {
    let target = fs::read_link(folder.file(name)).ok()?;
    let blob = target.file_name()?.to_str()?.to_owned();
    let in_blobs = target.parent()?.file_name()? == "blobs";
    (in_blobs && is_sha256(&blob)).then_some(blob)
}

/// Whether `text` is a SHA-256 in lower hex.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

//! The page index: where in the original files every tensor lies.
//!
//! Here: one descriptor per weight file, one row per tensor, and the 4 KiB pages a set of tensors
//! touches. Nothing is repacked and no weight byte is read. Absent: what the tensors are for.
//!
//! The invariant: index and headers name the same (tensor, file) pairs, and no name is in two
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use super::dtype::StorageDtype;
use super::error::{CheckpointError, Refusal};
use super::fileset::{FileSet, INDEX, IndexError};
use super::folder::Folder;
use super::header::{Entry, Header};
use super::json::one_line;
use super::source::Source;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// An open weight file.
pub struct ShardFile {
    /// Name in the folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Where its data section starts, in bytes.
    pub data_start: u64,
    source: Box<dyn Source>,
}

impl ShardFile {
    /// The bytes of the file.
    pub fn source(&self) -> &dyn Source {
        &*self.source
    }
}

impl fmt::Debug for ShardFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Which of [`PageIndex::files`].
    pub file: usize,
    /// First byte, counted from the start of the file; may be odd.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Dtype of the stored elements.
    pub dtype: StorageDtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Consecutive pages of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Which of [`PageIndex::files`].
    pub file: usize,
    /// First page; page `p` is the bytes from `p * PAGE_BYTES` on.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
}

/// All tensors of a checkpoint over its original files.
#[derive(Debug)]
pub struct PageIndex {
    files: Vec<ShardFile>,
    /// Sorted by name.
    tensors: Vec<TensorInfo>,
}

impl PageIndex {
    /// Opens the files of `set`, checks their headers and compares them with the index.
    /// Warnings are appended to `notices`.
    pub(super) fn open(
        folder: &Folder,
        set: &FileSet,
        notices: &mut Vec<String>,
    ) -> Result<Self, CheckpointError> {
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        for (file, name) in set.files.iter().enumerate() {
            let refuse = |refusal: Refusal| refusal.of(folder.file(name));
            let source = folder.open(name)?.ok_or_else(|| refuse(Refusal::NoFile))?;
            let header = Header::read(&*source).map_err(|e| refuse(Refusal::Header(e)))?;
            let data_start = header.data_start;
            tensors.extend(header.entries.into_iter().map(|e| place(e, file, data_start)));
            files.push(ShardFile { name: name.clone(), bytes: source.size(), data_start, source });
        }
        tensors.sort_by(|a, b| (&a.name, a.file).cmp(&(&b.name, b.file)));
        if let Some(placed) = &set.placed {
            agree(folder, &files, &tensors, placed)?;
            notices.extend(size_notice(set, &tensors));
        }
        Ok(Self { files, tensors })
    }

    /// The weight files.
    pub fn files(&self) -> &[ShardFile] {
        &self.files
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The file `tensor` lies in.
    pub fn path(&self, tensor: &TensorInfo) -> &Path {
        self.files[tensor.file].source.path()
    }

    /// Fills `out` with the bytes of `tensor` from its byte `start` on.
    ///
    /// # Errors
    /// One that names file, tensor, offset, bytes wanted and got.
    ///
    /// # Panics
    /// If the range leaves the tensor.
    pub fn read(
        &self,
        tensor: &TensorInfo,
        start: u64,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let wanted = out.len() as u64;
        let inside = start.checked_add(wanted).is_some_and(|end| end <= tensor.len);
        assert!(inside, "{}: {start} + {wanted} leaves its {} bytes", tensor.name, tensor.len);
        let source = self.files[tensor.file].source();
        let offset = tensor.offset + start;
        source.read_at(offset, out).map_err(|error| {
            let tensor = one_line(&tensor.name);
            Refusal::Tensor { tensor, offset, error }.of(source.path())
        })
    }

    /// The page extents that `tensors` touch, merged and sorted.
    pub fn extents<'a>(&self, tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Vec<Extent> {
        let mut all: Vec<Extent> = tensors.into_iter().filter_map(extent).collect();
        all.sort();
        let mut merged: Vec<Extent> = Vec::new();
        for next in all {
            match merged.last_mut() {
                Some(last)
                    if last.file == next.file
                        && next.first_page <= last.first_page + last.pages =>
                {
                    let end = next.first_page + next.pages;
                    last.pages = last.pages.max(end - last.first_page);
                }
                _ => merged.push(next),
            }
        }
        merged
    }

    /// Fails if any file is not what it was when it was opened: size, time, device and inode.
    ///
    /// # Errors
    /// The first such file.
    pub fn recheck(&self) -> Result<(), CheckpointError> {
        for file in &self.files {
            unchanged(&*file.source)?;
        }
        Ok(())
    }
}

/// Fails if the file behind `source` is not what was opened.
pub(super) fn unchanged(source: &dyn Source) -> Result<(), CheckpointError> {
    match source.change() {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(Refusal::Changed(what).of(source.path())),
        Err(e) => Err(Refusal::Read(e.into()).of(source.path())),
    }
}

/// The pages of one tensor; none if it has no bytes.
fn extent(tensor: &TensorInfo) -> Option<Extent> {
    let first_page = tensor.offset / PAGE_BYTES;
    let end = (tensor.offset + tensor.len).div_ceil(PAGE_BYTES);
    (tensor.len > 0).then(|| Extent { file: tensor.file, first_page, pages: end - first_page })
}

fn place(entry: Entry, file: usize, data_start: u64) -> TensorInfo {
    let Entry { name, dtype, shape, begin, end } = entry;
    TensorInfo { name, file, offset: data_start + begin, len: end - begin, dtype, shape }
}

/// Compares the pairs of the index with those of the headers, both ways.
fn agree(
    folder: &Folder,
    files: &[ShardFile],
    tensors: &[TensorInfo],
    placed: &BTreeMap<String, usize>,
) -> Result<(), CheckpointError> {
    let listed: BTreeSet<(&str, usize)> = placed.iter().map(|(t, &f)| (t.as_str(), f)).collect();
    let held: BTreeSet<(&str, usize)> = tensors.iter().map(|t| (t.name.as_str(), t.file)).collect();
    let absent = listed.difference(&held).map(|&(tensor, file)| {
        format!("{} is listed in {}, which does not hold it", one_line(tensor), files[file].name)
    });
    let extra = held.difference(&listed).map(|&(tensor, file)| {
        format!("{} holds {}, which is not listed there", files[file].name, one_line(tensor))
    });
    let wrong: Vec<String> = absent.chain(extra).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let (count, first) = (wrong.len(), wrong[..wrong.len().min(4)].join("; "));
    Err(Refusal::Index(IndexError::Disagreement { count, first }).of(folder.file(INDEX)))
}

/// A warning if the index states another total size than the shards have.
fn size_notice(set: &FileSet, tensors: &[TensorInfo]) -> Option<String> {
    let stated = set.total_size.as_ref()?;
    let bytes = tensors.iter().fold(0, |sum: u64, t| sum.saturating_add(t.len));
    let same = stated.as_u64() == Some(bytes) || stated.as_f64() == Some(bytes as f64);
    let shown = one_line(&stated.to_string());
    (!same)
        .then(|| format!("{INDEX}: metadata.total_size is {shown}, the tensors have {bytes} bytes"))
}

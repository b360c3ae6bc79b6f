//! The bytes of one file of a checkpoint.
//!
//! Here: the seam [`Source`], files on disk and bytes that live in the program. Deliberately
//! absent: memory maps, since a mapped file that shrinks is a signal and not an error, and caching.
//! The invariant: a source keeps reading what it opened, so a renamed or deleted file never mixes
//! old bytes with new ones, and a read either fills the whole buffer or fails.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::ReadError;

/// The bytes of one file, readable at any offset by any thread.
pub trait Source: Send + Sync {
    /// Where the bytes come from, for messages.
    fn path(&self) -> &Path;

    /// Size in bytes when the source was opened.
    fn size(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`ReadError::Short`] if fewer bytes are there, [`ReadError::Io`] if reading fails.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError>;

    /// What has changed behind the source since it was opened, in words; `None` if nothing has.
    ///
    /// # Errors
    /// Whatever asking for the file's state answers.
    fn change(&self) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// A file on disk: one descriptor, kept open, read by position.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    device: u64,
    inode: u64,
    modified_ns: i128,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        }
    }
}

impl FileSource {
    /// Opens `path`, following links.
    ///
    /// # Errors
    /// Whatever opening answers; `InvalidInput` for anything but a regular file, which is not
    /// opened at all (a pipe would wait for a writer).
    pub fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        Ok(Self { path: path.to_path_buf(), file, stamp })
    }
}

impl Source for FileSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.stamp.bytes
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let mut got = 0;
        while got < out.len() {
            match self.file.read_at(&mut out[got..], offset + got as u64) {
                Ok(0) => {
                    return Err(ReadError::Short { wanted: out.len() as u64, got: got as u64 });
                }
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(ReadError::Io(e)),
            }
        }
        Ok(())
    }

    fn change(&self) -> io::Result<Option<String>> {
        let open = Stamp::of(&self.file.metadata()?);
        if open.bytes != self.stamp.bytes {
            return Ok(Some(format!("had {} bytes, now {}", self.stamp.bytes, open.bytes)));
        }
        if open != self.stamp {
            return Ok(Some("was written to (its modification time differs)".to_owned()));
        }
        match fs::metadata(&self.path) {
            Ok(named) if Stamp::of(&named) == self.stamp => Ok(None),
            Ok(_) => Ok(Some("was replaced by another file".to_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Some("was deleted".to_owned())),
            Err(e) => Err(e),
        }
    }
}

/// Bytes that are part of the program.
#[derive(Clone, Copy, Debug)]
pub struct StaticSource {
    name: &'static str,
    bytes: &'static [u8],
}

impl StaticSource {
    /// Names `bytes`.
    pub const fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        Self { name, bytes }
    }
}

impl Source for StaticSource {
    fn path(&self) -> &Path {
        Path::new(self.name)
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let held = self.bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        match held.get(..out.len()) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(ReadError::Short { wanted: out.len() as u64, got: held.len() as u64 }),
        }
    }
}

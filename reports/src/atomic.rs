//! Files that appear whole or not at all.
//!
//! A file is written beside its place under a hidden temporary name, flushed to the disk and
//! renamed. No reader ever sees a part of it, and a process that dies leaves the old file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

use crate::error::Error;

/// Replaces `path` by `bytes`. The old file's permissions are kept.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let place = || {
        let written = written(path, bytes)?;
        if let Ok(old) = fs::metadata(path) {
            written.as_file().set_permissions(old.permissions())?;
        }
        written.persist(path).map_err(|refused| refused.error)?;
        sync_folder(path)
    };
    place().map_err(Error::io(path))
}

/// Creates `path` with `bytes`; an existing file is `io::ErrorKind::AlreadyExists` and stays.
pub(crate) fn create_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    written(path, bytes)?.persist_noclobber(path).map_err(|refused| refused.error)?;
    sync_folder(path)
}

/// The bytes, on the disk, under a temporary name in the folder of `path`.
fn written(path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(".").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
    let mut file = builder.tempfile_in(folder(path))?;
    file.write_all(bytes)?;
    file.flush()?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A rename is lasting once the folder that holds the name is on the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder(path))?.sync_all() } else { Ok(()) }
}

//! SHA-256 of files and folders, repeatable with standard tools.
//!
//! A folder's hash is that of the list `sha256sum` prints for its files in byte order of their
//! paths: `cd DIR && find -L . -type f | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum`.
//! Linked files count with their content; links to folders are refused, and nothing is ignored.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::Error;

/// SHA-256 of a file's bytes, 64 hex digits.
pub fn hash_file(path: &Path) -> Result<String, Error> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path).map_err(Error::io(path))?;
    io::copy(&mut file, &mut hasher).map_err(Error::io(path))?;
    Ok(hex(hasher))
}

/// SHA-256 of the paths and bytes of some files below `dir`, 64 hex digits; one that is not there
/// is an error, and so is a list of none.
pub fn hash_files(dir: &Path, names: &[String]) -> Result<String, Error> {
    if names.is_empty() {
        return Err(Error::Empty { path: dir.to_owned() });
    }
    let mut hasher = Sha256::new();
    for name in names {
        hasher.update(format!("{}  ./{name}\n", hash_file(&dir.join(name))?));
    }
    Ok(hex(hasher))
}

/// SHA-256 of all paths and bytes below `dir`, 64 hex digits. A folder without files is an error.
pub fn hash_dir(dir: &Path) -> Result<String, Error> {
    let mut files = Vec::new();
    collect(dir, ".", &mut files)?;
    if files.is_empty() {
        return Err(Error::Empty { path: dir.to_owned() });
    }
    files.sort();
    let mut hasher = Sha256::new();
    for (name, path) in files {
        hasher.update(format!("{}  {name}\n", hash_file(&path)?));
    }
    Ok(hex(hasher))
}

fn collect(dir: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        let path = entry.path();
        let unhashable = || Error::Unhashable { path: path.clone() };
        let name = entry.file_name().into_string().map_err(|_| unhashable())?;
        if name.contains(|c: char| c.is_control() || c == '\\') {
            return Err(unhashable());
        }
        let name = format!("{prefix}/{name}");
        let kind = entry.file_type().map_err(Error::io(&path))?;
        if kind.is_dir() {
            collect(&path, &name, files)?;
        } else if fs::metadata(&path).map_err(Error::io(&path))?.is_file() {
            files.push((name, path));
        } else {
            return Err(unhashable());
        }
    }
    Ok(())
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes every write");
        text
    })
}

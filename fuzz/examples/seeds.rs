//! Makes the corpora: `seeds FOLDER` writes `FOLDER/header` and `FOLDER/config`.
//!
//! Each of the hostile checkpoints gives its config and the header of each weight file, with the
//! length of the data behind it. Equal ones are written once.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use samebits_fixtures::golden::sha256;
use samebits_fixtures::hostile;

/// Longest seed, in bytes: the tables also hold a header of several megabytes.
const SEED_BYTES_MAX: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let to = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: seeds FOLDER")?);
    let (mut headers, mut configs) = (BTreeSet::new(), BTreeSet::new());
    for case in hostile::cases().into_iter().chain(hostile::hybrid_cases()) {
        let dir = tempfile::tempdir()?;
        (case.build)(dir.path())?;
        collect(&dir.path().join(case.model), &mut headers, &mut configs)?;
    }
    write(&to.join("header"), &headers)?;
    write(&to.join("config"), &configs)
}

type Seeds = BTreeSet<Vec<u8>>;

fn collect(folder: &Path, headers: &mut Seeds, configs: &mut Seeds) -> Result<(), Box<dyn Error>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let Ok(bytes) = fs::read(&path) else { continue };
        if path.extension().is_some_and(|e| e == "safetensors") {
            headers.extend(header(&bytes));
        } else if path.file_name().is_some_and(|n| n == "config.json") {
            configs.extend((bytes.len() <= SEED_BYTES_MAX).then_some(bytes));
        }
    }
    Ok(())
}

/// The header of a file, then the number of bytes behind it in three bytes.
fn header(file: &[u8]) -> Option<Vec<u8>> {
    let stated = u64::from_le_bytes(*file.first_chunk()?);
    let end = usize::try_from(stated).ok().and_then(|n| n.checked_add(8)).unwrap_or(usize::MAX);
    let end = end.min(file.len());
    let behind = u32::try_from(file.len() - end).ok().filter(|n| *n < 1 << 24)?;
    (end <= SEED_BYTES_MAX).then(|| [&file[..end], &behind.to_le_bytes()[..3]].concat())
}

fn write(folder: &Path, seeds: &Seeds) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    for seed in seeds {
        fs::write(folder.join(sha256(seed)), seed)?;
    }
    println!("{}: {} seeds", folder.display(), seeds.len());
    Ok(())
}

//! Output files, written whole or not at all, also where the process is ended meanwhile; and lines
//! on stderr, which no command depends on.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

/// Temporary files that are being filled. One list for the process, since a signal is for all of
/// it.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills a temporary file beside `path`, flushes it, and renames it to `path`.
///
/// A link is followed. What exists and is no regular file, such as a device or a pipe, is written
/// to and stays what it is.
///
/// # Errors
/// What the system or `fill` answered; `path` is then as it was.
pub fn write_whole(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let special = fs::metadata(&target).is_ok_and(|found| !found.is_file());
    let beside = target.parent().filter(|p| !p.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    let scratch = std::env::temp_dir();
    let (file, _listed) = begin(if special { &scratch } else { beside })?;
    let mode = file.as_file().metadata()?.permissions();
    fill(file.path())?;
    // `fill` may have put another file in place.
    let mut filled = File::open(file.path())?;
    if special {
        io::copy(&mut filled, &mut File::options().write(true).open(&target)?)?;
        return Ok(());
    }
    filled.set_permissions(mode)?;
    filled.sync_all()?;
    file.persist(&target)?;
    File::open(beside)?.sync_all()
}

/// Says a line on stderr. One that is full or closed does not stop a command, as `eprintln!` would.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "samebits: {line}");
}

/// Removes the files that are being filled and ends the process.
///
/// The list stays locked, so that no other thread finishes a file or reports that one is gone.
pub fn abandon(exit_code: u8) -> ! {
    let list = unfinished();
    for file in list.iter() {
        // One that has its own name by now is whole, and one that is gone needs nothing.
        let _ = fs::remove_file(file);
    }
    std::process::exit(exit_code.into())
}

/// Removes the files that are being filled, unless some thread is at the list just now.
pub(crate) fn discard() {
    if let Ok(list) = UNFINISHED.try_lock() {
        list.iter().for_each(|file| drop(fs::remove_file(file)));
    }
}

/// A temporary file in `folder`, listed for as long as the second value lives.
fn begin(folder: &Path) -> io::Result<(NamedTempFile, Listed)> {
    // The umask decides who may read the file, as for any other output.
    let mode = Permissions::from_mode(0o666);
    let mut list = unfinished();
    let file = tempfile::Builder::new().permissions(mode).tempfile_in(folder)?;
    list.push(file.path().to_path_buf());
    let listed = Listed(file.path().to_path_buf());
    Ok((file, listed))
}

/// An entry of the list.
struct Listed(PathBuf);

impl Drop for Listed {
    fn drop(&mut self) {
        unfinished().retain(|file| *file != self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_stays_as_it_was() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let (file, link) = (dir.path().join("a"), dir.path().join("b"));
        write_whole(&file, |at| fs::write(at, "one")).expect("it is written");
        std::os::unix::fs::symlink(&file, &link).expect("a link is made");
        write_whole(&link, |at| fs::write(at, "two")).expect("it is written");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "two");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        let failed = write_whole(&file, |at| fs::write(at, "x").and(Err(io::Error::other("no"))));
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "two");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 2, "nothing is left");
        let listed = |at: &Path| unfinished().iter().any(|file| file == at);
        write_whole(&file, |at| fs::write(at, listed(at).to_string())).expect("it is written");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "true", "listed meanwhile");
        assert!(!unfinished().iter().any(|left| left.starts_with(dir.path())), "and not after");
    }

    #[test]
    fn a_device_stays_a_device() {
        write_whole(Path::new("/dev/null"), |at| fs::write(at, "x")).expect("it takes anything");
        assert!(!fs::metadata("/dev/null").expect("it is there").is_file());
        let full = write_whole(Path::new("/dev/full"), |at| fs::write(at, "x"));
        assert_eq!(full.expect_err("it is full").kind(), io::ErrorKind::StorageFull);
    }
}

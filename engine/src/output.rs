//! Output files: written whole or not at all.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
    // The umask decides who may read the file, as for any other output.
    let mode = Permissions::from_mode(0o666);
    let folder = if special { &scratch } else { beside };
    let file = tempfile::Builder::new().permissions(mode).tempfile_in(folder)?;
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
    }

    #[test]
    fn a_device_stays_a_device() {
        write_whole(Path::new("/dev/null"), |at| fs::write(at, "x")).expect("it takes anything");
        assert!(!fs::metadata("/dev/null").expect("it is there").is_file());
        let full = write_whole(Path::new("/dev/full"), |at| fs::write(at, "x"));
        assert_eq!(full.expect_err("it is full").kind(), io::ErrorKind::StorageFull);
    }
}

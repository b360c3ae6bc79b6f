//! Whole files, hashes of folders, the machine and the checkout.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use samebits_reports::{
    Checkout, Error, Host, changed_since, commits_since, hash_dir, hash_file, write_atomic,
};
use tempfile::TempDir;

fn scratch() -> TempDir {
    TempDir::new().expect("a scratch folder")
}

fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("a name below a folder")).expect("a folder is made");
    fs::write(path, bytes).expect("a file is written");
}

/// A reader beside 200 replacements sees the one content or the other, and never a part.
#[test]
fn no_half_written_file_is_ever_visible() {
    let dir = scratch();
    let path = dir.path().join("out");
    let contents = [vec![b'a'; 300_000], vec![b'b'; 200_000]];
    write_atomic(&path, &contents[0]).expect("the file is written");
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) || reads == 0 {
                let seen = fs::read(&path).expect("the file is always there");
                assert!(contents.contains(&seen), "{} bytes are visible", seen.len());
                reads += 1;
            }
            reads
        });
        for turn in 0..200 {
            write_atomic(&path, &contents[turn % 2]).expect("the file is replaced");
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("the reader saw whole files only")
    });
    assert!(reads > 0);
    assert_eq!(fs::read_dir(dir.path()).expect("the folder is there").count(), 1);
}

#[test]
fn a_failed_write_leaves_the_folder_as_it_was() {
    let dir = scratch();
    put(dir.path(), "taken/inner", b"kept");
    let refused = write_atomic(&dir.path().join("taken"), b"new");
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    let refused = write_atomic(&dir.path().join("absent/file"), b"new");
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    assert_eq!(fs::read_dir(dir.path()).expect("the folder is there").count(), 1);
    assert_eq!(fs::read(dir.path().join("taken/inner")).expect("it is there"), b"kept");
}

#[cfg(unix)]
#[test]
fn permissions_are_those_of_the_old_file_or_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = scratch();
    let mode = |name: &str| {
        let data = fs::metadata(dir.path().join(name)).expect("the file is there");
        data.permissions().mode() & 0o777
    };
    put(dir.path(), "plain", b"");
    write_atomic(&dir.path().join("new"), b"").expect("the file is written");
    assert_eq!(mode("new"), mode("plain"));
    let only_me = fs::Permissions::from_mode(0o600);
    fs::set_permissions(dir.path().join("plain"), only_me).expect("the mode is set");
    write_atomic(&dir.path().join("plain"), b"new").expect("the file is replaced");
    assert_eq!(mode("plain"), 0o600);
}

#[test]
fn the_hash_of_a_file_is_sha256() {
    let dir = scratch();
    put(dir.path(), "f", b"abc");
    let want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hash_file(&dir.path().join("f")).expect("the file is read"), want);
}

/// The value is that of the shell line in the module's doc, run once on these three files.
#[test]
fn the_hash_of_a_folder_is_that_of_its_list() {
    let dir = scratch();
    put(dir.path(), "b", b"abc");
    put(dir.path(), "a/x", b"");
    put(dir.path(), "a.txt", b"\n");
    let want = "39aa4c2ea1eb02f2bf52e0586af903f6a19d925fd6d23ea85b7c0d57a6691fed";
    assert_eq!(hash_dir(dir.path()).expect("the folder is read"), want);
}

/// Whatever changes in a folder changes its hash; a second look does not.
#[test]
fn every_change_of_a_folder_changes_its_hash() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("nothing", |_| {}),
        ("a byte", |dir| put(dir, "a", b"2")),
        ("a name", |dir| fs::rename(dir.join("a"), dir.join("c")).expect("it is renamed")),
        ("a new empty file", |dir| put(dir, "e", b"")),
        ("a lost file", |dir| fs::remove_file(dir.join("d/b")).expect("it is removed")),
        ("bytes moved between files", |dir| {
            put(dir, "a", b"12");
            put(dir, "d/b", b"");
        }),
    ];
    let mut seen = Vec::new();
    for (why, change) in changes {
        let dir = scratch();
        put(dir.path(), "a", b"1");
        put(dir.path(), "d/b", b"2");
        change(dir.path());
        let hash = hash_dir(dir.path()).expect("the folder is read");
        assert_eq!(hash_dir(dir.path()).expect("the folder is read"), hash, "{why}: twice");
        assert!(!seen.contains(&hash), "{why} does not change the hash");
        seen.push(hash);
    }
}

#[test]
fn folders_that_cannot_be_hashed() {
    let dir = scratch();
    fs::create_dir(dir.path().join("empty")).expect("a folder is made");
    assert!(matches!(hash_dir(dir.path()), Err(Error::Empty { .. })));
    assert!(matches!(hash_dir(&dir.path().join("absent")), Err(Error::Io { .. })));
    put(dir.path(), "a\\b", b"");
    if cfg!(unix) {
        assert!(matches!(hash_dir(dir.path()), Err(Error::Unhashable { .. })));
    }
}

#[cfg(unix)]
#[test]
fn links_count_with_their_content_and_never_lead_away() {
    use std::os::unix::fs::symlink;
    let (plain, linked, blobs) = (scratch(), scratch(), scratch());
    put(plain.path(), "f", b"1");
    put(blobs.path(), "blob", b"1");
    symlink(blobs.path().join("blob"), linked.path().join("f")).expect("a link is made");
    let hash = |dir: &TempDir| hash_dir(dir.path());
    assert_eq!(hash(&plain).expect("it is read"), hash(&linked).expect("it is read"));
    symlink(blobs.path(), linked.path().join("folder")).expect("a link is made");
    assert!(matches!(hash(&linked), Err(Error::Unhashable { .. })));
    fs::remove_file(linked.path().join("folder")).expect("the link is removed");
    symlink("nowhere", linked.path().join("dangling")).expect("a link is made");
    assert!(matches!(hash(&linked), Err(Error::Io { .. })));
}

#[test]
fn this_machine() {
    let host = Host::capture();
    assert!(!host.cpu.is_empty() && host.cores > 0, "{host:?}");
    assert_eq!((&host.gpu, &host.driver), (&None, &None));
    #[cfg(target_arch = "x86_64")]
    for name in ["avx2", "avx512f"] {
        let has = match name {
            "avx2" => std::is_x86_feature_detected!("avx2"),
            _ => std::is_x86_feature_detected!("avx512f"),
        };
        assert_eq!(host.isa.iter().any(|isa| isa == name), has, "{name}");
    }
}

#[test]
fn checkouts() {
    let none = || "unknown".to_owned();
    let unknown = Checkout { commit: none(), dirty: true, code: none() };
    let dir = scratch();
    assert_eq!(Checkout::capture(&dir.path().join("absent")), unknown);
    let git = |args: &str| {
        let args = args.split(' ');
        let mut git = Command::new("git");
        git.arg("-C").arg(dir.path()).args(["-c", "user.name=t", "-c", "user.email=t@t"]);
        git.args(args).output().expect("git runs where this project is built").status.success()
    };
    assert!(git("init -q"));
    assert_eq!(Checkout::capture(dir.path()), unknown, "no commit yet");
    assert!(git("commit -q --allow-empty -m first"));
    let empty = Checkout::capture(dir.path());
    assert_eq!(empty.code, none(), "no source is tracked");
    let clean = empty;
    assert!(!clean.dirty, "{clean:?}");
    assert!(clean.commit.len() >= 40 && clean.commit.chars().all(|c| c.is_ascii_hexdigit()));
    put(dir.path(), "new", b"");
    assert!(Checkout::capture(dir.path()).dirty, "an untracked file");
    let since = || changed_since(dir.path(), &clean.commit);
    assert_eq!(since(), Some(Vec::new()), "an untracked file is of no commit");
    assert!(git("add new"));
    assert_eq!(since(), Some(vec!["new".to_owned()]), "before it is committed");
    assert!(git("commit -q -m second"));
    assert_eq!(since(), Some(vec!["new".to_owned()]), "and after");
    assert_eq!(changed_since(dir.path(), &"0".repeat(40)), None);
    assert_eq!(changed_since(dir.path(), "--stat"), None);
}

/// A commit that accepts results, or rewrites prose, leaves the sources what they were; a change of
/// any other tracked file, committed or not, makes other sources of them.
#[test]
fn sources_are_all_but_results_and_prose() {
    let dir = scratch();
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(dir.path()).args(["-c", "user.name=t", "-c", "user.email=t@t"]);
        let done = git.args(args).output().expect("git runs where this project is built");
        assert!(done.status.success(), "{done:?}");
    };
    git(&["init", "-q"]);
    let pages = ["README.md", "LICENSE", "fixtures/goldens/README.md", "results/gates.json"];
    let sources = ["Cargo.toml", "engine/src/lib.rs", ".ci/run", "gates/data/results.json"];
    for name in pages.iter().chain(&sources) {
        put(dir.path(), name, b"1");
    }
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first"]);
    let first = Checkout::capture(&dir.path().join("engine"));
    assert!(!first.dirty && first.code.len() == 64, "{first:?}");
    for name in pages {
        put(dir.path(), name, b"2");
    }
    put(dir.path(), "results/new.json", b"1");
    let seen = Checkout::capture(dir.path());
    assert_eq!((seen.dirty, &seen.code), (false, &first.code), "pages, before they are committed");
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "second"]);
    let second = Checkout::capture(dir.path());
    assert_ne!(second.commit, first.commit);
    assert_eq!((second.dirty, &second.code), (false, &first.code), "and after");
    assert_eq!(changed_since(dir.path(), &first.commit), Some(Vec::new()));
    assert_eq!(commits_since(dir.path(), &first.commit), Some(1));
    assert_eq!(commits_since(dir.path(), "--all"), None);
    for name in sources {
        put(dir.path(), name, b"2");
        let seen = Checkout::capture(dir.path());
        assert!(seen.dirty && seen.code != first.code, "{name}: {seen:?}");
        assert_eq!(changed_since(dir.path(), &first.commit), Some(vec![name.to_owned()]));
        put(dir.path(), name, b"1");
    }
}

//! Mutated files never panic, and what is admitted is whole.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use samebits::checkpoint::{Checkpoint, Config};
use samebits_fixtures::{Spec, synthetic, synthetic_sharded};
use tempfile::TempDir;

/// A folder, and the pristine bytes of the file in it that is mutated.
struct Subject {
    dir: TempDir,
    file: &'static str,
    bytes: Vec<u8>,
    /// Bytes from the start that decide anything.
    structure: usize,
}

impl Subject {
    fn new(shards: usize, file: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let spec = Spec::named("tiny-d").expect("a known spec");
        match shards {
            1 => synthetic(&spec, 1, dir.path()).expect("it builds"),
            _ => synthetic_sharded(&spec, 1, shards, dir.path()).expect("it builds"),
        }
        let bytes = fs::read(dir.path().join(file)).expect("it was built");
        let structure = match file.ends_with(".safetensors") {
            true => 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize,
            false => bytes.len(),
        };
        Self { dir, file, bytes, structure }
    }

    /// Opens the folder with `bytes` in the place of the file.
    fn open_with(&self, bytes: &[u8]) -> Result<(), String> {
        fs::write(self.dir.path().join(self.file), bytes).expect("it can be written");
        whole(self.dir.path())
    }
}

/// Admits `dir` and reads every tensor; a refusal is one line with exit code 4.
fn whole(dir: &Path) -> Result<(), String> {
    let checkpoint = match Checkpoint::open(dir) {
        Ok(checkpoint) => checkpoint,
        Err(e) => {
            let line = e.to_string();
            assert!(!line.chars().any(char::is_control), "{line:?}");
            assert_eq!(e.exit_code(), 4, "{line}");
            return Err(line);
        }
    };
    for tensor in checkpoint.index().tensors() {
        let mut bytes = vec![0; tensor.len as usize];
        checkpoint.read(tensor, 0, &mut bytes).expect("an admitted tensor is there");
    }
    Ok(())
}

/// What is done to the bytes.
#[derive(Clone, Debug)]
enum Edit {
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Truncate(usize),
    Digit(usize, u8),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = || 0..1_usize << 20;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(i, b)| Edit::Set(i, b)),
        (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(i, b)| Edit::Insert(i, b)),
        (at(), 1..40_usize).prop_map(|(i, n)| Edit::Remove(i, n)),
        at().prop_map(Edit::Truncate),
        (at(), b'0'..=b'9').prop_map(|(i, d)| Edit::Digit(i, d)),
    ]
}

fn apply(bytes: &mut Vec<u8>, structure: usize, edit: &Edit) {
    let len = structure.min(bytes.len()).max(1);
    match edit {
        Edit::Set(i, b) => bytes.iter_mut().skip(i % len).take(1).for_each(|byte| *byte = *b),
        Edit::Insert(i, more) => drop(bytes.splice(i % len..i % len, more.iter().copied())),
        Edit::Remove(i, n) => drop(bytes.drain(i % len..(i % len + n).min(bytes.len()))),
        Edit::Truncate(i) => bytes.truncate(i % (bytes.len() + 1)),
        // A number that stays a number goes deeper than a broken grammar.
        Edit::Digit(i, d) => {
            let found = (0..len).map(|k| (i + k) % len).find(|&k| bytes[k].is_ascii_digit());
            found.into_iter().for_each(|k| bytes[k] = *d);
        }
    }
}

fn subjects() -> [Subject; 4] {
    [
        Subject::new(1, "model.safetensors"),
        Subject::new(1, "config.json"),
        Subject::new(3, "model.safetensors.index.json"),
        Subject::new(3, "model-00002-of-00003.safetensors"),
    ]
}

#[test]
fn the_unmutated_files_are_admitted() {
    for subject in subjects() {
        subject.open_with(&subject.bytes).expect(subject.file);
    }
}

/// The same cases every time: 1500, of which most must be refused and some must not.
#[test]
fn mutated_files_are_refused_or_whole() {
    let subjects = subjects();
    let mut runner = TestRunner::new(config(1500));
    let refused = Cell::new(0);
    let strategy = (0..subjects.len(), prop::collection::vec(edit(), 1..5));
    let verdict = runner.run(&strategy, |(which, edits)| {
        let subject = &subjects[which];
        let mut bytes = subject.bytes.clone();
        edits.iter().for_each(|edit| apply(&mut bytes, subject.structure, edit));
        refused.set(refused.get() + usize::from(subject.open_with(&bytes).is_err()));
        Ok(())
    });
    verdict.unwrap_or_else(|e| panic!("{e}"));
    assert!((750..1500).contains(&refused.get()), "{} of 1500 were refused", refused.get());
}

fn config(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(7);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn any_text_is_a_config_or_an_error(text in "\\PC{0,200}") {
        if let Err(e) = Config::parse(&text) {
            prop_assert!(!e.to_string().chars().any(char::is_control));
        }
    }
}

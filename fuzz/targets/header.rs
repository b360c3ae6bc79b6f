//! Bytes as a weight file: a reader that never panics, refusals of one line, and no tensor that
//! another reader would not find in the same place.
//!
//! The last three bytes of an input say how many zeros follow the rest, so that a header of a few
//! hundred bytes can describe data that is there.
#![no_main]

use std::fs::{self, File};
use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use samebits::checkpoint::Checkpoint;
use tempfile::TempDir;

/// The config of the control among the hostile checkpoints, which most seeds belong to.
const CONFIG: &str = include_str!("../config.json");
const WEIGHTS: &str = "model.safetensors";

fuzz_target!(|bytes: &[u8]| {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a scratch folder");
        fs::write(dir.path().join("config.json"), CONFIG).expect("it can be written");
        dir
    });
    let Some((head, zeros)) = bytes.split_last_chunk::<3>() else { return };
    let zeros = u64::from(u32::from_le_bytes([zeros[0], zeros[1], zeros[2], 0]));
    let path = dir.path().join(WEIGHTS);
    fs::write(&path, head).expect("it can be written");
    let file = File::options().write(true).open(&path).expect("it was written");
    file.set_len(head.len() as u64 + zeros).expect("it can grow");
    drop(file);
    match Checkpoint::open(dir.path()) {
        Ok(checkpoint) => admitted(&checkpoint, &path),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.is_empty() && !line.chars().any(char::is_control), "{line:?}");
            assert_eq!(error.exit_code(), 4, "{line}");
        }
    }
});

/// Everything of an admitted file can be read, and lies where the other reader finds it.
fn admitted(checkpoint: &Checkpoint, path: &Path) {
    let file = fs::read(path).expect("it was written");
    let other = SafeTensors::deserialize(&file).expect("the other reader is less strict");
    let tensors = checkpoint.index().tensors();
    assert_eq!(tensors.len(), other.len());
    for tensor in tensors {
        let mut bytes = vec![1; tensor.len as usize];
        checkpoint.read(tensor, 0, &mut bytes).expect("an admitted tensor is there");
        let view = other.tensor(&tensor.name).expect("the same names");
        let shape: Vec<u64> = view.shape().iter().map(|n| *n as u64).collect();
        assert_eq!(shape, tensor.shape, "{}", tensor.name);
        assert!(view.data() == bytes, "{}", tensor.name);
    }
}

//! `pin` and `inspect`, through the functions the binary calls.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};

use samebits::checkpoint::Checkpoint;
use samebits::checkpoint::pin::{PIN_FILE, Pin, Reference};
use samebits::commands::inspect::{self, InspectArgs, InspectError};
use samebits::commands::pin::{Outcome, PinArgs, PinCommandError, run};
use samebits_fixtures::container::edit_tensors;
use samebits_fixtures::layout::into_hub_cache;
use samebits_fixtures::{Spec, synthetic, synthetic_sharded};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn model(shards: usize) -> TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let spec = Spec::named("tiny-d").expect("a known spec");
    match shards {
        1 => synthetic(&spec, 1, dir.path()).expect("it builds"),
        _ => synthetic_sharded(&spec, 1, shards, dir.path()).expect("it builds"),
    }
    dir
}

fn reference(_: &Checkpoint) -> Result<Reference, Infallible> {
    Ok(Reference { ids: vec![1, 2], argmax: vec![3, 4], logits_sha256: "a".repeat(64) })
}

fn make(model: &Path, out: &Path) -> Result<Outcome, PinCommandError<Infallible>> {
    let args = PinArgs { model: model.into(), out: Some(out.into()), check: None };
    run(&args, &mut Vec::new(), reference)
}

/// Outcome and lines of `pin --check`.
fn check(model: &Path, pin: &Path) -> (Outcome, Vec<String>) {
    let args = PinArgs { model: model.into(), out: None, check: Some(pin.into()) };
    let mut out = Vec::new();
    let outcome = run(&args, &mut out, reference).expect("the check itself works");
    let text = String::from_utf8(out).expect("UTF-8");
    (outcome, text.lines().map(str::to_owned).collect())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn a_pin_holds_every_file_and_tensor_and_checks_out() {
    for shards in [1, 3] {
        let dir = model(shards);
        let out = dir.path().join(PIN_FILE);
        assert_eq!(make(dir.path(), &out).expect("pinned").exit_code(), 0);
        let pin = Pin::load(&out).expect("well formed");
        let checkpoint = Checkpoint::open(dir.path()).expect("admitted");
        assert_eq!(pin.tensors.len(), checkpoint.index().tensors().len());
        for tensor in checkpoint.index().tensors() {
            let mut bytes = vec![0; tensor.len as usize];
            checkpoint.read(tensor, 0, &mut bytes).expect("readable");
            assert_eq!(pin.tensors[&tensor.name].sha256, sha256(&bytes), "{}", tensor.name);
        }
        assert_eq!(pin.files.len(), if shards == 1 { 2 } else { 5 });
        for (name, file) in &pin.files {
            let bytes = fs::read(dir.path().join(name)).expect("readable");
            assert_eq!((file.bytes, &file.sha256), (bytes.len() as u64, &sha256(&bytes)), "{name}");
        }
        assert_eq!(pin.config_sha256, pin.files["config.json"].sha256);
        assert_eq!(pin.reference.as_ref().map(|r| &r.argmax[..]), Some(&[3, 4][..]));
        let (outcome, lines) = check(dir.path(), &out);
        assert_eq!((outcome, lines.len()), (Outcome::Same, 1), "{lines:?}");
    }
}

#[test]
fn a_check_names_every_difference() {
    let dir = model(1);
    let weights = dir.path().join("model.safetensors");
    let pin = dir.path().join("elsewhere.json");
    make(dir.path(), &pin).expect("pinned");
    assert_eq!(check(dir.path(), &pin).0, Outcome::Same, "the pin is no file of its own");

    edit_tensors(&weights, |c| {
        c.entry("model.norm.weight").bytes[0] ^= 1;
        c.entry("model.layers.1.mlp.up_proj.weight").bytes[5] ^= 0x10;
    })
    .expect("edited");
    fs::write(dir.path().join("notes.txt"), "new").expect("written");
    let (outcome, lines) = check(dir.path(), &pin);
    assert_eq!(outcome.exit_code(), 1);
    let named = [
        "file model.safetensors: changed",
        "file notes.txt: added",
        "tensor model.layers.1.mlp.up_proj.weight: changed",
        "tensor model.norm.weight: changed",
    ];
    assert_eq!(lines.len(), named.len(), "{lines:?}");
    assert!(named.iter().zip(&lines).all(|(n, line)| line.starts_with(n)), "{lines:?}");

    // A folder that is not admitted any more is still compared.
    edit_tensors(&weights, |c| drop(c.take("model.norm.weight"))).expect("edited");
    let (outcome, lines) = check(dir.path(), &pin);
    assert_eq!(outcome, Outcome::Differs);
    assert!(lines.contains(&"tensor model.norm.weight: missing".to_owned()), "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.starts_with("no longer admitted")), "{lines:?}");
    fs::remove_file(&weights).expect("removed");
    let (_, lines) = check(dir.path(), &pin);
    assert!(lines.contains(&"file model.safetensors: missing".to_owned()), "{lines:?}");
}

#[test]
fn a_hub_snapshot_states_its_revision_and_its_blobs() {
    let dir = model(1);
    let revision = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = into_hub_cache(dir.path(), revision).expect("laid out");
    let out = dir.path().join("pin.json");
    make(&snapshot, &out).expect("pinned");
    assert_eq!(Pin::load(&out).expect("well formed").revision.as_deref(), Some(revision));
    // One bit of a blob flips, and its name no longer holds.
    let blob = fs::canonicalize(snapshot.join("model.safetensors")).expect("a link");
    let mut bytes = fs::read(&blob).expect("readable");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&blob, bytes).expect("written");
    let error = make(&snapshot, &out).expect_err("the blob belies its name");
    let line = error.to_string();
    assert!(line.contains("model.safetensors") && line.contains("blob named"), "{line}");
    assert_eq!(check(&snapshot, &out).0, Outcome::Differs);
}

#[test]
fn malformed_pins_are_refused() {
    let dir = model(1);
    let out = dir.path().join(PIN_FILE);
    make(dir.path(), &out).expect("pinned");
    let good = fs::read_to_string(&out).expect("readable");
    let cases = [
        ("not JSON", "{".to_owned(), "EOF"),
        ("no schema", "{}".to_owned(), "no schema"),
        ("a later schema", good.replace("pin/1", "pin/2"), "samebits.pin/2"),
        ("an unknown field", good.replacen("{", "{\"extra\": 1,", 1), "extra"),
        ("a bad digest", good.replacen("\"sha256\": \"", "\"sha256\": \"X", 1), "SHA-256"),
        ("a repeated key", good.replacen("{", "{\"schema\": \"samebits.pin/1\",", 1), "twice"),
    ];
    for (why, text, mentions) in cases {
        assert_ne!(text, good, "{why}: the edit did nothing");
        fs::write(&out, text).expect("written");
        let error = Pin::load(&out).expect_err(why);
        let line = error.to_string();
        assert!(line.contains(mentions) && line.contains(PIN_FILE), "{why}: {line}");
        assert_eq!(error.exit_code(), 2);
    }
    assert_eq!(Pin::load(&dir.path().join("none")).expect_err("absent").exit_code(), 2);
}

#[test]
fn a_failed_write_leaves_the_old_pin() {
    let dir = model(1);
    let out = dir.path().join("no-such-folder").join("pin.json");
    assert!(make(dir.path(), &out).is_err());
    let out = dir.path().join(PIN_FILE);
    fs::write(&out, "old").expect("written");
    let refuse = |_: &Checkpoint| Err(std::fmt::Error);
    let args = PinArgs { model: dir.path().into(), out: Some(out.clone()), check: None };
    assert!(matches!(run(&args, &mut Vec::new(), refuse), Err(PinCommandError::Reference(_))));
    assert_eq!(fs::read_to_string(&out).expect("readable"), "old");
    let left = fs::read_dir(dir.path()).expect("listed").count();
    assert_eq!(left, 3, "a temporary file is left behind");
}

/// Output of `inspect`.
fn inspected(model: &Path, json: bool) -> (Result<(), InspectError>, String) {
    let mut out = Vec::new();
    let result = inspect::run(&InspectArgs { model: Some(model.into()), json }, &mut out);
    (result, String::from_utf8(out).expect("UTF-8"))
}

#[test]
fn inspect_says_what_takes_effect() {
    let dir = model(3);
    fs::write(dir.path().join("aux.safetensors"), "x").expect("written");
    let (result, text) = inspected(dir.path(), false);
    result.expect("admitted");
    let said = [
        "theta 1000000",
        "rotary dims 16",
        "type default",
        "factor 1",
        "attention factor 1",
        "full attention in all 2 layers",
        "untied",
        "BF16: 25 tensors",
        "aux.safetensors: ignored",
        "pages ",
        "3 files",
        "none (samebits.pin.json",
    ];
    for part in said.iter().filter(|part| **part != "3 files") {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let (result, text) = inspected(dir.path(), true);
    result.expect("admitted");
    let data: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(data["verdict"], "admitted");
    assert_eq!(data["masks"], serde_json::json!(["full", "full"]));
    assert_eq!(data["rope"]["rotary_dims"], 16);
    assert_eq!(data["files"].as_array().map(Vec::len), Some(3));
    assert_eq!(data["pin"]["state"], "none");
    let layers: Vec<u64> = serde_json::from_value(data["layer_pages"].clone()).expect("numbers");
    assert!(layers.len() == 2 && layers.iter().all(|pages| *pages > 0), "{layers:?}");
}

#[test]
fn inspect_compares_a_pin_beside_the_model() {
    let dir = model(1);
    make(dir.path(), &dir.path().join(PIN_FILE)).expect("pinned");
    let state = || -> String {
        let (_, text) = inspected(dir.path(), true);
        let data: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        data["pin"]["state"].as_str().expect("a state").to_owned()
    };
    assert_eq!(state(), "agrees");
    let path = dir.path().join(PIN_FILE);
    let pin = fs::read_to_string(&path).expect("readable");
    fs::write(&path, pin.replace("model.norm.weight", "model.other.weight")).expect("written");
    assert_eq!(state(), "differs");
    fs::write(&path, "{}").expect("written");
    assert_eq!(state(), "unreadable");
}

#[test]
fn a_refusal_is_one_line_and_with_json_also_data() {
    let dir = model(1);
    let weights: PathBuf = dir.path().join("model.safetensors");
    fs::write(&weights, "version https://git-lfs.github.com/spec/v1\nsize 5\n").expect("written");
    let (result, text) = inspected(dir.path(), true);
    let data: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(data["verdict"], "refused");
    let Err(InspectError::Checkpoint(error)) = result else { panic!("it must be refused") };
    assert_eq!(error.exit_code(), 4);
    assert_eq!(data["reason"], error.to_string());
    let (result, text) = inspected(dir.path(), false);
    assert!(result.is_err() && text.is_empty(), "{text}");
}

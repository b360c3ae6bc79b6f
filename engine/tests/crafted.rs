//! The program on a model whose next id is known, for everything that depends on what comes next.
//!
//! The layers of the small synthetic checkpoint are switched off, so that the last id alone
//! decides, and the head holds one row for each link of a chain of ids. Ids up to 255 are bytes for
//! the tokenizer, 256 to 258 special tokens, 259 and 260 others, and from 261 on it knows none.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use samebits_fixtures::container::{edit_config, edit_tensors};
use samebits_fixtures::{Spec, synthetic};
use serde_json::{Value, json};
use tempfile::TempDir;

const TINY_T: &str = include_str!("tiny_t.json");
const WEIGHTS: &str = "model.safetensors";

/// A model that says the ids of `chain` one after the other, again and again.
fn model(chain: &[usize]) -> TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let spec = Spec::named("tiny-d").expect("it is there");
    synthetic(&spec, 1, dir.path()).expect("it is written");
    edit_tensors(&dir.path().join(WEIGHTS), |c| {
        let row = 2 * spec.hidden; // BF16
        for name in ["self_attn.o_proj", "mlp.down_proj"] {
            for layer in 0..spec.layers {
                c.entry(&format!("model.layers.{layer}.{name}.weight")).bytes.fill(0);
            }
        }
        let norm = c.entry("model.norm.weight");
        norm.bytes.chunks_mut(2).for_each(|one| one.copy_from_slice(&[0x80, 0x3F]));
        let embedding = c.entry("model.embed_tokens.weight").bytes.clone();
        let head = c.entry("lm_head.weight");
        head.bytes.fill(0);
        for (i, id) in chain.iter().enumerate() {
            let next = chain[(i + 1) % chain.len()];
            head.bytes[next * row..][..row].copy_from_slice(&embedding[id * row..][..row]);
        }
    })
    .expect("it is edited");
    fs::write(dir.path().join("tokenizer.json"), TINY_T).expect("it is written");
    dir
}

fn write(dir: &TempDir, name: &str, text: &str) {
    fs::write(dir.path().join(name), text).expect("it is written");
}

fn eos(dir: &TempDir, id: Value) {
    edit_config(dir.path(), |c| drop(c.insert("eos_token_id".into(), id))).expect("it is edited");
}

fn generate(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
    command.arg("generate").arg(dir).args(args);
    command.output().expect("the program starts")
}

fn stderr(got: &Output) -> String {
    String::from_utf8(got.stderr.clone()).expect("errors are text")
}

/// New ids, text and finish reason, and what was said on stderr.
fn answer(dir: &TempDir, args: &[&str]) -> (Vec<u64>, String, String, String) {
    let got = generate(dir.path(), &[args, &["--json"]].concat());
    assert!(got.status.success(), "{args:?}: {}", stderr(&got));
    let json: Value = serde_json::from_slice(&got.stdout).expect("it is JSON");
    let one = &json["sequences"][0];
    let ids = one["ids"].as_array().expect("a list").iter();
    let ids = ids.map(|id| id.as_u64().expect("an id")).collect();
    let text = |key: &str| one[key].as_str().expect("a text").to_owned();
    (ids, text("text"), text("finish_reason"), stderr(&got))
}

#[test]
fn a_character_in_several_tokens_is_streamed_whole() {
    for (why, chain, max_new, want) in [
        ("an emoji", &[65, 240, 159, 152, 128][..], "4", "\u{1F600}"),
        ("cut in its middle", &[65, 240, 159, 152, 128], "2", "\u{FFFD}"),
        ("truly invalid", &[65, 240, 159, 66], "3", "\u{FFFD}B"),
        ("overlong", &[65, 0xC0, 0x80], "2", "\u{FFFD}\u{FFFD}"),
    ] {
        let dir = model(chain);
        let args = ["--ids", "65", "--max-new", max_new];
        let got = generate(dir.path(), &args);
        assert_eq!(got.status.code(), Some(0), "{why}: {}", stderr(&got));
        assert_eq!(String::from_utf8_lossy(&got.stdout), format!("{want}\n"), "{why}");
        let (ids, text, ..) = answer(&dir, &args);
        let chain: Vec<u64> = chain[1..].iter().map(|id| *id as u64).collect();
        assert_eq!((&ids[..], &text[..]), (&chain[..ids.len()], want), "{why}");
        assert_eq!(ids.len().to_string(), max_new, "{why}");
    }
}

#[test]
fn an_id_that_the_tokenizer_does_not_know_is_kept_and_named() {
    let dir = model(&[65, 300, 66, 67]);
    let (ids, text, _, said) = answer(&dir, &["--ids", "65", "--max-new", "3"]);
    assert_eq!((ids, text.as_str()), (vec![300, 66, 67], "BC"));
    assert!(said.contains("does not know: [300]"), "{said}");
    assert!(generate(dir.path(), &["--ids", "319", "--max-new", "1"]).status.success());
    for id in ["320", "4294967295", "4294967296", "-1"] {
        let got = generate(dir.path(), &["--ids", id]);
        assert_eq!((got.status.code(), got.stdout.len()), (Some(2), 0), "{id}: {}", stderr(&got));
    }
}

#[test]
fn a_stop_id_ends_it_and_its_source_is_said() {
    let both = r#"{"eos_token_id": [258, 256]}"#;
    for (why, config, file, args, want, source) in [
        ("config only", json!(258), None, &[][..], 3, "[258] from config.json"),
        ("a list", json!(null), Some(both), &[], 3, "[258, 256] from generation_config.json"),
        (
            "the two disagree",
            json!(258),
            Some(r#"{"eos_token_id": 256}"#),
            &[],
            5,
            "[256] from generation_config.json",
        ),
        ("neither", json!(null), None, &[], 7, "no stop id in config.json"),
        ("a file without ids", json!(258), Some("{}"), &[], 7, "no stop id in generation_config"),
        ("the command line", json!(258), Some(both), &["--stop", "66"], 2, "[66] from --stop"),
    ] {
        let dir = model(&[65, 97, 66, 258, 67, 256, 68]);
        eos(&dir, config);
        if let Some(text) = file {
            write(&dir, "generation_config.json", text);
        }
        // The prompt holds both stop ids, which end nothing.
        let args = [&["--ids", "256,258,65", "--max-new", "7"], args].concat();
        let (ids, _, reason, said) = answer(&dir, &args);
        assert_eq!(ids, [97, 66, 258, 67, 256, 68, 65][..want], "{why}: the stop id is the last");
        assert_eq!(reason, if want == 7 { "length" } else { "stop" }, "{why}");
        assert!(said.contains(source), "{why}: {said}");
    }
    let dir = model(&[65, 97]);
    write(&dir, "generation_config.json", "{");
    let got = generate(dir.path(), &["--ids", "65"]);
    assert_eq!(got.status.code(), Some(4), "{}", stderr(&got));
    assert!(stderr(&got).contains("generation_config.json"), "{}", stderr(&got));
}

#[test]
fn of_equal_logits_the_lowest_id_is_taken() {
    let dir = model(&[65, 305]);
    edit_tensors(&dir.path().join(WEIGHTS), |c| {
        let row = c.entry("lm_head.weight").shape[1] as usize * 2;
        let head = &mut c.entry("lm_head.weight").bytes;
        let same = head[305 * row..306 * row].to_vec();
        for id in [5, 256] {
            head[id * row..][..row].copy_from_slice(&same);
        }
    })
    .expect("it is edited");
    for extra in [
        &[][..],
        &["--temperature", "0"],
        &["--temperature", "0", "--top-k", "2", "--top-p", "0.1"],
        &["--temperature", "1", "--top-k", "1"],
        &["--isa", "scalar"],
        &["--dtype", "f32"],
    ] {
        let args = [&["--ids", "65", "--max-new", "1"], extra].concat();
        assert_eq!(answer(&dir, &args).0, [5], "{extra:?}");
    }
    // All equal: a row of zeros, since the head has no row for what follows 66.
    let (flat, args) = (model(&[65]), ["--ids", "66", "--max-new", "1"]);
    edit_tensors(&flat.path().join(WEIGHTS), |c| c.entry("lm_head.weight").bytes.fill(0))
        .expect("it is edited");
    assert_eq!(answer(&flat, &args).0, [0]);
}

#[test]
fn a_logit_that_is_no_number_is_an_error() {
    let dir = model(&[65, 66, 67]);
    edit_tensors(&dir.path().join(WEIGHTS), |c| {
        let row = c.entry("lm_head.weight").shape[1] as usize * 2;
        c.entry("lm_head.weight").bytes[300 * row..][..2].copy_from_slice(&[0xC0, 0x7F]);
    })
    .expect("it is edited");
    for extra in [&[][..], &["--temperature", "1"], &["--temperature", "1", "--top-k", "1"]] {
        let got = generate(dir.path(), &[&["--ids", "65", "--max-new", "3"], extra].concat());
        assert_eq!(got.status.code(), Some(1), "{extra:?}: {}", stderr(&got));
        assert!(stderr(&got).contains("hold a NaN"), "{}", stderr(&got));
    }
}

#[test]
fn the_context_ends_it_and_never_wraps() {
    let dir = model(&[65, 66, 67]);
    let limit = |c: &mut serde_json::Map<String, Value>| {
        c.insert("max_position_embeddings".into(), json!(64));
    };
    edit_config(dir.path(), limit).expect("it is edited");
    let prompt = |n: usize| vec!["65"; n].join(",");
    let cases = [
        (1, "0", Some(0)),
        (1, "5", Some(5)),
        (63, "5", Some(1)),
        (64, "5", Some(0)),
        (65, "5", None),
    ];
    for (len, max_new, want) in cases {
        let ids = prompt(len);
        let args = ["--ids", &ids, "--max-new", max_new];
        let Some(want) = want else {
            let got = generate(dir.path(), &args);
            assert_eq!((got.status.code(), got.stdout.len()), (Some(2), 0), "{}", stderr(&got));
            assert!(stderr(&got).contains("context of 64 positions"), "{}", stderr(&got));
            continue;
        };
        let (ids, _, reason, _) = answer(&dir, &args);
        assert_eq!(ids, [66, 67, 65, 66, 67][..want], "{len} + {max_new}");
        assert_eq!(reason, "length", "{len} + {max_new}");
    }
}

#[test]
fn a_prompt_that_normalises_to_nothing_is_empty() {
    let dir = model(&[65, 66]);
    let mut tokenizer: Value = serde_json::from_str(TINY_T).expect("it is JSON");
    tokenizer["normalizer"] = json!({ "type": "Strip", "strip_left": true, "strip_right": true });
    write(&dir, "tokenizer.json", &tokenizer.to_string());
    assert!(generate(dir.path(), &["--prompt", " A ", "--max-new", "1"]).status.success());
    for prompt in ["", "   ", "\n\t"] {
        let got = generate(dir.path(), &["--prompt", prompt]);
        assert_eq!(got.status.code(), Some(2), "{prompt:?}: {}", stderr(&got));
        assert_eq!(stderr(&got).lines().count(), 1, "{prompt:?}: {}", stderr(&got));
        assert!(stderr(&got).contains("prompt 0 is empty"), "{}", stderr(&got));
    }
}

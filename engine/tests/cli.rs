//! The program as a person or a script meets it: exit codes, one line of error, whole files.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rstest::rstest;
use samebits_fixtures::{golden, paths};

fn samebits(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
    command.args(args);
    command
}

fn output(args: &[&str]) -> Output {
    samebits(args).output().expect("the program starts")
}

fn tiny() -> String {
    paths::tiny_qwen3().display().to_string()
}

#[rstest]
#[case::no_prompt(&["generate"], 2, "no prompt")]
#[case::empty_prompt(&["generate", "--prompt", ""], 2, "prompt 0 is empty")]
#[case::empty_ids(&["generate", "--ids", ""], 2, "prompt 0 is empty")]
#[case::empty_ids_elsewhere(&["hash", "--ids", ""], 2, "prompt 0 is empty")]
#[case::an_id_too_far(&["generate", "--ids", "2080"], 2, "outside the vocabulary of 2080")]
#[case::an_id_beyond_u32(&["hash", "--ids", "4294967296"], 2, "4294967296")]
#[case::a_negative_id(&["hash", "--ids", "-1"], 2, "-1")]
#[case::no_id(&["hash", "--ids", "1,x"], 2, "\"x\" is not a token id")]
#[case::unequal(&["hash", "--ids", "1,2", "--ids", "3"], 2, "equal lengths")]
#[case::decode_from_nothing(&["hash", "--ids", "1,2", "--decode-from", "0"], 2, "1 to 2")]
#[case::decode_from_beyond(&["hash", "--ids", "1,2", "--decode-from", "3"], 2, "1 to 2")]
#[case::no_threads(&["hash", "--ids", "1", "--threads", "0"], 2, "--threads 0")]
#[case::no_chunk(&["hash", "--ids", "1", "--chunk", "0"], 2, "chunk")]
#[case::no_such_isa(&["hash", "--ids", "1", "--isa", "sse9"], 2, "scalar")]
#[case::a_tiny_budget(&["hash", "--ids", "1", "--ram", "1MiB"], 5, "--ram is 1048576 bytes")]
#[case::no_size(&["hash", "--ids", "1", "--ram", "much"], 2, "\"much\" is not a size")]
#[case::cold(&["generate", "--prompt", "a", "--temperature", "-1"], 2, "0 or more")]
#[case::too_sure(&["generate", "--prompt", "a", "--temperature", "1", "--top-p", "2"], 2, "to 1")]
#[case::k_without_sampling(&["generate", "--prompt", "a", "--top-k", "3"], 2, "--temperature")]
#[case::chat_of_ids(&["generate", "--ids", "1", "--chat"], 2, "needs text")]
#[case::too_long(&["generate", "--ids-file", "/dev/null"], 2, "prompt 0 is empty")]
#[case::no_model(&["inspect", "/nowhere/at/all"], 2, "/nowhere/at/all")]
#[case::no_pin(&["sanity", "--expect", "/nowhere.json"], 2, "/nowhere.json")]
fn wrong_words_get_one_line(#[case] args: &[&str], #[case] code: i32, #[case] says: &str) {
    let got = output(args);
    let stderr = String::from_utf8(got.stderr).expect("errors are text");
    assert_eq!(got.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(says), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let own: Vec<&str> = stderr.lines().filter(|l| l.starts_with("samebits: ")).collect();
    assert!(own.len() <= 1 || stderr.contains("stop ids"), "one line: {stderr}");
}

/// Commands that print, each with a model that is part of the program.
const PRINTING: [&[&str]; 7] = [
    &["generate", "--prompt", "fn main", "--max-new", "400"],
    &["generate", "--prompt", "fn main", "--max-new", "4", "--json"],
    &["generate", "--ids", "1,2", "--ids", "3,4", "--max-new", "4"],
    &["hash", "--ids", "1,2,3"],
    &["sanity"],
    &["inspect", "tiny-qwen3"],
    &["pin", "tiny-qwen3"],
];

#[test]
fn a_closed_pipe_ends_quietly() {
    for (args, read) in PRINTING.into_iter().flat_map(|args| [(args, 0), (args, 1)]) {
        let mut child = samebits(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut pipe = child.stdout.take().expect("it is piped");
        pipe.read_exact(&mut vec![0; read]).expect("something is printed");
        drop(pipe);
        let got = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&got.stderr);
        assert_eq!(got.status.code(), Some(0), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("pipe"), "{args:?}: {stderr}");
    }
}

#[test]
fn a_full_disk_is_said_in_one_line() {
    for args in PRINTING {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
        let got = samebits(args).stdout(full).output().expect("the program starts");
        let stderr = String::from_utf8_lossy(&got.stderr);
        assert_eq!(got.status.code(), Some(5), "{args:?}: {stderr}");
        let said = stderr.lines().filter(|line| line.contains("stdout")).count();
        assert!(said == 1 && !stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}

#[test]
fn what_cannot_be_written_is_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let missing = dir.path().join("no/such/folder.safetensors").display().to_string();
    let model = tiny();
    for (out, code) in [(missing.as_str(), 2), ("/dev/full", 5), ("/proc/nothing", 2)] {
        for args in [&["logits", &model, "--ids", "1,2"][..], &["pin", &model]] {
            let got = output(&[args, &["--out", out]].concat());
            let stderr = String::from_utf8_lossy(&got.stderr).into_owned();
            assert_eq!(got.status.code(), Some(code), "{args:?} {out}: {stderr}");
            assert!(stderr.contains(out) && stderr.lines().count() == 1, "{args:?}: {stderr}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

fn logits(out: &Path, extra: &[&str]) -> Vec<u8> {
    let (model, path) = (tiny(), out.display().to_string());
    let got = output(&[&["logits", &model, "--out", &path, "--taps"][..], extra].concat());
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    std::fs::read(out).expect("it was written")
}

#[test]
fn options_change_the_way_and_not_the_bits() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| dir.path().join(name);
    let ids = "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21";
    let plain = logits(&file("plain"), &["--ids", ids]);
    for (at, extra) in [
        &["--isa", "scalar"][..],
        &["--threads", "3"],
        &["--chunk", "2"],
        &["--decode-from", "4"],
        &["--ram", "1GiB"],
    ]
    .into_iter()
    .enumerate()
    {
        let got = logits(&file(&at.to_string()), &[&["--ids", ids], extra].concat());
        assert!(got == plain, "{extra:?} changed bits");
    }
    assert!(logits(&file("order"), &["--ids", ids, "--order", "transformers"]) != plain);
    assert!(logits(&file("f32"), &["--ids", ids, "--dtype", "f32"]) != plain);
}

#[test]
fn taps_have_the_shapes_of_their_sites() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let out = dir.path().join("taps");
    logits(&out, &["--ids", "1,2,3,4,5", "--decode-from", "3"]);
    let one = golden::tensors(&out).expect("it is safetensors");
    logits(&out, &["--ids", "1,2,3", "--ids", "4,5,6"]);
    let two = golden::tensors(&out).expect("it is safetensors");
    for (site, single, batch) in [
        ("logits", &[5, 2080][..], &[2, 3, 2080][..]),
        ("embed_tokens", &[5, 128], &[2, 3, 128]),
        ("layers.5.q_proj", &[5, 192], &[2, 3, 192]),
        ("layers.5.q_norm", &[5, 6, 32], &[2, 3, 6, 32]),
        ("layers.5.k_rope", &[5, 2, 32], &[2, 3, 2, 32]),
        ("layers.0.v_cache", &[5, 2, 32], &[2, 3, 2, 32]),
        ("layers.0.probs", &[6, 5, 5], &[2, 6, 3, 3]),
        ("layers.0.mix", &[5, 192], &[2, 3, 192]),
        ("layers.0.mul", &[5, 352], &[2, 3, 352]),
        ("norm", &[5, 128], &[2, 3, 128]),
        ("rotary.cos", &[5, 16], &[3, 16]),
    ] {
        assert_eq!(one[site].shape, single, "{site}");
        assert_eq!(two[site].shape, batch, "{site} in a batch");
    }
}

#[test]
fn a_pin_is_kept_or_broken() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let pin = dir.path().join("pin.json").display().to_string();
    let model = tiny();
    assert!(output(&["pin", &model, "--out", &pin]).status.success());
    assert!(output(&["pin", &model, "--check", &pin]).status.success());
    assert!(output(&["sanity", &model, "--expect", &pin]).status.success());
    let text = std::fs::read_to_string(&pin).expect("it was written");
    let at = text.find("\"logits_sha256\": \"").expect("it is there") + 18;
    let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
    let broken = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    std::fs::write(&pin, broken).expect("it is written");
    let got = output(&["sanity", &model, "--expect", &pin]);
    assert_eq!(got.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&got.stderr).contains("logits differ"));
}

#[test]
fn an_embedded_model_is_pinned_by_its_name() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let pin = dir.path().join("pin.json").display().to_string();
    for (model, other) in [("tiny-qwen3", "tiny-qwen3.5"), ("tiny-qwen3.5", "tiny-qwen3")] {
        let made = output(&["pin", model, "--out", &pin]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        for (args, code) in [
            (&["pin", model, "--check", &pin][..], 0),
            (&["sanity", model, "--expect", &pin], 0),
            (&["pin", other, "--check", &pin], 1),
            (&["sanity", other, "--expect", &pin], 1),
        ] {
            let got = output(args);
            let said = String::from_utf8_lossy(&got.stderr);
            assert_eq!(got.status.code(), Some(code), "{args:?}: {said}");
        }
    }
    let got = output(&["pin", "tiny-qwen4"]);
    let said = String::from_utf8_lossy(&got.stderr);
    assert_eq!(got.status.code(), Some(2), "{said}");
    assert!(said.contains("tiny-qwen4") && said.lines().count() == 1, "{said}");
}

#[test]
fn json_tells_ids_text_reason_and_timings() {
    let got = output(&[
        "generate",
        "--prompt",
        "A trait in Rust",
        "--prompt",
        "A trait in Rust",
        "--max-new",
        "5",
        "--json",
    ]);
    let json: serde_json::Value = serde_json::from_slice(&got.stdout).expect("it is JSON");
    let sequences = json["sequences"].as_array().expect("a list");
    assert_eq!(sequences.len(), 2);
    assert_eq!(sequences[0]["ids"], sequences[1]["ids"], "equal prompts, greedy");
    assert_eq!(sequences[0]["ids"].as_array().map(Vec::len), Some(5));
    assert!(sequences[0]["text"].is_string() && sequences[0]["finish_reason"] == "length");
    assert_eq!(json["stop_source"], "generation_config.json");
    assert!(json["timings"]["total_s"].as_f64() > Some(0.0));
}

#[test]
fn two_at_once_do_not_meet() {
    let spawn = || samebits(&["hash", "--ids", "1,2,3"]).stdout(Stdio::piped()).spawn();
    let children = [spawn(), spawn()].map(|c| c.expect("the program starts"));
    let outputs = children.map(|c| c.wait_with_output().expect("it ends").stdout);
    assert!(!outputs[0].is_empty() && outputs[0] == outputs[1]);
}

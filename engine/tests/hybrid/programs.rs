//! Commands on hybrids, and models that are called by name.

use std::process::Command;

use samebits_fixtures::{golden, paths};

/// Standard output of a command that must succeed.
fn said(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
    let got = command.args(args).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&got.stderr);
    assert!(got.status.success(), "{args:?}: {stderr}");
    String::from_utf8(got.stdout).expect("output is text")
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("it is JSON")
}

#[test]
fn the_embedded_hybrid_answers_to_its_name() {
    let run = &golden::greedy_hybrid().expect("committed").runs[0];
    let max_new = run.greedy.len().to_string();
    let args =
        ["generate", "tiny-qwen3.5", "--prompt", &run.prompt, "--json", "--max-new", &max_new];
    let out = json(&said(&args));
    let ids: Vec<u32> = serde_json::from_value(out["sequences"][0]["ids"].clone()).expect("ids");
    assert_eq!(ids, run.greedy[..ids.len()], "{}", run.prompt);
    let text = said(&["inspect", "tiny-qwen3.5"]);
    for words in ["qwen3_5_text", "rotary dims 16", "layers 3, 7", "linear_attn.A_log"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(said(&["inspect", "tiny-qwen3"]).contains("full attention in all"));
}

#[test]
fn a_folder_of_that_name_comes_first() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    std::fs::create_dir(dir.path().join("tiny-qwen3.5")).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
    let got = command.args(["inspect", "tiny-qwen3.5"]).current_dir(dir.path()).output();
    assert_eq!(got.expect("the program starts").status.code(), Some(4), "it is empty: refused");
}

#[test]
fn every_command_works_on_a_hybrid() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let model = paths::narrow("qwen3_5").display().to_string();
    let notices = said(&["inspect", &model]);
    assert!(notices.contains("mtp.*") && notices.contains("model.visual.*"), "{notices}");
    let pin = path("pin.json");
    said(&["pin", &model, "--out", &pin]);
    assert!(said(&["pin", &model, "--check", &pin]).starts_with("same"));
    assert!(said(&["sanity", &model, "--expect", &pin]).contains("gated delta net"));
    let whole = json(&said(&["hash", &model, "--ids", "1,2,3,4,5,6,7"]));
    let cut = json(&said(&["hash", &model, "--ids", "1,2,3,4,5,6,7", "--decode-from", "2"]));
    assert_eq!(whole["argmax"], cut["argmax"]);
    for site in ["layers.0.state", "layers.0.conv_state", "layers.6.core", "layers.7.mix_gated"] {
        assert_eq!(whole["activations"][site], cut["activations"][site], "{site}");
        assert!(whole["activations"][site].is_string(), "{site} is hashed");
    }
    assert!(whole["weights"]["model.language_model.layers.0.linear_attn.A_log"].is_string());
    let out = path("logits.safetensors");
    said(&["logits", &model, "--ids", "1,2,3", "--taps", "--order", "transformers", "--out", &out]);
    let tensors = golden::tensors(std::path::Path::new(&out)).expect("it is written");
    assert_eq!(tensors["layers.0.conv_silu"].shape, [3, 320]);
    assert_eq!(tensors["layers.0.state"].shape, [6 * 32, 32]);
    assert_eq!(tensors["rotary.cos"].shape, [3, 4]);
}

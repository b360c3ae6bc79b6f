//! What a folder's side files and a command's words ask for: done as the reference does it, named,
//! or refused in one line.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rstest::rstest;
use samebits_fixtures::container::{edit_config, edit_tensors};
use samebits_fixtures::{Spec, synthetic};
use serde_json::{Value, json};
use tempfile::TempDir;

const TINY_T: &str = include_str!("tiny_t.json");

/// A TINY-D folder with a tokenizer and the given files.
fn folder(files: &[(&str, String)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    synthetic(&Spec::named("tiny-d").expect("it is there"), 1, dir.path()).expect("it is written");
    fs::write(dir.path().join("tokenizer.json"), TINY_T).expect("it is written");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("it is written");
    }
    dir
}

fn command(name: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebits"));
    command.arg(name).arg(dir).args(args);
    command
}

fn output(name: &str, dir: &Path, args: &[&str]) -> Output {
    command(name, dir, args).output().expect("the program starts")
}

fn said(got: &Output) -> String {
    String::from_utf8(got.stderr.clone()).expect("errors are text")
}

/// The ids of the first prompt.
fn ids(got: &Output) -> Vec<u64> {
    assert!(got.status.success(), "{}", said(got));
    let json: Value = serde_json::from_slice(&got.stdout).expect("it is JSON");
    let ids = json["sequences"][0]["prompt_ids"].as_array().expect("a list").iter();
    ids.map(|id| id.as_u64().expect("an id")).collect()
}

fn encoded(dir: &Path, args: &[&str]) -> Vec<u64> {
    ids(&output("generate", dir, &[args, &["--max-new", "0", "--json"]].concat()))
}

fn bytes(text: &str) -> Vec<u64> {
    text.bytes().map(u64::from).collect()
}

/// One line and this exit code.
fn refused(got: &Output, code: i32, says: &[&str]) {
    let line = said(got);
    assert_eq!(got.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().filter(|l| l.starts_with("samebits: ")).count(), 1, "{line}");
    assert!(says.iter().all(|word| line.contains(word)), "{says:?}: {line}");
}

#[test]
fn truncation_and_padding_of_a_training_call_are_passed_over() {
    let mut tokenizer: Value = serde_json::from_str(TINY_T).expect("it is JSON");
    tokenizer["truncation"] = json!({
        "max_length": 32, "direction": "Right", "strategy": "LongestFirst", "stride": 0,
    });
    tokenizer["padding"] = json!({
        "strategy": { "Fixed": 32 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 256, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    });
    let dir = folder(&[("tokenizer.json", tokenizer.to_string())]);
    for text in ["A", &"x".repeat(109)] {
        assert_eq!(encoded(dir.path(), &["--prompt", text]), bytes(text), "{} bytes", text.len());
    }
}

fn added(tokens: Value) -> (&'static str, String) {
    ("tokenizer_config.json", json!({ "added_tokens_decoder": tokens }).to_string())
}

#[test]
fn tokens_of_tokenizer_config_are_tokens() {
    let plain = |content: &str| json!({ "content": content, "special": false });
    let dir = folder(&[added(json!({ "261": plain("<tool>"), "262": plain("<b>") }))]);
    assert_eq!(encoded(dir.path(), &["--prompt", "<tool>"]), [261]);
    assert_eq!(encoded(dir.path(), &["--prompt", "a<b><tool>"]), [97, 262, 261]);
    let known = folder(&[added(json!({ "257": plain("<|im_start|>") }))]);
    assert_eq!(encoded(known.path(), &["--prompt", "<|im_start|>"]), [257]);
    let named = json!({ "eos_token": { "content": "<end>" }, "bos_token": null });
    let dir = folder(&[("tokenizer_config.json", named.to_string())]);
    assert_eq!(encoded(dir.path(), &["--prompt", "<end>"]), [261]);
    for (tokens, says) in [
        (json!({ "300": plain("<gap>") }), "300"),
        (json!({ "261": plain("<think>") }), "259"),
        (json!({ "x": plain("<x>") }), "ids"),
        (json!({ "261": 5 }), "no token"),
        (json!([1]), "ids"),
    ] {
        let dir = folder(&[added(tokens)]);
        let got = output("generate", dir.path(), &["--prompt", "a"]);
        refused(&got, 4, &["tokenizer_config.json", says]);
    }
}

fn asks(text: &str) -> TempDir {
    folder(&[("generation_config.json", text.into())])
}

#[rstest]
#[case::penalty(r#"{"repetition_penalty": 1.3}"#, &[], &["repetition_penalty 1.3"])]
#[case::all(
    r#"{"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "num_beams": 4, "length_penalty": 2.0,
        "bad_words_ids": [[5]], "max_new_tokens": 7, "from_tomorrow": "yes"}"#,
    &[],
    &["repetition_penalty", "no_repeat_ngram_size 3", "num_beams 4", "length_penalty 2.0",
      "bad_words_ids", "max_new_tokens 7", "from_tomorrow"],
)]
#[case::draws(r#"{"do_sample": true, "top_k": 20}"#, &[], &["do_sample true", "top_k 20"])]
#[case::what_is_not_given(
    r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9}"#,
    &["--temperature", "1", "--top-p", "1"],
    &["top_k 20"],
)]
fn what_a_generation_file_asks_for_is_named(
    #[case] file: &str,
    #[case] args: &[&str],
    #[case] names: &[&str],
) {
    let dir = asks(file);
    let args = [&["--ids", "65"], args].concat();
    let got = output("generate", dir.path(), &[&args[..], &["--json"]].concat());
    let line = said(&got);
    let line = line.lines().find(|l| l.contains("is not done")).expect("it is said");
    assert!(names.iter().all(|name| line.contains(name)), "{names:?}: {line}");
    assert_eq!(line.matches(", ").count(), names.len() - 1, "nothing else: {line}");
    let got = output("generate", dir.path(), &[&args[..], &["--order", "transformers"]].concat());
    refused(&got, 4, names);
}

#[rstest]
#[case::nothing("{}", &[])]
#[case::neutral(
    r#"{"repetition_penalty": 1.0, "temperature": 0.6, "top_k": 20, "do_sample": false,
        "num_beams": 1, "early_stopping": true, "suppress_tokens": null, "pad_token_id": 5,
        "transformers_version": "5.17.0", "_from_model_config": true, "use_cache": false}"#,
    &[],
)]
#[case::greedy_by_word(r#"{"do_sample": true, "top_k": 20}"#, &["--temperature", "0"])]
#[case::given(r#"{"max_new_tokens": 9}"#, &["--max-new", "1"])]
fn what_changes_nothing_is_not_named(#[case] file: &str, #[case] args: &[&str]) {
    let dir = asks(file);
    let all = [&["--ids", "65", "--order", "transformers"], args].concat();
    let got = output("generate", dir.path(), &all);
    assert!(got.status.success() && !said(&got).contains("asks for"), "{}", said(&got));
}

#[rstest]
#[case::text(r#""258""#, "\"258\"")]
#[case::negative("-1", "-1")]
#[case::null_in_a_list("[258, null]", "null")]
#[case::float("258.0", "258.0")]
#[case::boolean("true", "true")]
#[case::nested("[[258]]", "[258]")]
fn a_stop_id_that_is_none_is_refused_with_file_key_and_value(
    #[case] id: &str,
    #[case] shown: &str,
) {
    let dir = asks(&format!("{{\"eos_token_id\": {id}}}"));
    for name in ["generate", "inspect"] {
        let args: &[&str] = if name == "generate" { &["--ids", "65"] } else { &[] };
        let got = output(name, dir.path(), args);
        refused(&got, 4, &["generation_config.json", "eos_token_id", shown]);
    }
}

#[test]
fn inspect_names_the_stop_ids_that_generate_takes() {
    let dir = asks(r#"{"eos_token_id": [258, 256]}"#);
    edit_config(dir.path(), |c| drop(c.insert("eos_token_id".into(), json!(5)))).expect("edited");
    let got = output("inspect", dir.path(), &[]);
    let text = String::from_utf8_lossy(&got.stdout);
    assert!(text.contains("stop ids  [258, 256] (generation_config.json)"), "{text}");
    fs::remove_file(dir.path().join("generation_config.json")).expect("it is there");
    let got = output("inspect", dir.path(), &["--json"]);
    let json: Value = serde_json::from_slice(&got.stdout).expect("it is JSON");
    assert_eq!((&json["stop_ids"], &json["stop_source"]), (&json!([5]), &json!("config.json")));
}

#[rstest]
#[case::tiny(1e-9, 64, false)]
#[case::half(0.5, 64, true)]
#[case::half_far(0.5, 2_000_000, false)]
#[case::one(1.0, 64, true)]
#[case::usual_far(1e6, 2_000_000, false)]
#[case::subnormal(1e-40, 64, false)]
fn a_theta_beyond_the_exact_tables_is_refused(
    #[case] theta: f64,
    #[case] positions: u64,
    #[case] runs: bool,
) {
    let dir = folder(&[]);
    edit_config(dir.path(), |c| {
        c.insert("rope_theta".into(), json!(theta));
        c.insert("max_position_embeddings".into(), json!(positions));
    })
    .expect("it is edited");
    let ids = (0..64).map(|id: u32| id.to_string()).collect::<Vec<_>>().join(",");
    let got = output("hash", dir.path(), &["--ids", &ids]);
    if runs {
        assert!(got.status.success(), "{}", said(&got));
    } else {
        refused(&got, 4, &["rope_theta", "positions"]);
    }
}

#[test]
fn a_model_that_answers_nothing_is_said_to() {
    let dir = folder(&[]);
    let weights = dir.path().join("model.safetensors");
    let spoken = "the loss is ln(vocab) to all digits and the logits carry nothing";
    let says = |dir: &Path| {
        let got = output("sanity", dir, &[]);
        assert!(got.status.success(), "{}", said(&got));
        String::from_utf8_lossy(&got.stdout).contains(spoken)
    };
    assert!(!says(dir.path()), "a model that answers");
    // The squares of the residual stream overflow, so that the last norm gives zeros.
    let loud = folder(&[]);
    edit_tensors(&loud.path().join("model.safetensors"), |c| {
        let embedding = c.entry("model.embed_tokens.weight");
        embedding.bytes.chunks_mut(2).for_each(|one| one.copy_from_slice(&[0x00, 0x7E]));
    })
    .expect("it is edited");
    assert!(says(loud.path()), "layers that overflow");
    edit_tensors(&weights, |c| c.entry("lm_head.weight").bytes.fill(0)).expect("it is edited");
    assert!(says(dir.path()), "a head of zeros");
}

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}:{{ m.content }}]\
    {% endfor %}{% if tools is not none %}{{ tools | length }}{% endif %}{{ enable_thinking }}";

#[test]
fn conversations_come_from_words_files_and_the_standard_input() {
    let config = json!({ "bos_token": "<|endoftext|>", "chat_template": TEMPLATE }).to_string();
    let mut tokenizer: Value = serde_json::from_str(TINY_T).expect("it is JSON");
    // A tokenizer that begins every text with the same token does not do so twice.
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } },
                   { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } },
                 { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<|endoftext|>":
            { "id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"] } },
    });
    let messages = r#"{"messages": [{"role": "tool", "content": "x"}], "tools": [{"a": 1}]}"#;
    let dir = folder(&[
        ("tokenizer_config.json", config),
        ("tokenizer.json", tokenizer.to_string()),
        ("talk.json", messages.into()),
    ]);
    let talk = dir.path().join("talk.json").display().to_string();
    assert_eq!(encoded(dir.path(), &["--prompt", "a"]), [256, 97], "a text alone");
    for (why, args, want) in [
        ("a prompt", &["--prompt", "a"][..], "[user:a]"),
        ("a system", &["--prompt", "a", "--system", "s"], "[system:s][user:a]"),
        ("a file", &["--messages", &talk], "[tool:x]1"),
        (
            "an argument",
            &["--prompt", "a", "--template-arg", "enable_thinking=false"],
            "[user:a]False",
        ),
        (
            "a text as argument",
            &["--prompt", "a", "--template-arg", "enable_thinking=off"],
            "[user:a]off",
        ),
    ] {
        let got = encoded(dir.path(), &[&["--chat"], args].concat());
        assert_eq!(got, [vec![256], bytes(want)].concat(), "{why}");
    }
    for (args, given, want) in [
        (&["--prompt-file", "-"][..], "a", vec![256, 97]),
        (&["--chat", "--messages", "-"], messages, { [vec![256], bytes("[tool:x]1")].concat() }),
    ] {
        let all = [args, &["--max-new", "0", "--json"]].concat();
        let mut child = command("generate", dir.path(), &all)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut pipe = child.stdin.take().expect("it is piped");
        pipe.write_all(given.as_bytes()).expect("it is read");
        drop(pipe);
        assert_eq!(ids(&child.wait_with_output().expect("it ends")), want, "{args:?}");
    }
    for (args, says) in [
        (&["--messages", &talk, "--system", "s"][..], "--system"),
        (&["--prompt", "a", "--template-arg", "x"], "name=value"),
        (&["--prompt", "a", "--template-arg", "x=False"], "write true, false or null"),
        (&["--prompt", "a", "--template-arg", "messages=[]"], "--messages"),
        (&["--messages", "/nowhere"], "/nowhere"),
        (&["--messages", "/dev/null"], "EOF"),
    ] {
        refused(&output("generate", dir.path(), &[&["--chat"], args].concat()), 2, &[says]);
    }
}

#[test]
fn a_template_that_is_no_text_is_a_file_that_cannot_be_read() {
    let dir = folder(&[]);
    fs::write(dir.path().join("chat_template.jinja"), [b'{', 0xFF]).expect("it is written");
    let got = output("generate", dir.path(), &["--prompt", "a", "--chat"]);
    refused(&got, 4, &["chat_template.jinja", "not UTF-8"]);
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_weights_are_read() {
    let dir = folder(&[]);
    for args in [
        &["--ids", "1,2", "--ids", "3"][..],
        &["--prompt", ""],
        &["--prompt", "ab", "--prompt", "c"],
        &["--ids", "1", "--chunk", "0"],
        &["--ids", "320"],
    ] {
        // So little memory that weights would be refused, with exit code 5.
        let got = output("generate", dir.path(), &[args, &["--ram", "1KiB"]].concat());
        assert_eq!((got.status.code(), got.stdout.len()), (Some(2), 0), "{}", said(&got));
        assert!(!said(&got).contains("panicked"), "{args:?}: {}", said(&got));
    }
}

#[test]
fn a_temperature_near_zero_takes_the_largest() {
    let dir = folder(&[]);
    let new = |args: &[&str]| {
        let args = [&["--ids", "65,66", "--max-new", "5", "--json"], args].concat();
        let got = output("generate", dir.path(), &args);
        assert!(got.status.success(), "{}", said(&got));
        let json: Value = serde_json::from_slice(&got.stdout).expect("it is JSON");
        json["sequences"][0]["ids"].clone()
    };
    for temperature in ["1e-40", "1e-38", "1e-45"] {
        assert_eq!(new(&["--temperature", temperature]), new(&[]), "{temperature}");
    }
}

#[test]
fn a_full_or_closed_stderr_changes_nothing() {
    let dir = folder(&[]);
    let run = |stderr: Stdio| {
        let mut command = command("generate", dir.path(), &["--ids", "65", "--max-new", "3"]);
        let got = command.stderr(stderr).output().expect("the program starts");
        (got.status.code(), got.stdout)
    };
    let full = fs::File::options().write(true).open("/dev/full").expect("it is there");
    let plain = run(Stdio::piped());
    assert_eq!(plain.0, Some(0));
    assert_eq!(run(full.into()), plain);
    let closed = Command::new("sh")
        .args(["-c", "exec \"$0\" generate \"$1\" --ids 65 --max-new 3 2>&-"])
        .arg(env!("CARGO_BIN_EXE_samebits"))
        .arg(dir.path())
        .output()
        .expect("a shell starts");
    assert_eq!((closed.status.code(), closed.stdout), plain);
}

#[test]
fn under_any_address_space_limit_it_works_or_says_in_one_line_that_it_cannot() {
    // The first reads a tokenizer before it asks for threads, so that single blocks are refused.
    for words in ["generate --prompt ab --max-new 1", "hash --ids 65 --threads 3", "pin"] {
        let (mut codes, mut refusals) = (Vec::new(), 0);
        for kib in (24_000..56_000).step_by(2_400) {
            let script = format!("ulimit -v {kib}; exec \"$0\" {words}");
            let got = Command::new("sh")
                .args(["-c", &script, env!("CARGO_BIN_EXE_samebits")])
                .output()
                .expect("a shell starts");
            let line = said(&got);
            // 127: the system could not load the program.
            let code = got.status.code();
            assert!(matches!(code, Some(0 | 5 | 127)), "{words} {kib}: {:?} {line}", got.status);
            if code == Some(5) {
                let lines = line.lines().filter(|l| l.contains("refused") || l.contains("threads"));
                assert_eq!(lines.count(), 1, "{words} {kib}: {line}");
                refusals += usize::from(line.contains("out of memory"));
            }
            codes.push(code);
        }
        assert!(codes.contains(&Some(0)) && refusals > 0, "{words}: {codes:?}");
    }
}

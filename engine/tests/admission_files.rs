//! Roles, tying, run dtypes, and files that change under an open checkpoint.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use half::bf16;
use samebits::checkpoint::{Checkpoint, LayerRole, PAGE_BYTES, Role, StorageDtype};
use samebits::contract::Dtype;
use samebits_fixtures::container::{Entry, edit_config, edit_tensors};
use samebits_fixtures::{Spec, paths, synthetic, synthetic_sharded};
use serde_json::json;
use tempfile::TempDir;

fn tiny() -> TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    synthetic(&Spec::named("tiny-d").expect("a known spec"), 1, dir.path()).expect("it builds");
    dir
}

fn tied(dir: &Path) {
    edit_config(dir, |c| drop(c.insert("tie_word_embeddings".into(), json!(true))))
        .expect("a config");
}

const EMBED: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

#[test]
fn every_role_has_the_tensor_of_its_name_and_its_own_bytes() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let spec = Spec::named("tiny-d").expect("a known spec");
    synthetic_sharded(&spec, 1, 3, dir.path()).expect("it builds");
    let whole = tiny();
    let (parts, single) = (Checkpoint::open(dir.path()), Checkpoint::open(whole.path()));
    let (parts, single) = (parts.expect("admitted"), single.expect("admitted"));
    assert_eq!((parts.files().len(), single.files().len()), (3, 1));
    let mut seen = 0;
    for role in Role::all(parts.config()) {
        let (a, b) = (parts.tensor(role), single.tensor(role));
        assert_eq!(a.name, role.tensor_name());
        assert_eq!((&a.name, &a.shape, a.dtype), (&b.name, &b.shape, StorageDtype::Bf16));
        assert_eq!(a.shape, role.shape(parts.config()), "{}", a.name);
        let mut bytes = [vec![0; a.len as usize], vec![1; a.len as usize]];
        parts.read(a, 0, &mut bytes[0]).expect("readable");
        single.read(b, 0, &mut bytes[1]).expect("readable");
        assert!(bytes[0] == bytes[1], "{}: shards and single file differ", a.name);
        let mut tail = [0; 2];
        parts.read(a, a.len - 2, &mut tail).expect("readable");
        assert_eq!(tail[..], bytes[1][bytes[1].len() - 2..]);
        seen += 1;
    }
    assert_eq!(seen, 3 + 2 * LayerRole::all(true).count());
}

#[test]
fn extents_cover_what_they_name_in_whole_pages() {
    let checkpoint = Checkpoint::embedded().expect("admitted");
    let index = checkpoint.index();
    for tensor in index.tensors() {
        let [extent] = index.extents([tensor])[..] else { panic!("one extent for one tensor") };
        assert!(extent.first_page * PAGE_BYTES <= tensor.offset);
        assert!((extent.first_page + 1) * PAGE_BYTES > tensor.offset);
        let end = (extent.first_page + extent.pages) * PAGE_BYTES;
        assert!(end >= tensor.offset + tensor.len && end - PAGE_BYTES < tensor.offset + tensor.len);
    }
    let all = index.extents(index.tensors());
    let bytes = checkpoint.files()[0].bytes;
    assert_eq!(all.len(), 1, "the tensors of a file are contiguous");
    assert_eq!(all[0].first_page + all[0].pages, bytes.div_ceil(PAGE_BYTES));
}

/// Makes the head F32: the embedding's values, each plus `delta`.
fn head_in_f32(dir: &Path, delta: f32) {
    edit_tensors(&dir.join("model.safetensors"), |c| {
        let embed = c.entry(EMBED).bytes.clone();
        let wide = embed.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32());
        let bytes: Vec<u8> = wide.flat_map(|v| (v + delta * v.abs()).to_le_bytes()).collect();
        *c.entry(HEAD) = Entry::new(HEAD, "F32", &[320, 48], bytes);
    })
    .expect("a container");
}

#[test]
fn tying_is_judged_after_the_cast_to_the_run_dtype() {
    // 2^-12 of a value vanishes in bf16 and stays in f32.
    let cases = [
        ("equal", 0.0, Dtype::Bf16, true),
        ("equal", 0.0, Dtype::F32, true),
        ("below half an ulp of bf16", 1.0 / 4096.0, Dtype::Bf16, true),
        ("below half an ulp of bf16", 1.0 / 4096.0, Dtype::F32, false),
        ("above", 1.0 / 64.0, Dtype::Bf16, false),
    ];
    for (why, delta, dtype, ties) in cases {
        let dir = tiny();
        tied(dir.path());
        head_in_f32(dir.path(), delta);
        match Checkpoint::open_as(dir.path(), Some(dtype)) {
            Ok(checkpoint) => {
                assert!(ties && checkpoint.tied(), "{why}, {dtype:?}: admitted");
                assert_eq!(checkpoint.tensor(Role::LmHead).name, EMBED);
            }
            Err(e) => {
                assert!(!ties, "{why}, {dtype:?}: {e}");
                assert!(e.to_string().contains("differs"), "{e}");
                assert_eq!(e.exit_code(), 4);
            }
        }
    }
}

#[test]
fn zeros_of_either_sign_and_equal_nans_tie() {
    for (embed, head, ties) in
        [(0x8000, 0x0000, true), (0x7fc0, 0x7fc0, true), (0x7fc0, 0x7fc1, false), (1, 2, false)]
    {
        let dir = tiny();
        tied(dir.path());
        edit_tensors(&dir.path().join("model.safetensors"), |c| {
            let mut bytes = c.entry(EMBED).bytes.clone();
            bytes[30..32].copy_from_slice(&u16::to_le_bytes(embed));
            c.entry(EMBED).bytes.clone_from(&bytes);
            bytes[30..32].copy_from_slice(&u16::to_le_bytes(head));
            c.entry(HEAD).bytes = bytes;
        })
        .expect("a container");
        let opened = Checkpoint::open(dir.path());
        assert_eq!(opened.is_ok(), ties, "{embed:#x} and {head:#x}: {opened:?}");
        if let Err(e) = opened {
            assert!(e.to_string().contains("at [0, 15]"), "{e}");
        }
    }
}

#[test]
fn a_tied_head_alone_is_the_embedding() {
    let dir = tiny();
    tied(dir.path());
    edit_tensors(&dir.path().join("model.safetensors"), |c| drop(c.take(EMBED))).expect("edited");
    let checkpoint = Checkpoint::open(dir.path()).expect("admitted");
    assert!(checkpoint.tied());
    assert_eq!(checkpoint.tensor(Role::EmbedTokens).name, HEAD);
    assert_eq!(checkpoint.tensor(Role::LmHead).name, HEAD);
}

#[test]
fn the_run_dtype_is_asked_for_stated_or_stored() {
    let dir = tiny();
    let dtype = |asked| Checkpoint::open_as(dir.path(), asked).expect("admitted").dtype();
    let state = |stated: serde_json::Value| {
        edit_config(dir.path(), |c| {
            c.remove("torch_dtype");
            c.insert("dtype".into(), stated);
        })
        .expect("a config");
    };
    state(json!("float32"));
    assert_eq!((dtype(None), dtype(Some(Dtype::Bf16))), (Dtype::F32, Dtype::Bf16));
    state(json!(null));
    assert_eq!(dtype(None), Dtype::Bf16);
    // By name the head comes first, so its dtype is the file's.
    head_in_f32(dir.path(), 0.5);
    assert_eq!(dtype(None), Dtype::F32);
}

#[test]
fn a_file_that_changes_is_an_error_not_a_signal() {
    type Change = fn(&Path);
    let cases: [(&str, Change, bool, &str); 4] = [
        (
            "truncated",
            |p| OpenOptions::new().write(true).open(p).unwrap().set_len(20_000).unwrap(),
            false,
            "now 20000",
        ),
        (
            "replaced",
            |p| {
                fs::copy(p, p.with_extension("new")).unwrap();
                fs::rename(p.with_extension("new"), p).unwrap()
            },
            true,
            "replaced",
        ),
        ("deleted", |p| fs::remove_file(p).unwrap(), true, "deleted"),
        ("overwritten in place", overwrite, true, "written to"),
    ];
    for (why, change, readable, mentions) in cases {
        let dir = tiny();
        let checkpoint = Checkpoint::open(dir.path()).expect("admitted");
        checkpoint.recheck().expect("nothing has changed yet");
        change(&dir.path().join("model.safetensors"));
        let error = checkpoint.recheck().expect_err(why).to_string();
        assert!(error.contains(mentions), "{why}: {error}");
        let last = checkpoint.index().tensors().iter().max_by_key(|t| t.offset).expect("tensors");
        let mut bytes = vec![0; last.len as usize];
        match checkpoint.read(last, 0, &mut bytes) {
            Ok(()) => assert!(readable, "{why}: read"),
            Err(e) => {
                let line = e.to_string();
                assert!(!readable, "{why}: {line}");
                let all =
                    ["model.safetensors", &last.name, &last.offset.to_string(), "wanted", "got 0"];
                assert!(all.iter().all(|part| line.contains(part)), "{why}: {line}");
            }
        }
    }
}

/// Changes one byte; file systems stamp times with a granularity of some milliseconds.
fn overwrite(path: &Path) {
    std::thread::sleep(std::time::Duration::from_millis(30));
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[7]).unwrap();
}

#[test]
fn a_path_that_is_no_model_folder_is_usage_or_refusal() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    let no_weights = dir.path().join("no-weights");
    fs::create_dir(&no_weights).unwrap();
    fs::copy(paths::tiny_qwen3().join("config.json"), no_weights.join("config.json")).unwrap();
    fs::write(no_weights.join("pytorch_model.bin"), "x").unwrap();
    let cases = [
        (dir.path().join("nowhere"), 2, "no such folder"),
        (file, 2, "not a folder"),
        (dir.path().to_path_buf(), 4, "config.json: missing"),
        (no_weights, 4, "found pytorch_model.bin"),
    ];
    for (path, code, mentions) in cases {
        let error = Checkpoint::open(&path).expect_err("no model");
        assert!(error.to_string().contains(mentions), "{error}");
        assert_eq!(error.exit_code(), code, "{error}");
        assert!(error.path().starts_with(dir.path()));
    }
}

#[test]
fn a_shard_name_stays_in_the_folder_and_on_the_line() {
    for name in [
        "../x.safetensors",
        "/x.safetensors",
        "a/x.safetensors",
        "..",
        "",
        "x.bin",
        "a\\x.safetensors",
        "\u{7f}x.safetensors",
        "a\nb.safetensors",
        "model.safetensors/",
    ] {
        let dir = tiny();
        fs::rename(dir.path().join("model.safetensors"), dir.path().join("x.safetensors")).unwrap();
        let index = json!({"weight_map": {"model.norm.weight": name}});
        fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let error = Checkpoint::open(dir.path()).expect_err(name);
        let line = error.to_string();
        assert!(line.contains("not a plain"), "{name:?}: {line}");
        assert!(!line.chars().any(char::is_control), "{name:?}: {line:?}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
    let dir = tiny();
    let path = dir.path().join("model.safetensors");
    fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success());
    let error = Checkpoint::open(dir.path()).expect_err("a pipe").to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn the_embedded_model_is_the_one_on_disk() {
    let embedded = Checkpoint::embedded().expect("admitted");
    let disk = Checkpoint::open(&paths::tiny_qwen3()).expect("admitted");
    assert_eq!(embedded.config(), disk.config());
    assert_eq!(embedded.index().tensors(), disk.index().tensors());
    assert!(embedded.tied() && embedded.dtype() == Dtype::Bf16);
    assert!(embedded.notices().is_empty(), "{:?}", embedded.notices());
    for name in ["tokenizer.json", "generation_config.json", "config.json"] {
        let side = embedded.side_file(name).expect("readable").expect("it is there");
        assert_eq!(side, fs::read(paths::tiny_qwen3().join(name)).unwrap(), "{name}");
    }
    assert_eq!(embedded.side_file("nothing.json").expect("readable"), None);
    embedded.recheck().expect("a program does not change");
}

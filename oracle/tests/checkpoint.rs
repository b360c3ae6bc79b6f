//! What is loaded, what is refused, and what is refused to be run.
//!
//! Deliberately absent: the values of a run. Invariant: every refusal is of a checkpoint or a
//! request that differs in one thing from a good one.

mod plain;

use plain::{Stored, config, load, tensors, write};
use samebits_oracle::{Bits, Dtype, Model, Order, RunOptions, run};
use serde_json::{Value, json};

const INVARIANT: Bits = Bits { order: Order::Invariant, dtype: Dtype::Bf16 };
const IDS: [u32; 6] = [3, 1, 4, 1, 5, 39];

/// A change of the plain checkpoint, and what the refusal says (nothing: it loads).
type Edit = fn(&mut Value, &mut Stored);

const EDITS: [(&str, Edit, &str); 22] = [
    ("plain", |_, _| {}, ""),
    (
        "frequencies are ignored",
        |_, t| drop(t.insert("rotary_emb.inv_freq".into(), (vec![1], vec![0, 0]))),
        "",
    ),
    (
        "tied, embedding only",
        |c, t| {
            c["tie_word_embeddings"] = true.into();
            t.remove("lm_head.weight");
        },
        "",
    ),
    (
        "tied, head only",
        |c, t| {
            c["tie_word_embeddings"] = true.into();
            t.remove("model.embed_tokens.weight");
        },
        "",
    ),
    (
        "tied, both alike",
        |c, t| {
            c["tie_word_embeddings"] = true.into();
            let head = t["lm_head.weight"].clone();
            t.insert("model.embed_tokens.weight".into(), head);
        },
        "",
    ),
    ("tied, both unlike", |c, _| c["tie_word_embeddings"] = true.into(), "differs"),
    ("untied without a head", |_, t| drop(t.remove("lm_head.weight")), "is missing"),
    (
        "an unknown tensor",
        |_, t| drop(t.insert("model.bias".into(), (vec![1], vec![0, 0]))),
        "is unknown",
    ),
    (
        "a turned shape",
        |_, t| t.get_mut("model.layers.0.self_attn.q_proj.weight").expect("there").0 = vec![16, 32],
        "should be",
    ),
    ("other family", |c, _| c["model_type"] = "qwen2".into(), "model_type"),
    ("null heads of keys", |c, _| c["num_key_value_heads"] = Value::Null, "should be"),
    (
        "no heads of keys",
        |c, _| drop(c.as_object_mut().expect("map").remove("num_key_value_heads")),
        "num_key_value_heads",
    ),
    ("a width of null", |c, _| c["head_dim"] = Value::Null, "head_dim: is of the wrong type"),
    ("an integer eps", |c, _| c["rms_norm_eps"] = 1.into(), "rms_norm_eps"),
    (
        "a window",
        |c, _| {
            c["use_sliding_window"] = true.into();
            c["max_window_layers"] = 1.into();
        },
        "use_sliding_window",
    ),
    ("a window past the last layer", |c, _| c["use_sliding_window"] = true.into(), ""),
    (
        "a linear layer",
        |c, _| c["layer_types"] = json!(["full_attention", "linear_attention"]),
        "layer_types",
    ),
    (
        "a scaled rotary",
        |c, _| c["rope_scaling"] = json!({"type": "yarn", "factor": 4.0}),
        "rope_parameters",
    ),
    ("an empty scaling", |c, _| c["rope_scaling"] = json!({}), ""),
    ("biases", |c, _| c["attention_bias"] = true.into(), "attention_bias"),
    (
        "quantized",
        |c, _| c["quantization_config"] = json!({"quant_method": "fp8"}),
        "quantization_config",
    ),
    ("gelu", |c, _| c["hidden_act"] = "gelu".into(), "hidden_act"),
];

#[test]
fn what_is_refused() {
    for (why, edit, says) in EDITS {
        let (mut config, mut tensors) = (config(), tensors());
        edit(&mut config, &mut tensors);
        match load(&config, &tensors) {
            Ok(model) => {
                assert!(says.is_empty(), "{why} was loaded");
                assert!(
                    model.weight("lm_head").is_some() && model.weight("embed_tokens").is_some()
                );
            }
            Err(e) => assert!(!says.is_empty() && e.contains(says), "{why}: {e}"),
        }
    }
}

#[test]
fn the_rotary_base_is_resolved_as_transformers_does() {
    let cases = [
        (json!({"rope_theta": null}), 10_000.0),
        (json!({}), 1000.0),
        (json!({"rope_parameters": {"rope_theta": 5e5}}), 5e5),
        (json!({"rope_parameters": {"rope_type": "default"}}), 1000.0),
        (
            json!({"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {"type": "default"}}),
            1000.0,
        ),
        (json!({"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {}}), 5e5),
        (json!({"rope_scaling": {"rope_theta": 7}}), 7.0),
    ];
    for (fields, theta) in cases {
        let mut config = config();
        let map = config.as_object_mut().expect("a map");
        map.extend(fields.as_object().expect("a map").clone());
        let model = load(&config, &tensors()).expect("only the base changes");
        assert_eq!(model.config().theta, theta, "{fields}");
    }
}

#[test]
fn shards_are_one_model_and_bad_requests_are_refused() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (mut first, mut second) = (tensors(), Stored::new());
    for name in ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"] {
        second.extend(first.remove_entry(name));
    }
    let map =
        |t: &Stored, file: &str| t.keys().map(|n| (n.clone(), file.into())).collect::<Vec<_>>();
    let all = [map(&first, "a.safetensors"), map(&second, "b.safetensors")].concat();
    let index = json!({"weight_map": all.into_iter().collect::<serde_json::Map<_, Value>>()});
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string())
        .expect("writable");
    std::fs::write(dir.path().join("config.json"), config().to_string()).expect("writable");
    write(&dir.path().join("a.safetensors"), &first);
    write(&dir.path().join("b.safetensors"), &second);
    let sharded = Model::load(dir.path()).expect("two shards make the model");
    let whole = load(&config(), &tensors()).expect("one file makes the model");
    let opts = RunOptions::default();
    let got = run(&sharded, &INVARIANT, &IDS, &opts).expect("a good request");
    assert_eq!(
        got.logits(),
        run(&whole, &INVARIANT, &IDS, &opts).expect("a good request").logits()
    );
    let bad = [
        (&[][..], opts.clone()),
        (&[40][..], opts.clone()),
        (&[1, 2][..], RunOptions { decode_from: Some(3), ..opts.clone() }),
        (&[1, 2][..], RunOptions { decode_from: Some(0), ..opts.clone() }),
        (&[1, 2][..], RunOptions { logit_rows: Some(vec![2]), ..opts.clone() }),
        (&[1, 2][..], RunOptions { logit_rows: Some(vec![1, 0]), ..opts.clone() }),
        (&[1, 2][..], RunOptions { rotary: Some((vec![1.0; 4], vec![0.0; 4])), ..opts.clone() }),
    ];
    for (ids, opts) in bad {
        assert!(run(&sharded, &INVARIANT, ids, &opts).is_err(), "{ids:?} {opts:?}");
    }
    std::fs::remove_file(dir.path().join("b.safetensors")).expect("it is there");
    assert!(
        Model::load(dir.path()).expect_err("a shard is gone").to_string().contains("b.safetensors")
    );
}

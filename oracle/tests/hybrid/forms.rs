//! Forms of a hybrid checkpoint: what is loaded as the same model, and what is refused.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use samebits_oracle::{Model, RunOptions, run};
use serde_json::{Value, json};

use crate::INVARIANT;
use crate::golden::{differing, goldens};

type Stored = BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>;

fn stored() -> Stored {
    let path = goldens().join("qwen3_5_f32log/model.safetensors");
    let bytes = std::fs::read(path).expect("the golden checkpoint");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let each = file.iter().map(|(name, view)| {
        (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    });
    each.collect()
}

fn config() -> Value {
    let path = goldens().join("qwen3_5_f32log/config.json");
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

fn load(config: &Value, tensors: &Stored) -> Result<Model, String> {
    let dir = tempfile::tempdir().expect("a scratch folder");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("writable");
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).expect("data fill the shape"))
    });
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors"))
        .expect("a scratch folder is writable");
    Model::load(dir.path()).map_err(|e| e.to_string())
}

fn logits(model: &Model) -> Vec<f64> {
    let opts = RunOptions::default();
    run(model, &INVARIANT, &[9, 8, 7, 6], &opts).expect("ids").logits().values.clone()
}

/// What becomes of the checkpoint.
enum Fate {
    Same,
    Other, // loaded, with other logits
    Refused(&'static str),
}
use Fate::{Other, Refused, Same};

type Edit = fn(&mut Value, &mut Stored);

const TIED: &str = "tie_word_embeddings";
const EMBED: &str = "model.language_model.embed_tokens.weight";

fn text(c: &mut Value) -> &mut serde_json::Map<String, Value> {
    c["text_config"].as_object_mut().expect("a map")
}

fn set(c: &mut Value, key: &str, value: Value) {
    text(c).insert(key.to_owned(), value);
}

fn rope(c: &mut Value, key: &str, value: Option<Value>) {
    let map = text(c)["rope_parameters"].as_object_mut().expect("a map");
    match value {
        Some(value) => drop(map.insert(key.to_owned(), value)),
        None => drop(map.remove(key)),
    }
}

fn plain_names(t: &mut Stored) {
    let plain = |name: String| name.replacen("model.language_model.", "model.", 1);
    *t = std::mem::take(t).into_iter().map(|(name, x)| (plain(name), x)).collect();
}

const FORMS: [(&str, Edit, Fate); 39] = [
    ("as published", |_, _| {}, Same),
    ("plain names", |_, t| plain_names(t), Same),
    ("flat", |c, _| *c = c["text_config"].take(), Same),
    (
        "flat, plain names",
        |c, t| {
            *c = c["text_config"].take();
            plain_names(t);
        },
        Same,
    ),
    (
        "a name under both prefixes",
        |_, t| {
            let norm = t["model.language_model.norm.weight"].clone();
            t.insert("model.norm.weight".into(), norm);
        },
        Refused("both prefixes"),
    ),
    (
        "the composite's name on a flat file",
        |c, _| {
            *c = c["text_config"].take();
            c["model_type"] = "qwen3_5".into();
        },
        Refused("text_config"),
    ),
    ("another text model", |c, _| set(c, "model_type", "qwen3".into()), Refused("model_type")),
    ("experts", |c, _| c["model_type"] = "qwen3_5_moe".into(), Refused("model_type")),
    (
        "no bystanders",
        |_, t| t.retain(|name, _| !name.starts_with("mtp.") && !name.contains(".visual.")),
        Same,
    ),
    (
        "an unknown tensor",
        |_, t| {
            let norm = t["model.language_model.norm.weight"].clone();
            t.insert("model.language_model.mtp.norm.weight".into(), norm);
        },
        Refused("is unknown"),
    ),
    (
        "no rates",
        |_, t| drop(t.remove("model.language_model.layers.1.linear_attn.A_log")),
        Refused("A_log: is missing"),
    ),
    (
        "taps without their middle extent",
        |_, t| {
            let name = "model.language_model.layers.0.linear_attn.conv1d.weight";
            t.get_mut(name).expect("there").1 = vec![320, 4];
        },
        Refused("should be"),
    ),
    ("the interval alone", |c, _| drop(text(c).remove("layer_types")), Same),
    (
        "neither: every fourth",
        |c, _| {
            text(c).remove("layer_types");
            text(c).remove("full_attention_interval");
        },
        Same,
    ),
    ("a null list", |c, _| set(c, "layer_types", Value::Null), Same),
    ("the list wins", |c, _| set(c, "full_attention_interval", 2.into()), Same),
    (
        "old names",
        |c, _| set(c, "layer_types", json!(["mamba", "conv", "mamba", "attention"])),
        Same,
    ),
    (
        "a window",
        |c, _| {
            let window = "sliding_attention";
            set(c, "layer_types", json!(["mamba", "conv", "mamba", window]));
        },
        Refused("layer_types"),
    ),
    (
        "no attention at all",
        |c, _| set(c, "layer_types", json!(["conv", "conv", "conv", "conv"])),
        Refused("layer_types"),
    ),
    (
        "an interval of 0",
        |c, _| {
            text(c).remove("layer_types");
            set(c, "full_attention_interval", 0.into());
        },
        Refused("full_attention_interval"),
    ),
    ("sections of pictures", |c, _| rope(c, "mrope_section", Some(json!([1, 1, 2]))), Same),
    ("no sections", |c, _| rope(c, "mrope_section", None), Same),
    ("an absent width is a quarter", |c, _| rope(c, "partial_rotary_factor", None), Same),
    (
        "the width beside",
        |c, _| {
            rope(c, "partial_rotary_factor", None);
            set(c, "partial_rotary_factor", 0.5.into());
        },
        Other,
    ),
    ("the width inside wins", |c, _| set(c, "partial_rotary_factor", 0.5.into()), Same),
    ("cut down to 8", |c, _| rope(c, "partial_rotary_factor", Some(0.27.into())), Same),
    (
        "an odd width",
        |c, _| rope(c, "partial_rotary_factor", Some(0.29.into())),
        Refused("partial_rotary_factor"),
    ),
    (
        "wider than a head",
        |c, _| rope(c, "partial_rotary_factor", Some(1.5.into())),
        Refused("partial_rotary_factor"),
    ),
    (
        "theta beside",
        |c, _| {
            rope(c, "rope_theta", None);
            set(c, "rope_theta", 1e7.into());
        },
        Same,
    ),
    ("theta nowhere: 10,000", |c, _| rope(c, "rope_theta", None), Other),
    ("yarn", |c, _| rope(c, "rope_type", Some("yarn".into())), Refused("rope_parameters")),
    ("an absent head_dim is 256", |c, _| drop(text(c).remove("head_dim")), Refused("[2048, 64]")),
    ("no gate", |c, _| set(c, "attn_output_gate", false.into()), Refused("attn_output_gate")),
    ("a bf16 state", |c, _| set(c, "mamba_ssm_dtype", "bfloat16".into()), Refused("mamba")),
    ("another gate", |c, _| set(c, "output_gate_type", "sigmoid".into()), Refused("gate_type")),
    ("tied outside alone", |c, _| c[TIED] = true.into(), Refused(TIED)),
    ("tied inside alone", |c, _| set(c, TIED, true.into()), Refused(TIED)),
    (
        "tied",
        |c, t| {
            c[TIED] = true.into();
            set(c, TIED, true.into());
            t.remove("lm_head.weight");
        },
        Other,
    ),
    (
        "tied, both unlike",
        |c, _| {
            c[TIED] = true.into();
            set(c, TIED, true.into());
        },
        Refused("differs"),
    ),
];

#[test]
fn forms_of_one_model() {
    let want = logits(&load(&config(), &stored()).expect("the golden checkpoint loads"));
    for (why, edit, fate) in FORMS {
        let (mut config, mut tensors) = (config(), stored());
        edit(&mut config, &mut tensors);
        match (load(&config, &tensors), fate) {
            (Ok(model), Same) => assert_eq!(differing(&logits(&model), &want), 0, "{why}"),
            (Ok(model), Other) => assert!(differing(&logits(&model), &want) > 0, "{why}"),
            (Ok(_), Refused(_)) => panic!("{why} was loaded"),
            (Err(e), Refused(says)) => assert!(e.contains(says), "{why}: {e}"),
            (Err(e), _) => panic!("{why} was refused: {e}"),
        }
    }
}

/// A head that is the embedding is that of both tying flags, and of either tensor.
#[test]
fn a_tied_head_may_be_either_tensor() {
    let (mut config, mut tensors) = (config(), stored());
    config[TIED] = true.into();
    set(&mut config, TIED, true.into());
    tensors.remove("lm_head.weight");
    let embedded = load(&config, &tensors).expect("the embedding alone");
    let embed = tensors.remove(EMBED).expect("there");
    tensors.insert("lm_head.weight".into(), embed.clone());
    let headed = load(&config, &tensors).expect("the head alone");
    tensors.insert(EMBED.into(), embed);
    let both = load(&config, &tensors).expect("both alike");
    config[TIED] = false.into();
    set(&mut config, TIED, false.into());
    let untied = load(&config, &tensors).expect("an untied copy");
    for model in [headed, both, untied] {
        assert_eq!(differing(&logits(&model), &logits(&embedded)), 0);
    }
}

//! Tables of configurations: every default, every refusal, every resolution.
//!
//! The right values are those of Transformers 5.17.0, asked key by key; where it goes on with
//! something the engine does not do, the right value is a refusal that names the key.

use samebits::checkpoint::Config;
use samebits::contract::Dtype;
use serde_json::{Map, Value, json};

/// The smallest configuration plus `keys`.
fn text(keys: &Value) -> String {
    let mut object = Map::from_iter([("model_type".to_owned(), json!("qwen3"))]);
    object.extend(keys.as_object().expect("cases are objects").clone());
    Value::Object(object).to_string()
}

#[test]
fn absent_keys_have_the_defaults_of_the_family() {
    let config = Config::parse(&text(&json!({}))).expect("all defaults");
    assert_eq!((config.vocab_size, config.hidden_size), (151_936, 4096));
    assert_eq!((config.intermediate_size, config.num_hidden_layers), (22_016, 32));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads), (32, 32));
    assert_eq!((config.head_dim, config.head_dim_defaulted), (128, true));
    assert_eq!((config.rms_norm_eps, config.rms_norm_eps_f32), (1e-6, 1e-6));
    assert_eq!((config.rope_theta, config.rope_theta_source), (10_000.0, "default"));
    assert_eq!(config.max_position_embeddings, 32_768);
    assert!(!config.tie_word_embeddings);
    assert_eq!((config.dtype, config.eos_token_ids), (None, None));
    assert!(config.notices[0].contains("10000"), "{:?}", config.notices);
}

/// What a configuration gives, as far as the tables below ask.
fn seen(config: &Config) -> Value {
    json!({
        "kv": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "theta": config.rope_theta,
        "source": config.rope_theta_source,
        "dtype": config.dtype.map(Dtype::name),
        "eos": config.eos_token_ids,
        "tie": config.tie_word_embeddings,
        "eps": config.rms_norm_eps,
    })
}

#[test]
fn accepted_configurations_mean_what_the_reference_reads() {
    let full = json!(["full_attention", "full_attention"]);
    let cases = [
        (
            "null kv heads",
            json!({"num_attention_heads": 8, "num_key_value_heads": null}),
            "kv",
            json!(8),
        ),
        ("absent kv heads", json!({"num_attention_heads": 64}), "kv", json!(32)),
        (
            "head_dim is not derived",
            json!({"hidden_size": 64, "num_attention_heads": 32}),
            "head_dim",
            json!(128),
        ),
        ("theta at top level", json!({"rope_theta": 1e6}), "theta", json!(1e6)),
        ("an integer theta", json!({"rope_theta": 1_000_000}), "theta", json!(1e6)),
        (
            "theta in rope_parameters",
            json!({"rope_parameters": {"rope_theta": 5e5}}),
            "theta",
            json!(5e5),
        ),
        (
            "both, equal",
            json!({"rope_theta": 1000, "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}),
            "source",
            json!("rope_parameters.rope_theta"),
        ),
        (
            "old spelling",
            json!({"rope_theta": 7.0, "rope_scaling": {"type": "default"}}),
            "source",
            json!("rope_theta"),
        ),
        (
            "theta in rope_scaling",
            json!({"rope_scaling": {"rope_type": "default", "rope_theta": 9.0}}),
            "theta",
            json!(9.0),
        ),
        (
            "null scaling",
            json!({"rope_scaling": null, "rope_parameters": {"rope_theta": 9}}),
            "theta",
            json!(9.0),
        ),
        (
            "empty scaling",
            json!({"rope_scaling": {}, "rope_parameters": {"rope_theta": 9}}),
            "theta",
            json!(9.0),
        ),
        (
            "empty parameters",
            json!({"rope_scaling": {}, "rope_parameters": {}, "rope_theta": 3}),
            "theta",
            json!(3.0),
        ),
        (
            "null theta beside a stated one",
            json!({"rope_theta": null, "rope_parameters": {"rope_theta": 9}}),
            "theta",
            json!(9.0),
        ),
        (
            "a neutral factor",
            json!({"rope_theta": 3, "rope_scaling": {"rope_type": "default", "factor": 1.0}}),
            "theta",
            json!(3.0),
        ),
        (
            "partial rotation has no effect",
            json!({"rope_theta": 3, "partial_rotary_factor": 0.25}),
            "head_dim",
            json!(128),
        ),
        (
            "window, switched off",
            json!({"sliding_window": 8, "use_sliding_window": false}),
            "kv",
            json!(32),
        ),
        ("window, not switched on", json!({"sliding_window": 8}), "kv", json!(32)),
        (
            "window past the depth",
            json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 32}),
            "kv",
            json!(32),
        ),
        (
            "no window to use",
            json!({"sliding_window": null, "use_sliding_window": true, "max_window_layers": 0}),
            "kv",
            json!(32),
        ),
        (
            "layer types decide",
            json!({"num_hidden_layers": 2, "layer_types": full, "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0}),
            "kv",
            json!(32),
        ),
        ("null layer types", json!({"layer_types": null}), "kv", json!(32)),
        ("dtype", json!({"dtype": "float32"}), "dtype", json!("f32")),
        ("torch_dtype", json!({"torch_dtype": "bfloat16"}), "dtype", json!("bf16")),
        (
            "dtype wins",
            json!({"torch_dtype": "bfloat16", "dtype": "float32"}),
            "dtype",
            json!("f32"),
        ),
        ("null dtype", json!({"torch_dtype": "float32", "dtype": null}), "dtype", json!("f32")),
        ("one stop id", json!({"eos_token_id": 7}), "eos", json!([7])),
        ("stop ids", json!({"eos_token_id": [7, 8]}), "eos", json!([7, 8])),
        ("no stop id", json!({"eos_token_id": null}), "eos", json!(null)),
        ("tied", json!({"tie_word_embeddings": true}), "tie", json!(true)),
        ("an exponent makes a float", json!({"rms_norm_eps": 1e-5}), "eps", json!(1e-5)),
        ("null quantisation", json!({"quantization_config": null}), "kv", json!(32)),
        (
            "generation keys",
            json!({"temperature": 0.1, "top_k": 5, "do_sample": true}),
            "kv",
            json!(32),
        ),
        ("integer dropout", json!({"attention_dropout": 0}), "kv", json!(32)),
    ];
    let mut wrong = Vec::new();
    for (why, keys, key, want) in cases {
        match Config::parse(&text(&keys)) {
            Ok(config) if seen(&config)[key] == want => {}
            Ok(config) => wrong.push(format!("{why}: {key} is {}, not {want}", seen(&config)[key])),
            Err(e) => wrong.push(format!("{why}: refused: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_not_done_is_refused() {
    let sliding = json!(["full_attention", "sliding_attention"]);
    let linear = json!(["linear_attention", "full_attention"]);
    let cases = [
        ("a string", json!({"hidden_size": "64"}), "hidden_size"),
        ("a float", json!({"hidden_size": 64.0}), "64.0"),
        ("a boolean", json!({"num_hidden_layers": true}), "num_hidden_layers"),
        ("zero", json!({"vocab_size": 0}), "vocab_size"),
        ("negative", json!({"intermediate_size": -3}), "-3"),
        ("past 31 bits", json!({"num_hidden_layers": 1_u64 << 40}), "2147483647"),
        ("past 63 bits", json!({"num_hidden_layers": u64::MAX}), "18446744073709551615"),
        ("past 64 bits", json!({"num_hidden_layers": 1e30}), "an integer"),
        ("null layers", json!({"num_hidden_layers": null}), "null"),
        ("null head_dim", json!({"head_dim": null}), "head_dim"),
        ("odd head_dim", json!({"head_dim": 15}), "15"),
        ("heads no multiple", json!({"num_attention_heads": 6, "num_key_value_heads": 4}), "4"),
        ("zero kv heads", json!({"num_key_value_heads": 0}), "num_key_value_heads"),
        ("an integer eps", json!({"rms_norm_eps": 1}), "rms_norm_eps"),
        ("a negative eps", json!({"rms_norm_eps": -1e-6}), "rms_norm_eps"),
        ("null tying", json!({"tie_word_embeddings": null}), "tie_word_embeddings"),
        ("another model", json!({"model_type": "llama"}), "supported: qwen3"),
        ("a model to come", json!({"model_type": "qwen3_5"}), "qwen3_5"),
        ("null model", json!({"model_type": null}), "model_type"),
        ("gelu", json!({"hidden_act": "gelu"}), "hidden_act"),
        ("null activation", json!({"hidden_act": null}), "hidden_act"),
        ("bias", json!({"attention_bias": true}), "attention_bias"),
        ("an integer bias", json!({"attention_bias": 0}), "attention_bias"),
        ("fp8", json!({"quantization_config": {"quant_method": "fp8"}}), "\"fp8\""),
        ("unknown quantisation", json!({"quantization_config": {}}), "quantization_config"),
        ("f16", json!({"dtype": "float16"}), "float16"),
        ("f64", json!({"torch_dtype": "float64"}), "float64"),
        ("a dtype of torch", json!({"dtype": "torch.bfloat16"}), "torch.bfloat16"),
        (
            "window from 0",
            json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0}),
            "sliding_window 8",
        ),
        (
            "window in the last layer",
            json!({"use_sliding_window": true, "max_window_layers": 31}),
            "layer 31",
        ),
        ("the default window", json!({"use_sliding_window": true}), "4096"),
        (
            "negative first window",
            json!({"use_sliding_window": true, "max_window_layers": -1}),
            "layer 0",
        ),
        ("a float window", json!({"sliding_window": 8.0}), "sliding_window"),
        ("null max_window_layers", json!({"max_window_layers": null}), "max_window_layers"),
        (
            "sliding layers",
            json!({"num_hidden_layers": 2, "layer_types": sliding}),
            "sliding_attention",
        ),
        ("linear layers", json!({"num_hidden_layers": 2, "layer_types": linear}), "layer 0"),
        (
            "a short list",
            json!({"num_hidden_layers": 2, "layer_types": ["full_attention"]}),
            "1 entries",
        ),
        ("no list", json!({"layer_types": "full_attention"}), "layer_types"),
        (
            "unequal thetas",
            json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}),
            "10000",
        ),
        (
            "a theta that is lost",
            json!({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1e6}}),
            "1000000",
        ),
        ("theta zero", json!({"rope_theta": 0}), "rope_theta"),
        ("theta past f32", json!({"rope_theta": 1e39}), "rope_theta"),
        ("theta null", json!({"rope_theta": null}), "rope_theta"),
        (
            "theta text",
            json!({"rope_parameters": {"rope_theta": "1e6"}}),
            "rope_parameters.rope_theta",
        ),
        ("yarn", json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "yarn"),
        (
            "yarn, old spelling",
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
            "rope_scaling.type",
        ),
        ("dynamic", json!({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}), "dynamic"),
        ("an unknown type", json!({"rope_parameters": {"rope_type": "mrope"}}), "mrope"),
        ("a null type", json!({"rope_parameters": {"rope_type": null}}), "rope_type"),
        ("a factor nobody reads", json!({"rope_scaling": {"factor": 4.0}}), "rope_scaling.factor"),
        (
            "nested per layer type",
            json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}),
            "full_attention",
        ),
        ("scaling text", json!({"rope_scaling": "yarn"}), "rope_scaling"),
        ("a negative stop id", json!({"eos_token_id": -1}), "eos_token_id"),
        ("a stop id past u32", json!({"eos_token_id": [1, 1_u64 << 32]}), "4294967296"),
        ("a stop id text", json!({"eos_token_id": "2"}), "eos_token_id"),
        ("an integer initializer_range", json!({"initializer_range": 1}), "initializer_range"),
        ("null use_cache", json!({"use_cache": null}), "use_cache"),
        ("a list of pads", json!({"pad_token_id": [1]}), "pad_token_id"),
        (
            "another weight file",
            json!({"transformers_weights": "x.safetensors"}),
            "transformers_weights",
        ),
        ("architectures", json!({"architectures": 5}), "architectures"),
    ];
    let mut wrong = Vec::new();
    for (why, keys, mentions) in cases {
        match Config::parse(&text(&keys)) {
            Ok(_) => wrong.push(format!("{why}: accepted")),
            Err(e) if e.to_string().contains(mentions) && !e.to_string().contains('\n') => {}
            Err(e) => wrong.push(format!("{why}: does not mention {mentions}: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn malformed_text_is_refused() {
    let deep = format!("{{\"model_type\":\"qwen3\",\"x\":{}", "[".repeat(100_000));
    let cases = [
        ("nothing", "", "EOF"),
        ("a list", "[]", "[]"),
        ("half an object", "{\"model_type\":", "EOF"),
        ("a repeated key", "{\"model_type\":\"qwen3\",\"head_dim\":8,\"head_dim\":16}", "head_dim"),
        (
            "a repeated key below",
            "{\"rope_parameters\":{\"rope_theta\":1,\"rope_theta\":2}}",
            "rope_theta",
        ),
        ("a trailing comma", "{\"model_type\":\"qwen3\",}", "trailing comma"),
        ("NaN", "{\"model_type\":\"qwen3\",\"rms_norm_eps\":NaN}", "line 1"),
        ("no model_type", "{}", "model_type is absent"),
        ("nesting", deep.as_str(), "recursion"),
        ("a line break in a value", "{\"model_type\":\"a\\nb\"}", "a\\nb"),
    ];
    for (why, text, mentions) in cases {
        let error = Config::parse(text).expect_err(why).to_string();
        assert!(error.contains(mentions) && !error.contains('\n'), "{why}: {error}");
    }
}

#[test]
fn notices_name_what_has_no_effect() {
    let keys = json!({"rope_theta": 1e6, "sliding_window": 8, "mystery": 1, "head_dim": 64});
    let config = Config::parse(&text(&keys)).expect("it is legal");
    let said = config.notices.join("\n");
    for mentions in ["sliding_window 8", "mystery"] {
        assert!(said.contains(mentions), "{said}");
    }
    let partial = json!({"rope_theta": 1e6, "partial_rotary_factor": 0.25});
    let config = Config::parse(&text(&partial)).expect("it is legal");
    assert!(config.notices.join("\n").contains("all 128 dims"), "{:?}", config.notices);
}

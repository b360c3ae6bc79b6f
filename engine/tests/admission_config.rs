//! Tables of configurations: every default, every refusal, every resolution.
//!
//! The right values are those of Transformers 5.17.0, asked key by key; where it goes on with
//! something the engine does not do, the right value is a refusal that names the key. A case holds
//! the keys beside `model_type`.

use samebits::checkpoint::Config;
use samebits::contract::Dtype;
use serde_json::{Value, json};

/// The smallest configuration plus `keys`.
fn text(keys: &str) -> String {
    match keys {
        "" => r#"{"model_type":"qwen3"}"#.to_owned(),
        _ => format!(r#"{{"model_type":"qwen3",{keys}}}"#),
    }
}

#[test]
fn absent_keys_have_the_defaults_of_the_family() {
    let config = Config::parse(&text("")).expect("all defaults");
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

/// What a configuration gives, as far as the table asks.
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

/// Why, keys, and what they must give.
const ACCEPTED: &[(&str, &str, &str)] = &[
    ("null kv", r#""num_attention_heads":8,"num_key_value_heads":null"#, r#"{"kv":8}"#),
    ("absent kv", r#""num_attention_heads":64"#, r#"{"kv":32}"#),
    ("not derived", r#""hidden_size":64,"num_attention_heads":32"#, r#"{"head_dim":128}"#),
    ("theta on top", r#""rope_theta":1e6"#, r#"{"theta":1e6,"source":"rope_theta"}"#),
    ("an integer theta", r#""rope_theta":1000000"#, r#"{"theta":1e6}"#),
    ("nested theta", r#""rope_parameters":{"rope_theta":5e5}"#, r#"{"theta":5e5}"#),
    (
        "both, equal",
        r#""rope_theta":10,"rope_parameters":{"rope_theta":10.0,"rope_type":"default"}"#,
        r#"{"theta":10.0,"source":"rope_parameters.rope_theta"}"#,
    ),
    (
        "old spelling of the type",
        r#""rope_theta":7.0,"rope_scaling":{"type":"default"}"#,
        r#"{"theta":7.0,"source":"rope_theta"}"#,
    ),
    (
        "theta in rope_scaling",
        r#""rope_scaling":{"rope_type":"default","rope_theta":9.0}"#,
        r#"{"theta":9.0,"source":"rope_scaling.rope_theta"}"#,
    ),
    (
        "null scaling",
        r#""rope_scaling":null,"rope_parameters":{"rope_theta":9}"#,
        r#"{"theta":9.0}"#,
    ),
    (
        "empty scaling",
        r#""rope_scaling":{},"rope_parameters":{"rope_theta":9}"#,
        r#"{"theta":9.0}"#,
    ),
    ("both empty", r#""rope_scaling":{},"rope_parameters":{},"rope_theta":3"#, r#"{"theta":3.0}"#),
    ("null on top", r#""rope_theta":null,"rope_parameters":{"rope_theta":9}"#, r#"{"theta":9.0}"#),
    ("a neutral factor", r#""rope_theta":3,"rope_scaling":{"factor":1.0}"#, r#"{"theta":3.0}"#),
    ("partial rotation", r#""partial_rotary_factor":0.25"#, r#"{"head_dim":128}"#),
    ("window, switched off", r#""sliding_window":8,"use_sliding_window":false"#, "{}"),
    ("window, not switched on", r#""sliding_window":8"#, "{}"),
    (
        "window past the depth",
        r#""sliding_window":8,"use_sliding_window":true,"max_window_layers":32"#,
        "{}",
    ),
    (
        "no window to use",
        r#""sliding_window":null,"use_sliding_window":true,"max_window_layers":0"#,
        "{}",
    ),
    (
        "layer types decide",
        r#""num_hidden_layers":1,"layer_types":["full_attention"],"use_sliding_window":true,
           "sliding_window":8,"max_window_layers":0"#,
        "{}",
    ),
    ("null layer types", r#""layer_types":null"#, "{}"),
    ("dtype", r#""dtype":"float32""#, r#"{"dtype":"f32"}"#),
    ("torch_dtype", r#""torch_dtype":"bfloat16""#, r#"{"dtype":"bf16"}"#),
    ("dtype wins", r#""torch_dtype":"bfloat16","dtype":"float32""#, r#"{"dtype":"f32"}"#),
    ("null dtype", r#""torch_dtype":"float32","dtype":null"#, r#"{"dtype":"f32"}"#),
    ("one stop id", r#""eos_token_id":7"#, r#"{"eos":[7]}"#),
    ("stop ids", r#""eos_token_id":[7,8]"#, r#"{"eos":[7,8]}"#),
    ("no stop id", r#""eos_token_id":null"#, r#"{"eos":null}"#),
    ("tied", r#""tie_word_embeddings":true"#, r#"{"tie":true}"#),
    ("an exponent makes a float", r#""rms_norm_eps":1e-5"#, r#"{"eps":1e-5}"#),
    ("null quantisation", r#""quantization_config":null"#, "{}"),
    ("generation keys", r#""temperature":0.1,"top_k":5,"do_sample":true"#, "{}"),
    ("integer dropout", r#""attention_dropout":0"#, "{}"),
];

#[test]
fn accepted_configurations_mean_what_the_reference_reads() {
    let mut wrong = Vec::new();
    for (why, keys, want) in ACCEPTED {
        let want: Value = serde_json::from_str(want).expect("the table holds JSON");
        let want = want.as_object().expect("the table holds objects");
        match Config::parse(&text(keys)).map(|config| seen(&config)) {
            Ok(got) if want.iter().all(|(key, value)| got[key] == *value) => {}
            Ok(got) => wrong.push(format!("{why}: {got}, not {want:?}")),
            Err(e) => wrong.push(format!("{why}: refused: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Why, keys, and what the refusal mentions.
const REFUSED: &[(&str, &str, &str)] = &[
    ("a string", r#""hidden_size":"64""#, "hidden_size"),
    ("a float", r#""hidden_size":64.0"#, "64.0"),
    ("a boolean", r#""num_hidden_layers":true"#, "num_hidden_layers"),
    ("zero", r#""vocab_size":0"#, "vocab_size"),
    ("negative", r#""intermediate_size":-3"#, "-3"),
    ("past 31 bits", r#""num_hidden_layers":1099511627776"#, "2147483647"),
    ("past 63 bits", r#""num_hidden_layers":18446744073709551615"#, "18446744073709551615"),
    ("past 64 bits", r#""num_hidden_layers":1000000000000000000000"#, "an integer"),
    ("null layers", r#""num_hidden_layers":null"#, "null"),
    ("null head_dim", r#""head_dim":null"#, "head_dim"),
    ("odd head_dim", r#""head_dim":15"#, "15"),
    ("heads no multiple", r#""num_attention_heads":6,"num_key_value_heads":4"#, "4"),
    ("zero kv heads", r#""num_key_value_heads":0"#, "num_key_value_heads"),
    ("an integer eps", r#""rms_norm_eps":1"#, "rms_norm_eps"),
    ("a negative eps", r#""rms_norm_eps":-1e-6"#, "rms_norm_eps"),
    ("null tying", r#""tie_word_embeddings":null"#, "tie_word_embeddings"),
    ("gelu", r#""hidden_act":"gelu""#, "hidden_act"),
    ("null activation", r#""hidden_act":null"#, "hidden_act"),
    ("bias", r#""attention_bias":true"#, "attention_bias"),
    ("an integer bias", r#""attention_bias":0"#, "attention_bias"),
    ("fp8", r#""quantization_config":{"quant_method":"fp8"}"#, r#""fp8""#),
    ("unknown quantisation", r#""quantization_config":{}"#, "quantization_config"),
    ("f16", r#""dtype":"float16""#, "float16"),
    ("f64", r#""torch_dtype":"float64""#, "float64"),
    ("a dtype of torch", r#""dtype":"torch.bfloat16""#, "torch.bfloat16"),
    (
        "window from 0",
        r#""sliding_window":8,"use_sliding_window":true,"max_window_layers":0"#,
        "sliding_window 8",
    ),
    ("last layer", r#""use_sliding_window":true,"max_window_layers":31"#, "layer 31"),
    ("the default window", r#""use_sliding_window":true"#, "4096"),
    ("negative first", r#""use_sliding_window":true,"max_window_layers":-1"#, "layer 0"),
    ("a float window", r#""sliding_window":8.0"#, "sliding_window"),
    ("null max_window_layers", r#""max_window_layers":null"#, "max_window_layers"),
    (
        "sliding layers",
        r#""num_hidden_layers":2,"layer_types":["full_attention","sliding_attention"]"#,
        "layer 1 is \"sliding_attention\"",
    ),
    ("linear layers", r#""layer_types":["linear_attention"]"#, "layer 0"),
    ("a short list", r#""layer_types":["full_attention"]"#, "1 entries"),
    ("no list", r#""layer_types":"full_attention""#, "layer_types"),
    ("unequal", r#""rope_theta":1e4,"rope_parameters":{"rope_theta":1e6}"#, "10000"),
    (
        "a theta that is lost",
        r#""rope_scaling":{"type":"default"},"rope_parameters":{"rope_theta":1e6}"#,
        "1000000",
    ),
    ("theta zero", r#""rope_theta":0"#, "rope_theta"),
    ("theta past f32", r#""rope_theta":1e39"#, "rope_theta"),
    ("theta null", r#""rope_theta":null"#, "rope_theta"),
    ("theta text", r#""rope_parameters":{"rope_theta":"1e6"}"#, "rope_parameters.rope_theta"),
    ("yarn", r#""rope_scaling":{"rope_type":"yarn","factor":4.0}"#, "yarn"),
    ("yarn, old spelling", r#""rope_scaling":{"type":"yarn"}"#, "rope_scaling.type"),
    ("dynamic", r#""rope_parameters":{"rope_type":"dynamic","factor":2.0}"#, "dynamic"),
    ("an unknown type", r#""rope_parameters":{"rope_type":"mrope"}"#, "mrope"),
    ("a null type", r#""rope_parameters":{"rope_type":null}"#, "rope_type"),
    ("a factor nobody reads", r#""rope_scaling":{"factor":4.0}"#, "rope_scaling.factor"),
    ("per layer type", r#""rope_parameters":{"full_attention":{}}"#, "full_attention"),
    ("scaling text", r#""rope_scaling":"yarn""#, "rope_scaling"),
    ("a negative stop id", r#""eos_token_id":-1"#, "eos_token_id"),
    ("a stop id past u32", r#""eos_token_id":[1,4294967296]"#, "4294967296"),
    ("a stop id text", r#""eos_token_id":"2""#, "eos_token_id"),
    ("an integer range", r#""initializer_range":1"#, "initializer_range"),
    ("null use_cache", r#""use_cache":null"#, "use_cache"),
    ("a list of pads", r#""pad_token_id":[1]"#, "pad_token_id"),
    ("another weight file", r#""transformers_weights":"x.safetensors""#, "transformers_weights"),
    ("architectures", r#""architectures":5"#, "architectures"),
    ("a repeated key", r#""head_dim":8,"head_dim":16"#, "head_dim"),
    ("repeated below", r#""rope_parameters":{"rope_theta":1,"rope_theta":2}"#, "rope_theta"),
    ("a trailing comma", r#""head_dim":8,"#, "trailing comma"),
    ("NaN", r#""rms_norm_eps":NaN"#, "line 1"),
    ("model_type twice", r#""model_type":"qwen3""#, "model_type"),
];

/// Why, whole text, and what the refusal mentions.
const NOT_THIS: &[(&str, &str, &str)] = &[
    ("nothing", "", "EOF"),
    ("a list", "[]", "[]"),
    ("half an object", r#"{"model_type":"#, "EOF"),
    ("no model_type", "{}", "model_type is absent"),
    ("another model", r#"{"model_type":"llama"}"#, "supported: qwen3"),
    ("a model to come", r#"{"model_type":"qwen3_5"}"#, "qwen3_5"),
    ("null model", r#"{"model_type":null}"#, "model_type"),
    ("a line break in a value", r#"{"model_type":"a\nb"}"#, r"a\nb"),
];

#[test]
fn what_is_not_done_is_refused() {
    let deep = format!(r#""x":{}"#, "[".repeat(100_000));
    let keys = REFUSED.iter().copied().chain([("nesting", deep.as_str(), "recursion")]);
    let cases = keys.map(|(why, keys, mentions)| (why, text(keys), mentions));
    let whole = NOT_THIS.iter().map(|&(why, text, mentions)| (why, text.to_owned(), mentions));
    let mut wrong = Vec::new();
    for (why, text, mentions) in cases.chain(whole) {
        match Config::parse(&text).map_err(|e| e.to_string()) {
            Ok(_) => wrong.push(format!("{why}: accepted")),
            Err(line) if line.contains(mentions) && !line.contains('\n') => {}
            Err(line) => wrong.push(format!("{why}: does not mention {mentions}: {line}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn notices_name_what_has_no_effect() {
    let cases = [
        (r#""sliding_window":8"#, "sliding_window 8"),
        (r#""mystery":1"#, "mystery"),
        (r#""partial_rotary_factor":0.25"#, "all 128 dims"),
        (r#""dtype":"float32","torch_dtype":"bfloat16""#, "torch_dtype bf16 does not"),
        ("", "default 10000"),
    ];
    for (keys, mentions) in cases {
        let said = Config::parse(&text(keys)).expect("it is legal").notices.join("\n");
        assert!(said.contains(mentions), "{keys}: {said}");
    }
    let quiet = r#""rope_theta":1e6,"temperature":0.5,"transformers_version":"5.17.0""#;
    let said = Config::parse(&text(quiet)).expect("it is legal").notices;
    assert!(said.is_empty(), "{said:?}");
}

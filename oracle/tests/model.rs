//! What the whole model promises beside its values: invariance, traces, and what it refuses.
//!
//! Deliberately absent: goldens. Invariant: every refusal is of a checkpoint that differs in one
//! thing from one that loads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use safetensors::tensor::TensorView;
use samebits_oracle::ops::{Heads, Linear, Mix, Scores, Softmax};
use samebits_oracle::{
    Arithmetic, Bits, Dtype, Ideal, Keep, Model, Order, RunOptions, Tensor, Trace, run,
};
use serde_json::{Value, json};

const INVARIANT: Bits = Bits { order: Order::Invariant, dtype: Dtype::Bf16 };
const TRANSFORMERS: Bits = Bits { order: Order::Transformers, dtype: Dtype::Bf16 };

type Stored = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

fn config() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "rope_theta": 1000, "tie_word_embeddings": false
    })
}

/// bf16 tensors of the configuration above, from a counter.
fn tensors() -> Stored {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![40, 16]),
        ("model.norm.weight".to_owned(), vec![16]),
        ("lm_head.weight".to_owned(), vec![40, 16]),
    ];
    for l in 0..2 {
        let of = |name: &str, shape: &[usize]| {
            (format!("model.layers.{l}.{name}.weight"), shape.to_vec())
        };
        all.extend([
            of("input_layernorm", &[16]),
            of("self_attn.q_proj", &[32, 16]),
            of("self_attn.k_proj", &[16, 16]),
            of("self_attn.v_proj", &[16, 16]),
            of("self_attn.o_proj", &[16, 32]),
            of("self_attn.q_norm", &[8]),
            of("self_attn.k_norm", &[8]),
            of("post_attention_layernorm", &[16]),
            of("mlp.gate_proj", &[24, 16]),
            of("mlp.up_proj", &[24, 16]),
            of("mlp.down_proj", &[16, 24]),
        ]);
    }
    let mut numbers = numbers();
    let data = |shape: &[usize], numbers: &mut dyn FnMut() -> f64| {
        let n: usize = shape.iter().product();
        (0..n).flat_map(|_| (((numbers() as f32).to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    all.into_iter().map(|(n, s)| (n, (s.clone(), data(&s, &mut numbers)))).collect()
}

fn numbers() -> impl FnMut() -> f64 {
    let mut state = 7u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f64 / 2f64.powi(23) - 1.0
    }
}

fn write(path: &Path, tensors: &Stored) {
    let views = tensors.iter().map(|(n, (shape, data))| {
        let view = TensorView::new(safetensors::Dtype::BF16, shape.clone(), data);
        (n.clone(), view.expect("the data fill the shape"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a scratch folder can be written");
}

fn load(config: &Value, tensors: &Stored) -> Result<Model, String> {
    let dir = tempfile::tempdir().expect("a scratch folder");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("writable");
    write(&dir.path().join("model.safetensors"), tensors);
    Model::load(dir.path()).map_err(|e| e.to_string())
}

fn trace(arith: &dyn Arithmetic, ids: &[u32], opts: RunOptions) -> Trace {
    let model = load(&config(), &tensors()).expect("the plain checkpoint loads");
    run(&model, arith, ids, &RunOptions { keep: Keep::All, ..opts }).expect("a good request")
}

const IDS: [u32; 20] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 38, 4, 39];

#[test]
fn the_invariant_order_knows_neither_cache_nor_batch() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let bits = Bits { order: Order::Invariant, dtype };
        let whole = trace(&bits, &IDS, RunOptions::default());
        assert_eq!(whole.sites.len(), 2 + 1 + 2 * 22 + 2, "every site of two layers");
        for n in [1, 7, 19] {
            let opts = RunOptions { decode_from: Some(n), batch: Some(n), ..RunOptions::default() };
            let cached = trace(&bits, &IDS, opts);
            for (site, array) in &whole.sites {
                assert!(array == &cached.sites[site], "{dtype:?} {site}, cached from {n}");
            }
        }
    }
    // The other order does: rows of fewer than 16 keys are summed in sequence. bf16 hides it here.
    let arith = Bits { order: Order::Transformers, dtype: Dtype::F32 };
    let whole = trace(&arith, &IDS, RunOptions::default());
    let cached = trace(&arith, &IDS, RunOptions { decode_from: Some(1), ..RunOptions::default() });
    let probs = |t: &Trace| t.sites["layers.0.probs"].values.clone();
    assert!(probs(&whole) != probs(&cached), "the orders do not differ");
}

#[test]
fn a_part_of_a_trace_is_the_trace() {
    let model = load(&config(), &tensors()).expect("the plain checkpoint loads");
    let all = trace(&Ideal, &IDS, RunOptions::default());
    let keep = Keep::Only(BTreeSet::from(["layers.1.mix".to_owned()]));
    let rows = Some(vec![0, 6, 7, 19]);
    for decode_from in [None, Some(7)] {
        let opts = RunOptions {
            keep: keep.clone(),
            logit_rows: rows.clone(),
            decode_from,
            ..RunOptions::default()
        };
        let part = run(&model, &Ideal, &IDS, &opts).expect("a good request");
        assert_eq!(part.sites.keys().collect::<Vec<_>>(), ["layers.1.mix", "lm_head"]);
        assert_eq!(part.logits().shape, [4, 40]);
        for (i, row) in [0, 6, 7, 19].into_iter().enumerate() {
            let (got, want) =
                (&part.logits().values[i * 40..][..40], &all.logits().values[row * 40..][..40]);
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "row {row}");
        }
    }
    for (site, array) in &all.sites {
        let n: usize = array.shape.iter().product();
        assert_eq!(array.values.len(), n, "{site}");
        let bound = |(y, a): (&f64, &f64)| *y == f64::MIN || y.abs() <= a * (1.0 + 1e-12);
        let sums = array.magnitude.iter().all(|a| array.values.iter().zip(a).all(bound));
        assert!(sums, "{site}: a value exceeds its magnitude");
    }
}

#[test]
fn one_row_takes_other_blocks_in_the_order_of_transformers_only() {
    let (k, n) = (1536, 64);
    let mut next = numbers();
    let mut bf16 = |n: usize| -> Vec<f64> { (0..n).map(|_| INVARIANT.round(next())).collect() };
    let (x, weight) = (bf16(2 * k), bf16(n * k));
    let linear = |arith: Bits, rows: usize, true_rows: usize| {
        let op = Linear { x: &x[..rows * k], weight: &weight, k, true_rows };
        arith.linear(&op).values[..n].to_vec()
    };
    let f32 = |order| Bits { order, dtype: Dtype::F32 };
    assert_eq!(linear(INVARIANT, 1, 1), linear(INVARIANT, 2, 2));
    assert_eq!(linear(TRANSFORMERS, 1, 2), linear(TRANSFORMERS, 2, 2), "a chunk is no forward");
    assert_eq!(linear(TRANSFORMERS, 2, 2), linear(INVARIANT, 2, 2));
    assert_eq!(linear(f32(Order::Transformers), 1, 1), linear(f32(Order::Invariant), 2, 2));
    // Bits of the f32 totals show the blocks that the rounding to bf16 mostly hides.
    let narrow = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    let differ = (0..n).filter(|i| {
        let (x, w) = (narrow(&x[..k]), narrow(&weight[i * k..][..k]));
        use samebits_oracle::bits::dot_bf16;
        dot_bf16(&x, &w, 512).to_bits() != dot_bf16(&x, &w, 1024).to_bits()
    });
    assert!(differ.count() > n / 2);
}

#[test]
fn hidden_keys_take_part_in_the_order_of_transformers_only() {
    let dims = Heads { heads: 1, kv_heads: 1, head_dim: 2 };
    let (q, k) = ([1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 2.0, 0.0]);
    let v = [3.0, 1.0, f64::INFINITY, 1.0];
    let (first, true_rows, rows, keys) = (0, 2, 2, 2);
    for (arith, poisoned) in [(INVARIANT, false), (TRANSFORMERS, true)] {
        let scores = arith.scores(&Scores { q: &q, k: &k, dims, first, true_rows }).values;
        assert_eq!(scores[1], Dtype::Bf16.min());
        let probs = arith.softmax(&Softmax { scores: &scores, rows, keys, first }).values;
        assert_eq!(probs[..2], [1.0, 0.0]);
        let mix = arith.mix(&Mix { probs: &probs, v: &v, dims, first, true_rows }).values;
        assert_eq!(mix[0].is_nan(), poisoned, "0 x inf of the hidden key");
        assert_eq!(mix[1..], [1.0, f64::INFINITY, 1.0]);
    }
}

#[test]
fn an_f32_weight_is_cast_to_the_run() {
    let table = Tensor::from_f32(vec![2, 2], &[1.0, 1.001, -0.1, 3.0]);
    assert_eq!(INVARIANT.embed(&table, &[0]).values, [1.0, 1.0]);
    assert_eq!(Ideal.embed(&table, &[1]).values, [f64::from(-0.1f32), 3.0]);
}

/// A change of the plain checkpoint, and what the refusal says (nothing: it loads).
type Edit = fn(&mut Value, &mut Stored);

#[test]
fn what_is_refused() {
    let cases: [(&str, Edit, &str); 22] = [
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
            |_, t| {
                t.get_mut("model.layers.0.self_attn.q_proj.weight").expect("there").0 = vec![16, 32]
            },
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
    for (why, edit, says) in cases {
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
    let opts = RunOptions::default();
    let got = run(&sharded, &INVARIANT, &IDS, &opts).expect("a good request");
    assert_eq!(got.logits(), trace(&INVARIANT, &IDS, opts.clone()).logits());
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

//! The reference against what Transformers 5.17.0 computed: bitwise, or within stated distances.
//!
//! Deliberately absent: the engine. Invariant: every tensor of a golden that has a site here is
//! compared, and a test says how many values it compared.

mod golden;

use golden::{cached, differing, distance, golden, ids, model, swapped};
use samebits_oracle::ops::{Heads, Linear, Mix, RmsNorm, Rope, Scores, Softmax};
use samebits_oracle::{Arithmetic, Bits, Dtype, Ideal, Keep, Order, Rounded, RunOptions, run};

const TRANSFORMERS: Bits = Bits { order: Order::Transformers, dtype: Dtype::Bf16 };
const INVARIANT: Bits = Bits { order: Order::Invariant, dtype: Dtype::Bf16 };
const PROMPTS: [usize; 3] = [1, 7, 33];
const VOCAB: usize = 300;

#[test]
fn bf16_logits_prefill_and_cached_are_those_of_transformers() {
    let mut compared = 0;
    for name in ["qwen3_tied", "qwen3_untied"] {
        let (model, golden) = (model(name), golden(&format!("{name}.bf16.safetensors")));
        for n in PROMPTS {
            let trace = cached(&model, &TRANSFORMERS, &ids(&golden, n), n, Keep::Logits);
            let (prefill, decode) = trace.logits().values.split_at(n * VOCAB);
            let want = |what: &str| &golden[&format!("L{n}/{what}")].values;
            assert_eq!(differing(prefill, want("logits")), 0, "{name}, prompt of {n}");
            assert_eq!(differing(decode, want("decode/logits")), 0, "{name}, steps after {n}");
            compared += trace.logits().values.len();
        }
    }
    assert_eq!(compared, 2 * (1 + 7 + 33 + 3 * 8) * VOCAB);
}

/// The names of the captured operations and of their sites.
const CAPTURED: [(&str, &str); 16] = [
    ("input_layernorm", "input_layernorm"),
    ("q_proj", "q_proj"),
    ("k_proj", "k_proj"),
    ("v_proj", "v_proj"),
    ("q_normed", "q_norm"),
    ("k_normed", "k_norm"),
    ("q_rope", "q_rope"),
    ("k_rope", "k_rope"),
    ("v", "v_cache"),
    ("attn_probs", "probs"),
    ("attn_ctx", "mix"),
    ("o_proj", "o_proj"),
    ("post_attention_layernorm", "post_attention_layernorm"),
    ("gate_proj", "gate_proj"),
    ("up_proj", "up_proj"),
    ("down_proj", "down_proj"),
];

#[test]
fn bf16_operations_of_a_prefill_are_those_of_transformers() {
    let (model, golden) = (model("qwen3_tied"), golden("qwen3_tied.bf16.safetensors"));
    let ids = ids(&golden, 7);
    for arith in [TRANSFORMERS, INVARIANT] {
        let opts = RunOptions { keep: Keep::All, ..RunOptions::default() };
        let trace =
            run(&model, &arith, &ids[..7], &opts).expect("golden ids are in the vocabulary");
        let mut compared = 0;
        let mut check = |want: &str, site: &str| {
            let (want, got) = (&golden[want], &trace.sites[site]);
            // Captures of heads are [heads, tokens, head_dim], sites [tokens, heads, head_dim].
            let by_token = match (want.shape.as_slice(), got.shape.as_slice()) {
                ([h, s, d], [s2, h2, d2]) if (h, s, d) == (h2, s2, d2) => swapped(want),
                _ => want.values.clone(),
            };
            // Seven keys: the one-row and short-row rules make the orders differ in `probs`.
            if arith.order == Order::Transformers {
                assert_eq!(differing(&by_token, &got.values), 0, "{site}");
            } else {
                assert!(distance(&by_token, &got.values) < 0.2, "{site}");
            }
            compared += got.values.len();
        };
        for layer in [0, 3] {
            for (op, site) in CAPTURED {
                check(&format!("L7/ops/layer{layer}/{op}"), &format!("layers.{layer}.{site}"));
            }
        }
        for layer in 0..4 {
            check(&format!("L7/layer{layer}"), &format!("layers.{layer}.mlp_residual"));
            check(&format!("cache/L7/layer{layer}/k"), &format!("layers.{layer}.k_cache"));
        }
        check("L7/embed", "embed_tokens");
        check("L7/norm", "norm");
        check("L7/logits", "lm_head");
        assert!(compared > 20_000, "{compared} values compared");
    }
}

#[test]
fn ideal_equals_the_honest_f64_logits() {
    for name in ["qwen3_tied", "qwen3_untied"] {
        let (model, golden) = (model(name), golden(&format!("{name}.oracle.safetensors")));
        let prompts = golden::golden(&format!("{name}.bf16.safetensors"));
        for n in PROMPTS {
            let ids = ids(&prompts, n);
            let trace = cached(&model, &Ideal, &ids, n, Keep::Logits);
            let whole = run(&model, &Ideal, &ids, &RunOptions::default()).expect("golden ids");
            let want = |what: &str| golden[&format!("L{n}/{what}")].values.clone();
            let want = [want("logits"), want("decode/logits")].concat();
            let cached = distance(&trace.logits().values, &want);
            let whole = distance(&whole.logits().values, &want);
            println!("{name} {n}: cached {cached:e}, whole {whole:e}");
            // The distance of two f64 evaluations of logits below 20, measured at 1e-13.
            assert!(cached < 1e-11 && whole < 1e-11, "{name} {n}: {cached:e} {whole:e}");
        }
    }
}

/// cos and sin are torch's own: it computes them with an error of up to an ulp.
#[test]
fn f32_logits_prefill_and_cached_are_those_of_transformers() {
    let tables = golden("narrow.rotary.safetensors");
    let table =
        |name: &str| -> Vec<f32> { tables[name].values.iter().map(|x| *x as f32).collect() };
    let arith = Bits { order: Order::Transformers, dtype: Dtype::F32 };
    for name in ["qwen3_tied", "qwen3_untied"] {
        let (model, golden) = (model(name), golden(&format!("{name}.fp32.safetensors")));
        for n in PROMPTS {
            let ids = &ids(&golden, n);
            let want = |what: &str| golden[&format!("L{n}/{what}")].values.clone();
            let want = [want("logits"), want("decode/logits")].concat();
            let rotary = Some((table("rotary.cos"), table("rotary.sin")));
            let opts = RunOptions { rotary, decode_from: Some(n), ..RunOptions::default() };
            let trace = run(&model, &arith, ids, &opts).expect("golden ids");
            assert_eq!(differing(&trace.logits().values, &want), 0, "{name}, prompt of {n}");
            let own = cached(&model, &arith, ids, n, Keep::Logits);
            let (off, size) =
                (distance(&own.logits().values, &want), distance(&want, &vec![0.0; want.len()]));
            println!("{name}, prompt of {n}: own tables {off:e} of {size}");
            // Measured 8e-6 of logits up to 15; the two tables differ by an ulp here and there.
            assert!(off > 0.0 && off < 4e-5 * size, "{name}: {off:e}");
        }
    }
}

/// The distance of `Rounded` from `Ideal` is that of Transformers, up to how roundings fall.
#[test]
fn rounded_errs_as_much_as_transformers() {
    for name in ["qwen3_tied", "qwen3_untied"] {
        let (model, golden) = (model(name), golden(&format!("{name}.bf16.safetensors")));
        let ids = &ids(&golden, 33)[..33];
        let logits = |arith: &dyn Arithmetic| {
            let trace = run(&model, arith, ids, &RunOptions::default()).expect("golden ids");
            trace.logits().values.clone()
        };
        let ideal = logits(&Ideal);
        let rounded = logits(&Rounded { dtype: Dtype::Bf16 });
        let rms = |a: &[f64]| {
            let squares = a.iter().zip(&ideal).map(|(a, b)| (a - b) * (a - b));
            (squares.sum::<f64>() / a.len() as f64).sqrt()
        };
        let ratio = rms(&rounded) / rms(&golden["L33/logits"].values);
        println!("{name}: rms error of Rounded over that of Transformers {ratio:.3}");
        assert!((0.8..1.25).contains(&ratio), "{name}: {ratio}");
        let fine = rms(&logits(&Rounded { dtype: Dtype::F32 }));
        assert!(fine > 0.0 && fine < rms(&rounded) / 1e3, "{name}: {fine:e} in f32");
    }
}

/// Fed the operands that Transformers had, `Rounded` differs only where f32 sums cross a midpoint.
#[test]
fn rounded_stores_where_transformers_does() {
    let (model, golden) = (model("qwen3_tied"), golden("qwen3_tied.bf16.safetensors"));
    let opts = RunOptions { keep: Keep::All, ..RunOptions::default() };
    let trace = run(&model, &TRANSFORMERS, &ids(&golden, 33)[..33], &opts).expect("golden ids");
    let arith = Rounded { dtype: Dtype::Bf16 };
    let site = |op: &str| &trace.sites[&format!("layers.1.{op}")].values;
    let weight = |op: &str| {
        let weight = model.weight(&format!("layers.1.{op}")).expect("a weight");
        weight.values(0..weight.count())
    };
    let eps = model.config().eps;
    let x = &trace.sites["layers.0.mlp_residual"].values;
    let h = site("input_layernorm");
    let tables = arith.rotary(model.config().theta, 32, 33);
    let (dims, first, true_rows) = (Heads { heads: 4, kv_heads: 2, head_dim: 32 }, 0, 33);
    let (q, k, v, p) = (site("q_rope"), site("k_cache"), site("v_cache"), site("probs"));
    let cases = [
        (
            "input_layernorm",
            arith.rms_norm(&RmsNorm { x, weight: &weight("input_layernorm"), eps }),
        ),
        ("q_proj", arith.linear(&Linear { x: h, weight: &weight("q_proj"), k: 64, true_rows })),
        ("q_rope", {
            let x = site("q_norm");
            arith.rope(&Rope { x, tables: &tables, heads: 4, head_dim: 32, first })
        }),
        ("scores", arith.scores(&Scores { q, k, dims, first, true_rows })),
        ("probs", {
            let scores = site("scores");
            arith.softmax(&Softmax { scores, rows: 33, keys: 33, first })
        }),
        ("mix", arith.mix(&Mix { probs: p, v, dims, first, true_rows })),
        ("silu", arith.silu(site("gate_proj"))),
        ("mul", arith.mul(site("silu"), site("up_proj"))),
        ("attn_residual", arith.add(x, site("o_proj"))),
    ];
    for (op, out) in cases {
        let differ = differing(&out.values, site(op));
        println!("{op}: {differ} of {} differ", out.values.len());
        // Elementwise operations are equal; of sums, one in a thousand crosses a midpoint.
        let exact = ["q_rope", "mul", "attn_residual"].contains(&op);
        let limit = if exact { 0 } else { out.values.len().div_ceil(200) };
        assert!(differ <= limit, "{op}: {differ} of {} differ", out.values.len());
    }
}

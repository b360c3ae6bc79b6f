//! The narrow goldens: logits, captured operations, caches.

use samebits_oracle::{Array, Bits, Dtype, Ideal, Keep, Order, Rounded, RunOptions, Trace, run};

use crate::golden::{cached, differing, distance, golden, ids, model, swapped};
use crate::{INVARIANT, TRANSFORMERS, VOCAB, largest, ulps};

const PROMPTS: [(&str, usize); 5] =
    [("qwen3_5", 1), ("qwen3_5", 7), ("qwen3_5", 33), ("qwen3_5", 70), ("qwen3_5_f32log", 7)];

/// Of the 33-token prompt only the prefill: its chunked state is not the recurrence's, and in one
/// of the 8 steps a rounding falls the other way. Of the 70 tokens nothing: two chunks.
#[test]
fn bf16_logits_are_those_of_transformers() {
    let mut compared = 0;
    for (name, n) in PROMPTS {
        let (model, golden) = (model(name), golden(&format!("{name}.bf16.safetensors")));
        let trace = cached(&model, &TRANSFORMERS, &ids(&golden, n), n, Keep::Logits);
        let (prefill, decode) = trace.logits().values.split_at(n * VOCAB);
        let differ =
            |got: &[f64], what: &str| differing(got, &golden[&format!("L{n}/{what}")].values);
        let (prefill, decode) = (differ(prefill, "logits"), differ(decode, "decode/logits"));
        println!("{name} {n}: {prefill} logits of the prefill differ, {decode} of the 8 steps");
        if n <= 33 {
            assert_eq!(prefill, 0, "{name}, prompt of {n}");
            compared += n * VOCAB;
        }
        if n <= 7 {
            assert_eq!(decode, 0, "{name}, steps after {n}");
            compared += 8 * VOCAB;
        }
    }
    assert_eq!(compared, (1 + 7 + 33 + 7 + 3 * 8) * VOCAB);
}

/// Where Transformers' chunks round otherwise, this errs as much as Transformers does.
#[test]
fn bf16_and_f32_logits_err_as_much_as_transformers() {
    for (name, n) in PROMPTS {
        let (model, exact) = (model(name), golden(&format!("{name}.oracle.safetensors")));
        for (mode, dtype, slack) in [("bf16", Dtype::Bf16, 1.5), ("fp32", Dtype::F32, 4.0)] {
            let golden = golden(&format!("{name}.{mode}.safetensors"));
            for order in [Order::Invariant, Order::Transformers] {
                let arith = Bits { order, dtype };
                let trace = cached(&model, &arith, &ids(&golden, n), n, Keep::Logits);
                let (prefill, decode) = trace.logits().values.split_at(n * VOCAB);
                for (got, what) in [(prefill, "logits"), (decode, "decode/logits")] {
                    let exact = &exact[&format!("L{n}/{what}")].values;
                    let theirs = distance(&golden[&format!("L{n}/{what}")].values, exact);
                    let ours = distance(got, exact);
                    println!("{name} {mode} {order:?} {n} {what}: {ours:.2e} to {theirs:.2e}");
                    assert!(ours > 0.0 && ours <= slack * theirs, "{name} {mode} {n} {what}");
                }
            }
        }
    }
}

/// Rows `from..to` of a site, heads first if the capture has them so.
fn rows(trace: &Trace, site: &str, (from, to): (usize, usize), want: &Array) -> Vec<f64> {
    let site = &trace.sites[site];
    let width: usize = site.shape[1..].iter().product();
    let part = Array {
        shape: [&[to - from], &site.shape[1..]].concat(),
        values: site.values[from * width..to * width].to_vec(),
        squares: None,
    };
    let heads_first = part.shape.len() == 3 && want.shape[..2] == [part.shape[1], part.shape[0]];
    if heads_first { swapped(&part) } else { part.values }
}

const CAPTURED: [(usize, &str, &str); 28] = [
    (0, "input_layernorm", "input_layernorm"),
    (0, "in_proj_qkv", "in_proj_qkv"),
    (0, "in_proj_z", "in_proj_z"),
    (0, "in_proj_b", "in_proj_b"),
    (0, "in_proj_a", "in_proj_a"),
    (0, "gdn_beta", "beta"),
    (0, "gdn_core", "core"),
    (0, "gdn_norm", "gdn_norm"),
    (0, "out_proj", "out_proj"),
    (0, "post_attention_layernorm", "post_attention_layernorm"),
    (0, "gate_proj", "gate_proj"),
    (0, "up_proj", "up_proj"),
    (0, "down_proj", "down_proj"),
    (3, "input_layernorm", "input_layernorm"),
    (3, "q_proj", "q_proj"),
    (3, "k_proj", "k_proj"),
    (3, "v_proj", "v_proj"),
    (3, "q_normed", "q_norm"),
    (3, "k_normed", "k_norm"),
    (3, "q_rope", "q_rope"),
    (3, "k_rope", "k_rope"),
    (3, "v", "v_cache"),
    (3, "attn_ctx", "mix"),
    (3, "o_proj", "o_proj"),
    (3, "post_attention_layernorm", "post_attention_layernorm"),
    (3, "gate_proj", "gate_proj"),
    (3, "up_proj", "up_proj"),
    (3, "down_proj", "down_proj"),
];

#[test]
fn every_captured_operation_is_that_of_transformers() {
    let (model, golden) = (model("qwen3_5"), golden("qwen3_5.bf16.safetensors"));
    let trace = cached(&model, &TRANSFORMERS, &ids(&golden, 7)[..8], 7, Keep::All);
    let mut compared = 0;
    for (folder, from, to) in [("L7/ops", 0, 7), ("L7/ops/decode0", 7, 8)] {
        for (layer, op, site) in CAPTURED {
            let want = &golden[&format!("{folder}/layer{layer}/{op}")];
            let from = if op == "v" { 0 } else { from };
            let got = rows(&trace, &format!("layers.{layer}.{site}"), (from, to), want);
            assert_eq!(differing(&got, &want.values), 0, "{folder} {layer} {op}");
            compared += got.len();
        }
        let probs = &golden[&format!("{folder}/layer3/attn_probs")];
        let square = trace.sites["layers.3.probs"].values.chunks(8).enumerate();
        let square = square.filter(|(i, _)| (from..to).contains(&(i % 8)));
        let got: Vec<f64> = square.flat_map(|(_, row)| &row[..to]).copied().collect();
        assert_eq!(differing(&got, &probs.values), 0, "{folder} probs");
        for table in ["cos", "sin"] {
            // Transformers holds [cos|cos] of the 8 rotated dimensions.
            let want = &golden[&format!("{folder}/layer3/{table}")].values;
            let got = trace.sites[&format!("rotary.{table}")].values[from * 4..to * 4].chunks(4);
            let got: Vec<f64> = got.flat_map(|x| [x, x].concat()).collect();
            assert_eq!(differing(&got, want), 0, "{folder} {table}");
        }
        let heads = trace.sites["layers.0.conv_silu"].values[from * 320..to * 320].chunks(320);
        for (part, first, repeat) in [("q", 0, 3), ("k", 64, 3), ("v", 128, 1)] {
            let row = |row: &[f64]| -> Vec<f64> {
                let heads = row[first..][..192 / repeat].chunks(32);
                heads.flat_map(|head| head.repeat(repeat)).collect()
            };
            let got: Vec<f64> = heads.clone().flat_map(row).collect();
            let want = &golden[&format!("{folder}/layer0/gdn_{part}")].values;
            assert_eq!(differing(&got, want), 0, "{folder} {part}");
        }
        let g = &trace.sites["layers.0.g"].values[from * 6..to * 6];
        let want = &golden[&format!("{folder}/layer0/gdn_g")].values;
        println!("{folder} g: {} of {} differ", differing(g, want), g.len());
        assert!(ulps(g, want) <= 2, "{folder}: g is {} ulp off", ulps(g, want));
    }
    assert!(compared > 15_000, "{compared} values compared");
}

#[test]
fn what_layers_carry_is_what_transformers_caches() {
    for name in ["qwen3_5", "qwen3_5_f32log"] {
        let (model, golden) = (model(name), golden(&format!("{name}.bf16.safetensors")));
        let opts = RunOptions { keep: Keep::All, ..RunOptions::default() };
        let trace = run(&model, &TRANSFORMERS, &ids(&golden, 7)[..7], &opts).expect("golden ids");
        for layer in 0..model.config().layers {
            let want = |what: &str| &golden[&format!("cache/L7/layer{layer}/{what}")];
            if !model.config().is_linear(layer) {
                for what in ["k", "v"] {
                    let got = swapped(&trace.sites[&format!("layers.{layer}.{what}_cache")]);
                    assert_eq!(differing(&got, &want(what).values), 0, "{name} {layer} {what}");
                }
                continue;
            }
            let state = &trace.states[&layer];
            assert_eq!(state.conv.shape, want("conv").shape);
            assert_eq!(state.delta.shape, want("rec").shape);
            assert_eq!(differing(&state.conv.values, &want("conv").values), 0, "{name} {layer}");
            let off = distance(&state.delta.values, &want("rec").values);
            let size = largest(&want("rec").values);
            println!("{name} layer {layer}: states {:.1e} of the largest apart", off / size);
            // f32 noise of two forms of the rule: measured up to 5e-7.
            assert!(off < 2e-6 * size, "{name} {layer}: {off:e} of {size}");
        }
    }
}

/// Transformers continues a cached sequence in chunks; the recurrence does not know of pieces.
#[test]
fn a_continuation_of_several_tokens_is_within_transformers_own_error() {
    let (model, golden) = (model("qwen3_5"), golden("qwen3_5.bf16.safetensors"));
    let ids: Vec<u32> = golden["chunked/ids"].values.iter().map(|&id| id as u32).collect();
    let logits = |arith: &dyn samebits_oracle::Arithmetic, pieces: Vec<usize>| {
        let opts = RunOptions { pieces: Some(pieces), ..RunOptions::default() };
        run(&model, arith, &ids, &opts).expect("golden ids").logits().values[33 * VOCAB..].to_vec()
    };
    let (want, exact) = (&golden["chunked/logits_33_39"].values, logits(&Ideal, vec![40]));
    let got = logits(&TRANSFORMERS, vec![33, 7]);
    let (ours, theirs) = (distance(&got, &exact), distance(want, &exact));
    println!(
        "{} of {} logits differ; errors {ours:.3} and {theirs:.3}",
        differing(&got, want),
        2100
    );
    assert!(ours <= 1.5 * theirs, "{ours} to {theirs}");
    assert_eq!(differing(&logits(&INVARIANT, vec![33, 7]), &logits(&INVARIANT, vec![40])), 0);
}

#[test]
fn ideal_equals_the_honest_f64_logits() {
    for (name, n) in PROMPTS {
        let (model, exact) = (model(name), golden(&format!("{name}.oracle.safetensors")));
        let ids = ids(&golden(&format!("{name}.bf16.safetensors")), n);
        let want = |what: &str| exact[&format!("L{n}/{what}")].values.clone();
        let want = [want("logits"), want("decode/logits")].concat();
        let whole = run(&model, &Ideal, &ids, &RunOptions::default()).expect("golden ids");
        let whole = distance(&whole.logits().values, &want);
        let trace = cached(&model, &Ideal, &ids, n, Keep::Logits);
        let cached = distance(&trace.logits().values, &want);
        println!("{name} {n}: cached {cached:e}, whole {whole:e}");
        // Two f64 evaluations of logits below 20, measured at 5e-14.
        assert!(cached < 1e-11 && whole < 1e-11, "{name} {n}: {cached:e} {whole:e}");
    }
}

#[test]
fn rounded_errs_as_much_as_transformers() {
    for (name, n) in [("qwen3_5", 33), ("qwen3_5", 70), ("qwen3_5_f32log", 7)] {
        let (model, golden) = (model(name), golden(&format!("{name}.bf16.safetensors")));
        let ids = &ids(&golden, n)[..n];
        let logits = |arith: &dyn samebits_oracle::Arithmetic| {
            run(&model, arith, ids, &RunOptions::default()).expect("ids").logits().values.clone()
        };
        let ideal = logits(&Ideal);
        let rms = |a: &[f64]| {
            let squares = a.iter().zip(&ideal).map(|(a, b)| (a - b) * (a - b));
            (squares.sum::<f64>() / a.len() as f64).sqrt()
        };
        let rounded = rms(&logits(&Rounded { dtype: Dtype::Bf16 }));
        let ratio = rounded / rms(&golden[&format!("L{n}/logits")].values);
        println!("{name} {n}: rms error of Rounded over that of Transformers {ratio:.3}");
        assert!((0.8..1.25).contains(&ratio), "{name}: {ratio}");
        let fine = rms(&logits(&Rounded { dtype: Dtype::F32 }));
        assert!(fine > 0.0 && fine < rounded / 1e3, "{name}: {fine:e} in f32");
    }
}

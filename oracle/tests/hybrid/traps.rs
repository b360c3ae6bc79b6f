//! The traps of the family, by their numbers: what is right equals a capture of Transformers bit
//! for bit, and whatever has fallen into the trap does not.

use std::collections::BTreeMap;

use samebits_oracle::ops::{
    Conv, Decay, DeltaHeads, DeltaRule, GatedNorm, Heads, Linear, Mix, PartialRope, RmsNorm, Rope,
    Scores, Softmax, Tables,
};
use samebits_oracle::{Arithmetic, Array, Ideal, Model, bits};

use crate::golden::{differing, distance, golden, model, swapped};
use crate::{TRANSFORMERS, ulps};

const A: &dyn Arithmetic = &TRANSFORMERS;
const DELTA: DeltaHeads = DeltaHeads { key_heads: 2, value_heads: 6, key_dim: 32, value_dim: 32 };
const EPS: f64 = 1e-6;

/// Captures of the 7-token prefill: `0/gdn_core`, `3/q_rope`, ..; heads after rows.
struct Captures {
    model: Model,
    golden: BTreeMap<String, Array>,
}

impl Captures {
    fn new() -> Self {
        Self { model: model("qwen3_5"), golden: golden("qwen3_5.bf16.safetensors") }
    }

    fn at(&self, name: &str) -> Vec<f64> {
        let array = &self.golden[&format!("L7/ops/layer{name}")];
        let heads_first = array.shape.len() == 3 && array.shape[1] == 7 && array.shape[0] < 7;
        if heads_first && !name.contains("probs") { swapped(array) } else { array.values.clone() }
    }

    fn weight(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(&format!("layers.{site}")).expect("a weight");
        weight.values(0..weight.count())
    }

    /// The rows of q and k heads, without their repetition.
    fn keys(&self, name: &str) -> Vec<f64> {
        self.at(name).chunks(6 * 32).flat_map(|row| [&row[..32], &row[96..128]].concat()).collect()
    }
}

/// Checks one trap; `wrong` are the ways into it.
fn check(trap: &str, right: &[f64], want: &[f64], wrong: &[(&str, Vec<f64>)]) {
    assert_eq!(differing(right, want), 0, "trap {trap}: the right way is not that of Transformers");
    for (way, fallen) in wrong {
        let differ = differing(fallen, want);
        println!("trap {trap}, {way}: {differ} of {} differ", want.len());
        assert!(differ > 0, "trap {trap}: {way} is not noticed");
    }
}

fn rounded(x: impl IntoIterator<Item = f64>) -> Vec<f64> {
    x.into_iter().map(|x| A.round(x)).collect()
}

fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

#[test]
fn trap_1_three_norms_round_in_three_orders() {
    let c = Captures::new();
    let (x, w) = (c.golden["L7/embed"].values.clone(), c.weight("0.input_layernorm"));
    let norm = |weight: &[f64]| A.centred_norm(&RmsNorm { x: &x, weight, eps: EPS }).values;
    let plain = |weight: &[f64]| A.rms_norm(&RmsNorm { x: &x, weight, eps: EPS }).values;
    let sums: Vec<f64> = w.iter().map(|w| 1.0 + w).collect();
    let baked: Vec<f64> = sums.iter().map(|w| A.round(*w) - 1.0).collect();
    let wrong = [
        ("rounded before the weight", plain(&sums)),
        ("a plain weight", plain(&w)),
        ("one added in bf16", norm(&baked)),
    ];
    check("1", &norm(&w), &c.at("0/input_layernorm"), &wrong);
}

#[test]
fn trap_17_the_gated_norm() {
    let c = Captures::new();
    let (x, gate, weight) = (c.at("0/gdn_core"), c.at("0/in_proj_z"), c.weight("0.gdn_norm"));
    let norm = |x: &[f64], gate: &[f64], weight: &[f64]| {
        A.gated_norm(&GatedNorm { x, gate, weight, eps: EPS }).values
    };
    let plain = |x: &[f64]| A.rms_norm(&RmsNorm { x, weight: &weight, eps: EPS }).values;
    let exact = Ideal.gated_norm(&GatedNorm { x: &x, gate: &gate, weight: &weight, eps: EPS });
    let sums: Vec<f64> = weight.iter().map(|w| 1.0 + w).collect();
    let silu = A.silu(&gate).values;
    let wrong = [
        ("a zero-centred weight", norm(&x, &gate, &sums)),
        ("the gate before the norm", plain(&A.mul(&x, &silu).values)),
        ("the gate rounded first", A.mul(&plain(&x), &silu).values),
        ("one rounding at the end", rounded(exact.values)),
        ("a sigmoid", A.mul(&plain(&x), &A.sigmoid(&gate).values).values),
    ];
    check("17", &norm(&x, &gate, &weight), &c.at("0/gdn_norm"), &wrong);
}

/// The query halves, head by head, of q_proj.
fn queries(q_proj: &[f64]) -> Vec<f64> {
    q_proj.chunks(64).flat_map(|head| head[..32].to_vec()).collect()
}

#[test]
fn traps_3_4_and_5_rotation() {
    let c = Captures::new();
    let (q, weight) = (queries(&c.at("3/q_proj")), c.weight("3.q_norm"));
    let norm = |x: &[f64]| A.centred_norm(&RmsNorm { x, weight: &weight, eps: EPS }).values;
    let turn = |x: &[f64], tables: &Tables, width: usize| {
        let rope = Rope { x, tables, heads: 4, head_dim: 32, first: 0 };
        A.partial_rope(&PartialRope { rope, width }).values
    };
    let (own, want) = (A.rotary(1e7, 8, 7), c.at("3/q_rope"));
    let normed = norm(&q);
    let whole: Vec<f64> = weight.repeat(4);
    let over_heads = A.centred_norm(&RmsNorm { x: &q, weight: &whole, eps: EPS }).values;
    let wrong = [
        ("rope before the norm", norm(&turn(&q, &own, 8))),
        ("a norm over all heads", turn(&over_heads, &own, 8)),
    ];
    check("3", &turn(&normed, &own, 8), &want, &wrong);
    let by_head: Vec<f32> = bits::inverse_frequencies(1e7, 32)[..4].to_vec();
    let angles = (0..7).flat_map(|p| by_head.iter().map(move |i| f64::from(i * p as f32)));
    let (cos, sin) = angles.map(|a| (A.round(a.cos()), A.round(a.sin()))).unzip();
    let pairs = |x: &[f64]| -> Vec<f64> {
        x.chunks(32)
            .flat_map(|h| {
                [h[0], h[2], h[4], h[6], h[1], h[3], h[5], h[7]]
                    .into_iter()
                    .chain(h[8..].iter().copied())
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let unpaired = |x: &[f64]| -> Vec<f64> {
        x.chunks(32)
            .flat_map(|h| {
                [h[0], h[4], h[1], h[5], h[2], h[6], h[3], h[7]]
                    .into_iter()
                    .chain(h[8..].iter().copied())
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let wrong = [
        ("interleaved pairs", unpaired(&turn(&pairs(&normed), &own, 8))),
        ("frequencies of the whole head", turn(&normed, &Tables { cos, sin }, 8)),
        ("the whole head", turn(&normed, &A.rotary(1e7, 32, 7), 32)),
    ];
    check("4", &turn(&normed, &own, 8), &want, &wrong);
    let (cos, sin) = bits::rotary_table(1e7, 8, 7);
    let wide = |t: Vec<f32>| t.into_iter().map(f64::from).collect();
    let wide = Tables { cos: wide(cos), sin: wide(sin) };
    let rope = Rope { x: &normed, tables: &own, heads: 4, head_dim: 32, first: 0 };
    let once = Ideal.partial_rope(&PartialRope { rope, width: 8 }).values;
    let wrong = [("tables in f32", turn(&normed, &wide, 8)), ("one rounding", rounded(once))];
    check("5", &turn(&normed, &own, 8), &want, &wrong);
}

#[test]
fn trap_6_scores_are_rounded_twice_and_probabilities_before_the_mix() {
    let c = Captures::new();
    let (q, k, v) = (c.at("3/q_rope"), c.at("3/k_rope"), c.at("3/v"));
    let (dims, first, true_rows) = (Heads { heads: 4, kv_heads: 2, head_dim: 32 }, 0, 7);
    let probs = |a: &dyn Arithmetic, scores: &[f64]| {
        a.softmax(&Softmax { scores, rows: 7, keys: 7, first }).values
    };
    let scores = |a: &dyn Arithmetic, q: &[f64]| {
        a.scores(&Scores { q, k: &k, dims, first, true_rows }).values
    };
    let scale = 32f64.sqrt();
    let folded = rounded(q.iter().map(|x| x / scale));
    // Scores of the folded query, without a second scale.
    let folded = scores(A, &folded)
        .iter()
        .map(|s| if *s < -1e30 { *s } else { s * scale })
        .collect::<Vec<_>>();
    let exact = scores(&Ideal, &q).iter().map(|s| s.max(A.masked())).collect::<Vec<_>>();
    let wrong =
        [("the scale in the query", probs(A, &folded)), ("scores in f32", probs(A, &exact))];
    let right = probs(A, &scores(A, &q));
    check("6", &right, &c.at("3/attn_probs"), &wrong);
    let mix = |p: &[f64]| A.mix(&Mix { probs: p, v: &v, dims, first, true_rows }).values;
    let unrounded = probs(&Ideal, &scores(A, &q));
    let late = Ideal.mix(&Mix { probs: &unrounded, v: &v, dims, first, true_rows }).values;
    let context = &c.golden["L7/ops/layer3/attn_ctx"].values;
    check("6", &mix(&right), context, &[("division at the end", rounded(late))]);
}

#[test]
fn trap_10_query_and_gate_alternate_by_head() {
    let c = Captures::new();
    let (q_proj, weight) = (c.at("3/q_proj"), c.weight("3.q_norm"));
    let norm = |x: &[f64]| A.centred_norm(&RmsNorm { x, weight: &weight, eps: EPS }).values;
    let halves = |at: usize| -> Vec<f64> {
        q_proj.chunks(256).flat_map(|row| row[at..at + 128].to_vec()).collect()
    };
    let right = norm(&queries(&q_proj));
    check("10", &right, &c.at("3/q_normed"), &[("two halves", norm(&halves(0)))]);
    let (mix, weight) = (&c.golden["L7/ops/layer3/attn_ctx"].values, c.weight("3.o_proj"));
    let out = |x: &[f64]| A.linear(&Linear { x, weight: &weight, k: 128, true_rows: 7 }).values;
    let gate: Vec<f64> = q_proj.chunks(64).flat_map(|head| head[32..].to_vec()).collect();
    let sigmoid = A.sigmoid(&gate).values;
    let exact = rounded(zip(mix, &Ideal.sigmoid(&gate).values, |m, g| m * g));
    let wrong = [
        ("two halves", out(&A.mul(mix, &A.sigmoid(&halves(128)).values).values)),
        ("a sigmoid in f32", out(&exact)),
        ("no gate", out(mix)),
        ("silu", out(&A.mul(mix, &A.silu(&gate).values).values)),
    ];
    check("10", &out(&A.mul(mix, &sigmoid).values), &c.at("3/o_proj"), &wrong);
}

#[test]
fn trap_12_the_convolution_and_its_state() {
    let c = Captures::new();
    let (x, weight) = (c.at("0/in_proj_qkv"), c.weight("0.conv"));
    let conv = |x: &[f64], history: &[f64], weight: &[f64]| {
        A.conv(&Conv { x, history, weight, kernel: 4 }).values
    };
    let (q, k, v) = (c.keys("0/gdn_q"), c.keys("0/gdn_k"), c.at("0/gdn_v"));
    let rows = q.chunks(64).zip(k.chunks(64)).zip(v.chunks(192));
    let want: Vec<f64> = rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect();
    let reversed: Vec<f64> = weight.chunks(4).flat_map(|w| [w[3], w[2], w[1], w[0]]).collect();
    let right = A.silu(&conv(&x, &[], &weight)).values;
    let unactivated = |row: (&[f64], &[f64])| [&row.0[..128], &row.1[128..]].concat();
    let raw = conv(&x, &[], &weight);
    let wrong = [
        ("taps from the newest on", A.silu(&conv(&x, &[], &reversed)).values),
        ("silu first", conv(&A.silu(&x).values, &[], &weight)),
        ("v bare", right.chunks(320).zip(raw.chunks(320)).flat_map(unactivated).collect()),
    ];
    check("12", &right, &want, &wrong);
    // The first cached step reads the last raw inputs, as the cache holds them.
    let step = &c.golden["L7/ops/decode0/layer0/in_proj_qkv"].values;
    let cache = &c.golden["cache/L7/layer0/conv"].values;
    let history = |t: &[f64]| -> Vec<f64> {
        (0..4).flat_map(|j| t.iter().skip(j).step_by(4).copied().collect::<Vec<_>>()).collect()
    };
    assert_eq!(differing(&history(cache), &x[3 * 320..]), 0, "the cache holds the last inputs");
    let value = |y: Vec<f64>| A.silu(&y).values[128..].to_vec();
    let wrong = [
        ("no state", value(conv(step, &[], &weight))),
        ("a state of activations", value(conv(step, &right, &weight))),
        ("a state one too old", value(conv(step, &x[..6 * 320], &weight))),
    ];
    let want = &c.golden["L7/ops/decode0/layer0/gdn_v"].values;
    check("12", &value(conv(step, &history(cache), &weight)), want, &wrong);
}

#[test]
fn trap_14_gate_and_decay() {
    let c = Captures::new();
    let b = c.at("0/in_proj_b");
    let wrong = [("a sigmoid in f32", Ideal.sigmoid(&b).values)];
    check("14", &A.sigmoid(&b).values, &c.at("0/gdn_beta"), &wrong);
    let (a, log, bias) = (c.at("0/in_proj_a"), c.weight("0.A_log"), c.weight("0.dt_bias"));
    let g = |log: &[f64]| A.decay(&Decay { a: &a, log, bias: &bias }).values;
    let want = c.at("0/gdn_g");
    // -A_log in place of -exp(A_log), a bf16 sum, a bf16 result.
    let logs: Vec<f64> = log.iter().map(|x| x.abs().ln()).collect();
    let sums: Vec<f64> = a.iter().enumerate().map(|(i, a)| A.round(a + bias[i % 6])).collect();
    let sums = A.decay(&Decay { a: &sums, log: &log, bias: &[0.0; 6] }).values;
    assert!(ulps(&g(&log), &want) <= 2, "g is {} ulp off", ulps(&g(&log), &want));
    for (way, wrong) in [("-A_log", g(&logs)), ("a bf16 sum", sums), ("bf16", rounded(g(&log)))] {
        assert!(ulps(&wrong, &want) > 1000, "trap 14: {way} is not noticed");
    }
}

/// A second, plain delta rule in f64, with ways to be wrong.
#[derive(Clone, Copy, Default)]
struct Wrong {
    decays_last: bool,
    predicts_undecayed: bool,
    reads_old: bool,
    cyclic_heads: bool,
    mean: bool,
    unscaled: bool,
    scales_keys: bool,
    swaps: bool,
    no_beta: bool,
    bf16_state: bool,
}

/// `(core, state)`.
fn delta(c: &Captures, wrong: Wrong) -> (Vec<f64>, Vec<f64>) {
    let (q, k) = (c.keys("0/gdn_q"), c.keys("0/gdn_k"));
    let (q, k) = if wrong.swaps { (k, q) } else { (q, k) };
    let (v, beta, g) = (c.at("0/gdn_v"), c.at("0/gdn_beta"), c.at("0/gdn_g"));
    let n = if wrong.mean { 32.0 } else { 1.0 };
    let unit = |x: &[f64], scaled: bool| -> Vec<f64> {
        let sum: f64 = x.iter().map(|x| x * x).sum();
        let scale = if scaled { 32f64.sqrt() } else { 1.0 };
        x.iter().map(|x| x / (sum / n + 1e-6).sqrt() / scale).collect()
    };
    let (mut core, mut states) = (vec![0.0; 7 * 192], vec![0.0; 6 * 32 * 32]);
    for t in 0..7 {
        for h in 0..6 {
            let head = if wrong.cyclic_heads { h % 2 } else { h / 3 };
            let key = (t * 2 + head) * 32;
            let (q, k) = (
                unit(&q[key..key + 32], !wrong.unscaled),
                unit(&k[key..key + 32], wrong.scales_keys),
            );
            let s = &mut states[h * 1024..][..1024];
            let read = |s: &[f64], x: &[f64], c: usize| -> f64 {
                (0..32).map(|i| x[i] * s[i * 32 + c]).sum()
            };
            let (old, decay) = (s.to_vec(), g[t * 6 + h].exp());
            let decayed: Vec<f64> = old.iter().map(|s| s * decay).collect();
            let seen = if wrong.predicts_undecayed || wrong.decays_last { &old } else { &decayed };
            let from = if wrong.decays_last { &old } else { &decayed };
            for c in 0..32 {
                let d = v[(t * 6 + h) * 32 + c] - read(seen, &k, c);
                let d = if wrong.no_beta { d } else { d * beta[t * 6 + h] };
                (0..32).for_each(|i| s[i * 32 + c] = from[i * 32 + c] + k[i] * d);
                let o = if wrong.reads_old { read(&decayed, &q, c) } else { read(s, &q, c) };
                core[(t * 6 + h) * 32 + c] = A.round(o);
            }
            let late = if wrong.decays_last { decay } else { 1.0 };
            s.iter_mut().for_each(|s| *s *= late);
            if wrong.bf16_state {
                s.iter_mut().for_each(|s| *s = A.round(*s));
            }
        }
    }
    (core, states)
}

#[test]
fn traps_11_13_and_15_the_delta_rule() {
    let c = Captures::new();
    let unit = |name: &str| A.l2_norm(&c.keys(name), 32).values;
    let (q, k, v) = (unit("0/gdn_q"), unit("0/gdn_k"), c.at("0/gdn_v"));
    let (beta, g) = (c.at("0/gdn_beta"), c.at("0/gdn_g"));
    let state = &vec![0.0; DELTA.state()];
    let op = DeltaRule { q: &q, k: &k, v: &v, beta: &beta, g: &g, heads: DELTA, state };
    let ours = A.delta_rule(&op);
    let (want, want_state) = (c.at("0/gdn_core"), c.at("0/gdn_state"));
    let (plain, plain_state) = delta(&c, Wrong::default());
    assert_eq!(differing(&plain, &want), 0, "the plain rule itself is not right");
    let w = Wrong::default();
    let ways = [
        ("11", "k before q", Wrong { swaps: true, ..w }),
        ("11", "cyclic heads", Wrong { cyclic_heads: true, ..w }),
        ("13", "a mean", Wrong { mean: true, ..w }),
        ("13", "q not scaled", Wrong { unscaled: true, ..w }),
        ("13", "k scaled too", Wrong { scales_keys: true, ..w }),
        ("14", "no beta", Wrong { no_beta: true, ..w }),
        ("15", "decay last", Wrong { decays_last: true, ..w }),
        ("15", "the error from the undecayed state", Wrong { predicts_undecayed: true, ..w }),
        ("15", "output from the old state", Wrong { reads_old: true, ..w }),
        ("15", "a bf16 state", Wrong { bf16_state: true, ..w }),
    ];
    for (trap, way, wrong) in ways {
        let (core, state) = delta(&c, wrong);
        check(trap, &ours.core.values, &want, &[(way, core)]);
        // What reads the state alone, or swaps its two readers' scale, leaves it as it is.
        let state_off = distance(&state, &want_state);
        let only_read = wrong.unscaled || wrong.reads_old;
        assert!(only_read || state_off > 1e-4, "trap {trap}: {way} leaves the state {state_off:e}");
    }
    for (what, state) in [("ours", &ours.state), ("plain", &plain_state)] {
        let off = distance(state, &want_state);
        println!("state {what}: {off:e} off");
        assert!(off < 2e-6, "{what}: {off:e}");
    }
}

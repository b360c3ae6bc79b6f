//! What the recurrence promises: its chunk form, every split of a sequence, values by hand.

use samebits_oracle::ops::{
    Conv, Decay, Delta, DeltaHeads, DeltaRule, GatedNorm, PartialRope, RmsNorm, Rope, Tables,
};
use samebits_oracle::{
    Arithmetic, Bits, Dtype, Ideal, Keep, Model, Order, Rounded, RunOptions, Trace,
    delta_rule_in_chunks, run,
};
use serde_json::json;

use crate::drawn::Drawn;
use crate::golden::distance;
use crate::{INVARIANT, TRANSFORMERS, largest};

fn numbers() -> impl FnMut() -> f64 {
    let mut state = 11u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f64 / 2f64.powi(23) - 1.0
    }
}

/// Operands of a delta rule: unit keys, gates in (0, 1), decays of all speeds.
struct Operands {
    heads: DeltaHeads,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    beta: Vec<f64>,
    g: Vec<f64>,
    state: Vec<f64>,
}

impl Operands {
    fn new(rows: usize, heads: DeltaHeads) -> Self {
        let mut next = numbers();
        let mut many = |n: usize| -> Vec<f64> { (0..n).map(|_| next()).collect() };
        let unit = |x: Vec<f64>| Ideal.l2_norm(&x, heads.key_dim).values;
        Self {
            q: unit(many(rows * heads.keys())),
            k: unit(many(rows * heads.keys())),
            v: many(rows * heads.values()),
            beta: many(rows * heads.value_heads).iter().map(|x| (x + 1.0) / 2.0).collect(),
            g: many(rows * heads.value_heads).iter().map(|x| -(5.0 * x).exp() / 50.0).collect(),
            state: many(heads.state()),
            heads,
        }
    }

    fn op(&self) -> DeltaRule<'_> {
        let Self { heads, q, k, v, beta, g, state } = self;
        DeltaRule { q, k, v, beta, g, heads: *heads, state }
    }
}

const fn heads(
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
) -> DeltaHeads {
    DeltaHeads { key_heads, value_heads, key_dim, value_dim }
}

#[test]
fn the_recurrence_equals_its_chunk_form() {
    for shape in [heads(2, 6, 32, 32), heads(1, 1, 5, 3), heads(3, 3, 16, 24), heads(2, 8, 64, 16)]
    {
        for rows in [1, 2, 63, 64, 65, 127, 129, 200] {
            let operands = Operands::new(rows, shape);
            let Delta { core, state } = Ideal.delta_rule(&operands.op());
            for chunk in [64, 1, 1000] {
                let other = delta_rule_in_chunks(&operands.op(), chunk);
                let core_off = distance(&core.values, &other.core.values);
                let state_off = distance(&state, &other.state);
                let size = largest(&core.values).max(largest(&state));
                println!(
                    "{shape:?} {rows} by {chunk}: {core_off:.1e} {state_off:.1e} of {size:.1}"
                );
                assert!(core_off < 1e-12 && state_off < 1e-12, "{shape:?} {rows} by {chunk}");
            }
            // f32 arithmetic is as far as f32 can be, and not nearer.
            for arith in [
                &Bits { order: Order::Invariant, dtype: Dtype::F32 } as &dyn Arithmetic,
                &Rounded { dtype: Dtype::F32 },
            ] {
                let off = distance(&core.values, &arith.delta_rule(&operands.op()).core.values);
                assert!(off > 1e-12 && off < 1e-5, "{shape:?} {rows}: {off:e} in f32");
            }
        }
    }
}

/// A hybrid of 3 layers (interval 2) with the given delta heads and kernel.
fn small(heads: DeltaHeads, kernel: usize) -> Model {
    let golden = json!({"seed": 1, "spec": {
        "vocab": 50, "hidden": 24, "intermediate": 20, "layers": 3, "interval": 2, "heads": 3,
        "kv_heads": 1, "head_dim": 10, "partial": 0.6, "key_heads": heads.key_heads,
        "value_heads": heads.value_heads, "key_dim": heads.key_dim, "value_dim": heads.value_dim,
        "kernel": kernel, "theta": 1e6, "eps": 1e-6, "log_dtype": "f32",
    }});
    Drawn::new(&golden).model()
}

#[test]
fn every_split_gives_the_same_bits() {
    let mut compared = 0;
    for (shape, kernel) in [(heads(2, 4, 8, 6), 4), (heads(1, 3, 5, 7), 2), (heads(2, 2, 4, 4), 7)]
    {
        let model = small(shape, kernel);
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let arith = Bits { order: Order::Invariant, dtype };
            for t in [1, 2, 3, 4, 5, 63, 64, 65, 127, 129] {
                let ids: Vec<u32> = (0..t as u32).map(|i| (i * i + 7 * i + 3) % 50).collect();
                let trace = |pieces: Vec<usize>| -> Trace {
                    let pieces = Some(pieces);
                    let opts = RunOptions { keep: Keep::All, pieces, ..RunOptions::default() };
                    run(&model, &arith, &ids, &opts).expect("a good request")
                };
                let whole = trace(vec![t]);
                let at = |n: usize| vec![n, t - n];
                let mut splits = vec![vec![1; t]];
                splits.extend((1..t.min(6)).map(at));
                splits.extend(
                    [t.saturating_sub(1), 62, 63, 64, 65]
                        .into_iter()
                        .filter(|n| *n > 5 && *n < t)
                        .map(at),
                );
                if t > 5 {
                    splits.push(vec![3, 1, t - 5, 1]);
                }
                for pieces in splits {
                    let other = trace(pieces.clone());
                    assert_eq!(whole.states, other.states, "{shape:?} {dtype:?} {t} {pieces:?}");
                    for (site, array) in &whole.sites {
                        let same = array == &other.sites[site];
                        assert!(same, "{shape:?} {kernel} {dtype:?} {t} {pieces:?}: {site}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 20_000, "{compared} sites compared");
}

/// The last rows of a history and of zeros are what a state holds, and what the next row needs.
#[test]
fn a_prompt_shorter_than_the_kernel_leaves_zeros() {
    let model = small(heads(2, 2, 4, 4), 7);
    let opts = RunOptions { keep: Keep::All, ..RunOptions::default() };
    let trace = run(&model, &INVARIANT, &[4, 9, 1], &opts).expect("a good request");
    let (state, inputs) = (&trace.states[&0].conv, &trace.sites["layers.0.in_proj_qkv"].values);
    assert_eq!(state.shape, [24, 7]);
    for (c, taps) in state.values.chunks(7).enumerate() {
        assert_eq!(taps[..4], [0.0; 4]);
        assert_eq!(taps[4..], [inputs[c], inputs[24 + c], inputs[48 + c]]);
    }
    assert_eq!(trace.states.keys().collect::<Vec<_>>(), [&0, &2], "the full layer carries none");
}

#[test]
fn operations_by_hand() {
    // Taps ascend in time; the last multiplies the row itself.
    let weight = [100.0, 10.0, 1.0];
    let conv = |x: &[f64], history: &[f64]| {
        INVARIANT.conv(&Conv { x, history, weight: &weight, kernel: 3 }).values
    };
    assert_eq!(conv(&[1.0, 2.0, 3.0], &[]), [1.0, 12.0, 123.0]);
    assert_eq!(conv(&[3.0], &[9.0, 1.0, 2.0]), [123.0]);
    // 2^24 + 1 is no f32: oldest first loses the one, newest first would keep it in the sum.
    let f32 = Bits { order: Order::Invariant, dtype: Dtype::F32 };
    let big = 2f64.powi(24);
    let op = Conv { x: &[1.0, 1.0, -big], history: &[big, 0.0], weight: &[1.0; 5], kernel: 5 };
    assert_eq!(f32.conv(&op).values[2], 0.0);
    // 1e-6 stands under the root, beside the sum.
    let unit = INVARIANT.l2_norm(&[1e-3f32.into(), 0.0], 2).values[0];
    assert!((unit - 0.5f64.sqrt()).abs() < 1e-6, "{unit}");
    // Softplus is the identity above 20.
    let decay = |a: f64| f32.decay(&Decay { a: &[a], log: &[0.0], bias: &[0.5] }).values[0];
    assert_eq!(decay(20.0), -20.5);
    assert_eq!(decay(79.5), -80.0);
    assert_eq!(decay(99.5), -100.0, "where exp is infinite");
    assert_eq!(
        f32.decay(&Decay { a: &[1.0], log: &[f64::NEG_INFINITY], bias: &[0.0] }).values,
        [-0.0]
    );
    // A head that never decays, written once with beta 1 and read back.
    let shape = heads(1, 1, 2, 1);
    let op = DeltaRule {
        q: &[1.0, 0.0, 0.0, 1.0],
        k: &[1.0, 0.0, 1.0, 0.0],
        v: &[3.0, 5.0],
        beta: &[1.0, 0.5],
        g: &[0.0, 0.0],
        heads: shape,
        state: &[0.0, 7.0],
    };
    let delta = Ideal.delta_rule(&op);
    assert_eq!(delta.state, [4.0, 7.0]);
    assert_eq!(delta.core.values, [3.0 * (1.0 / 2f64.sqrt()), 7.0 * (1.0 / 2f64.sqrt())]);
    // What is f32 in every run is so in `Rounded` too, whatever its dtype.
    let rounded = Rounded { dtype: Dtype::Bf16 };
    let op = DeltaRule { g: &[-0.1, -0.2], ..op };
    let only_f32 = |x: &f64| f64::from(*x as f32) == *x && INVARIANT.round(*x) != *x;
    assert!(rounded.delta_rule(&op).state.iter().all(only_f32));
    assert!(rounded.l2_norm(&[1.0, 2.0], 2).values.iter().all(only_f32));
    // The dimensions past the width pass, those within turn in halves.
    let tables = Tables { cos: vec![0.0], sin: vec![1.0] };
    let x = [1.0, 2.0, 3.0, 4.0];
    let rope = Rope { x: &x, tables: &tables, heads: 1, head_dim: 4, first: 0 };
    assert_eq!(Ideal.partial_rope(&PartialRope { rope, width: 2 }).values, [-2.0, 1.0, 3.0, 4.0]);
    // An offset that bf16 would lose when added to one.
    let op = RmsNorm { x: &[1.0, 1.0], weight: &[0.0019, 0.0], eps: 0.0 };
    assert_eq!(f32.centred_norm(&op).values[1], 1.0);
    assert!(f32.centred_norm(&op).values[0] > 1.0018);
    assert_eq!(Ideal.sigmoid(&[0.0]).values, [0.5]);
}

/// Parameters that the file may hold in f32 are cast by Transformers alone.
#[test]
fn the_default_order_keeps_f32_parameters() {
    let (log, bias) = (1.001f32.into(), 0.0);
    assert_eq!(INVARIANT.parameter(log), log);
    assert_eq!(Rounded { dtype: Dtype::Bf16 }.parameter(log), 1.0);
    assert_eq!(TRANSFORMERS.parameter(log), 1.0);
    let op = GatedNorm { x: &[1.0], gate: &[1.0], weight: &[1.0], eps: 0.0 };
    assert_eq!(INVARIANT.gated_norm(&op).values, INVARIANT.silu(&[1.0]).values);
    let wide = Decay { a: &[1.0], log: &[log], bias: &[bias] };
    let cast = Decay { log: &[1.0], ..wide };
    assert!(INVARIANT.decay(&wide).values != INVARIANT.decay(&cast).values);
    let (model, ids) = (crate::golden::model("qwen3_5_f32log"), [5, 6, 7, 8, 9]);
    let logits = |arith: &dyn Arithmetic| {
        run(&model, arith, &ids, &RunOptions::default()).expect("ids").logits().values.clone()
    };
    assert!(logits(&INVARIANT) != logits(&TRANSFORMERS), "five tokens, no other rule differs");
}

//! What the whole model promises beside its values: invariance, rows, traces.
//!
//! Deliberately absent: goldens. Invariant: each promise is shown to be one that could be broken.

mod plain;

use std::collections::BTreeSet;
use std::sync::Mutex;

use plain::{config, load, numbers, tensors};
use samebits_oracle::ops::{Heads, Linear, Mix, Scores, Softmax, Tables};
use samebits_oracle::{
    Arithmetic, Bits, Dtype, Ideal, Keep, Order, RunOptions, Tensor, Trace, run,
};

const INVARIANT: Bits = Bits { order: Order::Invariant, dtype: Dtype::Bf16 };
const TRANSFORMERS: Bits = Bits { order: Order::Transformers, dtype: Dtype::Bf16 };

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
        // A sum of k terms is at most the root of k times the sum of their squares.
        let most = 128.0;
        let bound = |(y, q): (&f64, &f64)| *y == f64::MIN || y * y <= most * q * (1.0 + 1e-5);
        let sums = array.squares.iter().all(|q| array.values.iter().zip(q).all(bound));
        assert!(sums, "{site}: a value exceeds what its terms can add to");
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
    let (few, many) =
        (linear(f32(Order::Transformers), 1, 1), linear(f32(Order::Transformers), 1, 4));
    assert_eq!(linear(f32(Order::Invariant), 1, 1), many);
    assert!(few != many, "f32 sums of one row run in lanes");
    // Bits of the f32 totals show the blocks that the rounding to bf16 mostly hides.
    let narrow = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<_>>();
    let differ = (0..n).filter(|i| {
        let (x, w) = (narrow(&x[..k]), narrow(&weight[i * k..][..k]));
        use samebits_oracle::bits::dot_bf16;
        dot_bf16(&x, &w, 512).to_bits() != dot_bf16(&x, &w, 1024).to_bits()
    });
    assert!(differ.count() > n / 2);
}

/// `Ideal`, noting which numbers of rows the rules of blocks are asked for.
#[derive(Default)]
struct Spy {
    linear: Mutex<BTreeSet<usize>>,
    mix: Mutex<BTreeSet<usize>>,
}

impl Arithmetic for Spy {
    fn round(&self, x: f64) -> f64 {
        x
    }
    fn constant(&self, x: f64) -> f64 {
        x
    }
    fn masked(&self) -> f64 {
        Ideal.masked()
    }
    fn rotary(&self, theta: f64, head_dim: usize, positions: usize) -> Tables {
        Ideal.rotary(theta, head_dim, positions)
    }
    fn dot(&self, x: &[f64], w: &[f64], block: usize) -> f64 {
        Ideal.dot(x, w, block)
    }
    fn norm_row(&self, x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        Ideal.norm_row(x, weight, eps)
    }
    fn softmax_row(&self, x: &[f64]) -> Vec<f64> {
        Ideal.softmax_row(x)
    }
    fn silu_of(&self, x: f64) -> f64 {
        Ideal.silu_of(x)
    }
    fn linear_block(&self, k: usize, true_rows: usize) -> usize {
        // Width 8 is that of the scores, which are no linear.
        if k != 8 {
            self.linear.lock().expect("no panic holds it").insert(true_rows);
        }
        k
    }
    fn mix_block(&self, keys: usize, true_rows: usize) -> usize {
        self.mix.lock().expect("no panic holds it").insert(true_rows);
        keys
    }
}

#[test]
fn rules_of_blocks_see_the_rows_of_the_forward() {
    let model = load(&config(), &tensors()).expect("the plain checkpoint loads");
    for (batch, from, linear, mix) in [
        (None, None, vec![20], vec![20]),
        (Some(3), None, vec![60], vec![20]),
        (Some(3), Some(7), vec![3, 21], vec![1, 7]),
        (None, Some(19), vec![1, 19], vec![1, 19]),
    ] {
        let spy = Spy::default();
        let logit_rows = Some(vec![5, 19]);
        let opts = RunOptions { batch, decode_from: from, logit_rows, ..RunOptions::default() };
        run(&model, &spy, &IDS, &opts).expect("a good request");
        assert_eq!(spy.linear.into_inner().expect("no panic"), BTreeSet::from_iter(linear));
        assert_eq!(spy.mix.into_inner().expect("no panic"), BTreeSet::from_iter(mix));
    }
}

#[test]
fn a_large_vocabulary_is_one_product() {
    let (mut config, mut tensors) = (config(), tensors());
    config["vocab_size"] = 8200.into();
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let (shape, data) = tensors.get_mut(name).expect("there");
        *shape = vec![8200, 16];
        *data = data.iter().copied().cycle().take(8200 * 32).collect();
    }
    let model = load(&config, &tensors).expect("a larger vocabulary");
    let opts = RunOptions { keep: Keep::All, ..RunOptions::default() };
    let trace = run(&model, &INVARIANT, &[1, 8199], &opts).expect("a good request");
    let head = model.weight("lm_head").expect("a head");
    let (x, weight) = (&trace.sites["norm"].values, head.values(0..head.count()));
    let whole = INVARIANT.linear(&Linear { x, weight: &weight, k: 16, true_rows: 2 });
    assert!(trace.logits().values == whole.values);
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

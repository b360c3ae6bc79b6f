//! Thousands of positions, past those where torch's cos and sin leave the exact ones, against
//! hashes of what Transformers computed.
//!
//! Deliberately absent: rows between the windows, which take minutes. Invariant: a window's rows
//! see every key before them, computed here from the ids.

#[path = "hybrid/drawn.rs"]
mod drawn;

use std::ops::Range;
use std::path::Path;

use drawn::{Drawn, hash, stream};
use samebits_oracle::ops::{Heads, Linear, Mix, RmsNorm, Rope, Scores, Softmax, Tables};
use samebits_oracle::{Arithmetic, Array, Bits, Dtype, Model, Order};
use serde_json::Value;

/// One layer over all ids, of which a window's rows go on to logits.
struct OneLayer<'a> {
    model: &'a Model,
    arith: Bits,
    tables: Tables,
    embedded: Vec<f64>, // [tokens, hidden]
    k: Vec<f64>,        // [tokens, kv_heads, head_dim]
    v: Vec<f64>,        // [tokens, kv_heads, head_dim]
}

impl<'a> OneLayer<'a> {
    fn new(model: &'a Model, arith: Bits, ids: &[u32]) -> Self {
        let c = model.config();
        let table = model.weight("embed_tokens").expect("a table");
        let embedded = arith.embed(table, ids).values;
        let tables = arith.rotary(c.theta, c.rotary_dim, ids.len());
        let mut layer = Self { model, arith, tables, embedded, k: Vec::new(), v: Vec::new() };
        let h = layer.norm("layers.0.input_layernorm", &layer.embedded);
        let k = layer.norm("layers.0.k_norm", &layer.linear("k_proj", &h));
        layer.k = layer.rope(&k, c.kv_heads, 0);
        layer.v = layer.linear("v_proj", &h);
        layer
    }

    fn tokens(&self) -> usize {
        self.embedded.len() / self.model.config().hidden
    }

    fn weight(&self, site: &str) -> Vec<f64> {
        let weight = self.model.weight(site).expect("a weight");
        weight.values(0..weight.count())
    }

    fn norm(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let (weight, eps) = (&self.weight(site), self.model.config().eps);
        self.arith.rms_norm(&RmsNorm { x, weight, eps }).values
    }

    fn linear(&self, op: &str, x: &[f64]) -> Vec<f64> {
        let site = if op == "lm_head" { op.into() } else { format!("layers.0.{op}") };
        let k = self.model.weight(&site).expect("a weight").shape[1];
        let (weight, true_rows) = (&self.weight(&site), self.tokens());
        self.arith.linear(&Linear { x, weight, k, true_rows }).values
    }

    fn rope(&self, x: &[f64], heads: usize, first: usize) -> Vec<f64> {
        let head_dim = self.model.config().head_dim;
        self.arith.rope(&Rope { x, tables: &self.tables, heads, head_dim, first }).values
    }

    /// Logits of some rows of the forward of all ids.
    fn logits(&self, rows: Range<usize>) -> Array {
        let (c, a, n, true_rows) = (self.model.config(), self.arith, rows.len(), self.tokens());
        let (first, keys) = (rows.start, self.tokens());
        let dims = Heads { heads: c.heads, kv_heads: c.kv_heads, head_dim: c.head_dim };
        let x = &self.embedded[first * c.hidden..rows.end * c.hidden];
        let h = self.norm("layers.0.input_layernorm", x);
        let q = self.norm("layers.0.q_norm", &self.linear("q_proj", &h));
        let q = &self.rope(&q, c.heads, first);
        let scores = &a.scores(&Scores { q, k: &self.k, dims, first, true_rows }).values;
        let probs = &a.softmax(&Softmax { scores, rows: n, keys, first }).values;
        let mix = a.mix(&Mix { probs, v: &self.v, dims, first, true_rows }).values;
        let x = a.add(x, &self.linear("o_proj", &mix)).values;
        let h = self.norm("layers.0.post_attention_layernorm", &x);
        let gate = a.silu(&self.linear("gate_proj", &h)).values;
        let inside = a.mul(&gate, &self.linear("up_proj", &h)).values;
        let x = a.add(&x, &self.linear("down_proj", &inside)).values;
        let values = self.linear("lm_head", &self.norm("norm", &x));
        Array { shape: vec![n, c.vocab], values, squares: None }
    }
}

#[test]
fn logits_past_16522_positions_are_those_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/goldens/long.bf16.json");
    let text = std::fs::read_to_string(path).expect("readable");
    let goldens: Vec<Value> = serde_json::from_str(&text).expect("a golden is JSON");
    let golden = goldens.iter().find(|g| g["spec"]["layers"] == 1).expect("one layer");
    let (model, one) = (Drawn::new(golden).model(), &golden["runs"][0]);
    let number = |field: &str| one[field].as_u64().expect("a whole number") as usize;
    let (tokens, block) = (number("tokens"), number("block"));
    let draw = stream(number("ids_seed") as u64, "prompt");
    let vocab = model.config().vocab;
    let id = |i| ((u128::from(draw(i)) * vocab as u128) >> 64) as u32;
    let ids: Vec<u32> = (0..tokens).map(id).collect();
    // Blocks with position 2,954 and position 16,522.
    for (order, blocks) in
        [(Order::Invariant, &[2_900, 16_500][..]), (Order::Transformers, &[2_900])]
    {
        let arith = Bits { order, dtype: Dtype::Bf16 };
        let layer = OneLayer::new(&model, arith, &ids);
        for &at in blocks {
            let logits = layer.logits(at..at + block);
            let got = hash("lm_head", &logits, (0, block), Dtype::Bf16);
            assert_eq!(got, one["blocks"][at / block], "{order:?}, rows from {at}");
        }
        let last = one["last"].as_array().expect("rows");
        let logits = layer.logits(tokens - last.len()..tokens);
        for (i, want) in last.iter().enumerate() {
            let got = hash("lm_head", &logits, (i, i + 1), Dtype::Bf16);
            assert_eq!(&got, want, "{order:?}, row {i} of the last {}", last.len());
        }
    }
}

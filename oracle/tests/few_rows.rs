//! f32 from few rows, in the order of Transformers: whole models against hashes of its logits.
//!
//! Deliberately absent: products of two threads, and attention without a cache. Invariant: every
//! forward of every run is compared, each sequence of a batch in its place.

#[path = "hybrid/drawn.rs"]
mod drawn;

use std::path::{Path, PathBuf};

use drawn::{Drawn, hash};
use safetensors::SafeTensors;
use samebits_oracle::{Array, Bits, Dtype, Model, Order, RunOptions, run};
use serde_json::Value;

const ARITH: Bits = Bits { order: Order::Transformers, dtype: Dtype::F32 };

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/goldens")
}

/// torch's own tables for heads of a width.
fn rotary(head_dim: &Value) -> (Vec<f32>, Vec<f32>) {
    let bytes = std::fs::read(goldens().join("few-rows.rotary.safetensors")).expect("readable");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let table = |name: &str| {
        let view = file.tensor(&format!("{head_dim}.{name}")).expect("a table of this width");
        view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    (table("cos"), table("sin"))
}

fn numbers(list: &Value) -> Vec<usize> {
    let list = list.as_array().expect("a list").iter();
    list.map(|n| n.as_u64().expect("a whole number") as usize).collect()
}

/// Logits `[batch, tokens, vocab]` of each forward.
fn forwards(model: &Model, golden: &Value, one: &Value) -> Vec<Array> {
    let (pieces, vocab) = (numbers(&one["pieces"]), model.config().vocab);
    let sequences = one["ids"].as_array().expect("sequences");
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); pieces.len()];
    for (sequence, ids) in sequences.iter().enumerate() {
        let ids: Vec<u32> = numbers(ids).into_iter().map(|id| id as u32).collect();
        let opts = RunOptions {
            pieces: Some(pieces.clone()),
            batch: Some(sequences.len()),
            sequence,
            rotary: Some(rotary(&golden["spec"]["head_dim"])),
            ..RunOptions::default()
        };
        let trace = run(model, &ARITH, &ids, &opts).expect("golden ids");
        let mut at = 0;
        for (all, n) in all.iter_mut().zip(&pieces) {
            all.extend(&trace.logits().values[at * vocab..][..n * vocab]);
            at += n;
        }
    }
    let array =
        |(values, n)| Array { shape: vec![sequences.len() * n, vocab], values, magnitude: None };
    all.into_iter().zip(&pieces).map(array).collect()
}

#[test]
fn logits_of_few_rows_are_those_of_transformers() {
    let text = std::fs::read_to_string(goldens().join("few-rows.f32.json")).expect("readable");
    let models: Vec<Value> = serde_json::from_str(&text).expect("a golden is JSON");
    let (mut compared, mut unlike) = (0, Vec::new());
    for golden in &models {
        let model = Drawn::new(golden).model();
        for one in golden["runs"].as_array().expect("runs") {
            let want = one["logits"].as_array().expect("a hash a forward");
            for (i, logits) in forwards(&model, golden, one).iter().enumerate() {
                let got = hash("lm_head", logits, (0, logits.shape[0]), Dtype::F32);
                compared += 1;
                if got != want[i].as_str().expect("a hash") {
                    let (name, pieces) = (&golden["spec"]["name"], &one["pieces"]);
                    let batch = one["ids"].as_array().expect("sequences").len();
                    unlike.push(format!("{name} x {batch}, {pieces}: forward {i}"));
                }
            }
        }
    }
    assert!(unlike.is_empty(), "{} of {compared}:\n{}", unlike.len(), unlike.join("\n"));
    assert_eq!(compared, 5 * (17 * 3 + 20 + 5 + 3 + 7 + 8 + 5 + 3 + 3));
}

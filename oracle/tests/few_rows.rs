//! f32 from few rows, in the order of Transformers: whole models against hashes of its logits.
//!
//! Deliberately absent: products of two threads, and attention without a cache. Invariant: every
//! forward of every run is compared, each sequence of a batch in its place.

#[path = "hybrid/drawn.rs"]
mod drawn;

use std::path::{Path, PathBuf};

use drawn::{Drawn, hash};
use safetensors::SafeTensors;
use samebits_oracle::few_rows::{Call, Rows, Spot, Sum};
use samebits_oracle::ops::Linear;
use samebits_oracle::{Arithmetic, Array, Bits, Dtype, Model, Order, RunOptions, run};
use serde_json::Value;

const ARITH: Bits = Bits { order: Order::Transformers, dtype: Dtype::F32 };

#[test]
fn sums_take_the_order_of_their_place() {
    let lanes = |head, lanes, step| Sum::Lanes { head, lanes, step };
    // [rows, columns, row, column, offset of the weight], terms: at 16-byte boundaries otherwise.
    let linear = [
        ("one row, from the boundary of a weight's row", [1, 9, 0, 3, 0], 64, lanes(4, 4, 4)),
        ("the same, a width that is no multiple of 4", [1, 9, 0, 3, 0], 65, lanes(1, 4, 4)),
        ("the same, a weight two floats on", [1, 9, 0, 3, 2], 64, lanes(2, 4, 4)),
        ("one row, a column of the last few", [1, 11, 0, 8, 2], 64, lanes(4, 8, 8)),
        ("one row, the second of the last few", [1, 11, 0, 9, 2], 64, lanes(4, 4, 8)),
        ("one row, the third of the last few", [1, 11, 0, 10, 2], 64, lanes(4, 8, 8)),
        ("three rows", [3, 14, 2, 11, 1], 64, lanes(0, 4, 4)),
        ("three rows, by the offset of the row", [3, 14, 1, 11, 1], 65, lanes(3, 4, 4)),
        ("three rows, one of the last columns", [3, 14, 1, 12, 1], 65, lanes(3, 8, 8)),
        ("few columns of many rows", [300, 11, 7, 3, 1], 64, lanes(0, 4, 4)),
        ("one column: the turned product", [7, 1, 2, 0, 1], 64, lanes(4, 4, 4)),
        ("one column, one of its last rows", [7, 1, 5, 0, 1], 64, lanes(3, 4, 8)),
        ("four rows and twelve columns", [4, 12, 3, 11, 1], 65, Sum::Chain),
    ];
    for (why, [rows, columns, row, column, start], k, want) in linear {
        let (x, w) = (Rows { start: 0, stride: k }, Rows { start, stride: k });
        let spot = Spot { call: Call::Linear, rows, columns, row, column, x, w };
        assert_eq!(spot.order(k), want, "{why}");
    }
    let batched = [
        ("399 multiplications", Call::Rows, [1, 3, 0, 0], 133, Sum::Ascending),
        ("400 multiplications", Call::Rows, [1, 4, 0, 0], 100, lanes(4, 4, 4)),
        ("one key for two rows", Call::Rows, [2, 1, 0, 0], 256, lanes(0, 8, 8)),
        ("many rows and keys", Call::Rows, [4, 12, 0, 0], 64, Sum::Chain),
        ("values, one row", Call::Columns, [1, 64, 0, 9], 64, Sum::Ascending),
        ("values, three rows", Call::Columns, [3, 64, 2, 0], 5000, Sum::Ascending),
        ("values, four rows", Call::Columns, [4, 64, 2, 0], 64, Sum::Chain),
        ("copied keys, before the boundary of row 1", Call::Columns, [2, 9, 1, 2], 64, Sum::Fours),
        ("copied keys, behind it", Call::Columns, [2, 9, 1, 3], 64, Sum::Ascending),
        ("too few copied keys behind it", Call::Columns, [2, 5, 1, 2], 64, Sum::Ascending),
    ];
    for (why, call, [rows, columns, row, column], k, want) in batched {
        let (x, w) = (Rows { start: 0, stride: k }, Rows { start: 0, stride: columns });
        let w = if call == Call::Rows { x } else { w };
        let spot = Spot { call, rows, columns, row, column, x, w };
        assert_eq!(spot.order(k), want, "{why}");
    }
}

/// `F.linear` of the first numbers by the next, both at boundaries, one thread.
#[test]
fn linears_of_few_rows_are_torchs() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        f64::from(((state >> 40) as f64 / 2f64.powi(23) - 1.0) as f32)
    };
    let numbers: Vec<f64> = (0..12_000).map(|_| next()).collect();
    let measured = [
        (1, 1, 5, 0x7BFB_41A9_A3A7_2D2B),
        (1, 7, 67, 0x1CA6_64CA_428E_FD26),
        (1, 13, 300, 0x0E31_319E_B2BD_9AFE),
        (2, 1, 67, 0x580E_E0F0_AA9F_2634),
        (3, 1, 131, 0x5E67_2F74_A15C_E917),
        (2, 5, 66, 0xA0BC_0F73_3A4A_7BA9),
        (3, 14, 129, 0xDA43_434B_1CD9_6849),
        (3, 16, 384, 0xAB52_9F8A_BDDB_AB16),
        (4, 11, 65, 0x136C_9FC7_75E9_A21C),
        (13, 7, 70, 0xE6E4_6AF2_ED8A_C3A9),
        (4, 12, 64, 0xCB2C_8D82_70F1_B93B),
        (5, 13, 385, 0x2C76_37AD_D471_6349),
        (9, 1, 6, 0x5F1C_8A56_F16B_47DD),
    ];
    for (rows, columns, k, want) in measured {
        let (x, rest) = numbers.split_at(rows * k);
        let op = Linear { x, weight: &rest[..columns * k], k, true_rows: rows };
        let got = ARITH.linear(&op).values.iter().fold(0xCBF2_9CE4_8422_2325_u64, |h, y| {
            (h ^ u64::from((*y as f32).to_bits())).wrapping_mul(0x100_0000_01B3)
        });
        assert_eq!(got, want, "{rows} rows, {columns} columns, {k} terms");
    }
}

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
        |(values, n)| Array { shape: vec![sequences.len() * n, vocab], values, squares: None };
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

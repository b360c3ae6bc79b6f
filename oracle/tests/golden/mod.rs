//! Reading goldens, running their ids, and counting what differs.
//!
//! Deliberately absent: anything that a test would check. Invariant: every value comes as the f64
//! that holds it exactly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype as Stored, SafeTensors};
use samebits_oracle::{Arithmetic, Array, Keep, Model, RunOptions, Trace, run};

pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/goldens")
}

pub fn model(name: &str) -> Model {
    Model::load(&goldens().join(name)).expect("the golden checkpoint is a plain Qwen3")
}

/// Every tensor of a golden file, as f64 (ids included).
pub fn golden(name: &str) -> BTreeMap<String, Array> {
    let path = goldens().join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a golden is a safetensors file");
    let each = file.iter().map(|(name, view)| {
        let d = view.data();
        let values: Vec<f64> = match view.dtype() {
            Stored::BF16 => {
                let bits = d.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)) << 16);
                bits.map(|u| f64::from(f32::from_bits(u))).collect()
            }
            Stored::F32 => {
                d.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
            }
            Stored::F64 => d.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            Stored::I64 => d.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
            other => panic!("{name}: {other:?}"),
        };
        (name.to_owned(), Array { shape: view.shape().to_vec(), values, squares: None })
    });
    each.collect()
}

/// Prompt of `n` ids and its 8 further ids.
pub fn ids(golden: &BTreeMap<String, Array>, n: usize) -> Vec<u32> {
    let part = |what: &str| &golden[&format!("L{n}/{what}")].values;
    part("input_ids").iter().chain(part("decode_ids")).map(|&id| id as u32).collect()
}

pub fn cached(model: &Model, arith: &dyn Arithmetic, ids: &[u32], n: usize, keep: Keep) -> Trace {
    let opts = RunOptions { keep, decode_from: Some(n), ..RunOptions::default() };
    run(model, arith, ids, &opts).expect("golden ids are in the vocabulary")
}

pub fn differing(a: &[f64], b: &[f64]) -> usize {
    assert_eq!(a.len(), b.len(), "two lengths");
    a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count()
}

pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "two lengths");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

pub fn swapped(a: &Array) -> Vec<f64> {
    let [h, s, d] = a.shape[..] else { panic!("three extents") };
    let at = |i: usize| ((i / d % h) * s + i / d / h) * d + i % d;
    (0..h * s * d).map(|i| a.values[at(i)]).collect()
}

//! Tensors by site name, as bits: the one form in which gates compare.
//!
//! Here: conversion from the engine's taps, the reference's arrays and stored tensors, the order of
//! execution, rows of a forward, and in `dims` the sizes that shapes imply. Absent: comparison. The
//! invariant: bits are canonical (one NaN) and values are never rounded on the way.

mod dims;

pub use dims::Dims;

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;
use samebits::contract::Dtype;
use samebits::op::{CONV_STATE, STATE};
use samebits::trace::Tap;
use samebits_fixtures::golden;
use samebits_oracle as oracle;
use sha2::{Digest, Sha256};

/// The ops of a layer that write a site, in an order of execution that holds for every kind of
/// layer: attention, gated attention, gated delta net.
pub const LAYER_OPS: [&str; 38] = [
    "input_layernorm",
    "q_proj",
    "q_gate",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "q_rope",
    "k_rope",
    "k_cache",
    "v_cache",
    "scores",
    "probs",
    "mix",
    "gate_sigmoid",
    "mix_gated",
    "o_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "conv",
    "conv_silu",
    "beta",
    "g",
    "q_l2",
    "k_l2",
    "core",
    "gdn_norm",
    "out_proj",
    "attn_residual",
    "post_attention_layernorm",
    "gate_proj",
    "up_proj",
    "silu",
    "mul",
    "down_proj",
    "mlp_residual",
];

/// What a gated delta net carries on; of these a run has the last forward's only.
pub const STATES: [&str; 2] = [CONV_STATE, STATE];

/// Where a site stands in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    stage: usize, // 0 before the layers, 1 + i in layer i, MAX after them
    op: usize,
}

/// The rank of a site, or `None` for a name that is no site.
pub fn rank(site: &str) -> Option<Rank> {
    let last = usize::MAX;
    let (stage, op) = match site {
        "rotary.cos" => (0, 0),
        "rotary.sin" => (0, 1),
        "embed_tokens" => (0, 2),
        "norm" => (last, 0),
        "lm_head" => (last, 1),
        _ => {
            let (layer, op) = split(site)?;
            (1 + layer, LAYER_OPS.iter().position(|o| *o == op)?)
        }
    };
    Some(Rank { stage, op })
}

/// Layer and op of a site within a layer.
pub fn split(site: &str) -> Option<(usize, &str)> {
    let (layer, op) = site.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, op))
}

/// The op of any site.
pub fn op_of(site: &str) -> &str {
    split(site).map_or(site, |(_, op)| op)
}

/// The dtype that a site has in a run: unit vectors and the decay are f32 in every run.
pub fn dtype_at(site: &str, run: Dtype) -> Dtype {
    match op_of(site) {
        "g" | "q_l2" | "k_l2" | STATE => Dtype::F32,
        _ => run,
    }
}

/// Whether a site is what a gated delta net carries on.
pub fn is_state(site: &str) -> bool {
    STATES.contains(&op_of(site))
}

/// Whether a site is `[heads, rows, keys]`.
pub fn keyed(site: &str) -> bool {
    matches!(op_of(site), "scores" | "probs")
}

/// A tensor as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The dtype of the elements.
    pub dtype: Dtype,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements, row-major; bf16 in the low half.
    pub bits: Vec<u32>,
}

/// Tensors of one sequence, by site name.
pub type Sites = BTreeMap<String, Bits>;

/// The reference's name of a dtype.
pub fn oracle_dtype(dtype: Dtype) -> oracle::Dtype {
    match dtype {
        Dtype::Bf16 => oracle::Dtype::Bf16,
        Dtype::F32 => oracle::Dtype::F32,
    }
}

/// A value of a dtype, exactly.
pub fn value(dtype: Dtype, bits: u32) -> f64 {
    match dtype {
        Dtype::Bf16 => f64::from(f32::from_bits(bits << 16)),
        Dtype::F32 => f64::from(f32::from_bits(bits)),
    }
}

/// Distance in units in the last place: steps between two values on the line of all finite values
/// of the dtype. `None` beside a NaN.
pub fn ulps(dtype: Dtype, a: u32, b: u32) -> Option<u64> {
    if value(dtype, a).is_nan() || value(dtype, b).is_nan() {
        return None;
    }
    let sign = match dtype {
        Dtype::Bf16 => 1 << 15,
        Dtype::F32 => 1u32 << 31,
    };
    let on_line = |bits: u32| {
        let size = i64::from(bits & (sign - 1));
        if bits & sign != 0 { -size } else { size }
    };
    Some(on_line(a).abs_diff(on_line(b)))
}

impl Bits {
    /// A tap of the engine.
    pub fn of_tap(tap: &Tap) -> Self {
        let bits = (0..tap.data.len()).map(|i| tap.data.bits(i)).collect();
        Self { dtype: tap.data.dtype(), shape: tap.shape.clone(), bits }
    }

    /// An array of the reference.
    pub fn of_array(array: &oracle::Array, dtype: Dtype) -> Self {
        Self { dtype, shape: array.shape.clone(), bits: array.bits(oracle_dtype(dtype)) }
    }

    /// A stored tensor; `None` unless it is bf16 or f32.
    pub fn of_golden(tensor: &golden::Tensor) -> Option<Self> {
        let (dtype, bits) = match tensor.dtype {
            golden::Dtype::Bf16 => {
                let canonical = |b: u16| if bf16::from_bits(b).is_nan() { 0x7FC0 } else { b };
                let bits = tensor.bf16_bits().into_iter().map(|b| u32::from(canonical(b)));
                (Dtype::Bf16, bits.collect())
            }
            golden::Dtype::F32 => {
                let canonical = |v: f32| if v.is_nan() { 0x7FC0_0000 } else { v.to_bits() };
                (Dtype::F32, tensor.f32s().into_iter().map(canonical).collect())
            }
            golden::Dtype::F64 | golden::Dtype::I64 => return None,
        };
        Some(Self { dtype, shape: tensor.shape.clone(), bits })
    }

    /// Element `i`, exactly.
    pub fn value(&self, i: usize) -> f64 {
        value(self.dtype, self.bits[i])
    }

    /// All elements, exactly.
    pub fn values(&self) -> Vec<f64> {
        (0..self.bits.len()).map(|i| self.value(i)).collect()
    }

    /// The same elements in another shape of as many.
    pub fn reshaped(mut self, shape: &[usize]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), self.bits.len(), "another number of elements");
        self.shape = shape.to_vec();
        self
    }

    /// `[a, b, c]` as `[b, a, c]`.
    pub fn swapped(&self) -> Self {
        let [a, b, c] = self.shape[..] else { panic!("swapped: three dimensions") };
        let at = |i: usize| ((i / c % a) * b + i / c / a) * c + i % c;
        let bits = (0..a * b * c).map(|i| self.bits[at(i)]).collect();
        Self { dtype: self.dtype, shape: vec![b, a, c], bits }
    }

    /// `[a, b]` as `[b, a]`.
    pub fn transposed(&self) -> Self {
        let [a, b] = self.shape[..] else { panic!("transposed: two dimensions") };
        let bits = (0..a * b).map(|i| self.bits[i % a * b + i / a]).collect();
        Self { dtype: self.dtype, shape: vec![b, a], bits }
    }

    /// The rows of one forward; of a keyed site its first `keys` keys.
    pub fn rows(&self, site: &str, rows: Range<usize>, keys: usize) -> Self {
        if !keyed(site) {
            let width = self.bits.len() / self.shape[0];
            let mut shape = self.shape.clone();
            shape[0] = rows.len();
            let bits = self.bits[rows.start * width..rows.end * width].to_vec();
            return Self { dtype: self.dtype, shape, bits };
        }
        let [heads, all, stride] = self.shape[..] else { panic!("keyed sites are [h, s, t]") };
        let mut bits = Vec::with_capacity(heads * rows.len() * keys);
        for head in 0..heads {
            for row in rows.clone() {
                bits.extend_from_slice(&self.bits[(head * all + row) * stride..][..keys]);
            }
        }
        Self { dtype: self.dtype, shape: vec![heads, rows.len(), keys], bits }
    }

    /// Rows of the tensor in the sense of a sequence.
    pub fn row_count(&self, site: &str) -> usize {
        self.shape[usize::from(keyed(site))]
    }

    /// Little-endian bytes in the dtype.
    pub fn bytes(&self) -> Vec<u8> {
        match self.dtype {
            Dtype::Bf16 => self.bits.iter().flat_map(|b| (*b as u16).to_le_bytes()).collect(),
            Dtype::F32 => self.bits.iter().flat_map(|b| b.to_le_bytes()).collect(),
        }
    }

    /// SHA-256 of the bytes, in lower-case hex.
    pub fn sha256(&self) -> String {
        Sha256::digest(self.bytes()).iter().map(|b| format!("{b:02x}")).collect()
    }
}

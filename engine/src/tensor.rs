//! Host tensors: flat, row-major, in one of the run's dtypes.
//!
//! Shapes live with whoever names the tensor. The invariant: bytes leave as little-endian with the
//! one NaN of the contract.

use half::bf16;
use sha2::{Digest, Sha256};

use crate::contract::{Dtype, Element};

/// Elements in row-major order.
#[derive(Clone, Debug)]
pub enum Tensor {
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE binary32.
    F32(Vec<f32>),
}

impl Tensor {
    /// `len` zeros.
    pub fn zeros(dtype: Dtype, len: usize) -> Self {
        match dtype {
            Dtype::Bf16 => Self::Bf16(vec![bf16::ZERO; len]),
            Dtype::F32 => Self::F32(vec![0.0; len]),
        }
    }

    /// Rounds f32 values to `dtype`.
    pub fn from_f32(dtype: Dtype, values: &[f32]) -> Self {
        match dtype {
            Dtype::Bf16 => Self::Bf16(values.iter().map(|&v| bf16::nearest(v)).collect()),
            Dtype::F32 => Self::F32(values.iter().map(|&v| f32::nearest(v)).collect()),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Bf16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Bf16(_) => Dtype::Bf16,
            Self::F32(_) => Dtype::F32,
        }
    }

    /// Element `i` as f32, exactly.
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Self::Bf16(v) => v[i].widen(),
            Self::F32(v) => v[i],
        }
    }

    /// All elements as f32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    /// Element `i` as bits in the dtype's width, with the one NaN of the contract.
    pub fn bits(&self, i: usize) -> u32 {
        match self {
            Self::Bf16(v) => u32::from(v[i].canonical().to_bits()),
            Self::F32(v) => v[i].canonical().to_bits(),
        }
    }

    /// Elements `start .. start + len`.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        match self {
            Self::Bf16(v) => Self::Bf16(v[start..start + len].to_vec()),
            Self::F32(v) => Self::F32(v[start..start + len].to_vec()),
        }
    }

    /// Appends the elements of a tensor of the same dtype.
    pub fn extend(&mut self, other: &Self) {
        match (self, other) {
            (Self::Bf16(a), Self::Bf16(b)) => a.extend_from_slice(b),
            (Self::F32(a), Self::F32(b)) => a.extend_from_slice(b),
            _ => panic!("extend: dtypes differ"),
        }
    }

    /// Little-endian bytes, NaN canonical.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Bf16(v) => v.iter().flat_map(|x| x.canonical().to_bits().to_le_bytes()).collect(),
            Self::F32(v) => v.iter().flat_map(|x| x.canonical().to_bits().to_le_bytes()).collect(),
        }
    }

    /// SHA-256 of [`Tensor::to_bytes`], in lower-case hex.
    pub fn sha256(&self) -> String {
        hex(&Sha256::digest(self.to_bytes()))
    }
}

/// Lower-case hex of a digest.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

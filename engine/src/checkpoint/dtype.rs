//! The dtypes a safetensors file can state.
//!
//! Here: every dtype of the format, since a file that holds one is well formed, and its width.
//! Which of them the engine computes with is decided where weights are mapped.

use std::fmt;

/// A dtype of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageDtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
    /// Any other dtype of the format; not computed with.
    Other(OtherDtype),
}

/// A dtype that is well formed in a file and never computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherDtype {
    name: &'static str,
    bits: u64,
}

/// Name and bits of an element.
const OTHERS: [(&str, u64); 20] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("I32", 32),
    ("U32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

impl StorageDtype {
    /// The dtype of that name in the format, if it has one.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "BF16" => Some(Self::Bf16),
            "F32" => Some(Self::F32),
            _ => OTHERS
                .iter()
                .find(|other| other.0 == name)
                .map(|&(name, bits)| Self::Other(OtherDtype { name, bits })),
        }
    }

    /// The name in the format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
            Self::Other(other) => other.name,
        }
    }

    /// Bits of an element: some are narrower than a byte.
    pub const fn bits(self) -> u64 {
        match self {
            Self::Bf16 => 16,
            Self::F32 => 32,
            Self::Other(other) => other.bits,
        }
    }

    /// Whether the engine computes with it.
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Bf16 | Self::F32)
    }
}

impl fmt::Display for StorageDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

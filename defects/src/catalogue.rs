//! The catalogue: `catalogue.json`, parsed once.
//!
//! Deliberately absent: outcomes. An entry says what gates *should* say; a run says what they did.

use std::fmt;
use std::sync::LazyLock;

use samebits::op::Site;
use serde::Deserialize;
use thiserror::Error;

use crate::beyond::Beyond;
use crate::fault::{Fault, Reach};

/// The class of faults beyond a threshold.
const THRESHOLDS: u32 = 41;

/// FNV-1a of a name.
fn digest(id: &str) -> u32 {
    id.bytes().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// One entry of the catalogue.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defect {
    /// Name, unique.
    pub id: String,
    /// The class of fault it belongs to, 1 to 42; 0 for what is no fault.
    pub class: u32,
    /// The rung of the class's ladder, in words.
    pub strength: String,
    /// Where it shows first.
    pub site: Pattern,
    /// What goes wrong.
    pub fault: Fault,
    /// How much of the op's output it may change.
    #[serde(default)]
    pub reach: Reach,
    /// It acts beyond this only.
    #[serde(default)]
    pub beyond: Option<Beyond>,
    /// Why it is here and what an input needs to show it.
    pub why: String,
    /// Kinds of gates that must be red.
    pub gates: Vec<String>,
    /// No tolerance can see it: it is a legal order somewhere, or within every limit by nature.
    #[serde(default)]
    pub beyond_tolerance: bool,
}

/// Sites: an op in one layer, or in every one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// The layer; none takes every place the op runs.
    pub layer: Option<usize>,
    /// The op, by the name of what it materialises.
    pub op: String,
}

impl Pattern {
    /// Whether the site is one of the pattern's.
    pub fn matches(&self, site: Site) -> bool {
        self.covers(site) && self.op == site.op
    }

    /// Whether the site lies in one of the pattern's layers, at any op.
    pub fn covers(&self, site: Site) -> bool {
        self.layer.is_none() || self.layer == site.layer
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layers.{layer}.{}", self.op),
            None => write!(f, "*.{}", self.op),
        }
    }
}

/// Why a defect could not be had.
#[derive(Debug, Error)]
pub enum DefectError {
    /// No entry of that name.
    #[error("no defect is called {id}; there are {known}")]
    Unknown {
        /// The name.
        id: String,
        /// All names.
        known: String,
    },
}

static CATALOGUE: LazyLock<Vec<Defect>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../catalogue.json"))
        .expect("the catalogue is part of this crate and its tests parse it")
});

impl Defect {
    /// Every entry, in the catalogue's order.
    pub fn all() -> &'static [Self] {
        &CATALOGUE
    }

    /// Whether it is a legal variant, which tolerance gates must pass.
    pub fn is_legal(&self) -> bool {
        matches!(self.fault, Fault::Legal(_) | Fault::Null)
    }

    /// Whether it is of the class of faults beyond a threshold.
    pub fn is_threshold(&self) -> bool {
        self.class == THRESHOLDS
    }

    /// Whether it acts in a hybrid only.
    pub fn needs_hybrid(&self) -> bool {
        let hybrid = matches!(self.fault, Fault::Hybrid { .. });
        hybrid || matches!(self.site.op.as_str(), "g" | "in_proj_a")
    }

    /// Whether nobody looked at it when inputs were designed: every third class; of the class of
    /// thresholds, which is one by what it says and not by what goes wrong, every third name.
    pub fn held_out(&self) -> bool {
        match self.class {
            THRESHOLDS => digest(&self.id).is_multiple_of(3),
            class => class.is_multiple_of(3),
        }
    }

    /// The entry of that name.
    ///
    /// # Errors
    /// All names, where `id` is none of them.
    pub fn find(id: &str) -> Result<&'static Self, DefectError> {
        Self::all().iter().find(|d| d.id == id).ok_or_else(|| {
            let known: Vec<&str> = Self::all().iter().map(|d| d.id.as_str()).collect();
            DefectError::Unknown { id: id.to_owned(), known: known.join(", ") }
        })
    }
}

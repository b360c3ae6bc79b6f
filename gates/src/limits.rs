//! The limits file: every number a gate may hold a measurement against, each with its origin.
//!
//! Absent on purpose: defaults. The invariant: a limit is finite, not negative and says where it
//! comes from; the file's SHA-256 is part of every report.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use samebits::contract::Dtype;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why the limits cannot be used.
#[derive(Debug, Error)]
pub enum LimitError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that holds no limits.
    #[error("{}: {source}", path.display())]
    Json {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A limit that cannot judge anything.
    #[error("limit {name}: {value} cannot judge: finite and not negative, with a provenance")]
    Unfit {
        /// Which.
        name: String,
        /// Its value.
        value: f64,
    },
    /// A limit of something else than the gate measures.
    #[error("limit {name} is one of {what} {limit}, the gate's is {gate}")]
    Other {
        /// Which.
        name: String,
        /// Statistic or dtype.
        what: &'static str,
        /// The limit's.
        limit: String,
        /// The gate's.
        gate: String,
    },
    /// A name that is not in the file.
    #[error("limit {name} is not in the limits file")]
    Unknown {
        /// Which.
        name: String,
    },
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The largest value that passes.
    pub value: f64,
    /// What is measured against it, with its unit.
    pub statistic: String,
    /// The dtype it holds for.
    pub dtype: String,
    /// What was measured, on what, and how the value follows from it.
    pub provenance: String,
    /// What makes the value again: `gates ARGUMENTS`, a gate's id, a test with its file, or a
    /// script of the project.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recompute: String,
}

impl Limit {
    /// Refuses to judge another statistic, or runs of a dtype that it does not hold for: `any`
    /// holds for every one, and so for runs that have none.
    ///
    /// # Errors
    /// What the gate measures, and the limit does not.
    pub fn fits(
        &self,
        name: &str,
        dtype: Option<Dtype>,
        statistic: &str,
    ) -> Result<(), LimitError> {
        let other = |what, limit: &str, gate: &str| LimitError::Other {
            name: name.to_owned(),
            what,
            limit: limit.to_owned(),
            gate: gate.to_owned(),
        };
        let named = dtype.map_or("any", Dtype::name);
        if self.dtype != "any" && self.dtype.split(", ").all(|of| of != named) {
            return Err(other("dtype", &self.dtype, named));
        }
        if self.statistic != statistic {
            return Err(other("statistic", &self.statistic, statistic));
        }
        Ok(())
    }
}

/// All limits, by name.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Limits(BTreeMap<String, Limit>);

impl Limits {
    /// Reads the limits file.
    ///
    /// # Errors
    /// A file that is unreadable or no limits, and a limit that cannot judge.
    pub fn load(path: &Path) -> Result<Self, LimitError> {
        let owned = || path.to_path_buf();
        let text = fs::read(path).map_err(|source| LimitError::Read { path: owned(), source })?;
        let limits: Self = serde_json::from_slice(&text)
            .map_err(|source| LimitError::Json { path: owned(), source })?;
        for (name, limit) in &limits.0 {
            let fit = limit.value.is_finite() && limit.value >= 0.0;
            if !fit || limit.provenance.trim().is_empty() {
                return Err(LimitError::Unfit { name: name.clone(), value: limit.value });
            }
        }
        Ok(limits)
    }

    /// The limit called `name`.
    ///
    /// # Errors
    /// A name that is not in the file.
    pub fn get(&self, name: &str) -> Result<&Limit, LimitError> {
        self.0.get(name).ok_or_else(|| LimitError::Unknown { name: name.to_owned() })
    }

    /// The same with a limit set; for calibration, which is the only one to set any.
    #[must_use]
    pub fn with(mut self, name: &str, limit: Limit) -> Self {
        self.0.insert(name.to_owned(), limit);
        self
    }

    /// The same without some.
    #[must_use]
    pub fn without(&self, which: impl Fn(&str, &Limit) -> bool) -> Self {
        let others = self.0.iter().filter(|(name, limit)| !which(name, limit));
        Self(others.map(|(name, limit)| (name.clone(), limit.clone())).collect())
    }

    /// All limits, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Limit)> {
        self.0.iter().map(|(name, limit)| (name.as_str(), limit))
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("limits are finite numbers and strings") + "\n"
    }

    /// What a gate without a named limit allows: no difference at all.
    pub const fn none() -> f64 {
        0.0
    }
}

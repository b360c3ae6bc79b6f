//! Faults of the runner of the gates: `runner.json`, parsed once.
//!
//! Absent: what each one does, which only the gates' own functions can say. The invariant: each
//! names the self-test that must be red.

use std::sync::LazyLock;

use serde::Deserialize;

/// A way in which a suite has been green for no reason.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerFault {
    /// Name, unique.
    pub id: String,
    /// The kind of fault, in words that several entries may share.
    pub class: String,
    /// What the runner then does, and what it would let through.
    pub why: String,
    /// The self-test that must be red.
    pub scenario: String,
}

static CATALOGUE: LazyLock<Vec<RunnerFault>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../runner.json"))
        .expect("the catalogue is part of this crate and its tests parse it")
});

impl RunnerFault {
    /// Every entry, in the catalogue's order.
    pub fn all() -> &'static [Self] {
        &CATALOGUE
    }
}

//! One gate's row: what it measured, against which limit, and whether that may count as a pass.
//!
//! Larger is worse in every statistic, and a limit is inclusive. Statistics where larger is better
//! are absent: a gate turns them round before it reports. The invariant to remember: `checked` is
//! the only way to PASS, and it never makes a row greener.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::num::Num;
use crate::report::Run;

/// The outcome of a gate. Only `Pass` is good, and `Unmeasurable` is never a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Measured, complete, armed and within the limit.
    Pass,
    /// Measured and beyond the limit.
    Fail,
    /// Could not be measured here, for the reason given.
    Unmeasurable,
    /// The gate itself is broken or did not report.
    Error,
}

/// Where two tensors first differ. Absent fields do not apply to the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divergence {
    /// The op, as the last part of a site's name: `q_proj`.
    pub op: String,
    /// Layer, from 0.
    pub layer: Option<u64>,
    /// Position in the sequence, from 0.
    pub position: Option<u64>,
    /// Element within the position's row, from 0.
    pub element: Option<u64>,
    /// Distance in units in the last place of the compared dtype; none beside a NaN.
    pub ulps: Option<u64>,
    /// The reference's value.
    pub want: Option<Num>,
    /// The candidate's value.
    pub got: Option<Num>,
    /// What the fields cannot say; may be empty.
    pub text: String,
}

/// The gate's negative control: a planted fault that it must catch in the same run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Which fault was planted.
    pub id: String,
    /// Whether the gate's own comparison was red on it.
    pub red: bool,
    /// What was measured; the row's own statistic, if the control is judged by the row's limit.
    pub statistic: String,
    /// Its value.
    pub measured: Num,
}

/// Proof of the path one side of a comparison really took, counted where the work was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathProof {
    /// The side: `cached`, `uncached`, `threads=2`.
    pub label: String,
    /// The kernel table that ran: `scalar`, `avx2`, `avx512`, `cuda`.
    pub kernels: String,
    /// Rows of each forward, in order.
    pub rows_per_call: Vec<u64>,
    /// Positions that were read back from the cache.
    pub cached_positions: u64,
    /// Rows of a query chunk; none if unchunked.
    pub chunk: Option<u64>,
    /// Threads of the pool.
    pub threads: u64,
    /// Bytes of weights read from storage.
    pub bytes_read: u64,
    /// The summation order: `invariant` or `transformers`.
    pub order: String,
    /// The run's dtype: `bf16` or `f32`.
    pub dtype: String,
}

/// Why a row may not be what it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was to be compared, or nothing was.
    ZeroWork,
    /// Fewer or more comparisons than expected.
    WrongWork,
    /// The statistic is NaN or infinite.
    NonFinite,
    /// The limit is NaN, infinite or negative.
    BadLimit,
    /// There is no negative control.
    NoControl,
    /// The negative control was not red, or its value lies within the row's limit.
    UnarmedControl,
    /// The statistic has no name.
    NoStatistic,
    /// There is no command that repeats the gate.
    NoRepeat,
    /// An invariance row without two paths that differ in more than their labels.
    SamePath,
    /// A pass with a reason.
    PassWithReason,
    /// A pass beyond its limit.
    OverLimit,
    /// A fail, an unmeasurable or an error without a word.
    NoReason,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::ZeroWork => "zero work: nothing was compared",
            Fault::WrongWork => "wrong work: not the expected number of comparisons",
            Fault::NonFinite => "non-finite statistic",
            Fault::BadLimit => "bad limit: NaN, infinite or negative",
            Fault::NoControl => "unarmed control: the gate has no negative control",
            Fault::UnarmedControl => "unarmed control: the planted fault was not caught",
            Fault::NoStatistic => "no statistic is named",
            Fault::NoRepeat => "no command repeats the gate",
            Fault::SamePath => "same path: the sides do not differ in what they did",
            Fault::PassWithReason => "a pass that gives a reason",
            Fault::OverLimit => "a pass beyond its limit",
            Fault::NoReason => "no reason given",
        })
    }
}

/// The reason of a gate that has not reported.
const SILENT: &str = "did not report";

/// One gate of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The gate's id, segments joined by `/`.
    pub id: String,
    /// The gate's kind.
    pub kind: Kind,
    /// The outcome.
    pub status: Status,
    /// What is measured, with its unit last: `ulps_max`.
    pub statistic: String,
    /// Its value; larger is worse.
    pub measured: Num,
    /// The largest value that passes; finite and not negative.
    pub limit: Num,
    /// `limit - measured`, in the statistic's unit; set by `checked`.
    pub margin: Num,
    /// Comparisons made.
    pub n_compared: u64,
    /// Comparisons that had to be made.
    pub n_expected: u64,
    /// Seed of all inputs.
    pub seed: u64,
    /// Wall time, in seconds.
    pub wall_s: Num,
    /// Where the sides first differ.
    pub first_divergence: Option<Divergence>,
    /// Why the row is not PASS; empty on a pass.
    pub reason: String,
    /// The one command that repeats the gate.
    pub repeat: String,
    /// The negative control of the same run.
    pub control: Option<Control>,
    /// What each side really did.
    pub paths: Vec<PathProof>,
    /// The commit that the gate was run at; empty in files that are older than it.
    #[serde(default)]
    pub commit: String,
    /// Hash of the sources that it was run with; empty in files that are older than it.
    #[serde(default)]
    pub code: String,
}

impl Row {
    /// A row of a gate that has not reported: ERROR until something better is proved.
    pub fn new(id: &str, kind: Kind, seed: u64, repeat: &str) -> Row {
        Row {
            id: id.to_owned(),
            kind,
            status: Status::Error,
            statistic: String::new(),
            measured: Num(f64::NAN),
            limit: Num(f64::NAN),
            margin: Num(f64::NAN),
            n_compared: 0,
            n_expected: 0,
            seed,
            wall_s: Num(0.0),
            first_divergence: None,
            reason: SILENT.to_owned(),
            repeat: repeat.to_owned(),
            control: None,
            paths: Vec::new(),
            commit: String::new(),
            code: String::new(),
        }
    }

    /// Whether the gate has not reported.
    pub fn is_silent(&self) -> bool {
        self.reason == SILENT
    }

    /// The row with the commit and the sources of its run.
    #[must_use]
    pub fn made_by(self, run: &Run) -> Row {
        Row { commit: run.commit.clone(), code: run.hashes.code.clone(), ..self }
    }

    /// Decides from the numbers: ERROR if the row cannot prove anything, PASS if `measured` is
    /// within `limit`, else FAIL with the reason "over the limit". Replaces status and reason.
    pub fn judged(mut self) -> Row {
        self.reason.clear();
        self.status = Status::Pass;
        if self.pass_fault() == Some(Fault::OverLimit) {
            self.status = Status::Fail;
            self.reason = "over the limit".to_owned();
        }
        self.checked()
    }

    /// UNMEASURABLE, for a reason that must not be empty.
    pub fn unmeasurable(mut self, reason: &str) -> Row {
        self.status = Status::Unmeasurable;
        self.reason = reason.to_owned();
        self.checked()
    }

    /// ERROR, for a reason.
    pub fn error(mut self, reason: &str) -> Row {
        self.status = Status::Error;
        self.reason = reason.to_owned();
        self.checked()
    }

    /// The row with its margin, turned into ERROR if it may not be what it claims. Idempotent.
    pub fn checked(mut self) -> Row {
        self.margin = Num(self.limit.0 - self.measured.0);
        if let Some(fault) = self.fault() {
            let claim = std::mem::take(&mut self.reason);
            self.reason = if claim.trim().is_empty() {
                fault.to_string()
            } else {
                format!("{fault}: {claim}")
            };
            self.status = Status::Error;
        }
        self
    }

    /// Why the row may not be what it claims, if so.
    pub fn fault(&self) -> Option<Fault> {
        match self.status {
            Status::Pass => self.pass_fault(),
            _ if self.reason.trim().is_empty() => Some(Fault::NoReason),
            Status::Fail | Status::Unmeasurable | Status::Error => None,
        }
    }

    /// The first rule of a pass that the row breaks. `OverLimit` comes before all that is said of
    /// the control: what was measured beyond its limit is told, whatever else is broken.
    fn pass_fault(&self) -> Option<Fault> {
        if self.n_expected == 0 || self.n_compared == 0 {
            return Some(Fault::ZeroWork);
        }
        if self.n_compared != self.n_expected {
            return Some(Fault::WrongWork);
        }
        if !self.measured.is_finite() {
            return Some(Fault::NonFinite);
        }
        if !self.limit.is_finite() || self.limit.0 < 0.0 {
            return Some(Fault::BadLimit);
        }
        if self.measured.0 > self.limit.0 {
            return Some(Fault::OverLimit);
        }
        let Some(control) = &self.control else {
            return Some(Fault::NoControl);
        };
        if !control.red || self.would_pass(control) {
            return Some(Fault::UnarmedControl);
        }
        if self.statistic.trim().is_empty() {
            return Some(Fault::NoStatistic);
        }
        if self.repeat.trim().is_empty() {
            return Some(Fault::NoRepeat);
        }
        if self.kind == Kind::Invariance && !self.paths_differ() {
            return Some(Fault::SamePath);
        }
        (!self.reason.trim().is_empty()).then_some(Fault::PassWithReason)
    }

    /// A control judged by the row's own statistic that lies within the limit was not caught,
    /// whatever it says. A NaN lies within nothing.
    fn would_pass(&self, control: &Control) -> bool {
        control.statistic == self.statistic && control.measured.0 <= self.limit.0
    }

    fn paths_differ(&self) -> bool {
        let unlabelled = |path: &PathProof| PathProof { label: String::new(), ..path.clone() };
        match self.paths.split_first() {
            Some((first, rest)) => rest.iter().any(|path| unlabelled(path) != unlabelled(first)),
            None => false,
        }
    }
}

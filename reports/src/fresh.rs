//! Whether a report speaks of the tree that it is shown in.
//!
//! Absent on purpose: reading the tree; a [`Run`] of now and the files that changed are given. The
//! invariant: what cannot be proved to be of this tree is outdated.

use crate::report::{Report, Run};

/// Why a report does not speak of this tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outdated {
    /// The gates read other data.
    #[error("older than the tree: its {what} had sha256 {then}, those of the tree have {now}")]
    Data {
        /// Which data.
        what: &'static str,
        /// Their hash in the report.
        then: String,
        /// Their hash now.
        now: String,
    },
    /// A commit that the tree's history does not know.
    #[error("of commit {commit}, which is not known here")]
    Unknown {
        /// The commit.
        commit: String,
    },
    /// Files that changed since.
    #[error("of commit {commit}, older than the tree: {count} files changed since, as {first}")]
    Changed {
        /// The commit.
        commit: String,
        /// How many.
        count: usize,
        /// One of them.
        first: String,
    },
}

/// Refuses a report of other data than `now`'s, or of a commit since which files changed.
///
/// `changed` are the files of the working tree that differ from the report's commit, those that
/// show reports left out; none where the commit is not known.
///
/// # Errors
/// The first difference.
pub fn fresh(report: &Report, now: &Run, changed: Option<&[String]>) -> Result<(), Outdated> {
    let (then, now) = (&report.hashes, &now.hashes);
    for (what, then, now) in [
        ("fixtures", &then.fixtures, &now.fixtures),
        ("limits", &then.limits, &now.limits),
        ("manifests", &then.manifests, &now.manifests),
    ] {
        if then != now {
            return Err(Outdated::Data { what, then: then.clone(), now: now.clone() });
        }
    }
    let commit = report.commit.clone();
    match changed {
        None => Err(Outdated::Unknown { commit }),
        Some([]) => Ok(()),
        Some([first, ..]) => Err(Outdated::Changed {
            commit,
            count: changed.map_or(0, <[_]>::len),
            first: first.clone(),
        }),
    }
}

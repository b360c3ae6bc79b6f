//! Whether results speak of the tree that they are shown in, and of all of it.
//!
//! Absent on purpose: reading the tree; a [`Run`] of now, and what there must be results of, are
//! given. The invariant: what cannot be proved to be of this tree, whole, is refused.

use crate::report::{Report, Run};

/// Why results are not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outdated {
    /// The gates read other data, or were other code.
    #[error("older than the tree: its {what} had sha256 {then:?}, those of the tree have {now:?}")]
    Data {
        /// Which data.
        what: &'static str,
        /// Their hash in the results.
        then: String,
        /// Their hash now.
        now: String,
    },
    /// Sources that no commit holds.
    #[error("of commit {commit} with local changes, which nobody can have again")]
    Dirty {
        /// The commit.
        commit: String,
    },
    /// Something without a result: a run of a part can be read, not accepted.
    #[error("no result of {count} of {of}, as {first}: a part is not the whole")]
    Lacks {
        /// How many.
        count: usize,
        /// Of how many.
        of: usize,
        /// One of them.
        first: String,
    },
    /// A result of something that is not there.
    #[error("with a result of {name}, which is not part of the tree")]
    Unasked {
        /// Its name.
        name: String,
    },
    /// A row that another tree made.
    #[error("of commit {commit}, its row {id} of another commit or other code")]
    Row {
        /// The report's commit.
        commit: String,
        /// The gate.
        id: String,
    },
}

/// Refuses results for which gates read other data than those of `now`.
///
/// # Errors
/// The first difference.
pub fn same_data(then: &Run, now: &Run) -> Result<(), Outdated> {
    let (then, now) = (&then.hashes, &now.hashes);
    same(&[
        ("fixtures", &then.fixtures, &now.fixtures),
        ("limits", &then.limits, &now.limits),
        ("manifests", &then.manifests, &now.manifests),
    ])
}

/// Refuses results of other data or other code than those of `now`.
///
/// # Errors
/// The first difference.
pub fn same_tree(then: &Run, now: &Run) -> Result<(), Outdated> {
    same_data(then, now)?;
    same(&[("code", &then.hashes.code, &now.hashes.code)])
}

fn same(pairs: &[(&'static str, &String, &String)]) -> Result<(), Outdated> {
    match pairs.iter().find(|(_, then, now)| then != now) {
        None => Ok(()),
        Some((what, then, now)) => {
            Err(Outdated::Data { what, then: (*then).clone(), now: (*now).clone() })
        }
    }
}

/// Refuses results of other data or code than those of `now`, of sources that no commit holds, or
/// of anything else than what is `wanted`, no more and no less.
///
/// # Errors
/// The first reason.
pub fn acceptable(
    (made, has): (&Run, &[&str]),
    (now, wanted): (&Run, &[&str]),
) -> Result<(), Outdated> {
    same_tree(made, now)?;
    if made.dirty {
        return Err(Outdated::Dirty { commit: made.commit.clone() });
    }
    whole(has, wanted)
}

/// Refuses results of anything else than what is `wanted`.
///
/// # Errors
/// The first that is missing or not wanted.
pub fn whole(has: &[&str], wanted: &[&str]) -> Result<(), Outdated> {
    let missing: Vec<&&str> = wanted.iter().filter(|name| !has.contains(name)).collect();
    if let Some(first) = missing.first() {
        let (count, of, first) = (missing.len(), wanted.len(), (**first).to_owned());
        return Err(Outdated::Lacks { count, of, first });
    }
    match has.iter().find(|name| !wanted.contains(name)) {
        Some(name) => Err(Outdated::Unasked { name: (*name).to_owned() }),
        None => Ok(()),
    }
}

/// [`acceptable`] of a report in which every gate reported, each of whose rows must be of the
/// report's own commit and code.
///
/// # Errors
/// The first reason.
pub fn fresh(report: &Report, now: &Run, wanted: &[&str]) -> Result<(), Outdated> {
    let has: Vec<&str> =
        report.rows.iter().filter(|row| !row.is_silent()).map(|row| row.id.as_str()).collect();
    acceptable((&report.run(), &has), (now, wanted))?;
    let foreign =
        |row: &&crate::Row| (&row.commit, &row.code) != (&report.commit, &report.hashes.code);
    match report.rows.iter().find(foreign) {
        Some(row) => Err(Outdated::Row { commit: report.commit.clone(), id: row.id.clone() }),
        None => Ok(()),
    }
}

//! Reports of gate runs: the row and report schema, row files, merge, tables, JUnit.
//!
//! Absent on purpose: how a gate measures, what its limit is, where its files lie, and every
//! environment variable. This crate judges only what a row says about itself.
//!
//! The invariant to remember: a row is PASS only if it proves so. Whatever cannot prove it, be it
//! zero work, a value that is not finite, a limit that limits nothing or a control that was not
//! red, is ERROR with its own reason. Nothing here turns red into green.

mod atomic;
mod error;
mod fresh;
mod hash;
mod host;
mod junit;
mod kill;
mod kind;
mod markdown;
mod num;
mod readme;
mod report;
mod row;
mod rows;
mod stamp;
mod table;

pub use atomic::write_atomic;
pub use error::Error;
pub use fresh::{Outdated, acceptable, fresh, same_data, same_tree, whole};
pub use hash::{hash_dir, hash_file, hash_files};
pub use host::{Checkout, Host, changed_since, commits_since};
pub use junit::junit;
pub use kill::{
    Cell, KILL_SCHEMA, Killed, Matrix, MatrixRow, Outcome, Score, kill_svg, kill_table,
};
pub use kind::Kind;
pub use markdown::{gates_table, host_line};
pub use num::{Num, figures};
pub use readme::{MarkerError, check, rewrite};
pub use report::{CodeSize, Hashes, Report, Run, SCHEMA, Totals, Verdict};
pub use row::{Control, Divergence, Fault, PathProof, Row, Status};
pub use rows::{Expected, RUN_FILE, begin, merge, write_row};
pub use stamp::Stamp;
pub use table::{closing, divergence_line, summary, table};

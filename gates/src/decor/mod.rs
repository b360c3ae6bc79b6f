//! Decorators around the engine's seam that only gates need: counting, and hiding a type.
//!
//! Absent: faults, injection and poison, which are the defects crate's. The invariant: neither
//! changes a bit.

mod counted;
mod seam;

pub use counted::{Counted, Counts};
pub use seam::Seam;

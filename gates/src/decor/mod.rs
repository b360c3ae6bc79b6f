//! Decorators around the engine's seam that only gates need: counting, keeping, hiding a type, and
//! faults of the loop that change no bit.
//!
//! Absent: faults of ops, injection and poison, which are the defects crate's. The invariant: none
//! changes a bit.

mod counted;
mod logged;
mod seam;
mod wasteful;
mod watched;

pub use counted::{Counted, Counts};
pub use logged::Logged;
pub use seam::Seam;
pub use wasteful::{Waste, Wasteful};
pub use watched::{Traffic, Watched};

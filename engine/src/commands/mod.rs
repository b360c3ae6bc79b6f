//! The commands of the `samebits` binary, one file each, with all sentences they print.
//!
//! stdout is data, stderr is progress and errors, the exit code is the verdict: 0 good, 1 a
//! comparison failed, 2 usage or environment, 4 a checkpoint was refused, 5 out of a resource, 130
//! interrupted.

mod failure;
mod prompts;
mod settings;

pub mod generate;
pub mod hash;
pub mod inspect;
pub mod logits;
pub mod pin;
pub mod sanity;

pub use failure::{Failure, INTERRUPTED};
pub use settings::{ForwardArgs, RunArgs, Settings, parse_ids, pool};

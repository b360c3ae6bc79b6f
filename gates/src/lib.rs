//! Gates: data-driven checks of the engine, their runner and its binary.
//!
//! Here: gates as data ([`manifest`]), what they do ([`checks`]), how one becomes a row of a report
//! ([`runner`]), and the commands of the `gates` binary ([`commands`]). Absent: faults, references
//! and fixtures, which are crates of their own. The invariant: a gate passes only if it compared
//! what it had to and its own planted fault turned it red in the same run.

pub mod calibrate;
pub mod checks;
pub mod commands;
pub mod compare;
pub mod context;
pub mod decor;
pub mod engine;
pub mod forced;
pub mod heap;
pub mod kill;
pub mod law;
pub mod limits;
pub mod localize;
pub mod manifest;
pub mod probe;
pub mod runner;
pub mod selftest;
pub mod sites;
pub mod stats;
pub mod swarm;

//! The hybrid family through the engine: goldens, splits, programs.
//!
//! Here: what holds bit for bit. Absent: error bounds over length and seeded faults, which gates
//! hold. The invariant: a test prints what it measured, also where it passes.

mod common;
mod goldens;
mod programs;
mod sites;
mod splits;
mod table;

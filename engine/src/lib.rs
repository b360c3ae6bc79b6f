//! An exact inference engine for Qwen3 and Qwen3.5: one numerics contract, the same bits
//! everywhere.
//!
//! Here: checkpoint admission ([`checkpoint`]), the contract's arithmetic ([`contract`]), the seam
//! every op passes through ([`op`]), the CPU backend ([`cpu`]), the model ([`model`]), generation
//! ([`generate`]) and the commands of the `samebits` binary ([`commands`]). Absent on purpose:
//! anything that checks the engine; checks wrap [`op::Backend`] from outside. The invariant: a
//! row's bits depend on the row alone, never on batch, threads, chunk, cache or instruction set.

pub mod checkpoint;
pub mod commands;
pub mod contract;
pub mod cpu;
pub mod generate;
pub mod heap;
pub mod model;
pub mod op;
pub mod output;
pub mod tensor;
pub mod trace;

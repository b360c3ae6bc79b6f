//! The `gates` binary: stdout is data, stderr is progress, the exit code is the verdict.

use std::process::ExitCode;

use clap::Parser;
use samebits_gates::commands::{Cli, dispatch};
use samebits_gates::heap::Counting;

#[global_allocator]
static HEAP: Counting = Counting;

fn main() -> ExitCode {
    dispatch(Cli::parse())
}

//! The `samebits` binary: words in, one command out, an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use samebits::commands::{
    Failure, INTERRUPTED, generate, hash, inspect, logits, pin, pool, sanity,
};

#[global_allocator]
static HEAP: samebits::heap::Heap = samebits::heap::Heap("samebits");

/// An exact inference engine for Qwen3: the same bits everywhere.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what a checkpoint is and whether it is admitted.
    Inspect(inspect::InspectArgs),
    /// Write or check the SHA-256 of every file and tensor, and a reference answer.
    Pin(pin::PinArgs),
    /// Admit, load and run a checkpoint once.
    Sanity(sanity::SanityArgs),
    /// Write the logits of every row, and on request every tensor of the run.
    Logits(logits::LogitsArgs),
    /// Continue prompts.
    Generate(generate::GenerateArgs),
    /// Print SHA-256 of all weights and activations, and the argmax of every row.
    Hash(hash::HashArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Without a handler the signal ends the process as well, but may leave a half-written file.
    let _ = ctrlc::set_handler(interrupted);
    let mut out = io::stdout();
    match execute(&cli.command, &mut out) {
        Ok(code) => ExitCode::from(code),
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing is left to be done where stderr is closed as well.
            let _ = writeln!(io::stderr(), "samebits: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Ctrl-C: one line, and nothing half-written.
fn interrupted() {
    let _ = writeln!(io::stderr(), "samebits: interrupted");
    samebits::output::abandon(INTERRUPTED)
}

fn execute(command: &Command, out: &mut (dyn Write + Send)) -> Result<u8, Failure> {
    match command {
        Command::Inspect(args) => inspect::run(args, out)?,
        Command::Pin(args) => return pin_command(args, out),
        Command::Sanity(args) => sanity::command(args, out)?,
        Command::Logits(args) => logits::command(args)?,
        Command::Generate(args) => generate::command(args, out)?,
        Command::Hash(args) => hash::command(args, out)?,
    }
    out.flush().map_err(|e| Failure::io("stdout", e))?;
    Ok(0)
}

fn pin_command(args: &pin::PinArgs, out: &mut (dyn Write + Send)) -> Result<u8, Failure> {
    let outcome = pool(None)?.install(|| pin::run(args, out, sanity::reference))?;
    out.flush().map_err(|e| Failure::io("stdout", e))?;
    Ok(outcome.exit_code())
}

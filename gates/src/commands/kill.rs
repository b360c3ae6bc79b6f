//! `gates kill`: the catalogue against the gates.
//!
//! Exit codes: 3 where a gate is red on the clean engine, 1 where a defect lives or a legal variant
//! dies.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use samebits_defects::Defect;
use samebits_reports::{kill_svg, kill_table, write_atomic};

use super::Failure;
use crate::context::{Context, data};
use crate::kill::{Column, carries, column, matrix};
use crate::manifest::Gate;

/// Arguments of `kill`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only defects whose id holds this.
    filter: Option<String>,
    /// Only gates whose id holds this.
    #[arg(long)]
    gates: Option<String>,
    /// Seed of all inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the matrix here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the heat map here.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let start = Instant::now();
    let ctx = Context::new(args.seed, None, std::env::current_exe()?)?;
    let wanted = |id: &str, filter: &Option<String>| {
        filter.as_ref().is_none_or(|filter| id.contains(filter.as_str()))
    };
    let mut gates = Gate::all(&data("manifest"))?;
    gates.retain(|gate| carries(&gate.check) && wanted(&gate.id, &args.gates));
    let defects: Vec<&Defect> =
        Defect::all().iter().filter(|d| wanted(&d.id, &args.filter)).collect();
    if gates.is_empty() || defects.is_empty() {
        return Err(Failure::Usage("no gate or no defect matches: nothing is proved".to_owned()));
    }
    let columns = columns(&ctx, &gates, &defects)?;
    let matrix = matrix(&defects, columns, start);
    if let Some(path) = &args.out {
        write(path, &serde_json::to_string_pretty(&matrix).expect("a matrix is plain data"))?;
    }
    if let Some(path) = &args.svg {
        write(path, &kill_svg(&matrix))?;
    }
    out.write_all(kill_table(&matrix).as_bytes())?;
    for gate in &matrix.red_baseline {
        writeln!(out, "red on the clean engine, so that nothing it says counts: {gate}")?;
    }
    for alarm in &matrix.false_alarms {
        writeln!(out, "false alarm: {alarm}")?;
    }
    writeln!(out, "alive or absent: {}", matrix.red().join(", "))?;
    Ok(matrix.exit_code())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(write_atomic(path, text.as_bytes())?)
}

/// Every gate's column, two at a time, with a line of progress each.
fn columns(ctx: &Context, gates: &[Gate], defects: &[&Defect]) -> Result<Vec<Column>, Failure> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, done) = (Mutex::new(gates.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let gate = next.lock().expect("no worker panics in here").next();
                    let Some(gate) = gate else { break };
                    let start = Instant::now();
                    let found = column(ctx, gate, defects);
                    let mut done = done.lock().expect("no worker panics in here");
                    done.push(found);
                    let (n, of) = (done.len(), gates.len());
                    // A closed stderr leaves nobody to tell.
                    let seconds = start.elapsed().as_secs_f64();
                    let mut err = std::io::stderr();
                    let _ = writeln!(err, "{n}/{of} {} {seconds:.1} s", gate.id);
                }
            });
        }
    });
    let done = done.into_inner().expect("all workers have ended");
    let mut columns = done.into_iter().collect::<Result<Vec<Column>, _>>()?;
    columns.sort_by(|a, b| a.gate.cmp(&b.gate));
    Ok(columns)
}

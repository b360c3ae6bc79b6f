//! `gates kill`: the catalogue against the gates.
//!
//! Exit codes: 3 where a gate is red on the clean engine, 1 where a defect lives or a legal variant
//! dies. The invariant: a column that is taken from an earlier run was made at the same commit,
//! with the same limits, gates, seed and defects, on an unchanged tree.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use samebits_defects::Defect;
use samebits_reports::{Num, Run, kill_svg, kill_table, write_atomic};
use serde::{Deserialize, Serialize};

use super::Failure;
use super::run::{facts, rows_folder};
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
    /// Take the columns that an interrupted run of the same commit has finished.
    #[arg(long)]
    resume: bool,
}

/// A finished column, and what it was made of.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    made_of: String,
    column: Column,
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let start = Instant::now();
    let ctx = Context::new(args.seed, None, std::env::current_exe()?)?;
    let wanted = |id: &str, filter: &Option<String>| {
        filter.as_ref().is_none_or(|filter| id.contains(filter.as_str()))
    };
    let mut gates = Gate::project()?;
    gates.retain(|gate| carries(&gate.check) && wanted(&gate.id, &args.gates));
    let defects: Vec<&Defect> =
        Defect::all().iter().filter(|d| wanted(&d.id, &args.filter)).collect();
    if gates.is_empty() || defects.is_empty() {
        return Err(Failure::Usage("no gate or no defect matches: nothing is proved".to_owned()));
    }
    let run = facts(&data("manifest"))?;
    if args.resume && run.dirty {
        let why = "--resume: the tree differs from its commit, so that nothing tells whether the \
                   earlier columns still hold";
        return Err(Failure::Usage(why.to_owned()));
    }
    let keep =
        Keep { folder: rows_folder("kill"), made_of: made_of(&run, args), resume: args.resume };
    let columns = columns(&ctx, &gates, (&defects, &keep))?;
    let mut matrix = matrix(&defects, &columns, (run, args.seed));
    matrix.wall_s = Num(start.elapsed().as_secs_f64());
    if let Some(path) = &args.out {
        matrix.write(path)?;
    }
    if let Some(path) = &args.svg {
        write_atomic(path, kill_svg(&matrix).as_bytes())?;
    }
    out.write_all(kill_table(&matrix).as_bytes())?;
    for gate in &matrix.red_baseline {
        writeln!(out, "red on the clean engine, so that nothing it says counts: {gate}")?;
    }
    for alarm in &matrix.false_alarms {
        writeln!(out, "false alarm: {alarm}")?;
    }
    if !matrix.red().is_empty() {
        writeln!(out, "alive or absent: {}", matrix.red().join(", "))?;
    }
    Ok(matrix.exit_code())
}

/// Everything that a column depends on.
fn made_of(run: &Run, args: &Args) -> String {
    let (hashes, filter) = (&run.hashes, args.filter.as_deref().unwrap_or_default());
    format!(
        "{} {} {} {} {} {filter:?}",
        run.commit, hashes.limits, hashes.manifests, hashes.fixtures, args.seed
    )
}

/// Where finished columns are kept for a run that is interrupted.
struct Keep {
    folder: PathBuf,
    made_of: String,
    resume: bool,
}

impl Keep {
    fn path(&self, gate: &Gate) -> PathBuf {
        self.folder.join(format!("{}.json", gate.id.replace('/', "+")))
    }

    /// The gate's column from an earlier run of the same things.
    fn earlier(&self, gate: &Gate) -> Option<Column> {
        let text = self.resume.then(|| std::fs::read(self.path(gate)).ok())??;
        let kept: Kept = serde_json::from_slice(&text).ok()?;
        (kept.made_of == self.made_of).then_some(kept.column)
    }

    fn store(&self, gate: &Gate, column: &Column) -> Result<(), Failure> {
        let kept = Kept { made_of: self.made_of.clone(), column: column.clone() };
        let text = serde_json::to_string(&kept).expect("a column is plain data");
        let path = self.path(gate);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        Ok(write_atomic(&path, text.as_bytes())?)
    }
}

/// Every gate's column, as many at a time as there are cores, with a line of progress each.
fn columns(
    ctx: &Context,
    gates: &[Gate],
    (defects, keep): (&[&Defect], &Keep),
) -> Result<Vec<Column>, Failure> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, done) = (Mutex::new(gates.iter()), Mutex::new(Vec::new()));
    let one = |gate: &Gate| -> Result<Column, Failure> {
        if let Some(column) = keep.earlier(gate) {
            return Ok(column);
        }
        let found = column(ctx, gate, defects)?;
        keep.store(gate, &found)?;
        Ok(found)
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let gate = next.lock().expect("no worker panics in here").next();
                    let Some(gate) = gate else { break };
                    let start = Instant::now();
                    let found = one(gate);
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

//! `gates run`: gates to rows, rows to a report.
//!
//! The invariant: the run's folder names every gate that must report before the first one runs, so
//! that one that dies is seen.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use samebits::checkpoint::Family;
use samebits_reports::{
    Checkout, Hashes, Host, Report, Run, Stamp, Verdict, begin, changed_since, fresh, hash_dir,
    hash_file, junit, merge, table, write_atomic, write_row,
};

use super::Failure;
use crate::checks::tidy;
use crate::context::{Context, data, replacement};
use crate::manifest::{Gate, Lane};
use crate::runner;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only gates whose id holds this.
    filter: Option<String>,
    /// The filter is a whole id.
    #[arg(long, requires = "filter")]
    exact: bool,
    /// Seed of all inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write JUnit XML here.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// A folder of gates in the place of the project's own.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Run the long gates too.
    #[arg(long)]
    long: bool,
    /// Point the gates that hold for any checkpoint of a family at this one, and run only those.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

/// Where runs leave their rows: the target folder of the build, beside the binary.
pub fn rows_folder(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let target = exe.ancestors().skip(1).find(is_target).map(Path::to_path_buf);
    target.unwrap_or_else(std::env::temp_dir).join("gates").join(name)
}

/// What a report says of where it was made.
///
/// # Errors
/// Fixtures, limits or manifests that cannot be read.
pub fn facts(manifests: &Path) -> Result<Run, Failure> {
    let checkout = Checkout::capture(&data(".."));
    let sizes = tidy::code_sizes(&tidy::files()?, &tidy::load()?);
    Ok(Run {
        commit: checkout.commit,
        dirty: checkout.dirty,
        start: Stamp::now(),
        host: Host::capture(),
        hashes: Hashes {
            fixtures: hash_dir(&samebits_fixtures::paths::golden(""))?,
            limits: hash_file(&data("limits.json"))?,
            manifests: hash_dir(manifests)?,
        },
        code_sizes: sizes,
    })
}

/// Files that show reports: they follow a report, and do not make it older.
const PAGES: [&str; 3] = ["CHANGELOG.md", "README.md", "results/"];

/// Refuses a report that is older than this tree.
///
/// # Errors
/// What changed since.
pub fn current(report: &Report) -> Result<(), Failure> {
    let now = facts(&data("manifest"))?;
    let page = |path: &String| PAGES.iter().any(|page| path.starts_with(page));
    let changed = if report.dirty && report.commit == now.commit {
        // Local changes have no name: those of the run cannot be told from those of now.
        Some(Vec::new())
    } else {
        changed_since(&data(".."), &report.commit)
    };
    let changed = changed.map(|all| all.into_iter().filter(|path| !page(path)).collect::<Vec<_>>());
    Ok(fresh(report, &now, changed.as_deref())?)
}

/// The gates that the arguments ask for.
fn chosen(args: &Args, family: Option<Family>, manifests: &Path) -> Result<Vec<Gate>, Failure> {
    let filter = args.filter.as_deref().unwrap_or_default();
    let named = |gate: &Gate| {
        if args.exact { gate.id == filter } else { gate.id.contains(filter) }
    };
    let fits = |gate: &Gate| family.is_none() || gate.check.replaceable() == family;
    let mut gates = Gate::all(manifests)?;
    gates.retain(named);
    let all = gates.len();
    gates.retain(fits);
    let others = all - gates.len();
    if others > 0 {
        let said = "gates are about another checkpoint or family, and do not run";
        let _ = writeln!(std::io::stderr(), "--model: {others} of {all} {said}");
    }
    if let (false, [only]) = (args.long, gates.as_slice())
        && only.lane == Lane::Long
    {
        return Err(Failure::Usage(format!("{} is a long gate: give --long", only.id)));
    }
    gates.retain(|gate| args.long || gate.lane == Lane::Default);
    if gates.is_empty() {
        return Err(Failure::Usage(format!(
            "no gate matches {filter:?}: an empty suite proves nothing"
        )));
    }
    Ok(gates)
}

/// Runs the gates, a few at a time.
fn run_all(gates: &[Gate], ctx: &Context, rows: &Path) -> Result<(), Failure> {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(gates.len() as u64), target);
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {elapsed} {msg}");
    bar.set_style(style.expect("the template is valid"));
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let (next, failed) = (Mutex::new(gates.iter()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let gate = next.lock().expect("no worker panics in here").next();
                    let Some(gate) = gate else { break };
                    bar.set_message(gate.id.clone());
                    if let Err(error) = write_row(rows, &runner::run(gate, ctx)) {
                        *failed.lock().expect("no worker panics in here") = Some(error);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    match failed.into_inner().expect("all workers have ended") {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Prints and writes a report.
pub fn publish(
    report: &Report,
    (json, xml): (&Path, Option<&Path>),
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    report.write(json)?;
    if let Some(path) = xml {
        write_atomic(path, junit(report).as_bytes())?;
    }
    out.write_all(table(report).as_bytes())?;
    Ok(match report.verdict() {
        Verdict::Green => 0,
        verdict => verdict.exit_code(),
    })
}

/// Runs the command.
pub fn command(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let manifests = args.manifests.clone().unwrap_or_else(|| data("manifest"));
    // A checkpoint is refused here, once, with its own exit code.
    let model = replacement(args.model.as_ref())?;
    let gates = chosen(args, model.as_ref().map(|(_, family)| *family), &manifests)?;
    let child = std::env::current_exe()?;
    let ctx = Context::new(args.seed, model, child)?;
    let rows = rows_folder(&format!("run-{}", std::process::id())).join("rows");
    let expected: Vec<_> = gates.iter().map(|gate| runner::expected(gate, &ctx)).collect();
    begin(&rows, &facts(&manifests)?, &expected)?;
    run_all(&gates, &ctx, &rows)?;
    let json = args.out.clone().unwrap_or_else(|| rows_folder("report.json"));
    let code = publish(&merge(&rows)?, (&json, args.junit.as_deref()), out)?;
    // A stderr that is full or closed decides no verdict.
    let _ = writeln!(std::io::stderr(), "report: {}", json.display());
    Ok(code)
}

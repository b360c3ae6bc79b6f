//! Every gate as a test, by the name of its id; long ones with `SAMEBITS_LONG=1`.
//!
//! The invariant: what could not be measured shows as ignored with its reason, never as passed;
//! `SAMEBITS_REQUIRE_GPU=1` makes it a failure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use samebits_gates::commands::run::{facts, rows_folder};
use samebits_gates::context::{Context, data};
use samebits_gates::manifest::{Gate, Lane};
use samebits_gates::runner;
use samebits_reports::{Report, Row, Run, begin, closing, merge, table, write_row};

const SEED: u64 = 1;

fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// What one gate's row means to the test runner.
fn completion(report: &Report, row: &Row) -> Result<Completion, Failed> {
    match runner::completion(row, set("SAMEBITS_REQUIRE_GPU")) {
        runner::Completion::Passed => Ok(Completion::Completed),
        runner::Completion::Ignored(reason) => Ok(Completion::ignored_with(reason)),
        runner::Completion::Failed => Err(table(report).into()),
    }
}

fn trial(gate: Gate, ctx: &Arc<Context>, (rows, run): (&Path, &Run)) -> Trial {
    let (ctx, rows, run) = (Arc::clone(ctx), rows.to_path_buf(), run.clone());
    Trial::ignorable_test(gate.id.clone(), move || {
        let row = runner::run(&gate, &ctx).checked().made_by(&run);
        write_row(&rows, &row)?;
        let one = Report::new(run.clone(), row.wall_s.0, vec![row.clone()]);
        completion(&one, &row)
    })
}

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let mut gates = Gate::project().expect("the project's own gates are well-formed");
    gates.retain(|gate| gate.lane == Lane::Default || set("SAMEBITS_LONG"));
    assert!(!gates.is_empty(), "an empty suite proves nothing");
    let child = PathBuf::from(env!("CARGO_BIN_EXE_gates"));
    let ctx = Context::new(SEED, None, child).expect("the project's own limits are well-formed");
    let ctx = Arc::new(ctx);
    let rows = rows_folder(&format!("test-{}", std::process::id())).join("rows");
    let run = facts(&data("manifest")).expect("the project's own files can be read");
    let made = |gate: &Gate| trial(gate.clone(), &ctx, (&rows, &run));
    let trials: Vec<Trial> = gates.iter().map(made).collect();
    // Only the gates that the runner's own filter leaves must report.
    let asked = trials.iter().zip(&gates).filter(|(trial, _)| !args.is_filtered_out(trial));
    let expected: Vec<_> = asked.map(|(_, gate)| runner::expected(gate, &ctx)).collect();
    if args.list {
        return libtest_mimic::run(&args, trials).exit_code();
    }
    begin(&rows, &run, &expected).expect("the target folder can be written");
    let conclusion = libtest_mimic::run(&args, trials);
    match merge(&rows) {
        Ok(report) => eprintln!("{}rows: {}", closing(&report), rows.display()),
        Err(error) => {
            eprintln!("gates: {error}");
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

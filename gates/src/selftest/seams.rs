//! The runner as a value: every function of the gates that a fault of the runner could sit in.
//!
//! Absent on purpose: copies. The invariant: [`Runner::real`] names the functions that gates,
//! commands and tests call; a closure here only adapts arguments.

use std::cell::Cell;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use samebits::contract::Dtype;
use samebits::cpu::{Cpu, CpuMem};
use samebits::generate::{GenerateError, Request, Sequence};
use samebits::model::Model;
use samebits_defects::{Defect, Poisoned};
use samebits_fixtures::provenance::{Provenance, Refusal};
use samebits_fixtures::{Spec, prompt_ids, synthetic};
use samebits_oracle::{self as oracle, Arithmetic, Ideal, OracleError, Rounded, RunOptions, Trace};
use samebits_reports::{Matrix, Num, Outdated, Report, Row, Run, figures, fresh, merge, write_row};

use crate::checks::determinism::{self, Answer};
use crate::checks::running::{self, heap};
use crate::checks::{CheckError, Measure, Outcome};
use crate::commands::{Failure, run};
use crate::compare::{Comparison, compare};
use crate::context::Context;
use crate::decor::{Seam, Traffic, Watched};
use crate::engine::{Setup, Traces, trace};
use crate::kill::{self, Column};
use crate::law::sum::digits;
use crate::law::{Allowed, Judgement, Law};
use crate::limits::{Limit, LimitError, Limits};
use crate::manifest::{Gate, ManifestError, Plant};
use crate::probe::{Ran, Stage};
use crate::recompute;
use crate::runner::{self, Completion, Prepared};
use crate::sites::Sites;

/// What an op wrote, against what it may have written.
pub type Tested = fn(&Allowed<'_>, &Law, &[f64]) -> Judgement;

/// A run of some prompts, perhaps with a planted fault.
pub type Tapped =
    fn(&Model<CpuMem>, &Setup, &[Vec<u32>], Option<&Plant>) -> Result<Traces, CheckError>;

/// A run of the reference's model on some ids.
pub type Referred =
    fn(&oracle::Model, &dyn Arithmetic, &[u32], &RunOptions) -> Result<Trace, OracleError>;

/// A report against the tree, and the gates that it must have rows of.
pub type Fresh = fn(&Report, &Run, &[&str]) -> Result<(), Outdated>;

/// A limit, by its name, against the dtype and the statistic of a gate.
pub type Fits = fn(&Limit, &str, Option<Dtype>, &str) -> Result<(), LimitError>;

/// Columns of some defects, with where and from which seed, to a matrix.
pub type Scored = fn(&[&Defect], &[Column], (Run, u64)) -> Matrix;

/// A generation loop; the last argument is called once a step.
pub type Looped = fn(
    &mut Seam,
    &Model<CpuMem>,
    &Request,
    &mut dyn FnMut(),
) -> Result<Vec<Sequence>, GenerateError>;

/// A report's way out: to files, to stdout, to an exit code.
pub type Publish = fn(&Report, (&Path, Option<&Path>), &mut dyn Write) -> Result<u8, Failure>;

/// The functions of a runner.
#[derive(Clone, Copy)]
pub struct Runner {
    /// Bits against bits.
    pub compare: fn(&Sites, &Sites, &[Range<usize>]) -> Comparison,
    /// One process's answer against another's.
    pub answers: fn(&Answer, &Answer) -> Comparison,
    /// Values against what an op may have written.
    pub tested: Tested,
    /// The digits of a count where so many are expected.
    pub digits: fn(u64, f64) -> f64,
    /// A clean and a planted measurement to a row.
    pub judge: fn(&Gate, Row, f64, Outcome, Outcome) -> Row,
    /// A gate to a row.
    pub row: for<'c> fn(&'c Gate, &'c Context, Prepared<'_, 'c>) -> Row,
    /// A row to what the test runner is told.
    pub completion: fn(&Row, bool) -> Completion,
    /// The command that repeats a gate.
    pub repeat: fn(&Gate, &Context) -> String,
    /// A limits file.
    pub limits: fn(&Path) -> Result<Limits, LimitError>,
    /// A folder of gates.
    pub gates: fn(&Path) -> Result<Vec<Gate>, ManifestError>,
    /// Ids of a prompt, from a seed and a vocabulary.
    pub draw: fn(u64, usize, usize) -> Vec<u32>,
    /// A synthetic checkpoint.
    pub checkpoint: fn(&Spec, u64, &Path) -> Result<(), samebits_fixtures::Error>,
    /// A designed run.
    pub ran: fn(&Stage, u64, &Defect) -> Result<Ran, CheckError>,
    /// A run with its taps.
    pub trace: Tapped,
    /// A device whose unwritten memory shows.
    pub poisoned: fn(Cpu) -> Seam,
    /// A device whose memory is watched, and what was counted.
    pub watched: fn(Cpu) -> (Seam, Rc<Cell<Traffic>>),
    /// A loop that is measured step by step.
    pub looped: Looped,
    /// What the counted heap of a loop says of it.
    pub heap: fn(&heap::Counted, heap::Case) -> Outcome,
    /// What a fresh process answers.
    pub child: fn(&Context, &mut Command, usize) -> Result<Answer, CheckError>,
    /// Exact arithmetic.
    pub exact: fn() -> Box<dyn Arithmetic>,
    /// Exact arithmetic, rounded where a tensor is stored.
    pub rounded: fn(oracle::Dtype) -> Box<dyn Arithmetic>,
    /// The reference's run of a model.
    pub reference: Referred,
    /// Whether a golden may be believed.
    pub golden: fn(&Provenance, &str, &[u8]) -> Result<(), Refusal>,
    /// A row to its file.
    pub write_row: fn(&Path, &Row) -> Result<PathBuf, samebits_reports::Error>,
    /// A folder of rows to a report.
    pub merge: fn(&Path) -> Result<Report, samebits_reports::Error>,
    /// Rows to a report.
    pub report: fn(Run, f64, Vec<Row>) -> Report,
    /// A report from its file.
    pub read: fn(&Path) -> Result<Report, samebits_reports::Error>,
    /// A report's way out.
    pub publish: Publish,
    /// Whether a report is of this tree, whole.
    pub fresh: Fresh,
    /// Whether a limit is one of what a gate measures.
    pub fits: Fits,
    /// Gates against the list of those that must exist.
    pub listed: fn(&[Gate], &[String]) -> Result<(), ManifestError>,
    /// Limits that name nothing that recomputes them.
    pub recomputed: fn(&Limits, &[Gate]) -> Vec<String>,
    /// A measurement and its limit, for people.
    pub figures: fn(Num, Num) -> (String, String),
    /// A gate against defects.
    pub column: fn(&Gate, f64, &mut Measure<'_>, &[&Defect]) -> Result<Column, CheckError>,
    /// Columns to a matrix with its scores.
    pub matrix: Scored,
}

impl Runner {
    /// The functions that gates are really run by.
    pub fn real() -> Self {
        Self {
            compare,
            answers: determinism::compare,
            tested: |allowed, law, got| allowed.test(law, got),
            digits,
            judge: runner::judge,
            row: runner::row,
            completion: runner::completion,
            repeat: runner::repeat,
            limits: Limits::load,
            gates: Gate::all,
            draw: prompt_ids,
            checkpoint: synthetic,
            ran: Stage::run,
            trace,
            poisoned: |cpu| Seam::new(Poisoned::new(cpu)),
            watched: |cpu| {
                let (watched, traffic) = Watched::new(cpu);
                (Seam::new(watched), traffic)
            },
            looped: |b, model, request, mark| running::run_loop(b, model, request, mark),
            heap: heap::outcome,
            child: determinism::output,
            exact: || Box::new(Ideal),
            rounded: |dtype| Box::new(Rounded { dtype }),
            reference: oracle::run,
            golden: Provenance::admit,
            write_row,
            merge,
            report: Report::new,
            read: Report::read,
            publish: run::publish,
            fresh,
            fits: Limit::fits,
            listed: Gate::listed,
            recomputed: recompute::unmade,
            figures,
            column: kill::measured,
            matrix: kill::matrix,
        }
    }
}

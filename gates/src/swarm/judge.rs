//! One case: the engine's run, and what it must be equal to.
//!
//! The invariant: a run that ends in an error or a panic is a finding like a wrong bit; what was
//! compared is what the shape says, or the row says so.

use std::panic::{AssertUnwindSafe, catch_unwind};

use samebits::checkpoint::Checkpoint;
use samebits::contract::Order;
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::Model;
use samebits::op::Site;
use samebits_oracle as oracle;
use samebits_reports::{Divergence, PathProof};
use tempfile::TempDir;

use super::{Case, generation, warm};
use crate::checks::CheckError;
use crate::checks::contract::{converted, oracle_order};
use crate::checks::invariance::same_path;
use crate::compare::{Comparison, at, compare, compare_states};
use crate::engine::{Setup, Traces, rotary_sites, trace_only};
use crate::manifest::Plant;
use crate::sites::{Bits, Dims, oracle_dtype};

/// What a case showed.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The comparison.
    pub found: Comparison,
    /// Comparisons that the case's sizes ask for.
    pub due: u64,
    /// Most draws of a sequence.
    pub draws: usize,
    /// The engine's proof of path, and that of the run it was compared with if the engine made it.
    pub paths: Vec<PathProof>,
    /// Ops at which a planted fault acted.
    pub hits: u64,
}

impl Verdict {
    /// Whether the sides differ.
    pub fn red(&self) -> bool {
        self.found.differing > 0
    }

    fn broken(text: String) -> Self {
        let first = Some(Divergence { text, ..at("run", None) });
        let found = Comparison { differing: 1, compared: 1, first, ..Comparison::default() };
        Self { found, due: 1, ..Self::default() }
    }
}

/// A case's checkpoint in the hands of both sides.
pub(super) struct Built {
    pub model: Model<CpuMem>,
    pub reference: oracle::Model,
    pub dims: Dims,
    _folder: TempDir,
}

impl Built {
    fn new(case: &Case) -> Result<Self, CheckError> {
        let folder = tempfile::tempdir().map_err(CheckError::io(&std::env::temp_dir()))?;
        case.shape.write(case.inputs, case.seed, folder.path())?;
        let checkpoint = Checkpoint::open_as(folder.path(), Some(case.dtype))?;
        let mut cpu = Cpu::new(Kernels::best(), case.order);
        let model = Model::load(&mut cpu, &checkpoint, case.order)?;
        let reference = oracle::Model::load(folder.path())?;
        let dims = Dims::of(reference.config());
        Ok(Self { model, reference, dims, _folder: folder })
    }
}

/// Multiplications beyond which the reference would take minutes.
const MOST_WORK: u64 = 4_000_000_000;

/// Runs a case, perhaps with a planted fault, and compares it.
///
/// # Errors
/// A checkpoint that cannot be made, and a fault that has no place here.
pub fn judge(case: &Case, plant: Option<&Plant>) -> Result<Verdict, CheckError> {
    if let Some(Plant::Material(id)) = plant {
        return Err(CheckError::NoPlace { id: id.clone() });
    }
    let built = Built::new(case)?;
    let sides = || match &case.asked {
        Some(asked) => generation::judge(case, asked, &built, plant),
        None if case.past > 0 => warm::judge(case, &built, plant),
        None if case.work() > MOST_WORK && case.order == Order::Invariant => {
            alone(case, &built, plant)
        }
        None => bits(case, &built, plant),
    };
    match catch_unwind(AssertUnwindSafe(sides)) {
        Ok(Err(CheckError::Run(error))) => Ok(Verdict::broken(error.to_string())),
        Ok(Err(CheckError::Generate(error))) => Ok(Verdict::broken(error.to_string())),
        Ok(verdict) => verdict,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Ok(Verdict::broken(format!("panicked: {}", text.unwrap_or("without a word"))))
        }
    }
}

/// The contract's arithmetic of a case.
pub(super) fn arithmetic(case: &Case) -> oracle::Bits {
    oracle::Bits { order: oracle_order(case.order), dtype: oracle_dtype(case.dtype) }
}

fn setup(case: &Case) -> Setup {
    Setup {
        kernels: case.kernels(),
        threads: Some(case.threads),
        pieces: case.pieces.clone(),
        chunk: Some(case.chunk),
        ..Setup::new(case.order, "swarm")
    }
}

fn wanted(case: &Case) -> fn(Site) -> bool {
    if case.logits { |site| site.op == "lm_head" } else { |_| true }
}

/// Comparisons of all sequences of a run.
fn due(case: &Case, built: &Built) -> u64 {
    let (dims, rows) = (built.dims, case.rows());
    let sites = if case.logits {
        (rows * dims.vocab) as u64
    } else {
        dims.elements(rows, rows) + dims.carried() + (rows * dims.rotary_dim) as u64
    };
    case.batch as u64 * (sites + rows as u64)
}

/// The lowest index of the largest, or none where there is a NaN.
pub(super) fn largest(row: &[f64]) -> u32 {
    if row.iter().any(|x| x.is_nan()) {
        return u32::MAX;
    }
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// Compares the choices of the rows of sequence `i`.
fn choices(found: &mut Comparison, traces: &Traces, (i, rows): (usize, usize), logits: &Bits) {
    let vocab = logits.bits.len() / rows;
    for (row, values) in logits.values().chunks(vocab).enumerate() {
        let (want, got) = (largest(values), traces.argmax[i * rows + row]);
        let text = format!("sequence {i}: id {got}, want {want}");
        found.digest("argmax", Some(row), want == got, &text);
    }
}

/// Every sequence against the contract, operation by operation.
fn bits(case: &Case, built: &Built, plant: Option<&Plant>) -> Result<Verdict, CheckError> {
    let (setup, ids, rows) = (setup(case), case.ids(), case.rows());
    let traces = trace_only(&built.model, &setup, &ids, plant, wanted(case))?;
    let options = oracle::RunOptions {
        keep: if case.logits { oracle::Keep::Logits } else { oracle::Keep::All },
        pieces: Some(case.pieces.clone()),
        batch: Some(case.batch),
        ..oracle::RunOptions::default()
    };
    let mut found = Comparison::default();
    for (i, ids) in ids.iter().enumerate() {
        let trace = oracle::run(&built.reference, &arithmetic(case), ids, &options)?;
        let [want, states] = converted(trace, case.dtype);
        let mut got = traces.sequences[i].clone();
        let mut one = if case.logits {
            compare(&want, &got, &setup.forwards(rows))
        } else {
            got.extend(rotary_sites(&built.model, &setup, rows));
            let mut one = compare(&want, &got, &setup.forwards(rows));
            one.then(compare_states(&states, &traces.states[i]));
            one
        };
        choices(&mut one, &traces, (i, rows), &want["lm_head"]);
        found.then(one.labelled(&format!("sequence {i}:")));
    }
    let (due, hits) = (due(case, built), traces.hits);
    Ok(Verdict { found, due, paths: vec![traces.proof], hits, draws: 0 })
}

/// Every sequence against itself alone: row by row, in one thread, on the scalar table.
fn alone(case: &Case, built: &Built, plant: Option<&Plant>) -> Result<Verdict, CheckError> {
    let (setup, ids, rows) = (setup(case), case.ids(), case.rows());
    let traces = trace_only(&built.model, &setup, &ids, plant, wanted(case))?;
    let single = Setup {
        kernels: Kernels::supported()[0],
        threads: Some(1),
        pieces: vec![1; rows],
        chunk: Some(1),
        ..Setup::new(case.order, "row by row")
    };
    let (mut found, mut paths) = (Comparison::default(), vec![traces.proof.clone()]);
    for (i, ids) in ids.iter().enumerate() {
        let one = std::slice::from_ref(ids);
        let want = trace_only(&built.model, &single, one, None, wanted(case))?;
        let [all, other] = [&want.sequences[0], &traces.sequences[i]];
        let mut one = compare(all, other, &setup.forwards(rows));
        one.then(compare_states(&want.states[0], &traces.states[i]));
        choices(&mut one, &traces, (i, rows), &all["lm_head"]);
        if same_path(&want.proof, &traces.proof) {
            one.digest("run", None, false, "both sides took the same path");
        }
        found.then(one.labelled(&format!("sequence {i}:")));
        if i == 0 {
            paths.push(want.proof);
        }
    }
    let tables = if case.logits { 0 } else { case.batch * rows * built.dims.rotary_dim };
    let due = due(case, built) - tables as u64;
    Ok(Verdict { found, due, paths, hits: traces.hits, draws: 0 })
}

//! Requests that share a process or a set of buffers: none may leave anything for another.
//!
//! The invariant: what each request answers alone, in fresh buffers, is made without any fault and
//! is what all its other runs are compared with.

use samebits::contract::{Dtype, Order};
use samebits::cpu::{Cpu, CpuMem, Kernels};
use samebits::model::{DEFAULT_CHUNK, Kept, Limits, Model, State, Step, feed, forward};
use samebits::op::Backend;
use samebits::tensor::Tensor;
use samebits_fixtures::prompt_ids;

use super::material;
use crate::checks::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, at};
use crate::context::Context;
use crate::engine::pool;
use crate::manifest::Source;
use crate::sites::ulps;

/// Which requests.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The run's dtype.
    pub dtype: Dtype,
    /// Ids of the longer prompt.
    pub long: usize,
    /// Ids of the shorter one.
    pub short: usize,
    /// Greedy steps of each.
    pub steps: usize,
}

/// Faults of whoever keeps the sessions.
const SWAPPED: &str = "caches-swapped";
const KEPT: &str = "length-kept";
const FAULTS: [&str; 2] = [SWAPPED, KEPT];

/// A request in its buffers, with the logits of each step so far.
struct Session<'m> {
    model: &'m Model<CpuMem>,
    state: State<CpuMem>,
    rows: Vec<Tensor>,
}

impl<'m> Session<'m> {
    fn new(cpu: &mut Cpu, model: &'m Model<CpuMem>, case: Case) -> Self {
        // One position more than any request needs: room for the fault of a length that stays.
        let (rows, positions) = (case.long, case.long + case.steps + 1);
        let chunk = DEFAULT_CHUNK.min(rows);
        let limits = Limits { batch: 1, positions, rows, logit_rows: 1, chunk };
        let state = State::new(cpu, model, limits, None);
        Self { model, state, rows: Vec::new() }
    }

    /// The prompt's forward.
    fn start(&mut self, cpu: &mut Cpu, prompt: &[u32]) -> Result<(), CheckError> {
        self.rows.clear();
        feed(cpu, &mut self.state, &[prompt], Kept::Last);
        self.go_on(cpu, prompt.len())
    }

    /// One greedy step.
    fn step(&mut self, cpu: &mut Cpu) -> Result<(), CheckError> {
        let mut next = [0];
        cpu.mem().fetch_ints(&self.state.argmax, &mut next);
        self.state.feed_one(cpu, &next);
        self.go_on(cpu, 1)
    }

    fn go_on(&mut self, cpu: &mut Cpu, rows: usize) -> Result<(), CheckError> {
        forward(cpu, self.model, &mut self.state, Step { rows, kept: 1 })?;
        self.rows.push(self.state.logits_row(cpu, 0));
        Ok(())
    }
}

fn cpu() -> Cpu {
    Cpu::new(Kernels::best(), Order::Invariant)
}

/// A whole request in fresh buffers.
fn alone(model: &Model<CpuMem>, prompt: &[u32], case: Case) -> Result<Vec<Tensor>, CheckError> {
    let mut cpu = cpu();
    let mut session = Session::new(&mut cpu, model, case);
    session.start(&mut cpu, prompt)?;
    for _ in 0..case.steps {
        session.step(&mut cpu)?;
    }
    Ok(session.rows)
}

/// The logits of both prompts, stepped in turns on one backend.
fn in_turns(
    model: &Model<CpuMem>,
    prompts: &[Vec<u32>; 2],
    case: Case,
    swapped: bool,
) -> Result<[Vec<Tensor>; 2], CheckError> {
    let mut cpu = cpu();
    let mut sessions = [(); 2].map(|()| Session::new(&mut cpu, model, case));
    for (session, prompt) in sessions.iter_mut().zip(prompts) {
        session.start(&mut cpu, prompt)?;
    }
    for step in 0..case.steps {
        if swapped && step == case.steps / 2 {
            let [a, b] = &mut sessions;
            std::mem::swap(&mut a.state.carried, &mut b.state.carried);
        }
        for session in &mut sessions {
            session.step(&mut cpu)?;
        }
    }
    Ok(sessions.map(|session| session.rows))
}

/// The logits of each prompt, one after the other in the same buffers.
fn in_one_state(
    model: &Model<CpuMem>,
    prompts: &[Vec<u32>],
    case: Case,
    kept: bool,
) -> Result<Vec<Vec<Tensor>>, CheckError> {
    let mut cpu = cpu();
    let mut session = Session::new(&mut cpu, model, case);
    let mut all = Vec::new();
    for prompt in prompts {
        session.state.reset();
        if kept && !all.is_empty() {
            session.state.len = 1;
        }
        session.start(&mut cpu, prompt)?;
        for _ in 0..case.steps {
            session.step(&mut cpu)?;
        }
        all.push(session.rows.clone());
    }
    Ok(all)
}

/// The logits of both prompts, each in a thread and pool of its own at the same time.
fn at_once(
    model: &Model<CpuMem>,
    prompts: &[Vec<u32>; 2],
    case: Case,
) -> Result<[Vec<Tensor>; 2], CheckError> {
    let run = |prompt: &Vec<u32>| pool(1).install(|| alone(model, prompt, case));
    let [a, b] = std::thread::scope(|scope| {
        let threads = prompts.each_ref().map(|prompt| scope.spawn(move || run(prompt)));
        threads.map(|thread| thread.join().expect("a run does not panic"))
    });
    Ok([a?, b?])
}

fn compare(want: &[Tensor], got: &[Tensor], label: &str) -> Comparison {
    let mut found = Comparison::default();
    for (step, (a, b)) in want.iter().zip(got).enumerate() {
        for i in 0..a.len() {
            found.compared += 1;
            if a.bits(i) != b.bits(i) {
                found.differing += 1;
                found.first.get_or_insert_with(|| samebits_reports::Divergence {
                    element: Some(i as u64),
                    ulps: ulps(a.dtype(), a.bits(i), b.bits(i)),
                    text: label.to_owned(),
                    ..at("lm_head", Some(step))
                });
            }
        }
    }
    found
}

/// Compares requests in turns, after one another, and at the same time with each alone.
pub fn prepare<'c>(
    ctx: &'c Context,
    source: &Source,
    case: Case,
) -> Result<Measure<'c>, CheckError> {
    let folder = ctx.folder(source)?;
    let model = ctx.load(folder.path(), case.dtype)?;
    let vocab = model.shape.vocab;
    let prompts: [Vec<u32>; 2] = [(0, case.long), (1, case.short)]
        .map(|(i, len)| prompt_ids(ctx.seed.wrapping_add(i), vocab, len));
    let expected = (3 + 2 + 2) * ((case.steps + 1) * vocab) as u64;
    Ok(Box::new(move |plant| {
        let fault = material(plant, &FAULTS)?;
        let [long, short] = &prompts;
        let want = [alone(&model, long, case)?, alone(&model, short, case)?];
        let mut found = Comparison::default();
        let turns = in_turns(&model, &prompts, case, fault == Some(SWAPPED))?;
        let once = at_once(&model, &prompts, case)?;
        for (name, got) in [("in turns", turns), ("at once", once)] {
            for (i, got) in got.iter().enumerate() {
                let label = format!("{name}, prompt of {} ids", prompts[i].len());
                found.then(compare(&want[i], got, &label));
            }
        }
        let three = [short.clone(), long.clone(), short.clone()];
        let one = in_one_state(&model, &three, case, fault == Some(KEPT))?;
        for (got, i) in one.iter().zip([1, 0, 1]) {
            let label = format!("in one state, prompt of {} ids", prompts[i].len());
            found.then(compare(&want[i], got, &label));
        }
        Ok(Outcome::bitwise(found, expected))
    }))
}

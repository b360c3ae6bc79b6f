//! From a red gate to the op that makes it red.
//!
//! A gate that compares whole runs is run again with every tensor kept, and the op that departs
//! first is run once more on the reference's inputs. Absent: gates that keep no traces, which name
//! their first divergence themselves. The invariants: a green gate is refused, and so is one that
//! does not say the same twice.

use std::collections::BTreeMap;

use samebits::cpu::{Cpu, CpuMem};
use samebits::model::{Model, Plan, run};
use samebits::tensor::Tensor;
use samebits::trace::{Tap, Traced};
use samebits_defects::{Defect, Defective, Replayed};
use samebits_fixtures::prompt_ids;
use thiserror::Error;

use super::{Found, LocalizeError, inputs, localize, sentences, steady};
use crate::checks::{CheckError, Outcome, contract, invariance, prepare};
use crate::context::Context;
use crate::engine::{Setup, defect, trace};
use crate::limits::Limits;
use crate::manifest::{Check, Gate, Plant, Side, Variant};
use crate::sites::{Bits, Dims, Sites, op_of, value};

/// Why a gate does not lead anywhere.
#[derive(Debug, Error)]
pub enum GateError {
    /// It passes.
    #[error("{0} is green: there is nothing to localise")]
    Green(String),
    /// It answers differently each time.
    #[error("{0} measured {1}, then {2}: flaky, so that nothing it says holds")]
    Flaky(String, f64, f64),
    /// It could not be run.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Its traces.
    #[error(transparent)]
    Traces(#[from] LocalizeError),
}

/// Two runs of a gate with all their tensors.
struct Pair {
    want: Sites,
    got: Sites,
    again: Sites,
    model: std::sync::Arc<Model<CpuMem>>,
    setup: Setup,
    ids: Vec<u32>,
}

/// The runs of a gate that compares whole runs; none of other gates.
fn pair(ctx: &Context, gate: &Gate, plant: Option<&Plant>) -> Result<Option<Pair>, CheckError> {
    match &gate.check {
        Check::Contract { model, dtype, order, prompt, steps } => {
            let case =
                contract::Case { dtype: *dtype, order: *order, prompt: *prompt, steps: *steps };
            let folder = ctx.folder(model)?;
            let (model, reference) =
                (ctx.load(folder.path(), *dtype)?, ctx.reference(folder.path())?);
            let len = prompt + steps;
            let ids = prompt_ids(ctx.seed, Dims::of_shape(&model.shape).vocab, len);
            let mut setup = Setup::new(*order, "engine");
            if *steps > 0 {
                setup = setup.decode_from(*prompt, len);
            }
            let [want, _] = contract::bits(&reference, case, &ids)?;
            both(model, setup, ids, plant, want).map(Some)
        }
        Check::Invariance { model, dtype, prompt, variant } => {
            if matches!(variant, Variant::Batch(_) | Variant::Threads(_)) {
                return Ok(None);
            }
            let folder = ctx.folder(model)?;
            let model = ctx.load(folder.path(), *dtype)?;
            let ids = prompt_ids(ctx.seed, Dims::of_shape(&model.shape).vocab, *prompt);
            let first = if gate.control.side == Side::Both { plant } else { None };
            let one = std::slice::from_ref(&ids);
            let single = Setup::new(samebits::contract::Order::Invariant, "one forward");
            let want = trace(&model, &single, one, first)?.sequences.remove(0);
            for setup in invariance::setups(variant, *prompt, ctx.seed) {
                let got = trace(&model, &setup, one, plant)?.sequences.remove(0);
                if localize(&want, &got).is_ok() {
                    return both(model, setup, ids, plant, want).map(Some);
                }
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn both(
    model: std::sync::Arc<Model<CpuMem>>,
    setup: Setup,
    ids: Vec<u32>,
    plant: Option<&Plant>,
    want: Sites,
) -> Result<Pair, CheckError> {
    let one = || trace(&model, &setup, std::slice::from_ref(&ids), plant);
    let (got, again) = (one()?.sequences.remove(0), one()?.sequences.remove(0));
    Ok(Pair { want, got, again, model, setup, ids })
}

/// Bits as the engine writes them: heads of a row joined.
fn tap(site: &str, bits: &Bits) -> Tap {
    let values: Vec<f32> = bits.bits.iter().map(|b| value(bits.dtype, *b) as f32).collect();
    let shape = match (op_of(site), bits.shape.as_slice()) {
        ("q_norm" | "k_norm", [rows, heads, dim]) => vec![rows * heads, *dim],
        ("scores" | "probs", _) => bits.shape.clone(),
        (_, [rows, rest @ ..]) => vec![*rows, rest.iter().product()],
        (_, []) => Vec::new(),
    };
    Tap { shape, data: Tensor::from_f32(bits.dtype, &values) }
}

impl Pair {
    /// Elements of the op that still differ when it reads the reference's inputs.
    fn replayed(&self, found: &Found, plant: Option<&Plant>) -> Result<u64, CheckError> {
        let given: BTreeMap<String, Tap> = inputs(&found.site, &self.want)
            .into_iter()
            .filter_map(|site| Some((site.clone(), tap(&site, self.want.get(&site)?))))
            .collect();
        let planted = defect(plant)?.map_or_else(|| Defect::find("null"), Ok)?;
        let setup = &self.setup;
        let plan =
            Plan { pieces: setup.pieces.clone(), chunk: setup.chunk, rotary: setup.rotary.clone() };
        let defective = Defective::new(Cpu::new(setup.kernels, setup.order), planted);
        let mut b = Traced::new(Replayed::new(defective, 1, given), 1);
        run(&mut b, &self.model, std::slice::from_ref(&self.ids), &plan)?;
        let (taps, replayed) = b.finish();
        replayed.finish()?;
        let got = crate::engine::sequence(&taps, &self.model, [1, 0, self.ids.len()]);
        let (want, got) = (&self.want[&found.site], &got[&found.site]);
        Ok(want.bits.iter().zip(&got.bits).filter(|(a, b)| a != b).count() as u64)
    }
}

/// Follows a red gate, perhaps with a planted fault, to the op that departs first.
///
/// # Errors
/// A gate that is green or flaky, and whatever keeps it from being run.
pub fn follow(ctx: &Context, gate: &Gate, plant: Option<&Plant>) -> Result<String, GateError> {
    let limit = match &gate.limit {
        Some(name) => ctx.limits.get(name).map_err(CheckError::from)?.value,
        None => Limits::none(),
    };
    let mut measure = prepare(gate, ctx)?;
    let (one, again): (Outcome, Outcome) = (measure(plant)?, measure(plant)?);
    if one.measured <= limit {
        return Err(GateError::Green(gate.id.clone()));
    }
    let same = one.measured.to_bits() == again.measured.to_bits() && one.first == again.first;
    if !same {
        return Err(GateError::Flaky(gate.id.clone(), one.measured, again.measured));
    }
    let mut text =
        format!("{}: {} is {}, the limit {limit}\n", gate.id, one.statistic, one.measured);
    let Some(pair) = pair(ctx, gate, plant)? else {
        text += &match &one.first {
            None => "the gate names no op\n".to_owned(),
            Some(first) => format!("{}\n", samebits_reports::divergence_line(first)),
        };
        return Ok(text);
    };
    steady(&pair.got, &pair.again)?;
    let found = localize(&pair.want, &pair.got)?;
    text += &sentences(&found);
    if !found.inputs.is_empty() {
        let n = pair.replayed(&found, plant)?;
        text += &match n {
            0 => "run once more on the reference's inputs, it agrees: its inputs already differ\n"
                .to_owned(),
            n => format!("run once more on the reference's inputs, {n} elements still differ\n"),
        };
    }
    Ok(text)
}

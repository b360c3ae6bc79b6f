//! What is drawn, and from which seed.

use std::collections::BTreeSet;

use samebits::checkpoint::Family;
use samebits_defects::Defect;
use samebits_fixtures::golden::{Tensors, tensors};
use samebits_fixtures::{Spec, paths};

use crate::context::Context;
use crate::manifest::Check;
use crate::probe::{MODEL_SEED, Ran, Stage};
use crate::selftest::Runner;
use crate::selftest::material::{Verdict, gate, hold, said, same, scratch};

/// The tensors of a drawn checkpoint.
fn drawn(runner: &Runner, seed: u64) -> Result<Tensors, String> {
    let folder = scratch()?;
    let spec = Spec::named("tiny-d").map_err(said)?;
    (runner.checkpoint)(&spec, seed, folder.path()).map_err(said)?;
    tensors(&folder.path().join("model.safetensors")).map_err(said)
}

/// A designed run of two sequences with a warm cache, small.
fn designed() -> Result<Stage, String> {
    let gate = gate("residual/prefill/f32")?;
    let Check::TeacherForced { mut probe } = gate.check else {
        return Err(format!("{} is no designed run", gate.id));
    };
    (probe.past, probe.pieces, probe.batch) = (3, vec![4], 2);
    Stage::new(&probe, MODEL_SEED).map_err(said)
}

pub(super) fn seeds(runner: &Runner, _ctx: &Context) -> Verdict {
    let ids = |seed| (runner.draw)(seed, 1_000, 64);
    hold("ids do not repeat by seed", ids(1) == ids(1))?;
    hold("ids do not follow the seed", ids(1) != ids(2))?;
    let (one, again, two) = (drawn(runner, 1)?, drawn(runner, 1)?, drawn(runner, 2)?);
    hold("a checkpoint does not repeat by seed", one == again)?;
    for (name, tensor) in &one {
        let follows = two.get(name).is_some_and(|other| other.bytes != tensor.bytes);
        hold(&format!("{name} does not follow the seed"), follows)?;
    }
    let (stage, null) = (designed()?, Defect::find("null").map_err(said)?);
    let ran = |seed| (runner.ran)(&stage, seed, null).map_err(said);
    let (one, again, two) = (ran(1)?, ran(1)?, ran(2)?);
    let past = |ran: &Ran| -> Vec<_> {
        ran.past.iter().map(|p| (p.keys.clone(), p.values.clone())).collect()
    };
    hold("a designed run does not repeat by seed", one.sequences == again.sequences)?;
    hold("ids of a designed run do not follow the seed", one.ids != two.ids)?;
    hold("a warm cache does not follow the seed", past(&one) != past(&two))?;
    hold("two sequences have the same ids", one.ids[0] != one.ids[1])?;
    for seed in [3, 4] {
        let model = Some((paths::tiny_qwen3(), Family::Qwen3));
        let ctx = Context::new(seed, model, "gates".into()).map_err(said)?;
        let gate = gate("poison/embedded/bf16")?;
        let repeat = (runner.repeat)(&gate, &ctx);
        let says = |what: &str| repeat.contains(what);
        hold(&repeat, says(&format!("--seed {seed}")) && says(&gate.id) && says("--model"))?;
    }
    Ok(())
}

pub(super) fn variety(runner: &Runner, _ctx: &Context) -> Verdict {
    let ids = (runner.draw)(1, 1_000, 256);
    let distinct: BTreeSet<u32> = ids.iter().copied().collect();
    // 226 are expected.
    hold(&format!("{} of 256 ids are distinct", distinct.len()), distinct.len() > 128)?;
    hold("an id outside the vocabulary", ids.iter().all(|id| *id < 1_000))?;
    same("ids drawn", ids.len(), 256)?;
    for (name, tensor) in drawn(runner, 1)? {
        let bits = tensor.bf16_bits();
        let distinct: BTreeSet<u16> = bits.iter().copied().collect();
        let fact = format!("{name}: {} values in {} elements", distinct.len(), bits.len());
        hold(&fact, distinct.len() > 8)?;
    }
    Ok(())
}

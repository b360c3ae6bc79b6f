//! The traps of the family, each fallen into: the engine's run must part from the contract, and
//! first at the op where the trap lies.
//!
//! Here: which faults of the catalogue are which trap. Deliberately absent: traps that lie outside
//! the ops. Defaults and absent keys (2, 7, 9) are rows of the hostile table; the form of the rule
//! by the length of a forward (16) is what `lengths` compares; ties and samplers (18, 19) have
//! gates of their own; how a reference is made (20) is the goldens' business. The invariant: a
//! fault that changes nothing, or shows elsewhere, counts as missed.

use samebits::contract::{Dtype, Order};
use samebits::cpu::CpuMem;
use samebits::model::Model;
use samebits_defects::Defect;
use samebits_fixtures::prompt_ids;
use samebits_oracle::{self as oracle, Keep, RunOptions};

use super::running::material;
use super::{CheckError, Measure, Outcome};
use crate::compare::{Comparison, compare};
use crate::context::Context;
use crate::engine::{Setup, trace};
use crate::manifest::{Plant, Source};
use crate::sites::{Bits, Sites, dtype_at, oracle_dtype};

/// Number of a trap, and the faults that fall into it.
type Trap = (u32, &'static [&'static str]);

const TRAPS: [Trap; 13] = [
    // Three norms, three orders of rounding.
    (1, &["gdn-norm-plain", "gdn-norm-baked", "gdn-norm-rounded-first", "gdn-gated-centred"]),
    // Head norms before the rotation, one weight for all heads.
    (3, &["norm-skipped-k", "gdn-norm-plain-q", "gdn-norm-baked-q", "gdn-norm-rounded-first-k"]),
    // Halves, and only a part of the head at its own frequencies.
    (4, &["rope-pairing", "gdn-rope-whole", "gdn-rope-whole-k", "gdn-rope-frequencies"]),
    // Tables rounded before use, three roundings.
    (5, &["rope-unrounded", "rope-table-bf16"]),
    // Scores rounded before and after the scale; f32 softmax; rounded probabilities.
    (6, &["scale-folded", "scale-missing", "scores-unrounded", "softmax-bf16", "softmax-sum-bf16"]),
    // Frequencies in f32.
    (8, &["rope-table-frequencies", "rope-late"]),
    // Each head's query and gate side by side, a rounded sigmoid, before the projection.
    (10, &["gate-halves", "gate-swapped", "gate-neighbour", "gate-silu", "gate-unrounded"]),
    // Channels in the order of queries, keys, values; blocks of value heads.
    (11, &["gdn-query-part", "gdn-key-part", "gdn-queries-are-keys", "gdn-heads-cyclic"]),
    // Taps, activation, and raw inputs kept.
    (
        12,
        &[
            "conv-taps-reversed",
            "conv-taps-early",
            "conv-taps-short",
            "conv-bare",
            "conv-unrounded",
            "conv-starts-after-ones",
            "conv-state-lost",
            "conv-state-lost-steps",
            "conv-state-late",
            "conv-state-short-unwritten",
            "conv-state-activated",
        ],
    ),
    // Sums under the root with their epsilon; queries scaled, keys not.
    (
        13,
        &[
            "gdn-l2-mean",
            "gdn-l2-mean-k",
            "gdn-l2-eps-1e-5",
            "gdn-l2-eps-2e-6",
            "gdn-l2-eps-outside",
            "gdn-l2-floor",
            "gdn-l2-skipped",
            "gdn-l2-skipped-k",
            "gdn-query-unscaled",
            "gdn-key-scaled",
        ],
    ),
    // Rounded strengths, f32 decays, the exponential of the rate.
    (
        14,
        &[
            "gdn-beta-unrounded",
            "gdn-whole-write",
            "gdn-decay-bare",
            "gdn-decay-no-bias",
            "gdn-decay-bf16",
            "gdn-decay-rate-bf16",
            "gdn-decay-sum-bf16",
            "gdn-rates-are-strengths",
        ],
    ),
    // Decay first, predict from the decayed, read the new; an f32 state that is carried on.
    (
        15,
        &[
            "gdn-decay-sign",
            "gdn-decay-last",
            "gdn-undecayed",
            "gdn-reads-old",
            "gdn-decay-neighbour",
            "gdn-state-bf16",
            "gdn-state-bf16-8",
            "gdn-state-bf16-64",
            "gdn-state-forgets-64",
            "gdn-state-lost",
            "gdn-state-lost-steps",
            "gdn-state-step-unwritten",
        ],
    ),
    // Norm first, an f32 gate, a rounding in between, a plain weight.
    (
        17,
        &[
            "gdn-gated-first",
            "gdn-gated-rounded-once",
            "gdn-gate-rounded",
            "gdn-gated-sigmoid",
            "gdn-gated-eps-1e-5",
            "gdn-ungated",
        ],
    ),
];

/// F32 rates, and a scale that is no power of two.
const CHECKPOINT: &str = "tiny-h";

/// Rows of each forward: shorter than a kernel, beyond a chunk of 64, single ones.
const PIECES: [usize; 4] = [2, 64, 1, 1];

/// One run with what the contract says of it.
struct Stage {
    model: std::sync::Arc<Model<CpuMem>>,
    setup: Setup,
    ids: Vec<u32>,
    want: Sites,
}

impl Stage {
    fn new(ctx: &Context, dtype: Dtype) -> Result<Self, CheckError> {
        let folder = ctx.folder(&Source::Named(CHECKPOINT.to_owned()))?;
        let (model, reference) = (ctx.load(folder.path(), dtype)?, ctx.reference(folder.path())?);
        let ids = prompt_ids(ctx.seed, model.shape.vocab, PIECES.iter().sum());
        let arithmetic =
            oracle::Bits { order: oracle::Order::Invariant, dtype: oracle_dtype(dtype) };
        let pieces = Some(PIECES.to_vec());
        let options = RunOptions { keep: Keep::All, pieces, ..RunOptions::default() };
        let sites = oracle::run(&reference, &arithmetic, &ids, &options)?.sites;
        let bits = |(name, array): (String, oracle::Array)| {
            let bits = Bits::of_array(&array, dtype_at(&name, dtype));
            (name, bits)
        };
        let mut want: Sites = sites.into_iter().map(bits).collect();
        want.retain(|name, _| !name.starts_with("rotary."));
        let setup = Setup { pieces: PIECES.to_vec(), ..Setup::new(Order::Invariant, "trap") };
        Ok(Self { model, setup, ids, want })
    }

    /// Where the run parts from the contract first.
    fn parts(&self, defect: &str) -> Result<Comparison, CheckError> {
        let plant = Plant::Defect(defect.to_owned());
        let ids = std::slice::from_ref(&self.ids);
        let traces = trace(&self.model, &self.setup, ids, Some(&plant))?;
        Ok(compare(&self.want, &traces.sequences[0], &self.setup.forwards(self.ids.len())))
    }
}

/// What is wrong with a fault's discovery in any run, if anything.
fn missed(stages: &[Stage], defect: &Defect, deaf: bool) -> Result<Option<String>, CheckError> {
    let mut seen = None;
    for stage in stages {
        let found = stage.parts(if deaf { "null" } else { &defect.id })?;
        let Some(first) = found.first else { continue };
        if first.op != defect.site.op {
            return Ok(Some(format!("shows first at {}, not at {}", first.op, defect.site.op)));
        }
        seen = Some(());
    }
    Ok(seen.is_none().then(|| "changes nothing".to_owned()))
}

/// Falls into every trap in turn.
pub fn prepare<'c>(ctx: &'c Context) -> Result<Measure<'c>, CheckError> {
    let stages = [Stage::new(ctx, Dtype::Bf16)?, Stage::new(ctx, Dtype::F32)?];
    let expected = TRAPS.iter().map(|(_, faults)| faults.len() as u64).sum();
    Ok(Box::new(move |plant| {
        let deaf = material(plant, &["deaf"])?.is_some();
        let mut found = Comparison::default();
        for stage in &stages {
            // A run without a fault is the contract's; else everything would be red.
            let clean = stage.parts("null")?;
            if clean.differing > 0 {
                found.differing += clean.differing;
                found.first = clean.first;
            }
        }
        for (trap, faults) in TRAPS {
            for id in faults {
                let wrong = missed(&stages, Defect::find(id)?, deaf)?;
                let text = format!("trap {trap}, {id}: {}", wrong.as_deref().unwrap_or("seen"));
                found.digest("traps", None, wrong.is_none(), &text);
            }
        }
        Ok(Outcome { statistic: "traps_missed", ..Outcome::bitwise(found, expected) })
    }))
}

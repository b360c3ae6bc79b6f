//! Faults of a gated delta net and of gated attention.
//!
//! Here: the kinds, and which op each acts at; in `carried` what becomes of states, in `delta` the
//! rule itself, in `rows` the ops that take each row by itself. Deliberately absent: faults that
//! other families have too. The invariant: an op that the fault does not change runs as it came,
//! and a rule that is computed again on the host has the engine's own bits but for the fault.

mod carried;
mod delta;
mod rows;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use samebits::op::{Backend, Op, Out, Site};
use samebits::tensor::Tensor;
use serde::Deserialize;

/// A fault that only hybrids can have.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HybridFault {
    /// The delta rule goes wrong in its first heads.
    Delta {
        /// How.
        how: Delta,
        /// In how many heads; all of them unless given.
        heads: Option<usize>,
    },
    /// What a convolution or a delta rule carries from one forward to the next.
    Carried(Carried),
    /// The taps of a convolution.
    Taps(Taps),
    /// The convolution's sums go into the activation before they are rounded.
    ConvUnrounded,
    /// The op copies its input.
    Bare,
    /// Unit vectors.
    Unit(Unit),
    /// The logarithm of the decay.
    Decay(Decay),
    /// The gated norm.
    Gated(Gated),
    /// The norms whose weights are offsets.
    Centred(Centred),
    /// The gate of attention.
    Gate(Gate),
    /// The rotation takes in the whole head, at the head's own frequencies.
    WholeHead,
}

/// Forms of [`HybridFault::Delta`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Delta {
    /// None: the host's own rule.
    Right,
    /// The state decays after it was written and read.
    DecaysLast,
    /// The error is that of the state before it decays.
    Undecayed,
    /// The output is read before the write.
    ReadsOld,
    /// Value head `j` reads key head `j mod keys` instead of `j / (values / keys)`.
    CyclicHeads,
    /// Queries are not scaled.
    Unscaled,
    /// Keys are scaled as queries are.
    ScaledKeys,
    /// The state grows where it should decay.
    Grows,
    /// Each head decays as its neighbour should.
    NeighboursDecay,
    /// Queries and keys change places.
    Swapped,
    /// The error is written whole.
    Whole,
    /// The strengths of the write are not rounded.
    UnroundedStrength,
    /// The state is rounded to bf16 at every so many positions.
    Narrow(usize),
    /// The state is forgotten at every so many positions.
    Forgets(usize),
}

/// Forms of [`HybridFault::Carried`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Carried {
    /// Every forward starts from zeros.
    Lost,
    /// Every forward of one row does.
    LostInSteps,
    /// The first row of a sequence starts from what the buffer holds.
    Kept,
    /// The last sequence carries on what the first one should.
    OtherSequence,
    /// Forwards of fewer rows than the kernel has taps before the last leave it as it was.
    ShortUnwritten,
    /// Forwards of one row leave it as it was.
    StepUnwritten,
    /// The newest input is missing: all are one row too old.
    Late,
    /// Activations in place of inputs.
    Activated,
    /// The sequence starts after ones instead of zeros.
    Ones,
}

/// Forms of [`HybridFault::Taps`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Taps {
    /// The newest first.
    Reversed,
    /// Each one row too early; the newest takes no part.
    Early,
    /// The oldest takes no part.
    Short,
}

/// Forms of [`HybridFault::Unit`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Unit {
    /// By the mean of squares instead of their sum.
    Mean,
    /// Another epsilon.
    Eps(f32),
    /// The epsilon is added to the root instead of under it.
    EpsOutside,
    /// The epsilon is a floor of the root.
    Floor,
    /// The other of queries and keys.
    OtherPart,
}

/// Forms of [`HybridFault::Decay`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// The rate is `A_log` itself.
    Bare,
    /// The step's sum is rounded to bf16.
    ShortSum,
    /// The step has no bias.
    NoBias,
    /// Rates are rounded to bf16.
    ShortRate,
}

/// Forms of [`HybridFault::Gated`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Gated {
    /// The weight is an offset from one.
    Centred,
    /// The gate comes before the norm.
    GateFirst,
    /// The activated gate is rounded before it multiplies.
    GateRounded,
    /// One rounding, at the end.
    RoundedOnce,
    /// A sigmoid for a SiLU.
    Sigmoid,
    /// No gate.
    Ungated,
    /// Another epsilon.
    Eps(f32),
}

/// Forms of [`HybridFault::Centred`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Centred {
    /// `1 + w` is rounded to bf16.
    Baked,
    /// Rounded before the weight, as in a dense model.
    RoundedFirst,
    /// The weight is plain.
    Plain,
}

/// Forms of [`HybridFault::Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Queries of all heads come before the gates of all.
    Halves,
    /// Gates come before queries.
    Swapped,
    /// The gate is not applied.
    Missing,
    /// The sigmoid is not rounded before it multiplies.
    Unrounded,
    /// A SiLU for a sigmoid.
    Silu,
    /// Each head takes its neighbour's gate.
    Neighbour,
}

/// What earlier ops wrote, by site.
pub type Kept = BTreeMap<&'static str, Tensor>;

impl HybridFault {
    /// The op before the fault's own whose output it needs.
    const fn source(&self) -> Option<&'static str> {
        match self {
            Self::Delta { how: Delta::UnroundedStrength, .. } => Some("in_proj_b"),
            Self::ConvUnrounded => Some("conv"),
            Self::Gate(Gate::Unrounded) => Some("q_gate"),
            _ => None,
        }
    }

    /// Whether the fault has to see the op at all.
    pub fn sees(&self, site: Site, own: &str) -> bool {
        site.op == own || self.source() == Some(site.op)
    }
}

/// Executes the op with the fault in it; `false` where nothing was executed.
pub fn apply<B: Backend>(
    fault: &HybridFault,
    b: &mut B,
    kept: &mut Kept,
    (site, own): (Site, &str),
    op: &mut Op<'_, B::M>,
) -> bool {
    if site.op != own {
        let sums = if *fault == HybridFault::ConvUnrounded { rows::sums(b, op) } else { None };
        b.exec(site, op);
        if let Some(written) = sums.or_else(|| last_output(b, op)) {
            kept.insert(site.op, written);
        }
        return true;
    }
    let source = fault.source().and_then(|op| kept.get(op));
    match fault {
        HybridFault::Delta { how, heads } => delta::rule(b, op, (*how, *heads), source),
        HybridFault::Carried(how) => carried::wrong(b, site, op, *how),
        HybridFault::Taps(how) => rows::taps(b, site, op, *how),
        HybridFault::ConvUnrounded => source.is_some_and(|sums| rows::silu_of(b, op, sums)),
        HybridFault::Bare => rows::bare(b, op),
        HybridFault::Unit(how) => rows::unit(b, site, op, *how),
        HybridFault::Decay(how) => rows::decay(b, op, *how),
        HybridFault::Gated(how) => rows::gated(b, site, op, *how),
        HybridFault::Centred(how) => rows::centred(b, site, op, *how),
        HybridFault::Gate(how) => rows::gate(b, site, op, *how, source),
        HybridFault::WholeHead => rows::whole_head(b, site, op),
    }
}

/// The last of the activations that an op has written.
fn last_output<B: Backend>(b: &mut B, op: &mut Op<'_, B::M>) -> Option<Tensor> {
    let mut last = None;
    for out in op.outs() {
        if let Out::Act { act, part, .. } = out {
            last = Some(part.read(b.mem(), act).data);
        }
    }
    last
}

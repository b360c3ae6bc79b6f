//! The kinds of fault, as data.

use serde::Deserialize;

use crate::hybrid::HybridFault;
pub use crate::sums::{Legal, Tree};
pub use crate::weights::WeightFault;

/// What goes wrong at an op. The op itself is named by the defect's site.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Nothing.
    Null,
    /// One bit of one element of what the op writes, counted from the element's lowest bit.
    FlipBit {
        /// Which bit.
        bit: u32,
        /// Which element of the written part; the last one where the part is shorter.
        element: usize,
    },
    /// A norm gone wrong.
    Norm {
        /// How.
        form: Norm,
    },
    /// The scale of attention scores.
    Scale {
        /// How.
        form: ScaleFault,
    },
    /// Scores, softmax and mix see this many keys more than they should.
    MaskEdge {
        /// Keys added; negative for keys lost.
        keys: i32,
    },
    /// Softmax gone wrong.
    Softmax {
        /// How.
        form: Softmax,
    },
    /// Pairs `(2 i, 2 i + 1)` rotate instead of `(i, i + dim / 2)`.
    RopePairing,
    /// Rotary tables of too few bits.
    RopeTable {
        /// What is too short.
        form: Tables,
    },
    /// Positions of forwards that do not start at 0 are one too small.
    RopeLate,
    /// The op copies its input.
    Skip,
    /// Query head `j` reads key head `j mod kv` instead of `j / (query / kv)`.
    HeadMap,
    /// The cache keeps an old row.
    Stale {
        /// Which rows.
        form: Stale,
        /// Which of the two caches.
        cache: Cache,
    },
    /// `silu(up) * gate` instead of `silu(gate) * up`.
    GateUpSwap,
    /// Another activation instead of SiLU.
    Activation {
        /// Which.
        form: Activation,
    },
    /// One rounding too few: the activated gate of a product, the products of scores before they
    /// are scaled, or the terms of a rotation.
    Unrounded,
    /// The output rounded to bf16 once more on its way: only an f32 run shows it.
    Narrowed,
    /// The op runs on its own output once more.
    Twice,
    /// A weight is read wrongly.
    Weight {
        /// How.
        form: WeightFault,
    },
    /// The weight of another op of the same size.
    WeightOf {
        /// The op that ran before and whose weight it takes.
        from: String,
    },
    /// The cache takes another tensor for its keys.
    CacheOf {
        /// The op whose output it takes.
        from: String,
    },
    /// Rotary frequencies raised to a power: another base.
    RopePower {
        /// The power.
        power: f32,
    },
    /// Only this many of 64 shares of the pairs rotate.
    RopePartial {
        /// The shares.
        of64: usize,
    },
    /// Positions turned into others.
    RopePositions {
        /// How.
        form: Positions,
    },
    /// Rows see the keys `0..=r` of a forward that starts later: the mask's other corner.
    TopLeft,
    /// Hidden keys take part in softmax with this score.
    Sentinel {
        /// The score.
        value: f32,
    },
    /// Sums of the last row of a linear are rounded to bf16 after every so many terms.
    Accumulator {
        /// The terms.
        terms: usize,
    },
    /// The last elements of a row drawn at every execution keep what the buffer held.
    Race {
        /// How many elements.
        elements: usize,
    },
    /// Ids or slots keep only their lowest bits.
    Wrap {
        /// How many.
        bits: u32,
    },
    /// No fault: every sum in another legal order.
    Legal(Legal),
    /// A residual addition takes another tensor instead of the residual stream.
    Residual {
        /// The op whose output it takes; `mlp_residual` is the layer's input.
        from: String,
    },
    /// A product summed in blocks of another length.
    Block {
        /// Terms of a block; even.
        terms: usize,
        /// In which forwards.
        when: When,
    },
    /// A product's sums are multiplied by `1 + 2^-exponent` before they are rounded.
    Gain {
        /// The exponent.
        exponent: i32,
    },
    /// The highest index among equals.
    ArgmaxLast,
    /// Something that only hybrids have.
    Hybrid {
        /// What, and how.
        form: HybridFault,
    },
    /// What the host keeps goes wrong, where no op shows it: a rule of sampling, a read that waits,
    /// a block of memory. The gates that watch for it carry it by this name.
    Host {
        /// The name.
        what: String,
    },
    /// Numbers beyond the defect's threshold are cut: elements that stand there take the values of
    /// those at the number modulo the threshold.
    Cut,
    /// Elements beyond the defect's threshold keep what the buffer held.
    Unwritten,
    /// Sums end at as many terms as the defect's threshold says.
    Lost,
    /// Rows picked are others.
    RowShift {
        /// Which.
        form: Rows,
    },
}

/// Forms of [`Fault::Norm`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Norm {
    /// Another epsilon.
    Eps(f32),
    /// The epsilon is added to the root instead of under it.
    EpsOutside,
    /// The weight is applied before rounding.
    CastOrder,
    /// The weight is `1 + w`.
    OnePlusWeight,
    /// The mean of squares is their sum.
    Sum,
}

/// Forms of [`Fault::Scale`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleFault {
    /// Not applied.
    Missing,
    /// Applied twice.
    Twice,
    /// Applied to the queries, before the product is rounded.
    Folded,
    /// Too large by this factor.
    Times(f32),
}

/// Forms of [`Fault::Softmax`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Softmax {
    /// Exponentials are rounded to bf16 before they are summed and divided.
    Half,
    /// The maximum is not subtracted.
    NoMax,
    /// The maximum is that of the first so many keys.
    FirstMax(usize),
    /// The sum is rounded to bf16.
    HalfSum,
}

/// Forms of [`Fault::RopeTable`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tables {
    /// Cosines and sines are rounded to bf16. No change in a bf16 run.
    Entries,
    /// The frequencies are rounded to bf16.
    Frequencies,
    /// Positions keep eight significant bits: 257 turns as 256.
    Positions,
}

/// Forms of [`Fault::Stale`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stale {
    /// The last row of the forward is not written.
    Unwritten,
    /// Every row of the forward is written one position late; the first stays old.
    Late,
    /// The last two rows change places.
    Swapped,
    /// The last sequence's rows are those of the first.
    OtherSequence,
}

/// Which cache a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Keys.
    Keys,
    /// Values.
    Values,
    /// Both.
    Both,
}

/// When a [`Fault::Block`] applies.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// In every forward.
    Always,
    /// In forwards of more than one row: bits come to depend on the batch.
    ManyRows,
    /// In about half of all processes: bits come to depend on the process.
    Coin,
}

/// How much of what an op writes a fault may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// Everything.
    #[default]
    All,
    /// The last row of the first sequence.
    LastRow,
    /// The first head of every row, where the op knows heads; else the first quarter of a row.
    FirstHead,
}

/// Forms of [`Fault::Activation`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// GELU by tanh.
    GeluTanh,
    /// GELU by the sigmoid of 1.702 x.
    GeluSigmoid,
    /// The positive part.
    Relu,
    /// SiLU with the sigmoid cut off at 8.
    Clipped,
}

/// Forms of [`Fault::RopePositions`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// None beyond this one: a table that ends there.
    Clamp(u32),
    /// This many more than there are.
    More(u32),
    /// Those of the first forward with as many rows.
    Stale,
    /// Counted from the forward's own start.
    Local,
    /// A share, in 64ths: linear scaling.
    Scaled(u32),
    /// Only their lowest bits.
    Wrap(u32),
}

/// Forms of [`Fault::RowShift`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rows {
    /// One too early.
    Early,
    /// The first one.
    First,
    /// The last one.
    Last,
}

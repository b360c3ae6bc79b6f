//! The kinds of fault, as data.

use serde::Deserialize;

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
    /// The tanh form of GELU instead of SiLU.
    Gelu,
    /// The product takes the activated gate before it was rounded.
    Unrounded,
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
    /// Rows picked are one too early.
    RowShift,
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
}

/// Forms of [`Fault::Softmax`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Softmax {
    /// Exponentials are rounded to bf16 before they are summed and divided.
    Half,
    /// The maximum is not subtracted.
    NoMax,
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

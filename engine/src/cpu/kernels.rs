//! Kernel tables: what an instruction set provides. A table exists only if the CPU can run it.

use half::bf16;

use super::panels::PANEL;
use super::{scalar, simd, vector};
use crate::contract::{Element, Order};
use crate::op::NormForm;

/// Rows that a tile advances together.
pub const ROWS: usize = 6;

/// A product of up to [`ROWS`] rows with one panel.
#[derive(Debug)]
pub struct TileArgs<'a, E> {
    /// Rows of `x`, `stride` elements apart.
    pub x: &'a [E],
    /// Elements from one row of `x` to the next.
    pub stride: usize,
    /// Rows computed, 1 to [`ROWS`].
    pub rows: usize,
    /// One packed panel, at least as long as the longest row.
    pub panel: &'a [E],
    /// Terms of each row's sums, at least 1: what lies beyond takes no part.
    pub terms: [usize; ROWS],
    /// Terms in a block of the chain; even.
    pub block: usize,
    /// No partial sum of these operands can be subnormal, so that plain FMA need not flush.
    pub exact: bool,
}

/// Sums of a tile, before rounding: `[row][column of the panel]`.
#[repr(align(64))]
#[derive(Debug)]
pub struct Tile(pub [[f32; PANEL]; ROWS]);

impl Tile {
    /// A tile of zeros.
    pub const fn new() -> Self {
        Self([[0.0; PANEL]; ROWS])
    }
}

impl Default for Tile {
    fn default() -> Self {
        Self::new()
    }
}

/// Rotates one head: `out, x, cos, sin`.
pub type Rope<E> = fn(&mut [E], &[E], &[E], &[E]);

/// One row of a convolution over channels.
#[derive(Debug)]
pub struct ConvRow<'a, E> {
    /// Inputs before the first of `x`, oldest first: `[kernel, channels]`
    pub state: &'a [E],
    /// Inputs of the forward: `[rows, channels]`
    pub x: &'a [E],
    /// `[channels, kernel]`
    pub weight: &'a [E],
    /// The row of `x`.
    pub at: usize,
    /// Taps.
    pub kernel: usize,
}

/// One position of one head's delta rule.
#[derive(Debug)]
pub struct DeltaStep<'a, E> {
    /// Unit query: `[key_dim]`
    pub q: &'a [f32],
    /// Unit key: `[key_dim]`
    pub k: &'a [f32],
    /// Value: `[value_dim]`
    pub v: &'a [E],
    /// Logarithm of the decay.
    pub g: f32,
    /// Strength of the write.
    pub beta: f32,
    /// What the query is multiplied by.
    pub scale: f32,
}

/// Normalises and gates one head: `out, x, z, weight, eps`.
pub type GatedNorm<E> = fn(&mut [E], &[E], &[E], &[f32], f32);

/// Advances one head's state `[key_dim, value_dim]` by a position and reads it: `out, state, step`.
pub type DeltaRule<E> = fn(&mut [E], &mut [f32], &DeltaStep<'_, E>);

/// Kernels for one element type. Slices of one call have one length.
#[derive(Debug)]
pub struct Table<E: Element> {
    /// Block sums of a product, in the chain order of the contract.
    pub tile: fn(&TileArgs<'_, E>, &mut Tile),
    /// `out, x`
    pub silu: fn(&mut [E], &[E]),
    /// `out, x`
    pub sigmoid: fn(&mut [E], &[E]),
    /// `out, a, b`
    pub mul: fn(&mut [E], &[E], &[E]),
    /// `out, a, b`
    pub add: fn(&mut [E], &[E], &[E]),
    /// `out, x, weight, eps, form`: one vector
    pub rms_norm: fn(&mut [E], &[E], &[E], f32, NormForm),
    /// `out, x, cos, sin`: one head
    pub rope: Rope<E>,
    /// `out, x, order`: one row
    pub softmax: fn(&mut [E], &[E], Order),
    /// `out, x`: one head
    pub l2_norm: fn(&mut [f32], &[E]),
    /// One head.
    pub gated_norm: GatedNorm<E>,
    /// `out, row`
    pub conv: fn(&mut [E], &ConvRow<'_, E>),
    /// One head.
    pub delta_rule: DeltaRule<E>,
}

/// All kernels of one instruction set.
#[derive(Debug)]
pub struct Kernels {
    /// The name that `--isa` takes.
    pub name: &'static str,
    /// Kernels on bf16.
    pub bf16: Table<bf16>,
    /// Kernels on f32.
    pub f32: Table<f32>,
}

static SCALAR: Kernels = Kernels {
    name: "scalar",
    bf16: scalar_table(scalar::tile_bf16),
    f32: scalar_table(scalar::tile_f32),
};

const fn scalar_table<E: Element>(tile: fn(&TileArgs<'_, E>, &mut Tile)) -> Table<E> {
    Table {
        tile,
        silu: vector::silu,
        sigmoid: vector::sigmoid,
        mul: vector::mul,
        add: vector::add,
        rms_norm: vector::rms_norm,
        rope: vector::rope,
        softmax: vector::softmax,
        l2_norm: vector::l2_norm,
        gated_norm: vector::gated_norm,
        conv: vector::conv,
        delta_rule: vector::delta_rule,
    }
}

impl Kernels {
    /// Every table this CPU can run, slowest first. Never empty.
    pub fn supported() -> Vec<&'static Self> {
        std::iter::once(&SCALAR).chain(simd::supported()).collect()
    }

    /// The fastest table this CPU can run.
    pub fn best() -> &'static Self {
        Self::supported().last().copied().expect("the scalar table is always there")
    }

    /// The table of that name, or the names there are.
    ///
    /// # Errors
    /// The names of the supported tables, where `name` is none of them.
    pub fn by_name(name: &str) -> Result<&'static Self, Vec<&'static str>> {
        let all = Self::supported();
        all.iter()
            .find(|k| k.name == name)
            .copied()
            .ok_or_else(|| all.iter().map(|k| k.name).collect())
    }
}

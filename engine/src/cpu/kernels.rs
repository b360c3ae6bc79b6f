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

    /// Whether no sum of the first `rows` rows is infinite or NaN.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_finite(&self, rows: usize) -> bool {
        self.0[..rows].iter().flatten().all(|sum| sum.is_finite())
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const TERMS: usize = 37;

    /// Operands of a tile from a stream of numbers, with exponents of either side in a range.
    fn operands(seed: u64, exponents: [std::ops::Range<u16>; 2]) -> [Vec<bf16>; 2] {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u16
        };
        let lengths = [ROWS * TERMS, TERMS.next_multiple_of(2) * PANEL];
        let mut side = |len: usize, exponents: std::ops::Range<u16>| {
            let one = |_| {
                let exponent = exponents.start + next() % exponents.len() as u16;
                bf16::from_bits(next() & 0x807F | exponent << 7)
            };
            (0..len).map(one).collect::<Vec<bf16>>()
        };
        let [x, w] = exponents;
        [side(lengths[0], x), side(lengths[1], w)]
    }

    fn sums(tile: fn(&TileArgs<'_, bf16>, &mut Tile), args: &TileArgs<'_, bf16>) -> Vec<u32> {
        let mut out = Tile::new();
        tile(args, &mut out);
        out.0[..args.rows].iter().flatten().map(|sum| sum.to_bits()).collect()
    }

    /// Biased exponents, so that 0 is a subnormal; products of about 127 in all are near underflow.
    #[test]
    fn every_table_flushes_as_the_scalar_one() {
        for (why, x, w) in [
            ("subnormals among ordinary terms", 100..140, 0..140),
            ("results near underflow", 50..70, 50..70),
            ("results on the edge of underflow", 60..61, 60..68),
            ("every term below it", 1..30, 1..30),
            ("huge and tiny terms", 0..254, 0..254),
            ("infinities and NaN", 0..256, 0..256),
        ] {
            for seed in 0..200 {
                let [x, panel] = operands(seed, [x.clone(), w.clone()]);
                let rows = 1 + seed as usize % ROWS;
                let terms = std::array::from_fn(|r| TERMS - r % 3);
                let (x, panel) = (&x[..], &panel[..]);
                let args =
                    TileArgs { x, stride: TERMS, rows, panel, terms, block: 16, exact: false };
                let want = sums(scalar::tile_bf16, &args);
                for table in Kernels::supported() {
                    let got = sums(table.bf16.tile, &args);
                    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                        let nan = |bits: &u32| f32::from_bits(*bits).is_nan();
                        let same = got == want || nan(got) && nan(want);
                        assert!(same, "{}: {why}, seed {seed}, {i}: {got:x} {want:x}", table.name);
                    }
                }
            }
        }
    }

    #[test]
    fn a_stride_or_length_that_wraps_around_is_refused() {
        let (x, panel) = ([bf16::ONE; 4], [bf16::ONE; 4 * PANEL]);
        for (why, stride, first) in [
            ("a row that ends before the first", usize::MAX, 4),
            ("two rows that end before it", usize::MAX / 2 + 1, 4),
            ("a panel that no memory holds", 0, usize::MAX / PANEL + 1),
        ] {
            let mut terms = [4; ROWS];
            terms[0] = first;
            for table in Kernels::supported() {
                for exact in [true, false] {
                    let (x, panel) = (&x[..], &panel[..]);
                    let args = TileArgs { x, stride, rows: 3, panel, terms, block: 512, exact };
                    let made = AssertUnwindSafe(|| (table.bf16.tile)(&args, &mut Tile::new()));
                    assert!(catch_unwind(made).is_err(), "{}: {why}", table.name);
                }
            }
        }
    }
}

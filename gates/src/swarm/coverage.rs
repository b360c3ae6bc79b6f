//! Which values of what the engine counts with were reached.
//!
//! The invariant: a value counts only after the run that holds it was compared to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Case;
use crate::manifest::Lane;

/// What the engine counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Sequences.
    Batch,
    /// Threads.
    Threads,
    /// Draws of a sequence.
    Draws,
    /// Rows of one forward, all sequences together.
    Rows,
    /// Position of a row.
    Positions,
    /// Keys of a forward.
    Keys,
    /// Terms of the sums of a product.
    Terms,
    /// Outputs of a product.
    Columns,
    /// Ids of tokens.
    Ids,
    /// Bytes of a weight in bf16, two at a time.
    Bytes,
}

/// Lengths of blocks, of which one to four make a sum.
const BLOCKS: [usize; 3] = [192, 512, 1_024];

impl Quantity {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Batch,
        Self::Threads,
        Self::Draws,
        Self::Rows,
        Self::Positions,
        Self::Keys,
        Self::Terms,
        Self::Columns,
        Self::Ids,
        Self::Bytes,
    ];

    /// The exponents of its largest power of two in each lane.
    fn most(self) -> [u32; 2] {
        match self {
            Self::Batch | Self::Threads => [4, 4],
            Self::Draws => [8, 10],
            Self::Rows => [10, 12],
            Self::Positions | Self::Keys => [13, 17],
            Self::Terms => [12, 15],
            Self::Columns | Self::Ids => [16, 17],
            Self::Bytes => [16, 24],
        }
    }

    /// The values that must be reached: 1, powers of two and blocks, each with its neighbours.
    pub fn points(self, lane: Lane) -> Vec<usize> {
        let [default, long] = self.most();
        let most = if lane == Lane::Long { long } else { default };
        let step = if self == Self::Bytes { 2 } else { 1 };
        let mut centres: Vec<usize> = (0..=most).map(|power| 1 << power).collect();
        if self == Self::Terms {
            centres.extend(BLOCKS.iter().flat_map(|block| (1..=4).map(move |n| n * block)));
        }
        let around = centres.iter().flat_map(|c| [c.saturating_sub(step), *c, c + step]);
        let least = if self == Self::Bytes { 2 } else { 1 };
        let points: BTreeSet<usize> =
            around.filter(|n| *n >= least && n.is_multiple_of(step)).collect();
        points.into_iter().collect()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Batch => "sequences",
            Self::Threads => "threads",
            Self::Draws => "draws of a sequence",
            Self::Rows => "rows of a forward",
            Self::Positions => "positions",
            Self::Keys => "keys",
            Self::Terms => "terms of a sum",
            Self::Columns => "columns of a product",
            Self::Ids => "ids",
            Self::Bytes => "bytes of a weight",
        }
    }
}

/// What was reached.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<Quantity, BTreeSet<usize>>);

impl Coverage {
    fn reach(&mut self, quantity: Quantity, values: impl IntoIterator<Item = usize>) {
        self.0.entry(quantity).or_default().extend(values);
    }

    /// Counts a case that was compared; `draws` are the most of a sequence, `threads` those seen.
    pub fn add(&mut self, case: &Case, draws: usize, threads: u64) {
        self.reach(Quantity::Batch, [case.batch]);
        self.reach(Quantity::Threads, [threads as usize]);
        self.reach(Quantity::Draws, 1..=draws);
        self.reach(Quantity::Rows, case.pieces.iter().map(|rows| rows * case.batch));
        let mut keys = case.past;
        for rows in &case.pieces {
            self.reach(Quantity::Positions, keys..keys + rows);
            keys += rows;
            self.reach(Quantity::Keys, [keys]);
        }
        let products = case.shape.products();
        self.reach(Quantity::Terms, products.iter().map(|[terms, _]| *terms));
        self.reach(Quantity::Columns, products.iter().map(|[_, columns]| *columns));
        self.reach(Quantity::Bytes, products.iter().map(|[terms, columns]| 2 * terms * columns));
        self.reach(Quantity::Ids, case.ids().into_iter().flatten().map(|id| id as usize));
    }

    /// Points of a lane that no run held.
    pub fn missed(&self, lane: Lane) -> Vec<(Quantity, usize)> {
        let none = BTreeSet::new();
        let of = |quantity: Quantity| {
            let reached = self.0.get(&quantity).unwrap_or(&none);
            let points = quantity.points(lane).into_iter();
            points.filter(move |n| !reached.contains(n)).map(move |n| (quantity, n))
        };
        Quantity::ALL.into_iter().flat_map(of).collect()
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One line a quantity: how many points of the long lane were reached, the largest, the first missed.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missed = self.missed(Lane::Long);
        for quantity in Quantity::ALL {
            let all = quantity.points(Lane::Long).len();
            let own: Vec<usize> =
                missed.iter().filter(|(q, _)| *q == quantity).map(|(_, n)| *n).collect();
            let largest = self.0.get(&quantity).and_then(|reached| reached.last());
            let largest = largest.copied().unwrap_or(0);
            write!(f, "{quantity:22} {:4} of {all:3} points, largest {largest}", all - own.len())?;
            match own.first() {
                Some(first) => writeln!(f, ", first missed {first}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

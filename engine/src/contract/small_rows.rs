//! f32 products of few rows, as the library under Transformers sums them.
//!
//! Below four rows, and where outputs are few, no FMA chains run in blocks: each product is rounded
//! and added to one of a few lanes, or all go one after another. Only `Order::Transformers` asks.
//! Absent: what the reference does with more than one thread at 5 to 11 rows, with weights that do
//! not lie at a multiple of 16 bytes, and with head widths that are no multiple of 4. The invariant:
//! every sum starts from +0.

/// An order of an f32 sum without FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallSum {
    /// One term after another.
    Sequence,
    /// The first `head` terms into lane 0, then four lanes.
    Lanes {
        /// Terms before the lanes.
        head: usize,
    },
    /// The same with eight lanes.
    Lanes8 {
        /// Terms before the lanes.
        head: usize,
    },
    /// Four lanes over whole blocks of eight terms.
    Lanes4x2 {
        /// Terms before the lanes.
        head: usize,
    },
    /// One after another, but of every eight terms the last four as a sum of their own.
    Halves,
}

/// A product `[rows, terms] x [columns, terms]`.
#[derive(Clone, Copy, Debug)]
pub struct SmallProduct {
    /// Rows of the product.
    pub rows: usize,
    /// Outputs of a row.
    pub columns: usize,
    /// Terms of a sum.
    pub terms: usize,
}

impl SmallProduct {
    /// The order of an output; none where the blocks of chains rule.
    pub fn order(&self, row: usize, column: usize) -> Option<SmallSum> {
        let Self { rows, columns, terms } = *self;
        let alone = |at: usize, of: usize| match at.checked_sub(of / 4 * 4) {
            None => SmallSum::Lanes { head: 4 - 3 * terms % 4 },
            Some(1) => SmallSum::Lanes4x2 { head: 4 },
            Some(_) => SmallSum::Lanes8 { head: 4 },
        };
        if rows == 1 {
            return Some(alone(column, columns));
        }
        if columns == 1 {
            return Some(alone(row, rows));
        }
        if rows > 3 && columns >= 12 {
            return None;
        }
        let head = (4 - row * terms % 4) % 4;
        let whole = column < columns / 4 * 4;
        Some(if whole { SmallSum::Lanes { head } } else { SmallSum::Lanes8 { head } })
    }

    /// The order of a score, one matrix a sequence and head; below 400 multiplications the plain
    /// loop runs.
    pub fn score(&self, row: usize, key: usize) -> Option<SmallSum> {
        let few = self.rows * self.columns * self.terms < FEW;
        if few { Some(SmallSum::Sequence) } else { self.order(row, key) }
    }

    /// The order of a score where the keys had to be copied, in matrix `matrix`.
    pub fn copied(&self, matrix: usize, row: usize, key: usize) -> Option<SmallSum> {
        let Self { rows, columns, terms } = *self;
        if rows * columns * terms >= FEW && rows > 3 && columns >= 12 {
            return None;
        }
        let head = (4 - (matrix * rows + row) * columns % 4) % 4;
        let halved = rows * columns * terms >= FEW && key < head && columns - head >= 4;
        Some(if halved { SmallSum::Halves } else { SmallSum::Sequence })
    }
}

/// Multiplications below which a batched product is a plain loop.
const FEW: usize = 400;

impl SmallSum {
    /// The sum of `n` products.
    pub fn of(self, n: usize, term: impl Fn(usize) -> (f32, f32)) -> f32 {
        let product = |i: usize| {
            let (x, w) = term(i);
            x * w
        };
        let chain =
            |sum: f32, range: std::ops::Range<usize>| range.fold(sum, |sum, i| sum + product(i));
        match self {
            Self::Sequence => chain(0.0, 0..n),
            Self::Lanes { head } => lanes::<4>(n, head, 4, product),
            Self::Lanes4x2 { head } => lanes::<4>(n, head, 8, product),
            Self::Lanes8 { head } => lanes::<8>(n, head, 8, product),
            Self::Halves => {
                let whole = n / 8 * 8;
                let sum = (0..whole).step_by(8).fold(0.0, |sum, i| {
                    let sum = chain(sum, i..i + 4);
                    sum + (((product(i + 4) + product(i + 5)) + product(i + 6)) + product(i + 7))
                });
                chain(sum, whole..n)
            }
        }
    }
}

/// `head` terms into lane 0, lanes over whole blocks of `block` terms, the rest one by one.
fn lanes<const N: usize>(
    n: usize,
    head: usize,
    block: usize,
    product: impl Fn(usize) -> f32,
) -> f32 {
    let mut sums = [0.0f32; N];
    let head = head.min(n);
    (0..head).for_each(|i| sums[0] += product(i));
    let end = head + (n - head) / block * block;
    (head..end).for_each(|i| sums[(i - head) % N] += product(i));
    for j in 4..N {
        sums[j - 4] += sums[j];
    }
    let sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    (end..n).fold(sum, |sum, i| sum + product(i))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terms 1, 2, 4, .. show in the sum which were lost to a larger one before them.
    #[test]
    fn each_order_adds_as_it_says() {
        let big = 2f32.powi(24);
        for (why, how, terms, want) in [
            ("in sequence", SmallSum::Sequence, vec![big, 1.0, 1.0, -big], 0.0),
            ("four lanes", SmallSum::Lanes { head: 0 }, vec![big, 1.0, -big, 1.0], 2.0),
            ("a head", SmallSum::Lanes { head: 2 }, vec![big, 1.0, -big], 0.0),
            ("the rest", SmallSum::Lanes { head: 0 }, vec![big, 0.0, 0.0, 0.0, 1.0, -big], 0.0),
            (
                "eight lanes",
                SmallSum::Lanes8 { head: 0 },
                vec![big, 1.0, 0.0, 0.0, -big, 1.0, 0.0, 0.0],
                2.0,
            ),
            ("halves", SmallSum::Halves, vec![big, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -big], 2.0),
        ] {
            assert_eq!(how.of(terms.len(), |i| (terms[i], 1.0)), want, "{why}");
        }
    }

    #[test]
    fn rows_and_columns_choose_the_order() {
        let of = |rows, columns, terms| SmallProduct { rows, columns, terms };
        for (product, at, want) in [
            (of(1, 16, 8), (0, 0), Some(SmallSum::Lanes { head: 4 })),
            (of(1, 16, 7), (0, 0), Some(SmallSum::Lanes { head: 3 })),
            (of(1, 19, 8), (0, 16), Some(SmallSum::Lanes8 { head: 4 })),
            (of(1, 19, 8), (0, 17), Some(SmallSum::Lanes4x2 { head: 4 })),
            (of(1, 19, 8), (0, 18), Some(SmallSum::Lanes8 { head: 4 })),
            (of(3, 16, 7), (1, 0), Some(SmallSum::Lanes { head: 1 })),
            (of(9, 11, 8), (8, 10), Some(SmallSum::Lanes8 { head: 0 })),
            (of(9, 1, 8), (8, 0), Some(SmallSum::Lanes8 { head: 4 })),
            (of(4, 12, 8), (0, 0), None),
        ] {
            assert_eq!(product.order(at.0, at.1), want, "{product:?} at {at:?}");
        }
        assert_eq!(of(1, 6, 64).score(0, 0), Some(SmallSum::Sequence), "384 multiplications");
        assert_eq!(of(1, 7, 64).score(0, 0), Some(SmallSum::Lanes { head: 4 }));
    }
}

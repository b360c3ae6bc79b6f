//! Which order of summation an f32 product takes in Transformers, and the orders of few rows.
//!
//! torch hands f32 products to a library that has one kernel for many rows and columns and others
//! for few; which lane a term falls into follows from the address of its row. Measured on a Zen 4
//! (oneMKL 2024.2) on one thread. Deliberately absent: two threads and more, where prompts of 5,
//! 6, 7, 9, 10 and 11 rows are cut otherwise. Invariant: values decide nothing; every sum starts
//! from +0 and keeps subnormals.

/// Products of fewer multiplications than this, one of a batch, take torch's own loop.
const OWN_LOOP: usize = 400;

/// Rows of one operand in memory, in floats of 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Address of the first row; only its remainder by 4 counts.
    pub start: usize,
    /// From one row to the next.
    pub stride: usize,
}

/// How an operand of a product lies, and whose call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `x W^T`, both as rows.
    Linear,
    /// One matrix of a batch, both as rows: queries x keys.
    Rows,
    /// One matrix of a batch, the second as columns: probabilities x values, and queries x keys
    /// that were copied.
    Columns,
}

/// One element of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Whose product.
    pub call: Call,
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// The element's row.
    pub row: usize,
    /// The element's column.
    pub column: usize,
    /// Rows of the first operand.
    pub x: Rows,
    /// Rows of the second operand; of the result, where the second lies in columns.
    pub w: Rows,
}

/// An order of summation of `x[i] * w[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// FMA chains over blocks.
    Chain,
    /// Products rounded, then added in ascending order.
    Ascending,
    /// The same, but of every eight terms the last four are a sum of their own.
    Fours,
    /// Products rounded, then added: `head` terms into lane 0, then term by term into `lanes`
    /// lanes while `step` terms remain, the lanes by halves, and the rest one by one.
    Lanes {
        /// Terms before the first step, which reach the next 16-byte boundary.
        head: usize,
        /// 4 or 8.
        lanes: usize,
        /// 4 or 8: terms that are taken at once.
        step: usize,
    },
}

impl Spot {
    /// The order in which this element of `terms` terms is summed.
    pub fn order(&self, terms: usize) -> Sum {
        let own_loop = self.rows * self.columns * terms < OWN_LOOP;
        match self.call {
            Call::Linear if self.columns == 1 && self.rows > 1 => self.turned().row_by_row(),
            Call::Linear => self.row_by_row(),
            Call::Rows if own_loop => Sum::Ascending,
            Call::Rows => self.row_by_row(),
            Call::Columns if own_loop => Sum::Ascending,
            Call::Columns => self.by_columns(),
        }
    }

    /// A single column is the single row of the turned product.
    fn turned(&self) -> Self {
        let (rows, columns) = (self.columns, self.rows);
        let (row, column) = (self.column, self.row);
        Self { rows, columns, row, column, x: self.w, w: self.x, ..*self }
    }

    fn few(&self) -> bool {
        self.rows < 4 || self.columns < 12
    }

    fn row_by_row(&self) -> Sum {
        let last = self.column >= self.columns / 4 * 4;
        if self.rows == 1 {
            return match self.column % 4 {
                _ if !last => lanes(4 - (self.w.start + 3 * self.w.stride) % 4, 4, 4),
                1 => lanes(4 - self.x.start % 4, 4, 8),
                _ => lanes(4 - self.x.start % 4, 8, 8),
            };
        }
        let head = to_boundary(self.x.start + self.row * self.x.stride);
        match (self.few(), last) {
            (false, _) => Sum::Chain,
            (true, false) => lanes(head, 4, 4),
            (true, true) => lanes(head, 8, 8),
        }
    }

    fn by_columns(&self) -> Sum {
        if !self.few() {
            return Sum::Chain;
        }
        let head = to_boundary(self.w.start + self.row * self.w.stride);
        let fours = self.columns >= head + 4 && self.column < head;
        if fours { Sum::Fours } else { Sum::Ascending }
    }
}

impl Sum {
    /// The sum in f32; `block` is the length of a chain's blocks.
    pub fn of(self, x: &[f32], w: &[f32], block: usize) -> f32 {
        assert_eq!(x.len(), w.len(), "sum: two lengths");
        match self {
            Self::Chain => crate::bits::dot_f32(x, w, block),
            Self::Ascending => ascending(0.0, x, w),
            Self::Fours => fours(x, w),
            Self::Lanes { head, lanes, step } => in_lanes(x, w, [head, lanes, step]),
        }
    }
}

fn lanes(head: usize, lanes: usize, step: usize) -> Sum {
    Sum::Lanes { head, lanes, step }
}

/// Floats from an address to the next boundary of 16 bytes.
fn to_boundary(at: usize) -> usize {
    (4 - at % 4) % 4
}

fn ascending(from: f32, x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).fold(from, |sum, (x, w)| sum + x * w)
}

fn fours(x: &[f32], w: &[f32]) -> f32 {
    let (x, x_rest) = x.as_chunks::<8>();
    let (w, w_rest) = w.as_chunks::<8>();
    let whole = x.iter().zip(w).fold(0f32, |sum, (x, w)| {
        let sum = ascending(sum, &x[..4], &w[..4]);
        sum + ascending(x[4] * w[4], &x[5..], &w[5..])
    });
    ascending(whole, x_rest, w_rest)
}

fn in_lanes(x: &[f32], w: &[f32], [head, lanes, step]: [usize; 3]) -> f32 {
    let head = head.min(x.len());
    let end = head + (x.len() - head) / step * step;
    let mut lane = [0f32; 8];
    lane[0] = ascending(0.0, &x[..head], &w[..head]);
    for (x, w) in x[head..end].chunks(lanes).zip(w[head..end].chunks(lanes)) {
        for ((lane, x), w) in lane.iter_mut().zip(x).zip(w) {
            *lane += x * w;
        }
    }
    if lanes == 8 {
        for j in 0..4 {
            lane[j] += lane[4 + j];
        }
    }
    ascending((lane[0] + lane[2]) + (lane[1] + lane[3]), &x[end..], &w[end..])
}

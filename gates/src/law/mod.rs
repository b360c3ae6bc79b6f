//! What legal f32 sums may do: how far an op's output may lie from its exact result on its own
//! inputs, and how many elements may round otherwise.
//!
//! Here: the constants of the law, families of ops, and [`Law::judge`]. `sum` has the error of one
//! sum, `ops` what each op may write, `delta` the recurrent rule, `test` the tests of elements and
//! counts. Absent: any number fitted to an engine, and classes of size: every element's limit
//! follows from the squares of its own terms. The invariant: an op without a law is not judged and
//! says why.

pub mod delta;
mod ops;
pub mod sum;
mod test;

pub use ops::family;
pub use test::{Allowed, Judgement, Shape};

use samebits::contract::Dtype;

use crate::forced::Forced;
use crate::limits::{LimitError, Limits};
use crate::sites::Dims;

/// The constants of the law, from the limits file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    /// The rms of the rounding of one addition, in U times its result.
    pub rms: f64,
    /// The largest that rms can be.
    pub most: f64,
    /// The chance of a false alarm of one test of one tensor.
    pub alarm: f64,
    /// Misrounds a row may have beyond those the law expects.
    pub slack: f64,
    /// How often the largest error of a sum's own legal orders it may err where these exceed the
    /// law.
    pub orders: f64,
    /// Deviations of the delta rule's outputs over those of its carried variance.
    pub delta: f64,
}

impl Law {
    /// Reads the constants.
    ///
    /// # Errors
    /// One that is not in the file.
    pub fn of(limits: &Limits) -> Result<Self, LimitError> {
        let value = |name: &str| limits.get(name).map(|limit| limit.value);
        Ok(Self {
            rms: value("law-rounding-rms")?,
            most: value("law-rounding-most")?,
            alarm: value("law-alarm")?,
            slack: value("law-row-slack")?,
            orders: value("law-own-orders")?,
            delta: value("law-delta")?,
        })
    }

    /// Judges what an op wrote against what its own inputs allow.
    ///
    /// # Errors
    /// Why the op has no law.
    pub fn judge(&self, exact: &Forced<'_>, setting: Setting, name: &str, got: &[f64]) -> Judged {
        let allowed = ops::allowed(self, exact, setting, name)?;
        Ok(allowed.test(self, got))
    }
}

/// A verdict on an op, or why there is none.
pub type Judged = Result<Judgement, String>;

/// The run whose sites are judged.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The run's dtype.
    pub dtype: Dtype,
    /// Sizes of the model.
    pub dims: Dims,
    /// Positions in the cache before the first row.
    pub past: usize,
    /// Rows of a sequence.
    pub rows: usize,
}

impl Setting {
    /// Keys at the end of the run.
    pub fn keys(&self) -> usize {
        self.past + self.rows
    }

    /// Keys that the row of an element of scores or probabilities sees.
    pub fn seen(&self, i: usize) -> usize {
        self.past + i / self.keys() % self.rows + 1
    }

    /// Whether an element of scores or probabilities belongs to a key that its row does not see.
    pub fn hidden(&self, i: usize) -> bool {
        i % self.keys() >= self.seen(i)
    }
}

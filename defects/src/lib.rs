//! Seeded faults as decorators around the engine's seams.
//!
//! Here: the catalogue of defects and [`Defective`], which plants one of them in any backend;
//! [`Replayed`], which replaces what named sites write; [`Poisoned`], whose memory starts as NaN
//! and ends in guard bands. Deliberately absent: any verdict, and anything the engine would have to
//! know. The invariant: a decorator reaches a device through `Op` and `Memory` only.

mod altered;
mod attention;
mod beyond;
mod catalogue;
mod defective;
mod fault;
mod host;
mod hybrid;
mod poisoned;
mod replayed;
mod rope;
mod runner;
mod sums;
mod sums_delta;
mod weights;

#[cfg(test)]
mod tests;

pub use beyond::{Beyond, Quantity};
pub use catalogue::{Defect, DefectError, Pattern};
pub use defective::Defective;
pub use fault::{
    Activation, Cache, Fault, Legal, Norm, Positions, Reach, Rows, ScaleFault, Softmax, Stale,
    Tables, Tree, WeightFault, When,
};
pub use hybrid::{Carried, Centred, Decay, Delta, Gate, Gated, HybridFault, Taps, Unit};
pub use poisoned::{Overrun, Poisoned};
pub use replayed::{ReplayError, Replayed, take_rotary};
pub use runner::RunnerFault;

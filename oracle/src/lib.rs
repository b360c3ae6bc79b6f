//! An independent reference of Qwen3 and of the text model of Qwen3.5, in three arithmetics over
//! one plain model.
//!
//! * [`Ideal`]: f64 everywhere, exact rotary angles; also the sum of the squares of the terms.
//! * [`Rounded`]: f64 arithmetic, rounded to the run's dtype wherever Transformers stores a tensor.
//! * [`Bits`]: the contract `sb1`, f32 operation by f32 operation.
//!
//! [`run`] runs a whole [`Model`] and returns a [`Trace`] of named sites. [`Arithmetic`] holds the
//! operations one by one, on inputs that the caller supplies (`ops` says what each reads), and
//! [`bits`] the scalars of the contract. All values travel as f64, in which bf16 and f32 are exact;
//! [`Array::bits`] gives their patterns.
//!
//! ```
//! use samebits_oracle::{Arithmetic, Bits, Dtype, Ideal, Order, ops::Linear};
//! let op = Linear { x: &[1.0, 2.0], weight: &[0.5, 0.25, 3.0, 4.0], k: 2, true_rows: 1 };
//! let bits = Bits { order: Order::Invariant, dtype: Dtype::Bf16 };
//! assert_eq!(bits.linear(&op).values, [1.0, 11.0]);
//! assert_eq!(Ideal.linear(&op).squares, Some(vec![0.5, 73.0]));
//! ```
//!
//! Deliberately absent: speed, batches, sampling, and any code of the engine that it judges.
//! Invariant: nothing here looks at a value to decide an order of summation.

mod arithmetic;
mod attention;
mod bitwise;
mod chunk;
mod config;
mod dtype;
mod exact;
mod forward;
mod hybrid;
mod model;
mod product;
mod real;
mod rotary;
mod rotary_exceptions;
mod run;
mod trace;

pub mod bits;
pub mod few_rows;
pub mod ops;

pub use arithmetic::Arithmetic;
pub use bitwise::Bits;
pub use chunk::delta_rule_in_chunks;
pub use config::{Config, Hybrid};
pub use dtype::{Array, Dtype, Order};
pub use model::{Model, OracleError, Tensor};
pub use real::{Ideal, Rounded};
pub use run::{Keep, RunOptions, run};
pub use trace::{State, Trace};

//! Models: weights on a device, the buffers of a run, and the forward pass.

mod budget;
mod qwen3;
mod run;
mod state;
mod weights;

pub use budget::Budget;
pub use qwen3::{Step, forward};
pub use run::{DEFAULT_CHUNK, Kept, Logits, Plan, RunError, check_prompts, feed, run};
pub use state::{Limits, ROTARY_COS, ROTARY_SIN, State};
pub use weights::{Layer, LayerGuard, Layers, Model, Shape};

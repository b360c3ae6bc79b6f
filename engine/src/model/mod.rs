//! Models: weights on a device, the buffers of a run, and the forward pass.

mod budget;
mod decoder;
mod loader;
mod qwen3;
mod qwen3_5;
mod run;
mod shape;
mod state;
mod weights;

pub use budget::Budget;
pub use decoder::{Step, forward};
pub use run::{DEFAULT_CHUNK, Kept, Logits, Plan, RunError, check_prompts, feed, run};
pub use shape::Shape;
pub use state::{Carried, Limits, ROTARY_COS, ROTARY_SIN, State};
pub use weights::{Attention, DeltaNet, Layer, LayerGuard, Layers, Mixer, Model};

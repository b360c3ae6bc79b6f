//! Generation: prompts in, tokens out, over a cache made once.

mod chat;
mod philox;
mod sampler;
mod session;
mod stop;
mod text;

pub use chat::{Chat, ChatError, Message};
pub use philox::{philox, uniform};
pub use sampler::{Candidate, Draw, NanError, Sampler, SamplerError, Sampling};
pub use session::{Finish, GenerateError, Request, Sequence, generate};
pub use stop::{StopError, StopIds, StopSource};
pub use text::{Stream, Text, TextError};

//! Generation: prompts in, tokens out, over a cache made once.

mod chat;
mod jinja;
mod json;
mod philox;
mod python;
mod sampler;
mod session;
mod stop;
mod template;
mod text;

pub use chat::{Chat, ChatError, Conversation, Message};
pub use philox::{philox, uniform};
pub use sampler::{Candidate, Draw, NanError, Sampler, SamplerError, Sampling};
pub use session::{Finish, GenerateError, Request, Sequence, generate, room};
pub use stop::{StopIds, StopSource};
pub use text::{Stream, Text, TextError};

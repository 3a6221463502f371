//! The APIs: what their requests and answers look like.

mod chat;
mod completions;
mod functions;
mod messages;
mod responses;
mod sse;

use serde_json::{Value, json};

pub(crate) use chat::Chat;
pub(crate) use completions::Completions;
pub(crate) use messages::{Messages, read_count};
pub(crate) use responses::Responses;
pub(crate) use sse::Frames;

use crate::problem::Problem;
use crate::reply::{Reply, Update};

/// What the answers to a request have in common.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// Unique part of identifiers.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Name of the model.
    pub(crate) model: String,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Temperature of a session that has overridden the request's.
    pub(crate) overridden: Option<f32>,
}

impl Head {
    /// Adds to the object of an answer what has been overridden.
    pub(crate) fn annotate(&self, object: &mut Value) {
        if let Some(temperature) = self.overridden {
            object["rloom"] = json!({ "temperature": temperature });
        }
    }
}

/// Form of an answer, which has one reply or several.
pub(crate) trait Wire: Send {
    /// The body of a complete answer.
    fn whole(&self, head: &Head, replies: &[Reply]) -> Value;

    /// Frames before the first update of a stream.
    fn begin(&mut self, head: &Head, frames: &mut Frames);

    /// Frames of an update of the reply with this index.
    fn update(&mut self, head: &Head, index: usize, update: &Update, frames: &mut Frames);

    /// Frames after the last update of a reply.
    fn end_reply(&mut self, head: &Head, index: usize, reply: &Reply, frames: &mut Frames);

    /// Frames after the last update of all replies.
    fn end(&mut self, head: &Head, replies: &[Reply], frames: &mut Frames);

    /// Frames of an error in a stream, which ends it.
    fn error(&mut self, problem: &Problem, frames: &mut Frames);
}

/// The body of `/v1/models`.
pub(crate) fn models(name: &str, created: u64, context: usize) -> Value {
    json!({"object": "list", "data": [model(name, created, context)]})
}

/// The body of `/v1/models/NAME`.
pub(crate) fn model(name: &str, created: u64, context: usize) -> Value {
    json!({"id": name, "object": "model", "created": created, "owned_by": "rloom", "max_model_len": context})
}

//! Tokens of a completion while it is sampled.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A token that an engine has sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: u32,
    /// Its log-probability, as in [`Generation::logprobs`](super::Generation::logprobs).
    pub logprob: f32,
}

/// Receives the tokens of one completion in order, each as soon as it is sampled. Never blocks the engine; holds at most
/// the tokens of the completion. Two sinks are equal if they belong to one channel.
#[derive(Debug, Clone)]
pub struct TokenSink(UnboundedSender<SampledToken>);

impl TokenSink {
    /// A sink and the receiver of its tokens.
    pub fn channel() -> (Self, UnboundedReceiver<SampledToken>) {
        let (sender, receiver) = unbounded_channel();
        (Self(sender), receiver)
    }

    /// Passes a token on. Without a receiver it is dropped.
    pub fn send(&self, token: SampledToken) {
        let _ = self.0.send(token);
    }
}

impl PartialEq for TokenSink {
    fn eq(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

//! Tokens of a completion while it is sampled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// Receives the number of a request's prompt tokens that were not computed, because the engine had their keys and values.
/// Two are equal if they are clones of one.
#[derive(Debug, Clone, Default)]
pub struct ReusedTokens(Arc<AtomicUsize>);

impl ReusedTokens {
    /// Sets the number, when the request starts.
    pub fn set(&self, tokens: usize) {
        self.0.store(tokens, Ordering::Relaxed);
    }

    /// The number; 0 before the request starts, and if the engine does not tell.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for ReusedTokens {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

//! A session as its owner sees it: what it samples from, and what it has recorded at its end.

use std::fmt;
use std::sync::Arc;

use rloom_core::{PolicyId, RandomKey, SampleKey, Trajectory};
use rloom_engine::SamplingSettings;

use super::registry::Registered;
use crate::sampler::Sampler;

/// The completions of a session: their sampler, settings and keys.
#[derive(Clone)]
pub struct SessionSpec {
    /// Samples the completions.
    pub sampler: Arc<dyn Sampler>,
    /// Settings of every completion. Requests may lower `max_new_tokens` and add stop strings; their temperature is overridden.
    pub sampling: SamplingSettings,
    /// Random stream of the first conversation. Every branch has a stream of its own: `segment` is derived from what it
    /// branches from and from its messages.
    pub random: RandomKey,
    /// Key of the episode; its segments are numbered from `segment` on.
    pub key: SampleKey,
    /// The policy that is sampled.
    pub policy: PolicyId,
    /// Group of the requests that begin a conversation.
    pub group: Option<u64>,
    /// Priority of the requests; lower numbers go first.
    pub priority: u64,
}

impl fmt::Debug for SessionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSpec")
            .field("key", &self.key)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// A limit of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionLimit {
    /// Time without a request.
    Idle,
    /// Time from the opening on.
    Total,
    /// Number of completions.
    Calls,
    /// Number of sampled tokens.
    Tokens,
}

impl fmt::Display for SessionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "time without a request",
            Self::Total => "total time",
            Self::Calls => "number of calls",
            Self::Tokens => "number of sampled tokens",
        })
    }
}

/// Reason for the end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionStatus {
    /// The agent has finished.
    Finished,
    /// The agent has failed, or has finished without a reward.
    Failed {
        /// Explanation.
        message: String,
    },
    /// The session has reached a limit.
    Expired {
        /// The limit.
        limit: SessionLimit,
    },
}

/// A reward that the agent reported.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionReward {
    /// Name; `reward` if the agent gave none.
    pub name: String,
    /// Value; finite.
    pub value: f64,
    /// Identifier of the call that it rewards, as the agent gave it; `None` for the whole session. The step rewards of the
    /// segments contain it as well.
    pub call: Option<String>,
    /// Name of the agent that it is for.
    pub agent: Option<String>,
}

/// Result of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionEnd {
    /// The segments of the episode, valid; each sampled token is the policy's in exactly one of them. Empty if nothing was sampled.
    pub segments: Vec<Trajectory>,
    /// Rewards in the order in which they were first reported.
    pub rewards: Vec<SessionReward>,
    /// Reason for the end.
    pub status: SessionStatus,
    /// Completions that were sampled.
    pub calls: u64,
}

/// An open session. Dropping it ends the session: further requests get status 410.
#[derive(Debug)]
pub struct OpenSession(pub(super) Registered);

impl OpenSession {
    /// The token that gives access: 128 random bits in hexadecimal. Secret.
    pub fn token(&self) -> &str {
        self.0.token.reveal()
    }

    /// Path of the session on its server, `/s/TOKEN`. Secret. The base URL for clients of OpenAI's API is
    /// `http://HOST:PORT/s/TOKEN/v1`, and the one for Anthropic's is without `/v1`.
    pub fn path(&self) -> String {
        format!("/s/{}", self.token())
    }

    /// Completions so far.
    pub fn calls(&self) -> u64 {
        self.0.session.calls()
    }

    /// Waits for the end, which a limit brings about at the latest, and returns what was recorded. Cancel-safe.
    pub async fn ended(&mut self) -> SessionEnd {
        self.0.session.wait_for_end().await;
        self.0.session.end()
    }

    /// Ends the session, unless it has ended. Calls in flight are cancelled.
    pub fn close(&self, status: SessionStatus) {
        self.0.session.seal(status);
    }
}

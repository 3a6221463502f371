use std::time::Duration;

use rloom_core::EarlierReasoning;

/// Limits and rules of sessions.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Sessions that are open at the same time.
    pub max_sessions: usize,
    /// Longest time without a call in flight or a request to the session's other paths.
    pub idle: Duration,
    /// Longest time from the opening of a session to its end.
    pub total: Duration,
    /// Most completions of a session.
    pub max_calls: u64,
    /// Most sampled tokens of a session.
    pub max_tokens: u64,
    /// A session that finishes without a reward has failed. False if rewards are computed from the episode.
    pub needs_reward: bool,
    /// Treatment of the reasoning of earlier turns if the chat template drops it.
    pub earlier_reasoning: EarlierReasoning,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            max_sessions: 4096,
            idle: Duration::from_mins(10),
            total: Duration::from_hours(2),
            max_calls: 1000,
            max_tokens: 1_000_000,
            needs_reward: true,
            earlier_reasoning: EarlierReasoning::Keep,
        }
    }
}

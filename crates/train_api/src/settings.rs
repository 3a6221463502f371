use std::time::Duration;

/// Weights that clients train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedWeights {
    /// LoRA adapters over the served model, which all of them share.
    Adapters,
    /// All weights of a copy of the served model, whatever adapter the client asks for.
    All,
}

/// What the training API trains, and its limits.
#[derive(Debug, Clone)]
pub struct TrainApiSettings {
    /// Weights that clients train.
    pub weights: TrainedWeights,
    /// Models that are trained at the same time. Each needs memory for its trained weights, their gradient and two moments.
    pub max_models: usize,
    /// Sessions at the same time.
    pub max_sessions: usize,
    /// Sampling sessions at the same time. Those whose weights were released make room for others.
    pub max_samplers: usize,
    /// Weights in memory for sampling, besides those of the base model. The oldest are released; those with a name are read
    /// again when they are needed.
    pub max_snapshots: usize,
    /// Different weights that are sampled from at the same time; requests for others wait.
    pub max_engines: usize,
    /// Sampling requests in flight; more are refused with status 429, which clients of the SDK repeat.
    pub max_samples: usize,
    /// Bytes of training requests that wait; more are refused with status 429.
    pub max_waiting_bytes: usize,
    /// Results that are waited for or kept.
    pub max_futures: usize,
    /// Bytes of results that are kept.
    pub max_result_bytes: usize,
    /// Time for which a result is kept.
    pub result_lifetime: Duration,
    /// Longest wait of one request for a result. The SDK gives up a connection after 45 seconds.
    pub poll: Duration,
    /// Time without a sign of life after which a session ends. The SDK sends one every ten seconds.
    pub session_timeout: Duration,
    /// Longest time for a completion.
    pub completion_timeout: Duration,
    /// Tokens of a micro-batch.
    pub micro_batch_tokens: usize,
}

impl Default for TrainApiSettings {
    fn default() -> Self {
        Self {
            weights: TrainedWeights::Adapters,
            max_models: 4,
            max_sessions: 64,
            max_samplers: 1024,
            max_snapshots: 8,
            max_engines: 3,
            max_samples: 256,
            max_waiting_bytes: 256 << 20,
            max_futures: 16_384,
            max_result_bytes: 256 << 20,
            result_lifetime: Duration::from_mins(10),
            poll: Duration::from_secs(20),
            session_timeout: Duration::from_mins(3),
            completion_timeout: Duration::from_hours(1),
            micro_batch_tokens: 4096,
        }
    }
}

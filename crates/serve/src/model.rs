use std::sync::Arc;

use rloom_engine::SamplingSettings;
use rloom_text::Tokenizer;
use rloom_text::calls::CallFormat;

/// The model behind a server.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Name in answers. Requests may name any model.
    pub name: String,
    /// Tokenizer with the chat template.
    pub tokenizer: Tokenizer,
    /// Format of tool calls; `None` refuses tools.
    pub format: Option<CallFormat>,
    /// Sampling settings of requests that do not give them; `max_new_tokens` limits all completions.
    pub sampling: SamplingSettings,
    /// Tokens that end a completion.
    pub stop_tokens: Arc<[u32]>,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Seed of requests that do not give one.
    pub seed: u64,
}

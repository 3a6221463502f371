use std::sync::Arc;

use rloom_model::{GenerationConfig, Model};
use rloom_ops::Ctx;
use rloom_text::Tokenizer;

/// The model that clients start from.
#[derive(Debug, Clone)]
pub struct BaseModel {
    /// Names by which clients may ask for it; the first is its tokenizer's name in answers.
    pub names: Vec<String>,
    /// The weights.
    pub model: Arc<Model>,
    /// Tokenizer, for stop strings; copied to checkpoints.
    pub tokenizer: Tokenizer,
    /// Copied to checkpoints.
    pub generation: GenerationConfig,
    /// Tokens that end a completion.
    pub stop_tokens: Arc<[u32]>,
    /// Threads that compute.
    pub ctx: Ctx,
}

impl BaseModel {
    /// True if a client means this model.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }

    /// Its name in answers.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Longest sequence in tokens.
    pub(crate) fn context(&self) -> usize {
        self.model.config().max_positions
    }
}

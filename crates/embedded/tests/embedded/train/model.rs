//! A small policy for tests of the train engine, inside the crate and outside.

use std::sync::Arc;

use rloom_model::{Family, Model, NewModel};

/// Size of its vocabulary.
pub(crate) const VOCABULARY: u32 = 40;

pub(crate) fn model() -> Arc<Model> {
    let new = NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 32,
        heads: 4,
        kv_heads: Some(2),
        head_dim: None,
        intermediate_size: 48,
        max_positions: 64,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.2,
    };
    Arc::new(Model::init(&new.config(VOCABULARY as usize).unwrap(), 7))
}

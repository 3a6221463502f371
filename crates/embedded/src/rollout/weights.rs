//! Weights as the lanes hold them.

use std::sync::Arc;

use rloom_engine::{Form, PolicyLabel, PublishedPolicy, RolloutError};
use rloom_model::{Model, ModelConfig};

/// Forms of weights that the engine loads.
pub(crate) const FORMS: [Form; 1] = [Form::Memory];

/// One version of a policy's weights.
#[derive(Debug, Clone)]
pub(crate) struct LoadedWeights {
    pub(crate) label: PolicyLabel,
    pub(crate) model: Arc<Model>,
}

impl LoadedWeights {
    /// The weights of a publication, if they fit caches and buffers of models with this configuration.
    pub(crate) fn of(published: &PublishedPolicy, config: &ModelConfig) -> Result<Self, RolloutError> {
        let label = published.label();
        let model = crate::publish::model_of(published).ok_or_else(|| RolloutError::UnsupportedForm {
            label,
            form: published.form(),
            supported: FORMS.to_vec(),
        })?;
        let shape =
            |c: &ModelConfig| (c.vocab_size, c.layers, c.kv_heads, c.head_dim, c.max_positions, c.dtype);
        if shape(config) != shape(model.config()) {
            return Err(RolloutError::OtherModel { label });
        }
        Ok(Self { label, model })
    }
}

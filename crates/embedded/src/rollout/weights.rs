//! Weights as the lanes hold them.

use std::sync::Arc;

use rloom_core::ErrorText;
use rloom_engine::{Form, PolicyLabel, PublishedPolicy, PublishedWeights, RolloutError};
use rloom_model::{Model, ModelConfig};
use rloom_ops::Ctx;

/// Forms of weights that the engine loads.
pub(crate) const FORMS: [Form; 3] = [Form::Memory, Form::Adapter, Form::Folder];

/// One version of a policy's weights.
#[derive(Debug, Clone)]
pub(crate) struct LoadedWeights {
    pub(crate) label: PolicyLabel,
    pub(crate) model: Arc<Model>,
}

impl LoadedWeights {
    /// The weights of a publication, if they fit caches and buffers of models with this configuration. Reads a folder
    /// whole. They are quantized in the context `quantizer`, if there is one.
    pub(crate) fn of(
        published: &PublishedPolicy,
        config: &ModelConfig,
        quantizer: Option<&Ctx>,
    ) -> Result<Self, RolloutError> {
        let label = published.label();
        let model = match &published.weights {
            PublishedWeights::Folder(folder) | PublishedWeights::Adapter(folder) => {
                let model = Model::load(folder.path())
                    .map_err(|error| RolloutError::Weights { label, cause: ErrorText::of(&error) })?;
                Some(Arc::new(model.with_dtype(config.dtype)))
            }
            _ => crate::publish::model_of(published),
        };
        let model = model.ok_or_else(|| RolloutError::UnsupportedForm {
            label,
            form: published.form(),
            supported: FORMS.to_vec(),
        })?;
        let shape =
            |c: &ModelConfig| (c.vocab_size, c.layers, c.kv_heads, c.head_dim, c.max_positions, c.dtype);
        if shape(config) != shape(model.config()) {
            return Err(RolloutError::OtherModel { label });
        }
        let quantized = quantizer.map(|ctx| Arc::new(model.quantized(ctx)));
        Ok(Self { label, model: quantized.unwrap_or(model) })
    }
}

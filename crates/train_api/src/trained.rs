//! A model in training.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hyper::body::Bytes;
use prost::Message;
use rloom_algo::{LossStep, LossTerms};
use rloom_embedded::EmbeddedTrainEngine;
use rloom_engine::{OptimStep, TrainEngine, Which};
use rloom_model::{LoadError, LoraConfig, Model, OptimizerSettings};
use serde_json::json;

use crate::adapter::NewAdapter;
use crate::base::BaseModel;
use crate::batch::Data;
use crate::futures::Outcome;
use crate::loss::{Loss, sum_counts};
use crate::problem::Failed;
use crate::settings::TrainedWeights;
use crate::wire::{
    AdamParams, ArrayRecord, BatchedTensor, FLOAT32, ForwardBackwardOutput, ForwardBackwardRequest,
    LossConfigValue, bytes_of,
};

/// A model with its gradient and optimizer.
#[derive(Debug)]
pub(crate) struct TrainedModel {
    engine: EmbeddedTrainEngine,
    /// True if a part of the gradient since the last step is missing, because its request failed.
    is_incomplete: bool,
}

impl TrainedModel {
    /// The base model before any step: with a new adapter, or to be trained whole.
    pub(crate) fn new(base: &BaseModel, adapter: Option<NewAdapter>) -> Self {
        let model = match adapter {
            Some(NewAdapter { config, seed }) => {
                Arc::new(Model::clone(&base.model).with_adapter(config, seed))
            }
            None => Arc::clone(&base.model),
        };
        Self::of(base, model)
    }

    fn of(base: &BaseModel, model: Arc<Model>) -> Self {
        let (settings, generation) = (OptimizerSettings::default(), base.generation.clone());
        let engine = EmbeddedTrainEngine::new(base.ctx.clone(), model, None, settings, generation);
        Self { engine, is_incomplete: false }
    }

    /// A stored model, with or without the optimizer's state.
    pub(crate) fn load(
        base: &BaseModel,
        weights: TrainedWeights,
        folder: &Path,
        with_optimizer: bool,
    ) -> Result<Self, Failed> {
        let model = load_weights(base, weights, folder)?;
        let mut loaded = Self::of(base, model);
        if with_optimizer {
            loaded.engine.restore(folder)?;
        }
        Ok(loaded)
    }

    /// Shape of the adapter; `None` if all weights are trained.
    pub(crate) fn lora(&self) -> Option<&LoraConfig> {
        self.engine.policy().lora()
    }

    /// The current weights. Later steps do not change them.
    pub(crate) fn weights(&self) -> Arc<Model> {
        Arc::clone(self.engine.policy())
    }

    /// A forward pass and, unless the request is `forward_only`, a backward pass.
    pub(crate) fn pass(
        &mut self,
        request: &ForwardBackwardRequest,
        micro_batch_tokens: usize,
    ) -> Result<Outcome, Failed> {
        let result = self.run_pass(request, micro_batch_tokens);
        if result.is_err() && !request.forward_only {
            self.is_incomplete = true;
        }
        result
    }

    fn run_pass(&mut self, request: &ForwardBackwardRequest, limit: usize) -> Result<Outcome, Failed> {
        let loss = Loss::new(&request.loss_fn, &settings(request)?)?;
        let (vocabulary, context) = {
            let config = self.engine.policy().config();
            (config.vocab_size, config.max_positions)
        };
        let data = Data::read(&request.data, &loss, vocabulary, context)?;
        let (batches, inputs) = data.pack(&loss, limit);
        let step = LossStep::new(loss.objective(), sum_counts(data.lengths()), &inputs);
        let (terms, scores) = if request.forward_only {
            let scores = self.engine.score(Which::Policy, &batches)?;
            let mut terms = LossTerms::default();
            for (micro_batch, scores) in scores.iter().enumerate() {
                terms.merge(&step.evaluate(micro_batch, scores)?.terms);
            }
            (terms, scores)
        } else {
            let (report, scores) = self.engine.accumulate_with_scores(&batches, &step)?;
            (report.terms, scores)
        };
        let metrics = [("loss:sum", terms.loss()), ("tokens:sum", data.count() as f64)];
        Ok(output(&data.logprobs(&scores), metrics))
    }

    /// A step of AdamW with the accumulated gradient.
    pub(crate) fn step(&mut self, params: &AdamParams) -> Result<Outcome, Failed> {
        if std::mem::take(&mut self.is_incomplete) {
            self.engine.discard_gradient();
            return Err(Failed::user(
                "a forward_backward since the last step has failed: the rest of the gradient is discarded, and the weights \
                 are unchanged",
            ));
        }
        self.engine.set_optimizer(OptimizerSettings {
            learning_rate: params.learning_rate,
            betas: [params.beta1, params.beta2],
            eps: params.eps,
            weight_decay: params.weight_decay,
            max_grad_norm: params.grad_clip_norm,
            ..OptimizerSettings::default()
        })?;
        let report = self.engine.step(&OptimStep { learning_rate: params.learning_rate })?;
        Ok(Outcome::Json(json!({"metrics": {"grad_norm:mean": report.grad_norm}})))
    }

    /// Writes weights and the optimizer's state.
    pub(crate) fn save(&mut self, base: &BaseModel, folder: &Path) -> Result<(), Failed> {
        self.engine.save(folder)?;
        Ok(base.tokenizer.save(folder)?)
    }

    /// Writes the weights alone.
    pub(crate) fn save_weights(&self, base: &BaseModel, folder: &Path) -> Result<(), Failed> {
        let saved = self.engine.policy().save(folder, &base.generation);
        saved.map_err(|error| Failed::server(error.to_string()))?;
        Ok(base.tokenizer.save(folder)?)
    }
}

/// Reads stored weights, an adapter over the base in memory; an error if they are not of the base model's shape.
pub(crate) fn load_weights(
    base: &BaseModel,
    weights: TrainedWeights,
    folder: &Path,
) -> Result<Arc<Model>, Failed> {
    let failed = |error: LoadError| Failed::server(error.to_string());
    let is_adapter = Model::lora_of(folder).map_err(failed)?.is_some();
    match weights {
        TrainedWeights::Adapters if is_adapter => {
            return base.model.with_stored_adapter(folder).map(Arc::new).map_err(failed);
        }
        TrainedWeights::Adapters => {
            return Err(Failed::user(
                "the checkpoint has all weights of a model, and this server trains adapters",
            ));
        }
        TrainedWeights::All if is_adapter => {
            return Err(Failed::user("the checkpoint is an adapter, and this server trains all weights"));
        }
        TrainedWeights::All => {}
    }
    let model = Model::load(folder).map_err(failed)?;
    let model = model.with_dtype(base.model.config().dtype);
    let specs = |model: &Model| -> Vec<(String, Vec<usize>)> {
        model.named_tensors().map(|(spec, _)| (spec.name.clone(), spec.shape.clone())).collect()
    };
    if model.config().max_positions != base.context() || specs(&model) != specs(&base.model) {
        return Err(Failed::user("the checkpoint is of another model than the one that this server trains"));
    }
    Ok(Arc::new(model))
}

/// Numeric settings of a loss.
fn settings(request: &ForwardBackwardRequest) -> Result<BTreeMap<String, f64>, Failed> {
    if request.loss_fn_config_v2.is_empty() {
        return Ok(request.loss_fn_config.clone());
    }
    let number = |(key, value): (&String, &LossConfigValue)| {
        let number = value.number.ok_or_else(|| {
            let key: String = key.chars().take(60).collect();
            Failed::user(format!("`loss_fn_config`: `{key}` must be a number"))
        })?;
        Ok((key.clone(), number))
    };
    request.loss_fn_config_v2.iter().map(number).collect()
}

/// The result of a pass: log-probabilities of each datum's targets and metrics.
fn output(logprobs: &[Vec<f32>], metrics: [(&str, f64); 2]) -> Outcome {
    let mut offsets = vec![0_i64];
    for datum in logprobs {
        let end = offsets.last().copied().unwrap_or_default() + (datum.len() * size_of::<f32>()) as i64;
        offsets.push(end);
    }
    let tensor = BatchedTensor {
        data: bytes_of(logprobs.iter().flatten().map(|value| value.to_le_bytes())),
        offsets: bytes_of(offsets.iter().map(|offset| offset.to_le_bytes())),
        dtype: FLOAT32,
    };
    let record = ArrayRecord {
        fields: BTreeMap::from([("logprobs".to_owned(), tensor)]),
        num_datums: logprobs.len() as i64,
    };
    let output = ForwardBackwardOutput {
        loss_fn_output_type: "ArrayRecord".to_owned(),
        loss_fn_outputs: vec![record],
        metrics: metrics.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    };
    Outcome::Protobuf(Bytes::from(output.encode_to_vec()))
}

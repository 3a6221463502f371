//! Models in training.

use std::time::Instant;

use hyper::body::Bytes;
use prost::Message;
use serde_json::{Value, json};

use super::{TrainApi, accepted};
use crate::adapter::NewAdapter;
use crate::checkpoints::{CheckpointPath, Kind};
use crate::futures::Outcome;
use crate::order::Place;
use crate::problem::{Failed, Problem};
use crate::settings::TrainedWeights;
use crate::trainer::{Held, Job, Operation, Work};
use crate::wire::{
    CreateModel, ForwardBackwardRequest, LoadWeights, ModelId, OptimStep, OptimizerConfig, SaveForSampler,
    SaveWeights,
};

/// Bytes that a request without tensors counts.
const SMALL: usize = 256;

/// A request of a model: its number among them and what it does.
struct Numbered<'a> {
    model: &'a str,
    number: u32,
    operation: &'static str,
    bytes: usize,
}

impl TrainApi {
    pub(super) fn create_model(&self, request: &CreateModel) -> Result<Value, Problem> {
        check_optimizer(request.optimizer_config.as_ref())?;
        self.check_base(&request.base_model)?;
        let adapter = match self.shared.settings.weights {
            TrainedWeights::Adapters => Some(NewAdapter::read(&request.lora_config)?),
            TrainedWeights::All => None,
        };
        self.begin(&request.session_id, request.model_seq_id, Work::Create(adapter))
    }

    pub(super) fn check_base(&self, name: &str) -> Result<(), Problem> {
        let base = &self.shared.base;
        if base.is_named(name) {
            return Ok(());
        }
        let name: String = name.chars().take(100).collect();
        let names = base.names.join("` or `");
        Err(Problem::invalid(format!("`base_model` = `{name}`: this server trains `{names}`")))
    }

    /// Begins a model. A repeated request gets the same answer.
    fn begin(&self, session: &str, number: u32, work: Work) -> Result<Value, Problem> {
        let id = format!("{session}:train:{number}");
        let mut registry = self.shared.registry();
        registry.touch(session, Instant::now())?;
        if let Some(future) = registry.creation(&id) {
            return Ok(accepted(&future, Some(&id)));
        }
        let most = self.shared.settings.max_models;
        if registry.models() >= most {
            return Err(Problem::busy(format!(
                "{most} models are in training, which is the limit; a model is freed when its session ends"
            )));
        }
        let future = self.shared.futures.create(session)?;
        registry.add_model(id.clone(), session.to_owned(), future.clone());
        let is_alive = registry.model(&id, Instant::now())?.is_alive.clone();
        let job = Job {
            model: id.clone(),
            future: future.clone(),
            is_alive,
            work,
            held: Held::new(&self.shared, SMALL),
        };
        // Within the lock: no later request of the model comes first.
        self.enqueue(vec![job]);
        Ok(accepted(&future, Some(&id)))
    }

    /// Puts a request in the order of its model.
    fn submit(&self, request: &Numbered<'_>, work: Work) -> Result<Value, Problem> {
        let Numbered { model, number, operation, bytes } = *request;
        let mut registry = self.shared.registry();
        let session = registry.session_of(model).unwrap_or_default();
        let entry = registry.model(model, Instant::now())?;
        let is_next = match entry.order.place(number, operation) {
            Place::New(is_next) => is_next,
            Place::Repeated(future) => return Ok(accepted(&future, Some(model))),
            Place::Taken(other) => {
                return Err(Problem::invalid(format!("`seq_id` {number} was already used for {other}")));
            }
            Place::Forgotten => {
                return Err(Problem::gone(format!(
                    "`seq_id` {number}: the request was executed and is forgotten"
                )));
            }
            Place::TooFar => return Err(Problem::invalid(format!("`seq_id` {number} is too far ahead"))),
        };
        self.check_waiting(is_next && entry.order.waiting() > 0)?;
        let future = self.shared.futures.create(&session)?;
        let job = Job {
            model: model.to_owned(),
            future: future.clone(),
            is_alive: entry.is_alive.clone(),
            work,
            held: Held::new(&self.shared, bytes),
        };
        let ready = entry.order.add(number, operation, future.clone(), job);
        // Within the lock, so that the order stays.
        self.enqueue(ready);
        Ok(accepted(&future, Some(model)))
    }

    pub(super) fn forward_backward(&self, body: &Bytes) -> Result<Value, Problem> {
        let request = ForwardBackwardRequest::decode(body.clone())
            .map_err(|error| Problem::invalid(format!("the body is no ForwardBackwardRequest: {error}")))?;
        let number = u32::try_from(request.seq_id)
            .map_err(|_| Problem::invalid(format!("`seq_id` {} is negative", request.seq_id)))?;
        let model = request.model_id.clone();
        let operation = if request.forward_only { "forward" } else { "forward_backward" };
        let numbered = Numbered { model: &model, number, operation, bytes: body.len() };
        self.submit(&numbered, Work::Run(Operation::Pass(Box::new(request))))
    }

    pub(super) fn optim_step(&self, request: OptimStep) -> Result<Value, Problem> {
        let work = match request.adam_params {
            Some(params) => Work::Run(Operation::Step(params)),
            None => Work::Refuse(Failed::user("`adam_params` is missing: AdamW is the only optimizer")),
        };
        let model = request.model_id;
        self.submit(
            &Numbered { model: &model, number: request.seq_id, operation: "optim_step", bytes: SMALL },
            work,
        )
    }

    pub(super) fn save_weights(&self, request: &SaveWeights) -> Result<Value, Problem> {
        let name = request.path.clone().unwrap_or_else(|| format!("{:06}", request.seq_id));
        let numbered = Numbered {
            model: &request.model_id,
            number: request.seq_id,
            operation: "save_weights",
            bytes: SMALL,
        };
        self.submit(&numbered, save(&request.model_id, Kind::Training, &name, request.overwrite))
    }

    pub(super) fn save_for_sampler(&self, request: &SaveForSampler) -> Result<Value, Problem> {
        let numbered = Numbered {
            model: &request.model_id,
            number: request.seq_id,
            operation: "save_weights_for_sampler",
            bytes: SMALL,
        };
        let work = match (&request.path, request.sampling_session_seq_id) {
            // Weights for sampling with the same name are replaced.
            (Some(name), _) => save(&request.model_id, Kind::Sampler, name, true),
            (None, Some(sampler)) => {
                let session = request.model_id.split(':').next().unwrap_or_default();
                let sampler = format!("{session}:sample:{sampler}");
                let follows = request.kind.as_deref() == Some("inflight");
                self.check_samplers()?;
                Work::Run(Operation::Publish { sampler, follows })
            }
            (None, None) => Work::Refuse(Failed::user("`path` or `sampling_session_seq_id` is missing")),
        };
        self.submit(&numbered, work)
    }

    pub(super) fn load_weights(&self, request: &LoadWeights) -> Result<Value, Problem> {
        check_optimizer(request.optimizer_config.as_ref())?;
        if let Some(base) = &request.base_model {
            self.check_base(base)?;
        }
        let work = |is_new| match CheckpointPath::parse(&request.path) {
            Ok(path) => Work::Load { path, with_optimizer: request.optimizer, is_new },
            Err(failed) => Work::Refuse(failed),
        };
        match (&request.model_id, request.seq_id, &request.session_id, request.model_seq_id) {
            (Some(model), Some(number), None, None) => {
                let numbered = Numbered { model, number, operation: "load_weights", bytes: SMALL };
                self.submit(&numbered, work(false))
            }
            (None, None, Some(session), Some(number)) => match work(true) {
                Work::Refuse(failed) => Err(Problem::invalid(failed.message)),
                work => self.begin(session, number, work),
            },
            _ => Err(Problem::invalid(
                "either `model_id` and `seq_id`, or `session_id` and `model_seq_id` must be given",
            )),
        }
    }

    /// Frees a model.
    pub(super) fn unload(&self, request: &ModelId) -> Result<Value, Problem> {
        let session = {
            let mut registry = self.shared.registry();
            let session = registry.session_of(&request.model_id).unwrap_or_default();
            registry.model(&request.model_id, Instant::now())?;
            registry.remove_model(&request.model_id);
            session
        };
        let future = self.shared.futures.create(&session)?;
        let result = json!({"model_id": request.model_id, "type": "unload_model"});
        self.shared.futures.complete(&future, Outcome::Json(result));
        Ok(accepted(&future, Some(&request.model_id)))
    }
}

fn check_optimizer(config: Option<&OptimizerConfig>) -> Result<(), Problem> {
    match config.and_then(|config| config.kind.as_deref()) {
        None | Some("adamw") => Ok(()),
        Some(_) => Err(Problem::invalid("`optimizer_config`: `adamw` is the only optimizer")),
    }
}

fn save(model: &str, kind: Kind, name: &str, overwrite: bool) -> Work {
    match CheckpointPath::new(model, kind, name) {
        Ok(path) => Work::Run(Operation::Save { path, overwrite }),
        Err(failed) => Work::Refuse(failed),
    }
}

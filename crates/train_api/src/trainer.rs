//! The thread that trains. It executes the requests of all models one after another.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::adapter::NewAdapter;
use crate::checkpoints::{CheckpointPath, Kind};
use crate::futures::Outcome;
use crate::problem::Failed;
use crate::registry::NewWeights;
use crate::shared::Shared;
use crate::trained::TrainedModel;
use crate::wire::{AdamParams, ForwardBackwardRequest};

/// Interval in which silent sessions and old results are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// A request that the thread executes.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) model: String,
    pub(crate) future: String,
    pub(crate) is_alive: Arc<AtomicBool>,
    pub(crate) work: Work,
    pub(crate) held: Held,
}

/// What to do with a model.
#[derive(Debug)]
pub(crate) enum Work {
    /// Begins with the base model: with a new adapter over it, or with all of its weights.
    Create(Option<NewAdapter>),
    /// Replaces the model by a stored one, or begins with it.
    Load { path: CheckpointPath, with_optimizer: bool, is_new: bool },
    /// Works with the model.
    Run(Operation),
    /// A request that is wrong, but has a place in the order.
    Refuse(Failed),
}

/// What to do with a model that there is.
#[derive(Debug)]
pub(crate) enum Operation {
    Pass(Box<ForwardBackwardRequest>),
    Step(AdamParams),
    /// Stores it, also in place of an existing checkpoint.
    Save {
        path: CheckpointPath,
        overwrite: bool,
    },
    /// Hands its weights to a sampler, which also gets later ones if it follows.
    Publish {
        sampler: String,
        follows: bool,
    },
}

/// Bytes that a job counts while it waits.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Held {
    pub(crate) fn new(shared: &Arc<Shared>, bytes: usize) -> Self {
        shared.waiting_bytes.fetch_add(bytes, Ordering::SeqCst);
        Self { shared: Arc::clone(shared), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.waiting_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Executes jobs until all senders are gone.
pub(crate) fn run(shared: &Arc<Shared>, jobs: &Receiver<Job>) {
    let mut models = HashMap::new();
    let mut swept = Instant::now();
    loop {
        match jobs.recv_timeout(SWEEP) {
            Ok(job) => execute(shared, &mut models, job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if swept.elapsed() >= SWEEP {
            shared.sweep(Instant::now());
            swept = Instant::now();
        }
        let registry = shared.registry();
        models.retain(|model: &String, _| registry.has_model(model));
    }
}

fn execute(shared: &Arc<Shared>, models: &mut HashMap<String, TrainedModel>, job: Job) {
    if !job.is_alive.load(Ordering::SeqCst) {
        let ended = Failed::user("the session of the model has ended");
        shared.futures.complete(&job.future, Outcome::Failed(ended));
        return;
    }
    let Job { model, future, work, held, .. } = job;
    let is_first = matches!(work, Work::Create(_) | Work::Load { is_new: true, .. });
    let worked = catch_unwind(AssertUnwindSafe(|| perform(shared, models, &model, work)));
    let has_panicked = worked.is_err();
    let result = worked.unwrap_or_else(|_| Err(Failed::server("the operation failed: the model is lost")));
    if has_panicked || (is_first && result.is_err()) {
        models.remove(&model);
        shared.registry().remove_model(&model);
    }
    drop(held);
    shared.futures.complete(&future, result.into());
}

fn perform(
    shared: &Arc<Shared>,
    models: &mut HashMap<String, TrainedModel>,
    id: &str,
    work: Work,
) -> Result<Outcome, Failed> {
    let base = &shared.base;
    match work {
        Work::Create(adapter) => {
            insert(shared, models, id, TrainedModel::new(base, adapter));
            Ok(Outcome::Json(json!({"model_id": id, "type": "create_model"})))
        }
        Work::Load { path, with_optimizer, is_new } => {
            if with_optimizer && path.kind != Kind::Training {
                return Err(Failed::user("weights for sampling have no state of the optimizer"));
            }
            let folder = shared.checkpoints.read(&path)?;
            // An existing model stays if the checkpoint cannot be read.
            let loaded = TrainedModel::load(base, shared.settings.weights, &folder, with_optimizer)?;
            if !is_new && models.get(id).is_some_and(|model| model.lora() != loaded.lora()) {
                return Err(Failed::user(
                    "the checkpoint is of an adapter with other settings than the model's",
                ));
            }
            insert(shared, models, id, loaded);
            Ok(Outcome::Json(json!({"path": path.text(), "model_id": id, "type": "load_weights"})))
        }
        Work::Run(operation) => {
            let model = models.get_mut(id).ok_or_else(|| Failed::user("the model could not be created"))?;
            operate(shared, model, id, operation)
        }
        Work::Refuse(failed) => Err(failed),
    }
}

fn insert(shared: &Arc<Shared>, models: &mut HashMap<String, TrainedModel>, id: &str, model: TrainedModel) {
    shared.registry().set_lora(id, model.lora());
    models.insert(id.to_owned(), model);
}

fn operate(
    shared: &Arc<Shared>,
    model: &mut TrainedModel,
    id: &str,
    operation: Operation,
) -> Result<Outcome, Failed> {
    let base = &shared.base;
    match operation {
        Operation::Pass(request) => model.pass(&request, shared.settings.micro_batch_tokens),
        Operation::Step(params) => model.step(&params),
        Operation::Save { path, overwrite } => {
            shared.checkpoints.write(&path, overwrite, |folder| match path.kind {
                Kind::Training => model.save(base, folder),
                Kind::Sampler => model.save_weights(base, folder),
            })?;
            let kind = match path.kind {
                Kind::Training => "save_weights",
                Kind::Sampler => "save_weights_for_sampler",
            };
            Ok(Outcome::Json(json!({"path": path.text(), "type": kind})))
        }
        Operation::Publish { sampler, follows } => {
            let follows = follows.then(|| id.to_owned());
            let new = NewWeights { model: Some(model.weights()), path: None, follows };
            let mut registry = shared.registry();
            let session = registry.session_of(id).ok_or_else(|| Failed::user("the session has ended"))?;
            registry.add_sampler(sampler.clone(), session, new, shared.settings.max_snapshots);
            Ok(Outcome::Json(json!({"sampling_session_id": sampler, "type": "save_weights_for_sampler"})))
        }
    }
}

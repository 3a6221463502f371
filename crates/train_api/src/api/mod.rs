//! The routes of the API.

mod checkpoints;
mod route;
mod sample;
mod session;
mod training;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use rloom_serve::{Extension, ExtensionAnswer, ExtensionFuture, ExtensionRequest, ExtensionRoute};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::route::Route;
use crate::base::BaseModel;
use crate::checkpoints::Checkpoints;
use crate::error::TrainApiError;
use crate::futures::Outcome;
use crate::problem::{Failed, Problem};
use crate::settings::{TrainApiSettings, TrainedWeights};
use crate::shared::Shared;
use crate::trainer::{self, Job};
use crate::wire::RequestId;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/x-protobuf";

/// The training API, to be served by a [`Server`](rloom_serve::Server).
#[derive(Debug)]
pub struct TrainApi {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

impl TrainApi {
    /// An API that trains adapters over `base`, or copies of it, and keeps checkpoints in `folder`. Starts the thread that trains; it ends with the
    /// API.
    pub fn new(base: BaseModel, folder: PathBuf, settings: TrainApiSettings) -> Result<Self, TrainApiError> {
        let base = check_base(base, settings.weights)?;
        let checkpoints = Checkpoints::open(folder)?;
        let shared = Arc::new(Shared::new(settings, base, checkpoints, random()?));
        let (jobs, queue) = mpsc::channel();
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("training-api".to_owned())
            .spawn(move || trainer::run(&own, &queue))
            .map_err(TrainApiError::Thread)?;
        Ok(Self { shared, jobs })
    }

    /// Models in training.
    pub fn models(&self) -> usize {
        self.shared.registry().models()
    }

    async fn handle(&self, request: ExtensionRequest) -> Result<Answer, Problem> {
        let route = Route::of(&request.method, &request.path)?;
        let body = &request.body;
        let answer = match route {
            Route::Health => json!({"status": "ok"}),
            Route::Telemetry => json!({"status": "accepted"}),
            Route::ClientConfig => self.client_config(&parse(body)?)?,
            Route::DynamicConfig => Self::dynamic_config(&parse(body)?)?,
            Route::Capabilities => self.capabilities(),
            Route::CreateSession => self.create_session(&parse(body)?)?,
            Route::Heartbeat => self.heartbeat(&parse(body)?)?,
            Route::Finish(session) => self.finish(&session),
            Route::CreateModel => self.create_model(&parse(body)?)?,
            Route::Info => self.info(&parse(body)?)?,
            Route::WeightsInfo => self.weights_info(&parse(body)?)?,
            Route::Unload => self.unload(&parse(body)?)?,
            Route::ForwardBackward => self.forward_backward(body)?,
            Route::OptimStep => self.optim_step(parse(body)?)?,
            Route::SaveWeights => self.save_weights(&parse(body)?)?,
            Route::LoadWeights => self.load_weights(&parse(body)?)?,
            Route::SaveForSampler => self.save_for_sampler(&parse(body)?)?,
            Route::CreateSampler => self.create_sampler(&parse(body)?)?,
            Route::Sampler(sampler) => self.sampler(&sampler)?,
            Route::Sample => self.sample(&parse(body)?)?,
            Route::Cancel => self.cancel(&parse(body)?),
            Route::Checkpoints => self.checkpoints(&request.query)?,
            Route::CheckpointsOf(run) => self.checkpoints_of(&run)?,
            Route::DeleteCheckpoint(run, name) => return self.delete_checkpoint(&run, &name),
            Route::Retrieve => return self.retrieve(&parse(body)?).await,
        };
        Ok(Answer::ok(&answer))
    }

    /// Waits for the result of an operation.
    async fn retrieve(&self, request: &RequestId) -> Result<Answer, Problem> {
        let futures = &self.shared.futures;
        if let Some(session) = futures.session(&request.request_id) {
            // Waiting is a sign of life.
            let _ = self.shared.registry().touch(&session, Instant::now());
        }
        let outcome = futures.wait(&request.request_id, self.shared.settings.poll).await?;
        Ok(match outcome {
            Some(Outcome::Json(value)) => Answer::ok(&value),
            Some(Outcome::Protobuf(body)) => {
                Answer { content_type: PROTOBUF, ..Answer::of(StatusCode::OK, body) }
            }
            Some(Outcome::Failed(failed)) => Answer::failed(failed),
            None => {
                let waiting = json!({
                    "type": "try_again", "request_id": request.request_id, "queue_state": "active",
                });
                Answer::of(StatusCode::REQUEST_TIMEOUT, Bytes::from(waiting.to_string()))
            }
        })
    }

    /// Hands jobs to the thread that trains.
    fn enqueue(&self, jobs: Vec<Job>) {
        for job in jobs {
            if let Err(mpsc::SendError(job)) = self.jobs.send(job) {
                let failed = Failed::server("the training thread has ended");
                self.shared.futures.complete(&job.future, Outcome::Failed(failed));
            }
        }
    }

    /// Refuses a request that would wait while there are too many bytes of others, unless others wait for it.
    fn check_waiting(&self, is_awaited: bool) -> Result<(), Problem> {
        let most = self.shared.settings.max_waiting_bytes;
        if is_awaited || self.shared.waiting_bytes.load(Ordering::SeqCst) <= most {
            return Ok(());
        }
        Err(Problem::busy(format!("training requests of {most} bytes wait, which is the limit")))
    }
}

impl Extension for TrainApi {
    fn route(&self, _: &Method, path: &str) -> Option<ExtensionRoute> {
        Route::logged(path)
    }

    fn answer(self: Arc<Self>, request: ExtensionRequest) -> ExtensionFuture {
        Box::pin(async move {
            let answer = self.handle(request).await;
            answer.map_or_else(Problem::answer, |answer| ExtensionAnswer {
                status: answer.status,
                content_type: answer.content_type,
                body: answer.body,
                outcome: answer.outcome,
            })
        })
    }
}

/// An answer to a request that was not refused.
struct Answer {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    outcome: String,
}

impl Answer {
    fn of(status: StatusCode, body: Bytes) -> Self {
        Self { status, content_type: JSON, body, outcome: String::new() }
    }

    fn ok(value: &Value) -> Self {
        Self::of(StatusCode::OK, Bytes::from(value.to_string()))
    }

    /// An operation that failed, which is the requested result.
    fn failed(failed: Failed) -> Self {
        let category = if failed.is_of_user { "user" } else { "server" };
        let value = json!({"error": failed.message, "category": category});
        Self { outcome: failed.message, ..Self::ok(&value) }
    }
}

/// A body of JSON.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body cannot be read: {error}")))
}

/// The answer to an accepted operation.
fn accepted(future: &str, model: Option<&str>) -> Value {
    let mut value = json!({"request_id": future});
    if let Some(model) = model {
        value["model_id"] = json!(model);
    }
    value
}

/// Checks that the base can be trained. As the base of adapters it needs no f32 matrices with bf16.
fn check_base(base: BaseModel, weights: TrainedWeights) -> Result<BaseModel, TrainApiError> {
    if base.model.lora().is_some() {
        return Err(TrainApiError::AdapterServed);
    }
    match weights {
        TrainedWeights::All => Ok(base),
        TrainedWeights::Adapters if base.model.folder().is_none() => Err(TrainApiError::NoFolder),
        TrainedWeights::Adapters => {
            let model = Arc::new(Arc::unwrap_or_clone(base.model).frozen());
            Ok(BaseModel { model, ..base })
        }
    }
}

/// 64 random bits.
fn random() -> Result<u64, TrainApiError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| TrainApiError::Random { message: error.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}

//! Sampling sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::{Value, json};

use super::{TrainApi, accepted};
use crate::checkpoints::CheckpointPath;
use crate::futures::Outcome;
use crate::problem::Problem;
use crate::registry::NewWeights;
use crate::sampling::Sampling;
use crate::shared::Shared;
use crate::wire::{CreateSamplingSession, RequestId, Sample};

impl TrainApi {
    /// Makes room for one more sampler; an error if there are too many.
    pub(super) fn check_samplers(&self) -> Result<(), Problem> {
        let most = self.shared.settings.max_samplers;
        if self.shared.registry().make_room(most) {
            return Ok(());
        }
        Err(Problem::busy(format!("{most} sampling sessions are open, which is the limit")))
    }

    /// Begins to sample from the base model or from stored weights, which are read with the first request.
    pub(super) fn create_sampler(&self, request: &CreateSamplingSession) -> Result<Value, Problem> {
        let session = &request.session_id;
        let id = format!("{session}:sample:{}", request.sampling_session_seq_id);
        let answer = json!({"sampling_session_id": id, "type": "create_sampling_session"});
        self.shared.registry().touch(session, Instant::now())?;
        if self.shared.registry().session_of_sampler(&id).is_some() {
            return Ok(answer);
        }
        self.check_samplers()?;
        let path = match (&request.model_path, &request.base_model) {
            (Some(path), _) => {
                let path = CheckpointPath::parse(path).map_err(|failed| Problem::invalid(failed.message))?;
                if !self.shared.checkpoints.exists(&path) {
                    return Err(Problem::not_found(format!("{} does not exist", path.text())));
                }
                Some(path)
            }
            (None, Some(base)) => {
                self.check_base(base)?;
                None
            }
            (None, None) => return Err(Problem::invalid("`model_path` or `base_model` must be given")),
        };
        let new = NewWeights { model: None, path, follows: None };
        self.shared.registry().add_sampler(id, session.clone(), new, self.shared.settings.max_snapshots);
        Ok(answer)
    }

    pub(super) fn sampler(&self, id: &str) -> Result<Value, Problem> {
        let path = self.shared.registry().sampler(id, Instant::now())?.path.clone();
        Ok(json!({
            "sampler_id": id,
            "base_model": self.shared.base.name(),
            "model_path": path.map(|path| path.text()),
        }))
    }

    pub(super) fn sample(&self, request: &Sample) -> Result<Value, Problem> {
        let id = &request.sampling_session_id;
        let repeated = {
            let mut registry = self.shared.registry();
            registry.sampler(id, Instant::now())?.repeated(request.seq_id).cloned()
        };
        if let Some(future) = repeated {
            return Ok(sampled(&future, request.num_samples));
        }
        let sampling = Sampling::read(&self.shared, request)?;
        let place = Place::take(&self.shared)?;
        let future = {
            let mut registry = self.shared.registry();
            let session = registry.session_of_sampler(id).unwrap_or_default();
            let future = self.shared.futures.create(&session)?;
            registry.sampler(id, Instant::now())?.remember(request.seq_id, future.clone());
            future
        };
        let (shared, own) = (Arc::clone(&self.shared), future.clone());
        let task = tokio::spawn(async move {
            let result = sampling.run(&shared).await;
            drop(place);
            shared.futures.complete(&own, Outcome::from(result));
        });
        self.shared.futures.attach(&future, task.abort_handle());
        Ok(sampled(&future, request.num_samples))
    }

    /// Cancels a sampling request.
    pub(super) fn cancel(&self, request: &RequestId) -> Value {
        self.shared.futures.cancel(&request.request_id);
        json!({})
    }
}

/// The answer to an accepted sampling request, with an identifier for each completion.
fn sampled(future: &str, count: u32) -> Value {
    let mut value = accepted(future, None);
    value["sample_sequence_ids"] = (0..count).map(|index| json!(format!("{future}-{index}"))).collect();
    value
}

/// Place of a sampling request among those in flight.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Result<Self, Problem> {
        let most = shared.settings.max_samples;
        let place = Self(Arc::clone(shared));
        if shared.samples.fetch_add(1, Ordering::SeqCst) < most {
            return Ok(place);
        }
        Err(Problem::busy(format!("{most} sampling requests are in flight, which is the limit")))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.samples.fetch_sub(1, Ordering::SeqCst);
    }
}

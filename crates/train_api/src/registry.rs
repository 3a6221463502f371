//! Sessions with their models and samplers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rloom_model::{LoraConfig, Model};

use crate::checkpoints::CheckpointPath;
use crate::order::Order;
use crate::problem::Problem;
use crate::trainer::Job;

/// Sampling requests of a sampler whose repetition is recognised.
const KNOWN_SAMPLES: usize = 4096;

/// What clients have opened.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sessions: BTreeMap<String, Session>,
    models: BTreeMap<String, ModelEntry>,
    samplers: BTreeMap<String, Sampler>,
    /// Number of the next weights to sample from; 0 is the base model's.
    weights: u64,
}

/// A client.
#[derive(Debug)]
struct Session {
    /// Last sign of life.
    seen: Instant,
}

/// A model in training.
#[derive(Debug)]
pub(crate) struct ModelEntry {
    session: String,
    /// Future of the request that created it.
    pub(crate) created: String,
    pub(crate) order: Order<Job>,
    /// Shape of its adapter, once the model exists; `None` if all weights are trained.
    pub(crate) lora: Option<LoraConfig>,
    /// False once it is unloaded: jobs that wait are not executed.
    pub(crate) is_alive: Arc<AtomicBool>,
}

/// Weights to sample from.
#[derive(Debug)]
pub(crate) struct Sampler {
    session: String,
    /// Number of its weights; equal numbers are equal weights.
    pub(crate) weights: u64,
    /// `None` if they were released.
    pub(crate) model: Option<Arc<Model>>,
    /// Where they are stored, if they have a name.
    pub(crate) path: Option<CheckpointPath>,
    /// The model that replaces the weights when it publishes new ones.
    follows: Option<String>,
    /// Future of each of the latest requests.
    known: BTreeMap<u64, String>,
}

impl Sampler {
    /// Future of a request that was sent before.
    pub(crate) fn repeated(&self, number: u64) -> Option<&String> {
        self.known.get(&number)
    }

    /// Remembers a request.
    pub(crate) fn remember(&mut self, number: u64, future: String) {
        self.known.insert(number, future);
        while self.known.len() > KNOWN_SAMPLES {
            self.known.pop_first();
        }
    }
}

/// Weights of a new sampler.
#[derive(Debug)]
pub(crate) struct NewWeights {
    /// `None` for those of the base model.
    pub(crate) model: Option<Arc<Model>>,
    pub(crate) path: Option<CheckpointPath>,
    pub(crate) follows: Option<String>,
}

impl Registry {
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn models(&self) -> usize {
        self.models.len()
    }

    /// Makes room for one more sampler: a loop that publishes its weights in every step never closes the samplers of earlier
    /// ones. Removes the oldest whose weights were released. False if there are `most` others.
    pub(crate) fn make_room(&mut self, most: usize) -> bool {
        if self.samplers.len() < most {
            return true;
        }
        let released =
            |sampler: &Sampler| sampler.weights > 0 && sampler.model.is_none() && sampler.path.is_none();
        let oldest =
            self.samplers.iter().filter(|(_, sampler)| released(sampler)).min_by_key(|(_, s)| s.weights);
        match oldest.map(|(id, _)| id.clone()) {
            Some(id) => self.samplers.remove(&id).is_some(),
            None => false,
        }
    }

    pub(crate) fn has_model(&self, id: &str) -> bool {
        self.models.contains_key(id)
    }

    pub(crate) fn open(&mut self, id: String, now: Instant) {
        self.sessions.insert(id, Session { seen: now });
    }

    /// Notes a sign of life of a session; an error if it has ended.
    pub(crate) fn touch(&mut self, id: &str, now: Instant) -> Result<(), Problem> {
        match self.sessions.get_mut(id) {
            Some(session) => {
                session.seen = now;
                Ok(())
            }
            None => Err(Problem::gone("there is no such session, or it has ended")),
        }
    }

    pub(crate) fn add_model(&mut self, id: String, session: String, created: String) {
        let is_alive = Arc::new(AtomicBool::new(true));
        self.models.insert(id, ModelEntry { session, created, order: Order::new(1), lora: None, is_alive });
    }

    /// A model, after noting a sign of life of its session.
    pub(crate) fn model(&mut self, id: &str, now: Instant) -> Result<&mut ModelEntry, Problem> {
        let entry = self
            .models
            .get_mut(id)
            .ok_or_else(|| Problem::not_found("there is no such model, or its session has ended"))?;
        if let Some(session) = self.sessions.get_mut(&entry.session) {
            session.seen = now;
        }
        Ok(entry)
    }

    /// Notes the adapter of a model.
    pub(crate) fn set_lora(&mut self, id: &str, lora: Option<&LoraConfig>) {
        if let Some(entry) = self.models.get_mut(id) {
            entry.lora = lora.cloned();
        }
    }

    /// The session of a model.
    pub(crate) fn session_of(&self, model: &str) -> Option<String> {
        self.models.get(model).map(|entry| entry.session.clone())
    }

    /// The future of the request that created a model.
    pub(crate) fn creation(&self, model: &str) -> Option<String> {
        self.models.get(model).map(|entry| entry.created.clone())
    }

    /// Ends a model.
    pub(crate) fn remove_model(&mut self, id: &str) {
        if let Some(entry) = self.models.remove(id) {
            entry.is_alive.store(false, Ordering::SeqCst);
        }
    }

    /// Adds a sampler, or replaces its weights. At most `kept` weights stay in memory.
    pub(crate) fn add_sampler(&mut self, id: String, session: String, new: NewWeights, kept: usize) {
        let NewWeights { model, path, follows } = new;
        let weights = if model.is_some() || path.is_some() {
            self.weights += 1;
            self.weights
        } else {
            0
        };
        if let Some(followed) = &follows {
            let same =
                self.samplers.values_mut().filter(|sampler| sampler.follows.as_ref() == Some(followed));
            for sampler in same {
                sampler.weights = weights;
                sampler.model.clone_from(&model);
            }
        }
        self.samplers.insert(id, Sampler { session, weights, model, path, follows, known: BTreeMap::new() });
        self.release(kept);
    }

    /// Weights of a sampler that were read again.
    pub(crate) fn restore_weights(&mut self, id: &str, model: &Arc<Model>, kept: usize) {
        if let Some(sampler) = self.samplers.get_mut(id) {
            sampler.model = Some(Arc::clone(model));
            self.release(kept);
        }
    }

    /// Releases the oldest weights beyond a number.
    fn release(&mut self, kept: usize) {
        let mut numbers: Vec<u64> =
            self.samplers.values().filter(|sampler| sampler.model.is_some()).map(|s| s.weights).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let Some(excess) = numbers.len().checked_sub(kept) else { return };
        for sampler in self.samplers.values_mut() {
            if numbers[..excess].contains(&sampler.weights) {
                sampler.model = None;
            }
        }
    }

    /// A sampler, after noting a sign of life of its session.
    pub(crate) fn sampler(&mut self, id: &str, now: Instant) -> Result<&mut Sampler, Problem> {
        let sampler = self.samplers.get_mut(id).ok_or_else(|| {
            Problem::not_found("there is no such sampling session, or its session has ended")
        })?;
        if let Some(session) = self.sessions.get_mut(&sampler.session) {
            session.seen = now;
        }
        Ok(sampler)
    }

    /// The session of a sampler.
    pub(crate) fn session_of_sampler(&self, id: &str) -> Option<String> {
        self.samplers.get(id).map(|sampler| sampler.session.clone())
    }

    /// Ends a session with its models and samplers. False if there is none.
    pub(crate) fn end(&mut self, session: &str) -> bool {
        if self.sessions.remove(session).is_none() {
            return false;
        }
        let models: Vec<String> = self
            .models
            .iter()
            .filter(|(_, entry)| entry.session == session)
            .map(|(id, _)| id.clone())
            .collect();
        for model in models {
            self.remove_model(&model);
        }
        self.samplers.retain(|_, sampler| sampler.session != session);
        true
    }

    /// Sessions without a sign of life for too long.
    pub(crate) fn silent(&self, now: Instant, limit: Duration) -> Vec<String> {
        let is_silent = |session: &Session| now.saturating_duration_since(session.seen) > limit;
        self.sessions.iter().filter(|(_, session)| is_silent(session)).map(|(id, _)| id.clone()).collect()
    }
}

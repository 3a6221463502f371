//! Judges that this process computes: each model is read once, and answers the questions of all components.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rloom_core::{ChatMessage, OnUpdate, PolicyVersion, PromptSource, Purpose, RandomKey, StopReason};
use rloom_embedded::EmbeddedRolloutEngine;
use rloom_engine::{GenerateRequest, RolloutEngine, RolloutSettings, SamplingSettings};
use rloom_env::render_prompt;
use rloom_hub::Hub;
use rloom_model::Dtype;
use rloom_reward::judge::{
    Answer, JudgeModel, JudgeModels, ModelError, Question, RewardModelKind, RewardScorer,
};

use super::reward_models::EmbeddedRewardModel;
use crate::{Policy, RunError, runtime};

/// Opens judges for the in-process engine.
#[derive(Debug)]
pub struct EmbeddedJudges {
    hub: Arc<Hub>,
    threads: usize,
    open: Mutex<BTreeMap<String, Arc<Weights>>>,
    reward_models: Mutex<BTreeMap<(String, RewardModelKind), Arc<EmbeddedRewardModel>>>,
}

/// The engine of a judge.
#[derive(Debug)]
struct Weights {
    name: String,
    policy: Policy,
    engine: EmbeddedRolloutEngine,
    digest: u64,
}

/// A judge with the timeout of a component.
#[derive(Debug)]
struct EmbeddedJudge {
    weights: Arc<Weights>,
    timeout: Duration,
}

impl EmbeddedJudges {
    /// Judges that compute on `threads` threads.
    pub fn new(hub: Arc<Hub>, threads: usize) -> Self {
        Self { hub, threads, open: Mutex::default(), reward_models: Mutex::default() }
    }

    fn weights(&self, name: &str) -> Result<Arc<Weights>, RunError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = open.get(name) {
            return Ok(Arc::clone(weights));
        }
        let weights = Arc::new(Weights::open(name, &self.hub, self.threads)?);
        open.insert(name.to_owned(), Arc::clone(&weights));
        Ok(weights)
    }
}

impl JudgeModels for EmbeddedJudges {
    fn open(&self, model: &str, timeout: Duration) -> Result<Arc<dyn JudgeModel>, ModelError> {
        let weights = self.weights(model).map_err(|error| failed(model, &error))?;
        Ok(Arc::new(EmbeddedJudge { weights, timeout }))
    }

    fn reward_model(
        &self,
        folder: &str,
        kind: RewardModelKind,
        batch_tokens: u64,
    ) -> Result<Arc<dyn RewardScorer>, ModelError> {
        let mut open = self.reward_models.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (folder.to_owned(), kind);
        if let Some(model) = open.get(&key) {
            return Ok(Arc::<EmbeddedRewardModel>::clone(model));
        }
        let model = EmbeddedRewardModel::open(folder, kind, batch_tokens, self.threads);
        let model = Arc::new(model.map_err(|error| failed(folder, &error))?);
        open.insert(key, Arc::<EmbeddedRewardModel>::clone(&model));
        Ok(model)
    }

    fn python(&self) -> Option<String> {
        let found = rloom_remote::interpreter(Path::new(""), rloom_remote::EnvironmentKind::Torch)?;
        Some(found.display().to_string())
    }
}

impl Weights {
    fn open(name: &str, hub: &Hub, threads: usize) -> Result<Self, RunError> {
        let policy = match Path::new(name) {
            folder if folder.is_dir() => Policy::open(folder, Dtype::default())?,
            _ => Policy::resolve(name, Dtype::default(), hub)?,
        };
        let (model, ctx) = (policy.model()?, crate::context(threads)?);
        let tokenizer = Some((*policy.tokenizer).clone());
        let engine =
            EmbeddedRolloutEngine::new(model.config(), &ctx, &RolloutSettings::default(), tokenizer)?;
        let published = super::publish(&ctx, &model, PolicyVersion(0));
        runtime::block_on(engine.load(&published, OnUpdate::Finish))??;
        Ok(Self { name: name.to_owned(), engine, digest: published.digest, policy })
    }
}

impl EmbeddedJudge {
    fn request(&self, question: &Question) -> Result<GenerateRequest, String> {
        let Policy { tokenizer, context, .. } = &self.weights.policy;
        // A model without a chat template continues the question.
        let prompt = match tokenizer.require_chat_template() {
            Ok(_) => PromptSource::Messages(vec![ChatMessage::new("user", question.text.as_str())]),
            Err(_) => PromptSource::Text(question.text.clone()),
        };
        let tokens = render_prompt(tokenizer, &prompt).map_err(|error| error.to_string())?;
        let room = context.saturating_sub(tokens.len());
        if room == 0 || tokens.is_empty() {
            return Err(format!("the question has {} tokens, the model holds {context}", tokens.len()));
        }
        let max_new_tokens = question.max_tokens.min(room);
        let sampling = SamplingSettings { temperature: 0.0, max_new_tokens, ..SamplingSettings::default() };
        let key = RandomKey::new(0, 0, Purpose::Interactive, 0);
        Ok(GenerateRequest {
            stop_tokens: self.weights.policy.stop_tokens(),
            timeout: Some(self.timeout),
            ..GenerateRequest::new(key, tokens, sampling)
        })
    }
}

impl JudgeModel for EmbeddedJudge {
    fn ask(&self, question: &Question) -> Result<Answer, ModelError> {
        let refused = |reason| ModelError::Embedded { model: self.weights.name.clone(), reason };
        let request = self.request(question).map_err(refused)?;
        let generated = runtime::block_on(self.weights.engine.generate(request));
        let generation = generated.map_err(|error| failed(&self.weights.name, &error))?;
        let generation = generation.map_err(|error| failed(&self.weights.name, &error))?;
        let text = self.weights.policy.tokenizer.decode(&generation.tokens, true);
        Ok(Answer {
            text: text.map_err(|error| failed(&self.weights.name, &error))?,
            is_truncated: generation.stop == StopReason::Length,
            alternatives: Vec::new(),
        })
    }

    fn identity(&self) -> String {
        format!("{:016x}", self.weights.digest)
    }
}

pub(super) fn failed(model: &str, error: &dyn std::error::Error) -> ModelError {
    ModelError::Embedded { model: model.to_owned(), reason: error.to_string() }
}

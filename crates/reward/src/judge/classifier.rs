//! Reward models behind vLLM's `/classify`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::cache::{Cache, Remembered};
use super::client::{Address, Client};
use super::digest::digest;
use super::error::ModelError;
use super::gate::Clock;
use super::prompt::{Material, Prompt, Shown};
use super::reward::question;
use super::settings::Classifier;
use crate::{Assessment, Completion, JudgeError, Reward};

const BYTES_PER_TOKEN: usize = 3;

/// A reward model.
#[derive(Debug)]
pub(crate) struct ClassifierReward {
    settings: Classifier,
    client: Client,
    prompt: Prompt,
    cache: Cache,
}

#[derive(Deserialize)]
struct Reply {
    data: Vec<Class>,
}

#[derive(Deserialize)]
struct Class {
    probs: Vec<f64>,
}

impl ClassifierReward {
    pub(crate) fn new(settings: &Classifier, timeout: Duration) -> Result<Self, JudgeError> {
        let default = include_str!("prompts/classifier.txt");
        let address = Address { url: &settings.url, path: "", api_key_env: settings.api_key_env.as_deref() };
        Ok(Self {
            prompt: Prompt::open(settings.prompt.as_deref(), default, Shown::One)?,
            client: Client::new(&address, settings.workers, settings.limits, timeout, Clock::system()),
            cache: Cache::new(&settings.cache),
            settings: settings.clone(),
        })
    }

    fn input(&self, completion: &Completion<'_>) -> Result<String, ModelError> {
        let question = question(&completion.task.prompt);
        let (reference, responses) = (completion.task.answer.trim(), [completion.text]);
        let material = Material { question: &question, reference, responses: &responses, rubric: "" };
        self.prompt.render(&material, &material.nonce(), "", &[])
    }

    fn ask(&self, input: &str) -> Result<f64, ModelError> {
        let mut body = json!({ "model": self.settings.model, "input": input });
        if !self.settings.activation {
            body["activation"] = json!(false);
        }
        let reply = self.client.post(&body, (input.len() / BYTES_PER_TOKEN) as u64)?;
        let malformed = |reason: String| {
            let url = self.client.url().to_owned();
            ModelError::Malformed { url, expected: "the classes of one input", reason }
        };
        let reply: Reply = serde_json::from_value(reply).map_err(|error| malformed(error.to_string()))?;
        let value = reply.data.last().and_then(|class| class.probs.last().copied());
        value
            .filter(|value| value.is_finite())
            .ok_or_else(|| malformed("`data` or `probs` is empty".to_owned()))
    }
}

impl Reward for ClassifierReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let input = self.input(completion)?;
        let Classifier { model, revision, activation, .. } = &self.settings;
        let key = digest(&(model, revision, activation, &input));
        let remembered = self
            .cache
            .answer(&key, || Ok(Remembered { text: String::new(), number: Some(self.ask(&input)?) }))?;
        let solved = self.settings.solved_at.zip(remembered.number).map(|(least, value)| value >= least);
        Ok(Assessment { value: remembered.number, solved, parsed: solved.map(|_| true) })
    }

    fn reads_observations(&self) -> bool {
        self.settings.observations
    }

    fn waiting_slots(&self) -> usize {
        self.settings.workers as usize
    }

    fn prepare(&self) -> Result<(), JudgeError> {
        self.client.check()?;
        Ok(self.cache.prepare()?)
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        let (questions, hits) = self.cache.take_counts();
        let share = (questions > 0).then(|| hits as f64 / questions as f64);
        share.map(|share| ("classifier_cached".to_owned(), share)).into_iter().collect()
    }

    fn close(&self) {
        self.client.gate.close();
    }

    fn is_verifier(&self) -> bool {
        self.settings.solved_at.is_some()
    }
}

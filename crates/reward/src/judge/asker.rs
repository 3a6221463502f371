//! From texts to values: the prompt, the question to the model, and the reading of its answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::cache::{Cache, Remembered};
use super::chat::ChatModel;
use super::client::{Address, Client};
use super::digest::digest;
use super::error::{ModelError, Unreadable, ending};
use super::form::{Form, is_yes};
use super::gate::Clock;
use super::model::{Answer, JudgeModel, JudgeModels, Question};
use super::prompt::{Material, Prompt};
use super::settings::ModelJudge;

/// Version of questions and readings; another one makes calibrations and remembered answers invalid.
const VERSION: u32 = 1;

/// Asks a judge.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) settings: ModelJudge,
    pub(crate) form: Form,
    prompt: Prompt,
    cache: Cache,
    timeout: Duration,
    /// The model: at once for a server, otherwise once it has been opened.
    model: OnceLock<Arc<dyn JudgeModel>>,
}

impl Asker {
    pub(crate) fn new(settings: &ModelJudge, timeout: Duration, clock: Clock) -> Result<Self, ModelError> {
        Self::with_prompt(settings, Form::of(settings).default_prompt(), timeout, clock)
    }

    /// An asker whose prompt is this template, unless the settings name a file.
    pub(crate) fn with_prompt(
        settings: &ModelJudge,
        default: &str,
        timeout: Duration,
        clock: Clock,
    ) -> Result<Self, ModelError> {
        let form = Form::of(settings);
        let prompt = Prompt::open(settings.prompt.as_deref(), default, form.shown())?;
        let model: OnceLock<Arc<dyn JudgeModel>> = OnceLock::new();
        if let Some(url) = &settings.url {
            let api_key_env = settings.api_key_env.as_deref();
            let address = Address { url, path: "/chat/completions", api_key_env };
            let client = Client::new(&address, settings.workers, settings.limits, timeout, clock);
            let _ = model.set(Arc::new(ChatModel { client, model: settings.model.clone() }));
        }
        Ok(Self {
            form,
            prompt,
            cache: Cache::new(&settings.cache),
            timeout,
            model,
            settings: settings.clone(),
        })
    }

    /// Opens the model, if this process computes it.
    pub(crate) fn open(&self, models: &dyn JudgeModels) -> Result<(), ModelError> {
        if self.model.get().is_none() {
            let _ = self.model.set(models.open(&self.settings.model, self.timeout)?);
        }
        Ok(())
    }

    fn model(&self) -> Result<&dyn JudgeModel, ModelError> {
        self.model.get().map(AsRef::as_ref).ok_or_else(|| ModelError::Embedded {
            model: self.settings.model.clone(),
            reason: "it has not been opened".to_owned(),
        })
    }

    /// Checks that questions can be asked. A server is not asked.
    pub(crate) fn prepare(&self) -> Result<(), ModelError> {
        self.model()?.check()?;
        self.cache.prepare()?;
        let refused = |reason: &str| {
            Err(ModelError::Prompt { file: self.prompt.file.clone(), reason: reason.to_owned() })
        };
        if self.settings.reasons && !self.prompt.shows_form {
            return refused("it does not show `form`, the form of the verdict after the reasoning");
        }
        let material = Material { question: "q", responses: &["r", "s"], ..Material::default() };
        let text = self.question(&material)?.text;
        match self.form.read(&text, &material.nonce(), self.settings.reasons, 2) {
            Ok(_) => refused("it reads as a verdict itself"),
            Err(_) => Ok(()),
        }
    }

    fn question(&self, material: &Material<'_>) -> Result<Question, ModelError> {
        let nonce = material.nonce();
        let ModelJudge { reasons, max_tokens, logprobs, .. } = self.settings;
        let form = self.form.instructions(&nonce, reasons, material.responses.len());
        let text = self.prompt.render(material, &nonce, &form, &self.form.criteria())?;
        Ok(Question { text, max_tokens, logprobs })
    }

    /// The values of the judge's verdict.
    pub(crate) fn ask(&self, material: &Material<'_>) -> Result<Vec<f64>, ModelError> {
        Ok(self.answer(material)?.0)
    }

    /// The values of the judge's verdict, and its answer.
    pub(crate) fn answer(&self, material: &Material<'_>) -> Result<(Vec<f64>, String), ModelError> {
        let model = self.model()?;
        let question = self.question(material)?;
        let key =
            digest(&((VERSION, self.weights()?), (&question.text, question.max_tokens, question.logprobs)));
        let remembered = self.cache.answer(&key, || {
            let answer = model.ask(&question)?;
            // Only readable answers are remembered.
            self.read(&answer, material)
        })?;
        match remembered.number {
            Some(number) if self.settings.logprobs => Ok((vec![number], remembered.text)),
            _ => Ok((self.values(&remembered.text, material)?, remembered.text)),
        }
    }

    fn read(&self, answer: &Answer, material: &Material<'_>) -> Result<Remembered, ModelError> {
        let unreadable = |problem| ModelError::Unreadable { problem, answer: ending(&answer.text) };
        if answer.is_truncated {
            return Err(unreadable(Unreadable::Truncated));
        }
        self.values(&answer.text, material)?;
        let number = if self.settings.logprobs {
            Some(probability_of_yes(answer).ok_or_else(|| unreadable(Unreadable::NoProbability))?)
        } else {
            None
        };
        Ok(Remembered { text: answer.text.clone(), number })
    }

    fn values(&self, answer: &str, material: &Material<'_>) -> Result<Vec<f64>, ModelError> {
        let (nonce, reasons) = (material.nonce(), self.settings.reasons);
        let read = self.form.read(answer, &nonce, reasons, material.responses.len());
        read.map_err(|problem| ModelError::Unreadable { problem, answer: ending(answer) })
    }

    /// What tells the weights from others: their digest, wherever they lie, or else the name and revision at the server.
    fn weights(&self) -> Result<(String, Option<&str>), ModelError> {
        let identity = self.model()?.identity();
        let ModelJudge { model, revision, .. } = &self.settings;
        Ok((if identity.is_empty() { model.clone() } else { identity }, revision.as_deref()))
    }

    /// Digest of all that a verdict depends on, besides the texts.
    pub(crate) fn fingerprint(&self) -> Result<String, ModelError> {
        let ModelJudge { verdict, reasons, logprobs, max_tokens, rubric, .. } = &self.settings;
        let ModelJudge { scale, choices, criteria, against, .. } = &self.settings;
        Ok(digest(&(
            (VERSION, self.weights()?),
            (verdict, reasons, logprobs, max_tokens),
            (scale, choices, criteria, against),
            (rubric, &self.prompt.source),
        )))
    }

    /// Number of questions since the last call, and of those that were answered from memory.
    pub(crate) fn take_counts(&self) -> (u64, u64) {
        self.cache.take_counts()
    }

    pub(crate) fn close(&self) {
        if let Some(model) = self.model.get() {
            model.close();
        }
    }
}

/// p(yes) / (p(yes) + p(no)) at the last word of an answer.
fn probability_of_yes(answer: &Answer) -> Option<f64> {
    let is_special = |token: &str| token.starts_with('<') && token.ends_with('>');
    let is_word = |token: &str| token.contains(char::is_alphanumeric) && !is_special(token);
    let word =
        answer.alternatives.iter().rev().find(|tokens| tokens.first().is_some_and(|(t, _)| is_word(t)))?;
    is_yes(&word.first()?.0)?;
    let (mut yes, mut no) = (0.0, 0.0);
    for (token, logprob) in word {
        match is_yes(token) {
            Some(true) => yes += logprob.exp(),
            Some(false) => no += logprob.exp(),
            None => {}
        }
    }
    let share = yes / (yes + no);
    (0.0..=1.0).contains(&share).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probability(tokens: &[&[(&str, f64)]]) -> Option<f64> {
        let alternatives =
            |tokens: &&[(&str, f64)]| tokens.iter().map(|&(t, p)| (t.to_owned(), p.ln())).collect();
        let answer = Answer { alternatives: tokens.iter().map(alternatives).collect(), ..Answer::default() };
        probability_of_yes(&answer)
    }

    #[test]
    fn the_last_word_has_the_probability() {
        let share = |tokens: &[&[(&str, f64)]]| probability(tokens).map(|p| (p * 1000.0).round());
        assert_eq!(share(&[&[(" yes", 0.5), ("No", 0.25), ("Yes", 0.25)]]), Some(750.0));
        assert_eq!(
            share(&[&[("no", 1.0)], &[(":", 1.0)], &[("yes", 0.9)], &[(".", 1.0)], &[("</s>", 1.0)]]),
            Some(1000.0)
        );
        assert_eq!(share(&[&[("yes", 1.0)], &[("terday", 1.0)]]), None);
        assert_eq!(share(&[&[("yes", 0.0), ("no", 0.0)]]), None);
        assert_eq!(share(&[]), None);
    }
}

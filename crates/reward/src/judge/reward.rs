//! Rewards that a language model gives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rloom_core::{ChatMessage, Content, PromptSource};

use super::asker::Asker;
use super::calibration;
use super::error::ModelError;
use super::gate::Clock;
use super::model::JudgeModels;
use super::pairs::{Comparison, circle, compare, in_parallel};
use super::prompt::Material;
use super::settings::{ModelJudge, VerdictKind};
use crate::verifier::reference;
use crate::{Assessment, Completion, JudgeError, Reward};

/// A judge as a reward.
#[derive(Debug)]
pub(crate) struct JudgeReward {
    asker: Asker,
    /// Comparisons, and those whose result depends on the order.
    compared: AtomicU64,
    swapped: AtomicU64,
}

impl JudgeReward {
    pub(crate) fn new(settings: &ModelJudge, timeout: Duration) -> Result<Self, JudgeError> {
        let asker = Asker::new(settings, timeout, Clock::system())?;
        Ok(Self { asker, compared: AtomicU64::new(0), swapped: AtomicU64::new(0) })
    }

    fn settings(&self) -> &ModelJudge {
        &self.asker.settings
    }

    fn verdict(&self, value: f64) -> Assessment {
        let solved = self.settings().solved_at.map(|least| value >= least);
        Assessment { value: Some(value), solved, parsed: solved.map(|_| true) }
    }

    /// Instructions of the recipe, or of the task's row.
    fn rubric<'c>(&'c self, completion: &Completion<'c>) -> Result<&'c str, ModelError> {
        let ModelJudge { rubric, rubric_field, .. } = self.settings();
        let Some(field) = rubric_field else { return Ok(rubric.as_deref().unwrap_or_default()) };
        let text = completion.task.extra.get(field).and_then(serde_json::Value::as_str);
        text.ok_or_else(|| ModelError::Missing {
            task: completion.task.index,
            missing: format!("text in the field `{field}`, which `rubric_field` names"),
        })
    }

    fn compare(&self, material: &Material<'_>) -> Result<Comparison, ModelError> {
        let comparison = compare(&self.asker, material)?;
        self.compared.fetch_add(1, Ordering::Relaxed);
        self.swapped.fetch_add(u64::from(!comparison.is_consistent), Ordering::Relaxed);
        Ok(comparison)
    }

    fn value(&self, completion: &Completion<'_>) -> Result<f64, JudgeError> {
        let question = question(&completion.task.prompt);
        let rubric = self.rubric(completion)?;
        let answer = completion.task.answer.trim();
        if self.settings().needs_reference() {
            let responses = [completion.text, reference(completion)?];
            let material = Material { question: &question, reference: "", responses: &responses, rubric };
            return Ok(self.compare(&material)?.score);
        }
        let responses = [completion.text];
        let material = Material { question: &question, reference: answer, responses: &responses, rubric };
        let values = self.asker.ask(&material)?;
        Ok(values.into_iter().next().unwrap_or(f64::NAN))
    }

    /// The values of a group; `None` for one without an opponent.
    fn values(&self, completions: &[Completion<'_>]) -> Result<Vec<Option<f64>>, JudgeError> {
        let Some(first) = completions.first() else { return Ok(Vec::new()) };
        let question = question(&first.task.prompt);
        let (rubric, answer) = (self.rubric(first)?, first.task.answer.trim());
        let texts: Vec<&str> = completions.iter().map(|completion| completion.text).collect();
        let material = Material { question: &question, reference: answer, responses: &texts, rubric };
        if self.settings().verdict == VerdictKind::Rank {
            return Ok(self.asker.ask(&material)?.into_iter().map(Some).collect());
        }
        let pairs = circle(texts.len(), self.settings().opponents.unwrap_or(1));
        let results = in_parallel(&pairs, self.settings().workers as usize, |&(a, b)| {
            let responses = [texts[a], texts[b]];
            self.compare(&Material { responses: &responses, ..material.clone() })
        });
        let mut sums = vec![(0.0, 0.0); texts.len()];
        for (&(a, b), result) in pairs.iter().zip(results) {
            let score = result?.score;
            for (index, score) in [(a, score), (b, 1.0 - score)] {
                sums[index] = (sums[index].0 + score, sums[index].1 + 1.0);
            }
        }
        Ok(sums.into_iter().map(|(sum, count)| (count > 0.0).then(|| sum / count)).collect())
    }
}

impl Reward for JudgeReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(self.verdict(self.value(completion)?))
    }

    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        let verdict =
            |value: Option<f64>| value.map_or_else(Assessment::not_applicable, |value| self.verdict(value));
        Ok(self.values(completions)?.into_iter().map(verdict).collect())
    }

    fn judges_groups(&self) -> bool {
        self.settings().judges_groups()
    }

    fn reads_observations(&self) -> bool {
        self.settings().observations
    }

    fn waiting_slots(&self) -> usize {
        self.settings().workers as usize
    }

    fn open_models(&self, models: &dyn JudgeModels) -> Result<(), JudgeError> {
        Ok(self.asker.open(models)?)
    }

    fn prepare(&self) -> Result<(), JudgeError> {
        self.asker.prepare()?;
        Ok(calibration::check(&self.asker)?)
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        let (questions, hits) = self.asker.take_counts();
        let (compared, swapped) =
            (self.compared.swap(0, Ordering::Relaxed), self.swapped.swap(0, Ordering::Relaxed));
        let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
        let cached = share(hits, questions).map(|share| ("judge_cached".to_owned(), share));
        let swaps = share(swapped, compared).map(|share| ("judge_order_swaps".to_owned(), share));
        cached.into_iter().chain(swaps).collect()
    }

    fn close(&self) {
        self.asker.close();
    }

    fn is_verifier(&self) -> bool {
        self.settings().solved_at.is_some()
    }

    fn reads_answer(&self) -> bool {
        self.settings().needs_reference()
    }
}

/// A prompt as text.
pub(crate) fn question(prompt: &PromptSource) -> String {
    match prompt {
        PromptSource::Text(text) => text.clone(),
        PromptSource::Messages(messages) => {
            if let [only] = &messages[..] {
                return content(only);
            }
            let named = messages.iter().map(|message| format!("{}: {}", message.role, content(message)));
            named.collect::<Vec<_>>().join("\n\n")
        }
    }
}

fn content(message: &ChatMessage) -> String {
    match &message.content {
        None => String::new(),
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let text = |part: &serde_json::Map<String, serde_json::Value>| {
                let name = |key| part.get(key).and_then(serde_json::Value::as_str);
                name("text").map_or_else(|| format!("[{}]", name("type").unwrap_or("part")), str::to_owned)
            };
            parts.iter().map(text).collect::<Vec<_>>().join("\n")
        }
    }
}

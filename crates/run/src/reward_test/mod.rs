//! A test of a recipe's reward without a model: it judges reference answers and given completions.

mod given;
mod judging;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use rloom_config::{Config, Stage};
use rloom_core::{Demonstration, Task};
use rloom_data::{DataError, Dataset, Split};
use rloom_hub::Hub;
use rloom_reward::{OnError, RewardError, RewardSettings, Scorer};

pub use given::{GivenCompletion, read_completions};
pub use report::{ComponentResult, Problem, RewardReport, Tested};

use crate::assembly::EmbeddedJudges;
use judging::{Candidate, judge};

/// Errors of a test.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum RewardTestError {
    /// A recipe without a reward.
    #[error("no stage of the recipe has a reward{}", of_stage(stage.as_deref()))]
    NoReward {
        /// The requested stage.
        stage: Option<String>,
    },
    /// A reward that judges only what an episode has.
    #[error("the reward cannot be tested without a model: {skipped}")]
    NothingToTest {
        /// The components, with the reasons.
        skipped: String,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A line that is not a completion.
    #[error(
        "{path}, line {line}: {reason}; a line is an object such as {{\"task\": 0, \"completion\": \"…\"}}"
    )]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// A completion of a task that does not exist.
    #[error("{path}, line {line}: the training tasks have no task {task}")]
    NoTask {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// Index of the task.
        task: u64,
    },
    /// The data cannot be opened.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(#[from] DataError),
    /// The reward cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Reward(#[from] RewardError),
}

fn of_stage(stage: Option<&str>) -> String {
    stage.map_or_else(String::new, |stage| format!(" and the name `{stage}`"))
}

/// What to test.
#[derive(Debug, Clone, Default)]
pub struct RewardTest {
    /// The stage; by default the last one with a reward.
    pub stage: Option<String>,
    /// Number of tasks whose reference answers are judged, at most.
    pub rows: u64,
    /// Completion that gives a reference answer, with `{answer}` in its place. By default the demonstration of the task, or else the answer
    /// in the form that the outcome expects.
    pub template: Option<String>,
    /// Completions to judge.
    pub completions: Vec<GivenCompletion>,
}

impl RewardTest {
    /// Judges. `progress` receives the number of judged completions and their total.
    pub fn run(
        &self,
        config: &Config,
        hub: &Arc<Hub>,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<RewardReport, RewardTestError> {
        let (index, stage, reward) = self.stage_of(config)?;
        let (tested, skipped) = testable(reward)?;
        let dataset = Dataset::open_with(&stage.data, Split::Train, config.run.seed, hub)?;
        let scorer = Scorer::new(&tested, config.run.seed, index)?;
        scorer.open_models(&EmbeddedJudges::new(Arc::clone(hub), config.run.threads))?;
        scorer.prepare()?;
        let (references, form, without) = self.references(&dataset, &tested)?;
        let given = self.given(&dataset)?;
        let total = references.len() + given.iter().map(Vec::len).sum::<usize>();
        let done = std::sync::atomic::AtomicUsize::new(0);
        let count = |judged: usize| {
            let before = done.fetch_add(judged, std::sync::atomic::Ordering::Relaxed);
            progress((before + judged) as u64, total as u64);
        };
        let alone: Vec<Vec<Candidate>> = references.into_iter().map(|candidate| vec![candidate]).collect();
        let references = judge(&scorer, &alone, &count);
        let completions = judge(&scorer, &given, &count);
        scorer.close();
        Ok(RewardReport {
            stage: stage.name.clone(),
            tasks: dataset.len(),
            skipped,
            form,
            without_reference: without,
            references: (!references.is_empty()).then(|| Tested::of(&references, &tested, true)),
            completions: (!completions.is_empty()).then(|| Tested::of(&completions, &tested, false)),
        })
    }

    fn stage_of<'c>(
        &self,
        config: &'c Config,
    ) -> Result<(u32, &'c Stage, &'c RewardSettings), RewardTestError> {
        let mut found = None;
        for (index, stage) in (0..).zip(&config.stages) {
            let is_wanted = self.stage.as_ref().is_none_or(|wanted| *wanted == stage.name);
            if let Some(rollout) = stage.rollout.as_ref().filter(|_| is_wanted) {
                found = Some((index, stage, &rollout.reward));
            }
        }
        found.ok_or_else(|| RewardTestError::NoReward { stage: self.stage.clone() })
    }

    /// Reference answers as completions, the form that they have, and the number of tasks without one.
    fn references(
        &self,
        dataset: &Dataset,
        reward: &RewardSettings,
    ) -> Result<(Vec<Candidate>, String, u64), RewardTestError> {
        let rows = self.rows.min(dataset.len());
        let (mut found, mut forms, mut without) = (Vec::new(), Vec::new(), 0);
        for row in 0..rows {
            // Evenly spaced, so that data that is sorted by difficulty or domain is not judged by its beginning.
            let position = (u128::from(row) * u128::from(dataset.len()) / u128::from(rows)) as u64;
            let task = dataset.get(position)?;
            match self.reference(&task, reward) {
                Some((text, form)) => {
                    if !forms.contains(&form) {
                        forms.push(form);
                    }
                    found.push(Candidate { task, text, is_truncated: false });
                }
                None => without += 1,
            }
        }
        Ok((found, forms.join(", "), without))
    }

    /// The reference answer of a task as a completion, and its form.
    fn reference(&self, task: &Task, reward: &RewardSettings) -> Option<(String, String)> {
        let answer = task.answer.trim();
        if let Some(template) = &self.template {
            return (!answer.is_empty()).then(|| (template.replace("{answer}", answer), template.clone()));
        }
        if let Some(text) = task.demonstration.as_ref().and_then(demonstrated) {
            return Some((text.to_owned(), "demonstrations".to_owned()));
        }
        let components = reward.outcome_of(&task.domain).into_iter().chain(&reward.components);
        let kind =
            components.map(|component| &component.kind).find(|kind| kind.reference(answer).is_some())?;
        let form = kind.reference("{answer}").unwrap_or_else(|| format!("the form of `{}`", kind.name()));
        Some((kind.reference(answer).filter(|_| !answer.is_empty())?, form))
    }

    /// The given completions by task, in the order of the file.
    fn given(&self, dataset: &Dataset) -> Result<Vec<Vec<Candidate>>, RewardTestError> {
        if self.completions.is_empty() {
            return Ok(Vec::new());
        }
        let mut groups: Vec<Vec<Candidate>> = Vec::new();
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        for GivenCompletion { task, completion, truncated, path, line } in &self.completions {
            let Some(found) = dataset.find(*task)? else {
                return Err(RewardTestError::NoTask { path: path.clone(), line: *line, task: *task });
            };
            let place = *places.entry(*task).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[place].push(Candidate { task: found, text: completion.clone(), is_truncated: *truncated });
        }
        Ok(groups)
    }
}

/// The text of a demonstration with one turn.
fn demonstrated(demonstration: &Demonstration) -> Option<&str> {
    match demonstration {
        Demonstration::Message(message) => message.plain_text(),
        turns => match turns.turns() {
            [text] => Some(text),
            _ => None,
        },
    }
}

/// The components that can be tested, and those that cannot, with the reasons.
fn testable(reward: &RewardSettings) -> Result<(RewardSettings, Vec<String>), RewardTestError> {
    let mut tested = reward.clone();
    let mut skipped = Vec::new();
    tested.components.retain(|component| match component.kind.reads_episode() {
        Some(what) => {
            skipped.push(format!("`{}` reads {what}", component.name));
            false
        }
        None => true,
    });
    if tested.components.is_empty() {
        return Err(RewardTestError::NothingToTest { skipped: skipped.join(", ") });
    }
    if !tested.outcome.as_ref().is_none_or(|name| tested.components.iter().any(|c| c.name == *name)) {
        tested.outcome = None;
    }
    // Failures are reported for each completion.
    tested.on_error = OnError::Drop;
    Ok((tested, skipped))
}

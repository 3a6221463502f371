//! Rewards that functions in other processes compute.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rloom_core::SettingError;
use rloom_function::{
    CommandFunction, FunctionError, Host, HttpFunction, Judge, PythonFunction, Sample, SampleVerdict,
    Verdicts,
};

use crate::{Assessment, Completion, JudgeError, Reward};

/// Settings of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FunctionSettings<'s> {
    Python(&'s PythonFunction),
    Command(&'s CommandFunction),
    Http(&'s HttpFunction),
}

impl FunctionSettings<'_> {
    pub(crate) fn validate(self) -> Result<(), SettingError> {
        match self {
            Self::Python(settings) => settings.validate(),
            Self::Command(settings) => settings.validate(),
            Self::Http(settings) => settings.validate(),
        }
    }

    /// The reward from which on a task counts as solved.
    pub(crate) fn solved_at(self) -> Option<f64> {
        match self {
            Self::Python(settings) => settings.solved_at,
            Self::Command(settings) => settings.solved_at,
            Self::Http(settings) => settings.solved_at,
        }
    }

    fn is_group_wise(self) -> bool {
        match self {
            Self::Python(settings) => settings.group,
            Self::Command(settings) => settings.group,
            Self::Http(settings) => settings.group,
        }
    }

    fn reads_observations(self) -> bool {
        match self {
            Self::Python(settings) => settings.observations,
            Self::Command(settings) => settings.observations,
            Self::Http(settings) => settings.observations,
        }
    }

    pub(crate) fn reward(self, timeout: Duration) -> Result<FunctionReward, FunctionError> {
        let judge = match self {
            Self::Python(settings) => settings.judge(timeout)?,
            Self::Command(settings) => settings.judge(timeout),
            Self::Http(settings) => settings.judge(timeout),
        };
        Ok(FunctionReward {
            judge,
            is_group_wise: self.is_group_wise(),
            reads_observations: self.reads_observations(),
            solved_at: self.solved_at(),
            metrics: Mutex::default(),
        })
    }
}

/// A reward that a function computes.
#[derive(Debug)]
pub(crate) struct FunctionReward {
    judge: Judge,
    is_group_wise: bool,
    reads_observations: bool,
    solved_at: Option<f64>,
    /// Sums and counts of the reported numbers.
    metrics: Mutex<BTreeMap<String, (f64, u32)>>,
}

impl FunctionReward {
    /// A function that judges whole groups.
    pub(crate) fn of_groups(judge: Judge, reads_observations: bool, solved_at: Option<f64>) -> Self {
        Self { judge, is_group_wise: true, reads_observations, solved_at, metrics: Mutex::default() }
    }

    fn call(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        let samples: Vec<Sample<'_>> = completions.iter().map(sample).collect();
        let Verdicts { verdicts, metrics } = self.judge.judge(&samples)?;
        let mut sums = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in metrics {
            if let Some(value) = value.as_f64() {
                let (sum, count) = sums.entry(name).or_default();
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
        Ok(verdicts.into_iter().map(|verdict| self.verdict(verdict)).collect())
    }

    fn verdict(&self, verdict: SampleVerdict) -> Assessment {
        let SampleVerdict { value, solved, parsed } = verdict;
        let reaches = self.solved_at.zip(value).map(|(least, value)| value >= least);
        Assessment { value, solved: solved.or(reaches), parsed }
    }
}

fn sample<'a>(completion: &Completion<'a>) -> Sample<'a> {
    let Completion { task, key, .. } = *completion;
    Sample {
        sample: format!("{}/{}", key.ticket.0, key.sample),
        stage: completion.stage,
        task: task.index,
        prompt: &task.prompt,
        prompt_text: completion.prompt,
        completion: completion.text,
        tokens: completion.token_ids,
        version: completion.version,
        answer: &task.answer,
        domain: &task.domain,
        stop: completion.stop.name(),
        truncated: completion.stop.is_truncated(),
        steps: completion.steps,
        row: &task.extra,
        seed: completion.seed,
    }
}

impl Reward for FunctionReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        Ok(self.call(std::slice::from_ref(completion))?.pop().unwrap_or_default())
    }

    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Assessment>, JudgeError> {
        self.call(completions)
    }

    fn judges_groups(&self) -> bool {
        self.is_group_wise
    }

    fn is_verifier(&self) -> bool {
        self.solved_at.is_some()
    }

    fn reads_prompt(&self) -> bool {
        true
    }

    fn reads_observations(&self) -> bool {
        self.reads_observations
    }

    fn waiting_slots(&self) -> usize {
        self.judge.workers()
    }

    fn place(&self, host: Arc<dyn Host>) {
        self.judge.place(host);
    }

    fn prepare(&self) -> Result<(), JudgeError> {
        Ok(self.judge.check()?)
    }

    fn take_metrics(&self) -> BTreeMap<String, f64> {
        let sums = std::mem::take(&mut *self.metrics.lock().unwrap_or_else(PoisonError::into_inner));
        sums.into_iter().map(|(name, (sum, count))| (name, sum / f64::from(count))).collect()
    }

    fn close(&self) {
        self.judge.close();
    }
}

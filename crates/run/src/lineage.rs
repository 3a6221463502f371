//! Where a sample came from and what became of it: task, random key, versions, rewards, the step that trained on it.
//!
//! Events say how a group ended; what it consists of comes from the rollouts of the step that trained on it, or from the
//! journal.

mod name;

use std::collections::BTreeSet;
use std::path::Path;

use rloom_collect::{completion_text, prompt_text};
use rloom_core::{
    Episode, PolicyVersion, RewardComponent, Rewards, Role, StopReason, Trajectory, VersionSpan,
};
use rloom_text::Tokenizer;
use serde::Serialize;

pub(crate) use self::name::ranges;
pub use self::name::{LineageError, SampleName};

use crate::recorded::{Found, JournalFate, Journaled, RecordedStage};
use rloom_telemetry::{Activity, Event, EventLine};
use rloom_telemetry::{LoggedTrajectory, read_events, surviving};

/// What became of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum Fate {
    /// It was trained on.
    Trained {
        /// By which step, from 1.
        step: u64,
        /// The version that was trained from.
        version: PolicyVersion,
        /// How many versions older its oldest policy token was.
        age: u64,
    },
    /// It ended without being trained on.
    Ended {
        /// `filtered`, `stale`, `failed` or `surplus`.
        end: String,
        /// Why, where more is known.
        reason: Option<String>,
    },
    /// It was put off, and will be started again.
    PutOff,
    /// It is being generated.
    UnderWay,
    /// It was generated, and waits to be trained on.
    Waiting,
    /// It is in a batch that is not trained yet.
    InBatch {
        /// The step that trains on it, from 1.
        step: u64,
    },
}

/// When a group was generated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Generated {
    /// In which attempt.
    pub attempt: u32,
    /// Seconds since that attempt began.
    pub start: f64,
    /// Seconds since that attempt began.
    pub end: f64,
}

/// The names of a sample's random stream (`rloom_core::RandomKey`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the same fields as RandomKey has")]
pub struct StreamName {
    pub seed: u64,
    pub stage: u32,
    pub purpose: &'static str,
    pub ticket: u64,
    pub sample: u32,
    pub segment: u32,
}

/// Log-probabilities of the policy tokens when they were sampled, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Logprobs {
    /// How many tokens.
    pub tokens: usize,
    /// Their mean.
    pub mean: f64,
    /// The least likely one's.
    pub lowest: f32,
    /// Their sum: the log-probability of all of it.
    pub sum: f64,
}

/// One trajectory of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SampleLineage {
    /// Where its random numbers came from.
    pub random: StreamName,
    /// Whether it is trained on, or others are compared with it.
    pub role: Role,
    /// Tokens in all, the prompt included.
    pub tokens: usize,
    /// Which version sampled which of them.
    pub versions: Vec<VersionSpan>,
    /// Versions between the oldest of its tokens and the one that was trained from.
    pub age: Option<u64>,
    /// `None` where the policy said nothing.
    pub logprobs: Option<Logprobs>,
    /// Total reward, where one applies.
    pub reward: Option<f64>,
    /// Its parts with their weights.
    pub components: Vec<RewardComponent>,
    /// Whether the task was solved.
    pub solved: Option<bool>,
    /// Its episode's advantage.
    pub advantage: Option<f64>,
    /// Why it ended.
    pub stop: StopReason,
    /// Everything after the prompt as text.
    pub completion: String,
}

/// The task that a group attempts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskLineage {
    /// Its place in its dataset, where that is recorded: not of groups that are incomplete or were replaced.
    pub index: Option<u64>,
    /// The prompt as text.
    pub prompt: String,
    /// The reference answer, where that is recorded.
    pub answer: Option<String>,
}

/// What is known of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lineage {
    /// The stage.
    pub stage: String,
    /// The group.
    pub ticket: u64,
    /// What became of it.
    #[serde(flatten)]
    pub fate: Fate,
    /// When it was generated, where that was told.
    pub generated: Option<Generated>,
    /// What it attempts; unknown of groups whose tokens are nowhere any more.
    pub task: Option<TaskLineage>,
    /// Its trajectories, or the one that was asked for.
    pub samples: Vec<SampleLineage>,
}

/// The lineage of a sample, or of all samples of a ticket, of the run in `directory`, whose files are only read.
pub fn lineage(directory: &Path, name: &SampleName) -> Result<Lineage, LineageError> {
    let all = read_events(&directory.join("events.jsonl"))?;
    let lines = surviving(&all);
    let finder = Finder { directory, stages: stages(directory, &lines, name.stage.as_deref())?, lines };
    finder.find(name)
}

/// A stage that samples.
struct StageHistory {
    name: String,
    /// Its place in the recipe.
    index: u32,
    history: RecordedStage,
}

/// The stages that sample, or the one that was asked for.
fn stages(
    directory: &Path,
    lines: &[&EventLine],
    wanted: Option<&str>,
) -> Result<Vec<StageHistory>, LineageError> {
    let mut names: Vec<&str> = Vec::new();
    for line in lines {
        // Demonstrations are no groups that anybody asks for.
        if let Event::StageStarted { outline, .. } = &line.event
            && outline.method != "sft"
            && !names.contains(&outline.name.as_str())
        {
            names.push(&outline.name);
        }
    }
    if let Some(stage) = wanted.filter(|stage| !names.contains(stage)) {
        let stages = names.into_iter().map(str::to_owned).collect();
        return Err(LineageError::Stage { stage: stage.to_owned(), stages });
    }
    let (_, places) = told_of_run(lines);
    let asked_for = names.into_iter().filter(|name| wanted.is_none_or(|wanted| *name == wanted));
    let read = |name: &str| {
        let index = places.iter().position(|stage| stage == name).unwrap_or(0) as u32;
        let history = RecordedStage::read(directory, index, name, lines)?;
        Ok(StageHistory { name: name.to_owned(), index, history })
    };
    asked_for.map(read).collect()
}

/// The run's seed and its stages in order.
fn told_of_run(lines: &[&EventLine]) -> (u64, Vec<String>) {
    let told = lines.iter().rev().find_map(|line| match &line.event {
        Event::RunStarted { seed, stages, .. } => {
            Some((*seed, stages.iter().map(|stage| stage.name.clone()).collect()))
        }
        _ => None,
    });
    told.unwrap_or_default()
}

struct Finder<'a> {
    directory: &'a Path,
    lines: Vec<&'a EventLine>,
    stages: Vec<StageHistory>,
}

impl Finder<'_> {
    fn find(&self, name: &SampleName) -> Result<Lineage, LineageError> {
        let mut found = Vec::new();
        for stage in &self.stages {
            found.extend(self.group(stage, name.ticket)?);
        }
        let mut lineage = match found.len() {
            0 => return Err(self.unknown(name.ticket)),
            1 => found.remove(0),
            _ => {
                let stages = found.into_iter().map(|lineage| lineage.stage).collect();
                return Err(LineageError::Ambiguous { ticket: name.ticket, stages });
            }
        };
        if let (Some(sample), false) = (name.sample, lineage.samples.is_empty()) {
            let known: BTreeSet<u64> = lineage.samples.iter().map(|s| u64::from(s.random.sample)).collect();
            lineage.samples.retain(|s| s.random.sample == sample);
            if lineage.samples.is_empty() {
                let known = known.into_iter().collect();
                return Err(LineageError::Sample { ticket: name.ticket, sample, known });
            }
        }
        Ok(lineage)
    }

    /// What is told of a ticket, the last first.
    fn told(&self, stage: &str, ticket: u64) -> impl Iterator<Item = &EventLine> {
        self.lines.iter().rev().copied().filter(move |line| {
            line.stage == stage
                && matches!(&line.event,
                    Event::GroupEnded { ticket: own, .. }
                    | Event::Activity { activity: Activity::Group, ticket: Some(own), .. } if *own == ticket)
        })
    }

    fn group(&self, stage: &StageHistory, ticket: u64) -> Result<Option<Lineage>, LineageError> {
        let generated = self.told(&stage.name, ticket).find_map(|line| match line.event {
            Event::Activity { start, end, .. } => Some(Generated { attempt: line.attempt, start, end }),
            _ => None,
        });
        let told = self.told(&stage.name, ticket).next().map(|line| match &line.event {
            Event::GroupEnded { end, .. } if end == "deferred" => Fate::PutOff,
            Event::GroupEnded { end, reason, .. } => Fate::Ended { end: end.clone(), reason: reason.clone() },
            _ => Fate::Waiting,
        });
        let (fate, task, samples) = match stage.history.find(ticket)? {
            Some(Found::Trained { step, lines }) => {
                let version = lines.first().map_or(PolicyVersion(step - 1), |line| line.version);
                let age = lines.iter().filter_map(|line| age(&line.trajectory, version)).max().unwrap_or(0);
                let fate = Fate::Trained { step, version, age };
                (fate, lines.first().map(task_of_line), self.logged(stage, lines))
            }
            Some(Found::Journaled(group)) => {
                let fate = journal_fate(&group, told);
                let (task, samples) = self.journaled(stage, group);
                (fate, task, samples)
            }
            None => match told {
                Some(fate) => (fate, None, Vec::new()),
                None => return Ok(None),
            },
        };
        Ok(Some(Lineage { stage: stage.name.clone(), ticket, fate, generated, task, samples }))
    }

    fn logged(&self, stage: &StageHistory, lines: Vec<LoggedTrajectory>) -> Vec<SampleLineage> {
        let (seed, _) = told_of_run(&self.lines);
        let sample = |line: LoggedTrajectory| {
            let mut sample = sample(&line.trajectory, seed, stage.index, Some(line.version));
            sample.judged(line.role, line.rewards);
            SampleLineage { advantage: line.advantage, completion: line.completion, ..sample }
        };
        lines.into_iter().map(sample).collect()
    }

    /// The task and the samples of a group whose tokens the journal has, and nothing else.
    fn journaled(&self, stage: &StageHistory, group: Journaled) -> (Option<TaskLineage>, Vec<SampleLineage>) {
        let (seed, _) = told_of_run(&self.lines);
        let tokenizer = crate::policy::tokenizer_of(self.directory);
        let trained_from = match group.fate {
            Some(JournalFate::Cut { batch, .. }) => Some(PolicyVersion(batch)),
            _ => None,
        };
        let first = group.episodes.values().next().and_then(|episode| episode.segments.first());
        let task = first.map(|trajectory| TaskLineage {
            index: group.task.as_ref().map(|task| task.index),
            prompt: texts(tokenizer.as_ref(), trajectory).0,
            answer: group.task.map(|task| task.answer),
        });
        let mut samples = Vec::new();
        for Episode { role, segments, rewards } in group.episodes.into_values() {
            for trajectory in segments {
                let mut sample = sample(&trajectory, seed, stage.index, trained_from);
                sample.judged(role, rewards.clone());
                sample.completion = texts(tokenizer.as_ref(), &trajectory).1;
                samples.push(sample);
            }
        }
        (task, samples)
    }

    fn unknown(&self, ticket: u64) -> LineageError {
        let known = self.stages.iter().map(|stage| {
            let mut tickets = stage.history.tickets();
            tickets.extend(self.lines.iter().filter(|line| line.stage == stage.name).filter_map(|line| {
                match &line.event {
                    Event::GroupEnded { ticket, .. } => Some(*ticket),
                    Event::Activity { ticket, .. } => *ticket,
                    _ => None,
                }
            }));
            (stage.name.clone(), tickets.into_iter().collect())
        });
        LineageError::Ticket { ticket, known: known.collect() }
    }
}

/// What became of a group that is in the journal, where events `told` of it.
fn journal_fate(group: &Journaled, told: Option<Fate>) -> Fate {
    match (&group.fate, told) {
        (Some(JournalFate::Cut { batch, trained: false }), _) => Fate::InBatch { step: batch + 1 },
        (Some(JournalFate::Cut { batch, trained: true }), _) => {
            let version = PolicyVersion(*batch);
            let trajectories = group.episodes.values().flat_map(|episode| &episode.segments);
            let age = trajectories.filter_map(|trajectory| age(trajectory, version)).max().unwrap_or(0);
            Fate::Trained { step: batch + 1, version, age }
        }
        // Events know why, and which groups were let go: the journal does not repeat what follows from it.
        (_, Some(ended @ (Fate::Ended { .. } | Fate::PutOff))) => ended,
        (Some(JournalFate::Filtered), _) => Fate::Ended { end: "filtered".to_owned(), reason: None },
        (Some(JournalFate::Failed(reason)), _) => {
            Fate::Ended { end: "failed".to_owned(), reason: Some(reason.clone()) }
        }
        (None, _) if group.task.is_some() => Fate::Waiting,
        (None, _) => Fate::UnderWay,
    }
}

fn task_of_line(line: &LoggedTrajectory) -> TaskLineage {
    TaskLineage { index: Some(line.task), prompt: line.prompt.clone(), answer: Some(line.answer.clone()) }
}

/// Prompt and completion as text, or their token ids where the tokenizer is not at hand.
fn texts(tokenizer: Option<&Tokenizer>, trajectory: &Trajectory) -> (String, String) {
    if let Some(tokenizer) = tokenizer {
        return (prompt_text(tokenizer, trajectory), completion_text(tokenizer, trajectory));
    }
    let (prompt, completion) = trajectory.tokens.split_at(trajectory.prompt_tokens());
    (format!("tokens {prompt:?}"), format!("tokens {completion:?}"))
}

/// Versions between the oldest of its tokens and the one that was trained from.
fn age(trajectory: &Trajectory, trained_from: PolicyVersion) -> Option<u64> {
    trajectory.oldest_version().map(|oldest| trained_from.0.saturating_sub(oldest.0))
}

/// What the trajectory itself says.
fn sample(
    trajectory: &Trajectory,
    seed: u64,
    stage: u32,
    trained_from: Option<PolicyVersion>,
) -> SampleLineage {
    let key = trajectory.key;
    let tokens = trajectory.logprobs.len();
    let sum: f64 = trajectory.logprobs.iter().map(|&logprob| f64::from(logprob)).sum();
    SampleLineage {
        random: StreamName {
            seed,
            stage,
            purpose: "rollout",
            ticket: key.ticket.0,
            sample: key.sample,
            segment: key.segment,
        },
        role: Role::Train,
        tokens: trajectory.tokens.len(),
        versions: trajectory.versions.clone(),
        age: trained_from.and_then(|version| age(trajectory, version)),
        logprobs: (tokens > 0).then(|| Logprobs {
            tokens,
            mean: sum / tokens as f64,
            lowest: trajectory.logprobs.iter().copied().fold(f32::INFINITY, f32::min),
            sum,
        }),
        reward: None,
        components: Vec::new(),
        solved: None,
        advantage: None,
        stop: trajectory.stop,
        completion: String::new(),
    }
}

impl SampleLineage {
    fn judged(&mut self, role: Role, rewards: Rewards) {
        self.role = role;
        self.reward = rewards.total();
        self.solved = rewards.solved;
        self.components = rewards.components;
    }
}

#[cfg(test)]
mod tests;

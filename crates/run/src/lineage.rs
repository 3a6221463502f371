//! Lineage of samples: task, random key, versions, rewards, and the step that trained on them.
//!
//! The end of a group comes from the events; its content from the rollouts of the step that trained on it, or from the
//! journal.

mod name;

use std::collections::BTreeSet;
use std::path::Path;

use rloom_collect::{completion_text, prompt_text};
use rloom_core::{
    Episode, PolicyVersion, RewardComponent, Rewards, Role, StopReason, Trajectory, VersionSpan,
};
use rloom_telemetry::{Activity, Event, EventFile, EventLine, GroupEnd, LoggedTrajectory};
use rloom_text::Tokenizer;
use serde::Serialize;

pub(crate) use self::name::ranges;
pub use self::name::{LineageError, SampleName};

use crate::recorded::{JournalFate, JournalGroup, RecordedGroup, RecordedStage, outline_of};

/// Fate of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum Fate {
    /// A step has trained on the group.
    Trained {
        /// The step, from 1.
        step: u64,
        /// The version that the step started from.
        version: PolicyVersion,
        /// Age of its oldest policy token in versions.
        age: u64,
    },
    /// The group ended without being trained on.
    Ended {
        /// The kind of end.
        end: GroupEnd,
        /// The reason, if known.
        reason: Option<String>,
    },
    /// The rollouts of the step that has trained on the group were not kept.
    NotKept {
        /// Steps of the stage whose rollouts were not kept, as ranges.
        steps: String,
    },
    /// The group is deferred and will be restarted.
    Deferred,
    /// The group is being generated.
    InFlight,
    /// The group is complete and waits for a batch.
    Waiting,
    /// The group is part of a batch that is not trained yet.
    InBatch {
        /// The step of the batch, from 1.
        step: u64,
    },
}

/// Time at which a group was generated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Generated {
    /// The attempt.
    pub attempt: u32,
    /// Start in seconds since the start of the attempt.
    pub start: f64,
    /// End in seconds since the start of the attempt.
    pub end: f64,
}

/// Key of a sample's random stream (`rloom_core::RandomKey`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of RandomKey")]
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
    /// Number of tokens.
    pub tokens: usize,
    /// Mean over the tokens.
    pub mean: f64,
    /// Minimum over the tokens.
    pub lowest: f32,
    /// Sum over the tokens: the log-probability of the completion.
    pub sum: f64,
}

/// One trajectory of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SampleLineage {
    /// Key of its random stream.
    pub random: StreamName,
    /// Trained on, or a baseline.
    pub role: Role,
    /// Number of tokens, the prompt included.
    pub tokens: usize,
    /// Versions that sampled its tokens.
    pub versions: Vec<VersionSpan>,
    /// Age of its oldest policy token in versions; `None` if no batch trains on it.
    pub age: Option<u64>,
    /// `None` if there are no policy tokens.
    pub logprobs: Option<Logprobs>,
    /// Total reward; `None` if no component applies.
    pub reward: Option<f64>,
    /// Components of the reward with their weights.
    pub components: Vec<RewardComponent>,
    /// True if the task was solved; `None` if no verifier says so.
    pub solved: Option<bool>,
    /// Advantage of its episode.
    pub advantage: Option<f64>,
    /// Reason for its end.
    pub stop: StopReason,
    /// Text after the prompt.
    pub completion: String,
}

/// The task that a group attempts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskLineage {
    /// Index in the dataset; not recorded for groups that are incomplete or were replaced.
    pub index: Option<u64>,
    /// Text of the prompt.
    pub prompt: String,
    /// The reference answer, if recorded.
    pub answer: Option<String>,
}

/// Lineage of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lineage {
    /// The stage.
    pub stage: String,
    /// The group.
    pub ticket: u64,
    /// Its fate.
    #[serde(flatten)]
    pub fate: Fate,
    /// Time at which it was generated, if recorded.
    pub generated: Option<Generated>,
    /// Its task; `None` if no tokens are recorded.
    pub task: Option<TaskLineage>,
    /// Its trajectories, or the requested one.
    pub samples: Vec<SampleLineage>,
}

/// Returns the lineage of a sample, or of all samples of a ticket, of the run in `directory`. Only reads its files.
pub fn lineage(directory: &Path, name: &SampleName) -> Result<Lineage, LineageError> {
    let events = EventFile::open(&directory.join("events.jsonl"))?;
    let lines = outline_of(&events, Some(name.ticket))?;
    let lines: Vec<&EventLine> = lines.iter().collect();
    let stages = stages(directory, &lines, name.stage.as_deref())?;
    Finder { directory, stages, events: &events, lines }.find(name)
}

/// A stage that samples.
struct StageHistory {
    name: String,
    /// Index in the recipe.
    index: u32,
    recorded: RecordedStage,
}

/// Reads the stages that sample, or the wanted one.
fn stages(
    directory: &Path,
    lines: &[&EventLine],
    wanted: Option<&str>,
) -> Result<Vec<StageHistory>, LineageError> {
    let mut names: Vec<&str> = Vec::new();
    for line in lines {
        // Groups of demonstrations have no lineage.
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
    let (_, order) = seed_and_stages(lines);
    let selected = names.into_iter().filter(|name| wanted.is_none_or(|wanted| *name == wanted));
    let read = |name: &str| {
        let index = order.iter().position(|stage| stage == name).unwrap_or(0) as u32;
        let recorded = RecordedStage::read(directory, index, name, lines)?;
        Ok(StageHistory { name: name.to_owned(), index, recorded })
    };
    selected.map(read).collect()
}

/// Returns the run's seed and the names of its stages in order.
fn seed_and_stages(lines: &[&EventLine]) -> (u64, Vec<String>) {
    let started = lines.iter().rev().find_map(|line| match &line.event {
        Event::RunStarted { seed, stages, .. } => {
            Some((*seed, stages.iter().map(|stage| stage.name.clone()).collect()))
        }
        _ => None,
    });
    started.unwrap_or_default()
}

struct Finder<'a> {
    directory: &'a Path,
    events: &'a EventFile,
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
            0 => return Err(self.unknown(name.ticket)?),
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

    /// Events of a group, latest first.
    fn events(&self, stage: &str, ticket: u64) -> impl Iterator<Item = &EventLine> {
        self.lines.iter().rev().copied().filter(move |line| {
            line.stage == stage
                && matches!(&line.event,
                    Event::GroupEnded { ticket: own, .. }
                    | Event::Activity { activity: Activity::Group, ticket: Some(own), .. } if *own == ticket)
        })
    }

    fn group(&self, stage: &StageHistory, ticket: u64) -> Result<Option<Lineage>, LineageError> {
        let generated = self.events(&stage.name, ticket).find_map(|line| match line.event {
            Event::Activity { start, end, .. } => Some(Generated { attempt: line.attempt, start, end }),
            _ => None,
        });
        let reported = self.events(&stage.name, ticket).next().map(|line| match &line.event {
            Event::GroupEnded { end, .. } if *end == GroupEnd::Deferred => Fate::Deferred,
            Event::GroupEnded { end, reason, .. } => Fate::Ended { end: *end, reason: reason.clone() },
            _ => Fate::Waiting,
        });
        let (fate, task, samples) = match stage.recorded.find(ticket)? {
            Some(RecordedGroup::Trained { step, lines }) => {
                let version = lines.first().map_or(PolicyVersion(step - 1), |line| line.version);
                let age = lines.iter().filter_map(|line| age(&line.trajectory, version)).max().unwrap_or(0);
                let fate = Fate::Trained { step, version, age };
                (fate, lines.first().map(task_of_line), self.logged(stage, lines))
            }
            Some(RecordedGroup::Journal(group)) => {
                let fate = journal_fate(&group, reported);
                let (task, samples) = self.content(stage, group);
                (fate, task, samples)
            }
            None => match reported {
                Some(fate) => (not_kept(stage, fate), None, Vec::new()),
                None => return Ok(None),
            },
        };
        Ok(Some(Lineage { stage: stage.name.clone(), ticket, fate, generated, task, samples }))
    }

    fn logged(&self, stage: &StageHistory, lines: Vec<LoggedTrajectory>) -> Vec<SampleLineage> {
        let (seed, _) = seed_and_stages(&self.lines);
        let sample = |line: LoggedTrajectory| {
            let mut sample = sample(&line.trajectory, seed, stage.index, Some(line.version));
            sample.set_rewards(line.role, line.rewards);
            SampleLineage { advantage: line.advantage, completion: line.completion, ..sample }
        };
        lines.into_iter().map(sample).collect()
    }

    /// The task and the samples of a group of the journal.
    fn content(
        &self,
        stage: &StageHistory,
        group: JournalGroup,
    ) -> (Option<TaskLineage>, Vec<SampleLineage>) {
        let (seed, _) = seed_and_stages(&self.lines);
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
                sample.set_rewards(role, rewards.clone());
                sample.completion = texts(tokenizer.as_ref(), &trajectory).1;
                samples.push(sample);
            }
        }
        (task, samples)
    }

    fn unknown(&self, ticket: u64) -> Result<LineageError, LineageError> {
        let mut known: Vec<(&str, BTreeSet<u64>)> =
            self.stages.iter().map(|stage| (stage.name.as_str(), stage.recorded.tickets())).collect();
        self.events.each(|line, survives| {
            let ticket = match line.event {
                Event::GroupEnded { ticket, .. } => Some(ticket),
                Event::Activity { ticket, .. } => ticket,
                _ => None,
            };
            if let (true, Some((_, tickets))) =
                (survives, known.iter_mut().find(|known| known.0 == line.stage))
            {
                tickets.extend(ticket);
            }
        })?;
        let known =
            known.into_iter().map(|(stage, tickets)| (stage.to_owned(), tickets.into_iter().collect()));
        Ok(LineageError::Ticket { ticket, known: known.collect() })
    }
}

/// Returns the fate of a group without a record. The journal has every complete group that is not trained yet.
fn not_kept(stage: &StageHistory, reported: Fate) -> Fate {
    let steps = stage.recorded.steps_without_rollouts();
    if reported == Fate::Waiting && !steps.is_empty() {
        Fate::NotKept { steps: ranges(&steps) }
    } else {
        reported
    }
}

/// Returns the fate of a group of the journal. `reported` is the one that the events report, if any.
fn journal_fate(group: &JournalGroup, reported: Option<Fate>) -> Fate {
    match (&group.fate, reported) {
        (Some(JournalFate::Cut { batch, is_trained: false }), _) => Fate::InBatch { step: batch + 1 },
        (Some(JournalFate::Cut { batch, is_trained: true }), _) => {
            let version = PolicyVersion(*batch);
            let trajectories = group.episodes.values().flat_map(|episode| &episode.segments);
            let age = trajectories.filter_map(|trajectory| age(trajectory, version)).max().unwrap_or(0);
            Fate::Trained { step: batch + 1, version, age }
        }
        // The journal has neither reasons of filters nor groups that the scheduler deferred or discarded.
        (_, Some(ended @ (Fate::Ended { .. } | Fate::Deferred))) => ended,
        (Some(JournalFate::Filtered), _) => Fate::Ended { end: GroupEnd::Filtered, reason: None },
        (Some(JournalFate::Failed(reason)), _) => {
            Fate::Ended { end: GroupEnd::Failed, reason: Some(reason.clone()) }
        }
        (None, _) if group.task.is_some() => Fate::Waiting,
        (None, _) => Fate::InFlight,
    }
}

fn task_of_line(line: &LoggedTrajectory) -> TaskLineage {
    TaskLineage { index: Some(line.task), prompt: line.prompt.clone(), answer: Some(line.answer.clone()) }
}

/// Returns prompt and completion as text, or their token ids if no tokenizer is available.
fn texts(tokenizer: Option<&Tokenizer>, trajectory: &Trajectory) -> (String, String) {
    if let Some(tokenizer) = tokenizer {
        return (prompt_text(tokenizer, trajectory), completion_text(tokenizer, trajectory));
    }
    let (prompt, completion) = trajectory.tokens.split_at(trajectory.leading_prompt());
    (format!("tokens {prompt:?}"), format!("tokens {completion:?}"))
}

/// Returns the age of a trajectory's oldest policy token at the version that a step starts from.
fn age(trajectory: &Trajectory, trained_from: PolicyVersion) -> Option<u64> {
    trajectory.oldest_version().map(|oldest| trained_from.0.saturating_sub(oldest.0))
}

/// The lineage of a trajectory without rewards and text.
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
    fn set_rewards(&mut self, role: Role, rewards: Rewards) {
        self.role = role;
        self.reward = rewards.total();
        self.solved = rewards.solved;
        self.components = rewards.components;
    }
}

#[cfg(test)]
mod tests;

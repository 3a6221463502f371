//! The event stream: what the console, the report and the trackers read.
//!
//! `events.jsonl` is append-only telemetry: a line that cannot be written is counted, never fatal. Every line
//! carries its attempt (1 for the first process, 2 after the first resume …), its stage and its step.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::history::last_attempt;
use crate::tensorboard::TensorBoardWriter;

/// Scalars under the field's names (`rloom_core::metric`), in name order.
pub type Metrics = BTreeMap<String, f64>;

/// One stage as it is announced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageOutline {
    /// Its name.
    pub name: String,
    /// `sft`, `grpo`, …
    pub method: String,
    /// Batches that it trains.
    pub steps: u64,
}

/// What a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Completions generated.
    Rollout,
    /// Completions scored.
    Reward,
    /// Sequences trained on.
    Train,
    /// Held-out completions.
    Evaluate,
}

/// Who is busy: generation and training work side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Generates and scores completions.
    Rollout,
    /// Trains, publishes, evaluates and saves.
    Train,
}

/// What a lane does, or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// A group from its start to its last score. Groups overlap, and the engine may pause within one.
    Group,
    /// The engine generates.
    Generate,
    /// No group may start before a newer policy is there: the bound on staleness.
    WaitForPolicy,
    /// The engine takes over new weights.
    LoadWeights,
    /// No batch is ready to be trained on.
    WaitForBatch,
    /// A batch is trained on.
    Train,
    /// New weights are handed over.
    Publish,
    /// A version is evaluated.
    Evaluate,
    /// A checkpoint is written.
    Checkpoint,
}

impl Lane {
    /// Both, in the order in which they are shown.
    pub const ALL: [Self; 2] = [Self::Rollout, Self::Train];

    /// `rollout` or `train`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Train => "train",
        }
    }
}

impl Activity {
    /// What it is called where it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Generate => "generate",
            Self::WaitForPolicy => "wait for policy",
            Self::LoadWeights => "load weights",
            Self::WaitForBatch => "wait for batch",
            Self::Train => "train",
            Self::Publish => "publish",
            Self::Evaluate => "evaluate",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// Whether it is waiting and not work.
    pub fn is_wait(self) -> bool {
        matches!(self, Self::WaitForPolicy | Self::WaitForBatch)
    }
}

/// One completion, shown as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The group; of an evaluation, the task's index.
    pub ticket: u64,
    /// Its place in the group.
    pub sample: u32,
    /// The task's place in its dataset.
    pub task: u64,
    /// The prompt as text.
    pub prompt: String,
    /// Everything after the prompt as text, what the environment answered included.
    pub completion: String,
    /// The reference answer.
    pub answer: String,
    /// Total reward, where one applies.
    pub reward: Option<f64>,
    /// Named parts of the reward.
    pub components: BTreeMap<String, Option<f64>>,
    /// Its advantage; of evaluations none.
    pub advantage: Option<f64>,
    /// Whether the task was solved.
    pub solved: Option<bool>,
    /// Policy tokens.
    pub tokens: usize,
    /// Why it ended.
    pub stop: String,
}

/// What happens in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A process begins to work on the run.
    RunStarted {
        /// The run's name.
        name: String,
        /// Version of the program.
        version: String,
        /// The seed.
        seed: u64,
        /// Threads that compute.
        threads: usize,
        /// Instruction set of the kernels.
        isa: String,
        /// Parameters of the model.
        parameters: u64,
        /// The checkpoint that it goes on from.
        resumed_from: Option<String>,
        /// All stages.
        stages: Vec<StageOutline>,
    },
    /// A stage begins, or goes on.
    StageStarted {
        /// The stage.
        outline: StageOutline,
        /// Batches already trained.
        from_step: u64,
    },
    /// Work within a step; shown, not stored.
    Progress {
        /// What is counted.
        phase: Phase,
        /// Done so far.
        done: u64,
        /// In all.
        total: u64,
    },
    /// A batch is trained and published.
    Step {
        /// Its metrics.
        metrics: Metrics,
    },
    /// A completion of the step.
    Sample(Sample),
    /// A version was evaluated.
    Evaluation {
        /// Its metrics.
        metrics: Metrics,
        /// Held-out tasks.
        tasks: u64,
        /// Whether this is the best version so far.
        best: bool,
    },
    /// A held-out completion.
    EvaluationSample(Sample),
    /// A checkpoint is durable.
    Checkpoint {
        /// Its folder, relative to the run directory.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// A lane was busy with something, or waited, and is done with it.
    Activity {
        /// Who.
        lane: Lane,
        /// With what.
        activity: Activity,
        /// When it began, in seconds since the process began.
        start: f64,
        /// When it ended, in seconds since the process began.
        end: f64,
        /// Of a group, the oldest version that sampled any of its tokens; of `Train`, the batch; else the version
        /// that is worked on.
        version: u64,
        /// The group, where it is about one.
        ticket: Option<u64>,
    },
    /// A group came to an end without being trained on, or was put off.
    GroupEnded {
        /// The group.
        ticket: u64,
        /// `filtered`, `stale`, `failed`, `surplus`, or `put_off` (it will be started again).
        end: String,
        /// Why, where more is known.
        reason: Option<String>,
    },
    /// Something that the user should know of.
    Warning {
        /// What.
        message: String,
    },
    /// A stage is over.
    StageFinished {
        /// Its name.
        name: String,
        /// Seconds that this attempt spent in it.
        seconds: f64,
    },
    /// The run is over.
    RunFinished {
        /// Seconds of this attempt.
        seconds: f64,
        /// The final model's folder, relative to the run directory.
        model: String,
        /// Lines of telemetry that could not be written.
        lost_lines: u64,
    },
    /// The run was interrupted and can be resumed.
    RunInterrupted {
        /// Seconds of this attempt.
        seconds: f64,
    },
    /// The run failed.
    RunFailed {
        /// Why.
        error: String,
    },
}

/// An event with its place in the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// Which process of the run, from 1.
    pub attempt: u32,
    /// Unix time in seconds.
    pub time: f64,
    /// Seconds since the process began.
    pub elapsed: f64,
    /// The stage's name; empty outside of stages.
    pub stage: String,
    /// Step within the stage.
    pub step: u64,
    /// Steps of all stages up to here: the x axis of curves over the whole run.
    pub global_step: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// Whoever watches a run as it happens.
pub trait Observer {
    /// Takes notice of an event. It must not block: training waits for it.
    fn observe(&mut self, line: &EventLine);
}

/// Nobody watches.
impl Observer for () {
    fn observe(&mut self, _: &EventLine) {}
}

/// Where events go: the file, TensorBoard, and the observer.
pub struct EventStream<'a> {
    file: Option<File>,
    tensorboard: Option<TensorBoardWriter>,
    observer: &'a mut dyn Observer,
    start: Instant,
    pub attempt: u32,
    stage: String,
    stage_base: u64,
    step: u64,
    lost_lines: u64,
}

impl std::fmt::Debug for EventStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("attempt", &self.attempt).field("stage", &self.stage).finish()
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl<'a> EventStream<'a> {
    /// Opens the stream of the next attempt. Telemetry that cannot be opened is counted as lost.
    pub fn open(path: &Path, tensorboard: &Path, observer: &'a mut dyn Observer) -> Self {
        let attempt = last_attempt(path) + 1;
        let mut file = File::options().create(true).append(true).open(path).ok();
        if let Some(file) = &mut file
            && ends_inside_a_line(path)
        {
            // A killed process can leave half a line; the next one starts on its own.
            let _ = file.write_all(b"\n");
        }
        Self {
            file,
            tensorboard: TensorBoardWriter::create(tensorboard, unix_seconds(), attempt).ok(),
            observer,
            start: Instant::now(),
            attempt,
            stage: String::new(),
            stage_base: 0,
            step: 0,
            lost_lines: 0,
        }
    }

    /// Sets the place that the next events carry. `stage_base`: steps of the stages before.
    pub fn place(&mut self, stage: &str, stage_base: u64, step: u64) {
        stage.clone_into(&mut self.stage);
        self.stage_base = stage_base;
        self.step = step;
    }

    pub fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// A moment in seconds since the process began.
    pub fn at(&self, moment: Instant) -> f64 {
        moment.saturating_duration_since(self.start).as_secs_f64()
    }

    pub fn lost_lines(&self) -> u64 {
        self.lost_lines
    }

    pub fn emit(&mut self, event: Event) {
        let line = EventLine {
            attempt: self.attempt,
            time: unix_seconds(),
            elapsed: self.elapsed(),
            stage: self.stage.clone(),
            step: self.step,
            global_step: self.stage_base + self.step,
            event,
        };
        self.observer.observe(&line);
        if matches!(line.event, Event::Progress { .. }) {
            return;
        }
        let written = serde_json::to_vec(&line).ok().zip(self.file.as_mut()).map(|(mut text, file)| {
            text.push(b'\n');
            file.write_all(&text)
        });
        if !matches!(written, Some(Ok(()))) {
            self.lost_lines += 1;
        }
        if let Event::Step { metrics } | Event::Evaluation { metrics, .. } = &line.event
            && let Some(tensorboard) = &mut self.tensorboard
        {
            let values = metrics.iter().map(|(name, &value)| (name.as_str(), value));
            if tensorboard.scalars(line.time, line.global_step, values).is_err() {
                self.tensorboard = None;
                self.lost_lines += 1;
            }
        }
    }

    pub fn warn(&mut self, message: impl Into<String>) {
        self.emit(Event::Warning { message: message.into() });
    }
}

fn ends_inside_a_line(path: &Path) -> bool {
    let last = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last).map(|()| last[0])
    });
    last.is_ok_and(|last| last != b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::read_events;

    #[derive(Default)]
    struct Seen(Vec<EventLine>);
    impl Observer for Seen {
        fn observe(&mut self, line: &EventLine) {
            self.0.push(line.clone());
        }
    }

    fn step(value: f64) -> Event {
        Event::Step { metrics: [("reward".to_owned(), value)].into() }
    }

    #[test]
    fn a_stream_reads_back_and_attempts_count_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let mut seen = Seen::default();
        let mut stream = EventStream::open(&path, directory.path(), &mut seen);
        stream.place("rl", 10, 1);
        stream.emit(step(0.25));
        stream.emit(Event::Progress { phase: Phase::Train, done: 1, total: 2 });
        drop(stream);
        assert_eq!(seen.0.len(), 2, "the observer sees progress too");
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"attempt\":1,\"ti")
            .unwrap();
        let mut nobody = ();
        let mut stream = EventStream::open(&path, directory.path(), &mut nobody);
        assert_eq!(stream.attempt, 2);
        stream.emit(step(0.5));
        let lines = read_events(&path).unwrap();
        assert_eq!(lines.len(), 2, "progress is not stored, the torn line is skipped");
        assert_eq!((lines[0].stage.as_str(), lines[0].global_step, lines[1].attempt), ("rl", 11, 2));
    }
}

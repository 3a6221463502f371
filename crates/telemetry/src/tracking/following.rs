//! From the event stream to a tracker, continuing where an earlier process stopped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::added_lines::AddedLines;
use super::process::{Answer, Answering, Limits, Process, Request};
use super::state::{State, StateFile};
use super::{Tracking, TrackingError};
use crate::state::is_locked;
use crate::{Event, EventLine, Metrics, RunState, Sample, StateReader};

/// Polls without a process and without an end, after which the run counts as killed.
const KILLED_AFTER: u32 = 5;
/// Calls of a tracker before it is given up; the waits between them double.
const ATTEMPTS: u32 = 5;
/// Steps between tables of samples in a run without evaluations.
const TABLE_STEPS: i64 = 50;
/// Rows of a table; the last ones are kept.
const TABLE_ROWS: usize = 200;
/// Columns of a table.
const COLUMNS: [&str; 13] = [
    "kind",
    "stage",
    "global_step",
    "ticket",
    "sample",
    "prompt",
    "completion",
    "answer",
    "reward",
    "advantage",
    "solved",
    "tokens",
    "stop",
];

/// Options of [`follow`].
#[derive(Debug)]
pub struct Follow<'a> {
    /// Resolved configuration of the run.
    pub config: &'a Value,
    /// Continue until the run has ended.
    pub until_the_end: bool,
    /// Wait for the end of another process that passes the run to the tracker, instead of failing.
    pub waits: bool,
    /// Set from another thread to stop.
    pub stop: &'a AtomicBool,
}

/// Passes the run in `directory` to a tracker. `warn` receives the errors of calls that are repeated.
pub fn follow(
    tracking: &Tracking,
    directory: &Path,
    options: &Follow<'_>,
    warn: &dyn Fn(&str),
) -> Result<(), TrackingError> {
    let pace = Pace::default();
    let file = lock(tracking, directory, options, pace)?;
    let start = || Process::start(tracking, options.stop, Limits::default());
    Following::open(tracking, directory, options, warn, file, start, pace)?.run()
}

/// Locks the record of the run.
fn lock(
    tracking: &Tracking,
    directory: &Path,
    options: &Follow<'_>,
    pace: Pace,
) -> Result<StateFile, TrackingError> {
    loop {
        match StateFile::lock(tracking, directory) {
            Err(TrackingError::Busy { .. }) if options.waits => wait(options.stop, pace.poll)?,
            result => return result,
        }
    }
}

/// Waits, unless tracking is to stop.
fn wait(stop: &AtomicBool, time: Duration) -> Result<(), TrackingError> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        check_stop(stop)?;
        std::thread::sleep(time.min(Duration::from_millis(100)));
    }
    check_stop(stop)
}

fn check_stop(stop: &AtomicBool) -> Result<(), TrackingError> {
    if stop.load(Ordering::Relaxed) { Err(TrackingError::Interrupted) } else { Ok(()) }
}

/// Time between two looks at the file, and the first wait before a call is repeated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) poll: Duration,
    pub(super) retry: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { poll: Duration::from_secs(1), retry: Duration::from_secs(1) }
    }
}

/// A row of the next table.
#[derive(Debug)]
struct Row {
    global_step: u64,
    is_evaluation: bool,
    values: Value,
}

/// One run on its way to one tracker.
pub(super) struct Following<'a, A> {
    tracking: &'a Tracking,
    directory: &'a Path,
    /// Absolute path of the directory, and its name.
    path: PathBuf,
    name: String,
    options: &'a Follow<'a>,
    file: StateFile,
    state: State,
    lines: AddedLines,
    end: StateReader,
    attempt: u32,
    rows: Vec<Row>,
    answering: A,
    warn: &'a dyn Fn(&str),
    pace: Pace,
}

impl<'a, A: Answering> Following<'a, A> {
    pub(super) fn open(
        tracking: &'a Tracking,
        directory: &'a Path,
        options: &'a Follow<'a>,
        warn: &'a dyn Fn(&str),
        file: StateFile,
        start: impl FnOnce() -> Result<A, TrackingError>,
        pace: Pace,
    ) -> Result<Self, TrackingError> {
        let path = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let state = file.read()?.unwrap_or_else(|| State::new(&name, &tracking.project));
        let lines = AddedLines::open(directory)?;
        Ok(Self {
            tracking,
            directory,
            path,
            name,
            options,
            file,
            state,
            lines,
            end: StateReader::default(),
            attempt: 0,
            rows: Vec::new(),
            answering: start()?,
            warn,
            pace,
        })
    }

    /// Starts or continues the run at the tracker.
    fn start(&mut self) -> Result<(), TrackingError> {
        let mut settings = Map::new();
        flatten("", self.options.config, &mut settings);
        let (name, id, project) = (self.name.clone(), self.state.id.clone(), self.state.project.clone());
        let answer = self.repeat(&Request::Start {
            run: &self.path.clone(),
            name: &name,
            key: &id,
            project: &project,
            config: self.options.config,
            settings: &settings,
        })?;
        let tracker = self.tracking.kind;
        if let Some(package) = answer.missing {
            return Err(TrackingError::NotInstalled { tracker, python: answer.python, package });
        }
        if let Some(message) = answer.error {
            return Err(TrackingError::Refused { tracker, message });
        }
        // Steps that the tracker has stored count more than those that were passed on to it.
        let stored = answer.stored.unwrap_or(i64::MAX);
        let state = &mut self.state;
        let metrics = [&mut state.step, &mut state.evaluation, &mut state.validation];
        for passed_on in metrics.into_iter().chain([&mut state.samples]) {
            *passed_on = stored.min(*passed_on);
        }
        self.file.write(&self.state)
    }

    /// Passes on all events, and the end of the run.
    pub(super) fn run(mut self) -> Result<(), TrackingError> {
        self.start()?;
        let (asked, project) = (&self.tracking.project, &self.state.project);
        if asked != project && asked != super::DEFAULT_PROJECT {
            (self.warn)(&format!(
                "the run is in the project {project} of {} and stays there",
                self.tracking.kind
            ));
        }
        let ended = self.events().and_then(|state| {
            if state != RunState::Running {
                self.pass_table()?;
            }
            Ok(state)
        });
        let state = ended.as_ref().unwrap_or(&RunState::Running);
        let answer = self.answering.answer(&Request::Finish { state: state.name() });
        ended?;
        match answer?.error {
            Some(message) => Err(TrackingError::Failed { tracker: self.tracking.kind, message }),
            None => Ok(()),
        }
    }

    fn events(&mut self) -> Result<RunState, TrackingError> {
        let mut quiet_polls = 0;
        loop {
            // Before the events: those of a process that ends meanwhile are read below.
            let is_running = is_locked(self.directory);
            let mut is_quiet = true;
            while let Some(text) = self.lines.next()? {
                is_quiet = false;
                if let Ok(line) = serde_json::from_slice(text) {
                    self.take(&line)?;
                }
                self.check_stop()?;
            }
            let end = self.end.end().filter(|_| !is_running);
            if end.is_some() || !self.options.until_the_end {
                let without_end = if is_running { RunState::Running } else { RunState::Killed };
                return Ok(end.cloned().unwrap_or(without_end));
            }
            quiet_polls = if is_quiet && !is_running { quiet_polls + 1 } else { 0 };
            if quiet_polls == KILLED_AFTER {
                return Ok(RunState::Killed);
            }
            self.wait(self.pace.poll)?;
        }
    }

    fn take(&mut self, line: &EventLine) -> Result<(), TrackingError> {
        self.end.add(line);
        let step = line.global_step as i64;
        match &line.event {
            Event::Step { metrics } => {
                // Before the step, whose samples follow it: the table ends with earlier ones.
                if self.is_table_due(step) {
                    self.pass_table()?;
                }
                if step > self.state.step {
                    self.log(line, metrics)?;
                    self.state.step = step;
                    self.file.write(&self.state)?;
                }
            }
            Event::Evaluation { metrics, .. } if step > self.state.evaluation => {
                self.log(line, metrics)?;
                self.state.evaluation = step;
                self.file.write(&self.state)?;
            }
            Event::Validation { metrics, .. } if step > self.state.validation => {
                self.log(line, metrics)?;
                self.state.validation = step;
                self.file.write(&self.state)?;
            }
            Event::Sample(sample) if step > self.state.samples => self.add_row("sample", line, sample),
            Event::EvaluationSample(sample) if step > self.state.samples => {
                self.add_row("evaluation_sample", line, sample);
            }
            _ => {}
        }
        Ok(())
    }

    fn log(&mut self, line: &EventLine, metrics: &Metrics) -> Result<(), TrackingError> {
        self.call(&Request::Log { step: line.global_step, metrics, time: line.time })
    }

    fn add_row(&mut self, kind: &str, line: &EventLine, sample: &Sample) {
        if line.attempt > self.attempt {
            // A resumed run repeats the steps after its last checkpoint.
            self.rows.retain(|row| row.global_step < line.global_step);
            self.attempt = line.attempt;
        }
        let Sample { ticket, sample: index, prompt, completion, answer, reward, advantage, .. } = sample;
        let values = json!([
            kind,
            line.stage,
            line.global_step,
            ticket,
            index,
            prompt,
            completion,
            answer,
            reward,
            advantage,
            sample.solved,
            sample.tokens,
            sample.stop
        ]);
        let is_evaluation = kind == "evaluation_sample";
        self.rows.push(Row { global_step: line.global_step, is_evaluation, values });
    }

    /// True at the first step after an evaluation, whose samples follow it.
    fn is_table_due(&self, step: i64) -> bool {
        self.rows.iter().any(|row| row.is_evaluation) || step - self.state.samples > TABLE_STEPS
    }

    fn pass_table(&mut self) -> Result<(), TrackingError> {
        let rows = std::mem::take(&mut self.rows);
        let Some(last) = rows.iter().map(|row| row.global_step).max() else { return Ok(()) };
        let kept: Vec<&Value> =
            rows[rows.len().saturating_sub(TABLE_ROWS)..].iter().map(|row| &row.values).collect();
        self.call(&Request::Table { step: last, columns: &COLUMNS, rows: &kept })?;
        self.state.samples = last as i64;
        self.file.write(&self.state)
    }

    /// Passes on a request, again if the tracker fails.
    fn call(&mut self, request: &Request<'_>) -> Result<(), TrackingError> {
        match self.repeat(request)?.error {
            Some(message) => Err(TrackingError::Failed { tracker: self.tracking.kind, message }),
            None => Ok(()),
        }
    }

    /// Returns the first answer without an error, or the last one. A package that is missing stays so.
    fn repeat(&mut self, request: &Request<'_>) -> Result<Answer, TrackingError> {
        let mut time = self.pace.retry;
        for _ in 1..ATTEMPTS {
            let answer = self.answering.answer(request)?;
            let Some(message) = answer.error.as_ref().filter(|_| answer.missing.is_none()) else {
                return Ok(answer);
            };
            (self.warn)(&format!("{}: {message}", self.tracking.kind));
            self.wait(time)?;
            time *= 2;
        }
        self.answering.answer(request)
    }

    fn wait(&self, time: Duration) -> Result<(), TrackingError> {
        wait(self.options.stop, time)
    }

    fn check_stop(&self) -> Result<(), TrackingError> {
        check_stop(self.options.stop)
    }
}

/// Scalars by dotted key; stages have their names, and other lists are JSON.
fn flatten(prefix: &str, value: &Value, into: &mut Map<String, Value>) {
    let key = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    match value {
        Value::Object(table) => table.iter().for_each(|(name, value)| flatten(&key(name), value, into)),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => {
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str).map_or(index.to_string(), str::to_owned);
                flatten(&key(&name), item, into);
            }
        }
        Value::Array(_) => {
            into.insert(prefix.to_owned(), Value::String(value.to_string()));
        }
        _ => {
            into.insert(prefix.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests;

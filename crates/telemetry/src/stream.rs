//! The event stream, which the console, the report and experiment trackers read.
//!
//! `events.jsonl` is append-only telemetry: lines that cannot be written are counted and never stop the run. Each line
//! carries its attempt, stage and step.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rloom_hub::Hub;

use crate::event::{Event, EventLine};
use crate::event_file::last_attempt;
use crate::leftovers;
use crate::tensorboard::TensorBoardWriter;
use crate::tracking::{TrackerProcess, Tracking};

/// Receives the events of a run as they occur.
pub trait Observer {
    /// Handles an event. Must not block: training waits for it.
    fn observe(&mut self, line: &EventLine);

    /// Makes a hub report its downloads to this observer. By default they are not reported.
    fn observe_hub(&self, hub: Hub) -> Hub {
        hub
    }
}

/// Ignores all events.
impl Observer for () {
    fn observe(&mut self, _: &EventLine) {}
}

/// Writes events to `events.jsonl`, to TensorBoard and to an observer.
pub struct EventStream<'a> {
    file: Option<File>,
    tensorboard_folder: PathBuf,
    tensorboard: Option<TensorBoardWriter>,
    observer: &'a mut dyn Observer,
    trackers: Vec<TrackerProcess>,
    start: Instant,
    attempt: u32,
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
    /// Opens the stream for the next attempt, and removes the temporary files that earlier attempts left in the run
    /// directory. Events are counted as lost if the file cannot be opened.
    pub fn open(path: &Path, tensorboard: &Path, observer: &'a mut dyn Observer) -> Self {
        if let Some(run) = path.parent() {
            leftovers::remove(run);
        }
        let attempt = last_attempt(path) + 1;
        let mut file = File::options().create(true).append(true).open(path).ok();
        if let Some(file) = &mut file
            && ends_inside_a_line(path)
        {
            // A killed process can leave an incomplete line; the next event starts a new one.
            let _ = file.write_all(b"\n");
        }
        Self {
            file,
            tensorboard_folder: tensorboard.to_owned(),
            tensorboard: TensorBoardWriter::create(tensorboard, unix_seconds(), attempt).ok(),
            observer,
            trackers: Vec::new(),
            start: Instant::now(),
            attempt,
            stage: String::new(),
            stage_base: 0,
            step: 0,
            lost_lines: 0,
        }
    }

    /// Begins the next attempt in this process: the run continues from an earlier checkpoint.
    pub fn next_attempt(&mut self) {
        self.attempt += 1;
        self.start = Instant::now();
        self.set_position("", 0, 0);
        self.tensorboard =
            TensorBoardWriter::create(&self.tensorboard_folder, unix_seconds(), self.attempt).ok();
    }

    /// Sets the position that the following events carry. `stage_base` is the number of steps of the earlier stages.
    pub fn set_position(&mut self, stage: &str, stage_base: u64, step: u64) {
        stage.clone_into(&mut self.stage);
        self.stage_base = stage_base;
        self.step = step;
    }

    /// Returns the number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the seconds since the attempt began.
    pub fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Converts an instant to seconds since the attempt began.
    pub fn seconds_at(&self, instant: Instant) -> f64 {
        instant.saturating_duration_since(self.start).as_secs_f64()
    }

    /// Returns the number of lines that could not be written.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines
    }

    /// Starts processes that pass the run in `directory` to trackers. One that cannot be started, or fails later, is a warning.
    /// `program` is the path of `rloom`.
    pub fn track(&mut self, trackers: &[Tracking], directory: &Path, program: &Path) {
        for tracking in trackers {
            match tracking.start(program, directory) {
                Ok(process) => self.trackers.push(process),
                Err(error) => self.warn(error.to_string()),
            }
        }
    }

    /// Records an event and passes it to the observer.
    pub fn emit(&mut self, event: Event) {
        let mut failures = Vec::new();
        self.trackers.retain_mut(|tracker| {
            let ended = tracker.ended();
            failures.extend(ended.filter(|status| !status.success()).map(|status| tracker.failure(status)));
            ended.is_none()
        });
        for message in failures {
            self.record(Event::Warning { message });
        }
        self.record(event);
    }

    fn record(&mut self, event: Event) {
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
        if let Event::Step { metrics } | Event::Evaluation { metrics, .. } | Event::Validation { metrics, .. } =
            &line.event
            && let Some(tensorboard) = &mut self.tensorboard
        {
            let values = metrics.iter().map(|(name, &value)| (name.as_str(), value));
            if tensorboard.scalars(line.time, line.global_step, values).is_err() {
                self.tensorboard = None;
                self.lost_lines += 1;
            }
        }
    }

    /// Records a warning.
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
    use crate::Tracker;
    use crate::event::Phase;
    use crate::event_file::read_events;

    #[derive(Default)]
    struct Recorder(Vec<EventLine>);
    impl Observer for Recorder {
        fn observe(&mut self, line: &EventLine) {
            self.0.push(line.clone());
        }
    }

    fn step(value: f64) -> Event {
        Event::Step { metrics: [("reward".to_owned(), value)].into() }
    }

    /// A program in the place of `rloom` that prints its arguments and fails.
    fn failing(folder: &Path) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join("rloom");
        std::fs::write(&path, "#!/bin/sh\necho \"$@\"\necho 'error: failed' >&2\necho 'mend it'\nexit 3\n")
            .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn warnings(recorder: &Recorder) -> Vec<&str> {
        let lines = recorder.0.iter();
        lines
            .filter_map(|line| match &line.event {
                Event::Warning { message } => Some(message.as_str()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_tracker_that_fails_is_one_warning() {
        let directory = tempfile::tempdir().unwrap();
        let program = failing(directory.path());
        let path = directory.path().join("events.jsonl");
        let mut recorder = Recorder::default();
        let mut stream = EventStream::open(&path, directory.path(), &mut recorder);
        stream.track(&[Tracking::new(Tracker::Mlflow)], directory.path(), &program);
        while !stream.trackers.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
            stream.emit(step(0.5));
        }
        stream.emit(step(0.5));
        drop(stream);
        let log = directory.path().join("tracking/mlflow.log");
        let message = format!(
            "mlflow no longer receives this run (exit status: 3): error: failed. Its messages are in {}; `rloom track` continues",
            log.display()
        );
        assert_eq!(warnings(&recorder), [message.as_str()]);
        let printed = std::fs::read_to_string(log).unwrap();
        let arguments = format!("track {} --to mlflow", directory.path().display());
        assert_eq!(
            printed,
            format!("{arguments} --project rloom --python python3 --wait\nerror: failed\nmend it\n")
        );
    }

    #[test]
    fn a_tracker_that_dies_silently_is_not_reported_with_an_earlier_error() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("tracking/mlflow.log");
        std::fs::create_dir(directory.path().join("tracking")).unwrap();
        std::fs::write(&log, "error: of an earlier attempt\n").unwrap();
        let mut recorder = Recorder::default();
        let mut stream =
            EventStream::open(&directory.path().join("e.jsonl"), directory.path(), &mut recorder);
        stream.track(&[Tracking::new(Tracker::Mlflow)], directory.path(), Path::new("/bin/false"));
        while !stream.trackers.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
            stream.emit(step(0.5));
        }
        drop(stream);
        let [warning] = warnings(&recorder)[..] else { panic!("not one warning") };
        assert!(warning.contains("(exit status: 1): it printed nothing. "), "{warning}");
    }

    #[test]
    fn a_missing_program_is_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::default();
        let mut stream =
            EventStream::open(&directory.path().join("e.jsonl"), directory.path(), &mut recorder);
        stream.track(&[Tracking::new(Tracker::Wandb)], directory.path(), Path::new("no-such-program"));
        drop(stream);
        let [warning] = warnings(&recorder)[..] else { panic!("not one warning") };
        assert!(warning.starts_with("could not start no-such-program: "), "{warning}");
    }

    #[test]
    fn a_stream_reads_back_and_attempts_count_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let mut recorder = Recorder::default();
        let mut stream = EventStream::open(&path, directory.path(), &mut recorder);
        stream.set_position("rl", 10, 1);
        stream.emit(step(0.25));
        stream.emit(Event::Progress { phase: Phase::Train, done: 1, total: 2, detail: None });
        drop(stream);
        assert_eq!(recorder.0.len(), 2, "the observer also receives progress");
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"attempt\":1,\"ti")
            .unwrap();
        let mut no_observer = ();
        let mut stream = EventStream::open(&path, directory.path(), &mut no_observer);
        assert_eq!(stream.attempt(), 2);
        stream.emit(step(0.5));
        let lines = read_events(&path).unwrap();
        assert_eq!(lines.len(), 2, "progress is not stored, the incomplete line is skipped");
        assert_eq!((lines[0].stage.as_str(), lines[0].global_step, lines[1].attempt), ("rl", 11, 2));
    }
}

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;

use tempfile::TempDir;

use super::super::DEFAULT_PROJECT;
use super::super::process::Answer;
use super::*;
use crate::{StageOutline, Tracker};

type OnLog = Box<dyn FnOnce(&Path)>;

/// Remembers what it gets, over several processes.
#[derive(Default)]
struct Recorder {
    starts: Vec<Value>,
    logged: Vec<(u64, Metrics)>,
    tables: Vec<(u64, Vec<Value>)>,
    states: Vec<String>,
    knows_steps: bool,
    /// Calls that fail from now on.
    failures: u32,
    /// Starts that fail from now on.
    failing_starts: u32,
    /// Called once, when metrics arrive.
    on_log: Option<OnLog>,
}

impl Recorder {
    fn samples(&self) -> Vec<&Value> {
        self.tables.iter().flat_map(|(_, rows)| rows).collect()
    }
}

struct Recording<'a>(&'a RefCell<Recorder>, &'a Path);

impl Answering for Recording<'_> {
    fn answer(&mut self, request: &Request<'_>) -> Result<Answer, TrackingError> {
        let mut recorder = self.0.borrow_mut();
        let mut answer = Answer::default();
        match request {
            Request::Start { .. } if recorder.failing_starts > 0 => {
                recorder.failing_starts -= 1;
                answer.error = Some("ConnectionError: no route".to_owned());
            }
            Request::Start { .. } => {
                recorder.starts.push(serde_json::to_value(request).unwrap()["start"].clone());
                let last = recorder.logged.iter().map(|(step, _)| *step as i64).max();
                answer.stored = recorder.knows_steps.then(|| last.unwrap_or(-1));
            }
            Request::Log { .. } if recorder.failures > 0 => {
                recorder.failures -= 1;
                answer.error = Some("ConnectionError: no route".to_owned());
            }
            Request::Log { step, metrics, time } => {
                assert!(*time > 1e9);
                if let Some(on_log) = recorder.on_log.take() {
                    on_log(self.1);
                }
                recorder.logged.push((*step, (*metrics).clone()));
            }
            Request::Table { step, columns, rows } => {
                assert!(rows.iter().all(|row| row.as_array().unwrap().len() == columns.len()));
                let last = recorder.tables.last().map(|(step, _)| *step);
                assert!(last.is_none_or(|last| last < *step), "tables of {last:?} and {step}");
                recorder.tables.push((*step, rows.iter().map(|row| (*row).clone()).collect()));
            }
            Request::Finish { state } => recorder.states.push((*state).to_owned()),
        }
        Ok(answer)
    }
}

fn line(attempt: u32, global_step: u64, event: Event) -> EventLine {
    let (time, elapsed) = (1.6e9 + global_step as f64, 0.5);
    EventLine { attempt, time, elapsed, stage: "rl".to_owned(), step: global_step, global_step, event }
}

fn step(attempt: u32, global_step: u64) -> EventLine {
    line(attempt, global_step, Event::Step { metrics: [("loss".to_owned(), global_step as f64)].into() })
}

fn evaluation(attempt: u32, global_step: u64) -> EventLine {
    let metrics = [("eval/reward".to_owned(), 0.25)].into();
    line(attempt, global_step, Event::Evaluation { metrics, tasks: 1, best: false })
}

fn sample(ticket: u64) -> Sample {
    Sample {
        ticket,
        sample: 0,
        task: 3,
        prompt: "1+1=".to_owned(),
        completion: format!("{ticket}\n"),
        answer: "2".to_owned(),
        reward: Some(1.0),
        components: [("exact".to_owned(), Some(1.0))].into(),
        failures: [].into(),
        advantage: None,
        solved: Some(true),
        tokens: 2,
        stop: "stop_token".to_owned(),
    }
}

fn started(attempt: u32) -> EventLine {
    let event = Event::RunStarted {
        name: "sums".to_owned(),
        version: "1".to_owned(),
        seed: 3,
        threads: 1,
        numeric_path: "portable".to_owned(),
        parameters: 1,
        resumed_from: None,
        stages: vec![StageOutline {
            name: "rl".to_owned(),
            method: "grpo".to_owned(),
            steps: 7,
            policies: Vec::new(),
            quantize: None,
        }],
    };
    line(attempt, 0, event)
}

fn finished(attempt: u32) -> EventLine {
    line(attempt, 7, Event::RunFinished { seconds: 1.0, model: "model".to_owned(), lost_lines: 0 })
}

/// Seven steps with samples, evaluated at 0, 3 and 7.
fn events() -> Vec<EventLine> {
    let mut lines = vec![started(1), evaluation(1, 0), line(1, 0, Event::EvaluationSample(sample(100)))];
    for n in 1..=7 {
        lines.extend([step(1, n), line(1, n, Event::Sample(sample(n)))]);
        if n == 3 || n == 7 {
            lines.extend([evaluation(1, n), line(1, n, Event::EvaluationSample(sample(100 + n)))]);
        }
    }
    lines.push(finished(1));
    lines
}

fn text(lines: &[EventLine]) -> Vec<u8> {
    lines.iter().flat_map(|line| [serde_json::to_vec(line).unwrap(), b"\n".to_vec()].concat()).collect()
}

/// Metrics of steps and evaluations in order, each once.
fn reported(lines: &[EventLine]) -> Vec<(u64, Metrics)> {
    let mut seen = BTreeSet::new();
    let metrics = |line: &EventLine| match &line.event {
        Event::Step { metrics } => {
            seen.insert((0, line.global_step)).then(|| (line.global_step, metrics.clone()))
        }
        Event::Evaluation { metrics, .. } => {
            seen.insert((1, line.global_step)).then(|| (line.global_step, metrics.clone()))
        }
        _ => None,
    };
    lines.iter().filter_map(metrics).collect()
}

struct Run {
    folder: TempDir,
    recorder: RefCell<Recorder>,
    warnings: RefCell<Vec<String>>,
    waits: bool,
    stop: AtomicBool,
}

impl Run {
    fn new(content: &[u8]) -> Self {
        let run = Self {
            folder: tempfile::tempdir().unwrap(),
            recorder: RefCell::default(),
            warnings: RefCell::default(),
            waits: false,
            stop: AtomicBool::new(false),
        };
        run.write(content);
        run
    }

    fn write(&self, content: &[u8]) {
        std::fs::write(self.folder.path().join("events.jsonl"), content).unwrap();
    }

    fn track(&self, until_the_end: bool) -> Result<(), TrackingError> {
        self.track_in(DEFAULT_PROJECT, until_the_end)
    }

    fn track_in(&self, project: &str, until_the_end: bool) -> Result<(), TrackingError> {
        let directory = self.folder.path();
        let tracking = Tracking { project: project.to_owned(), ..Tracking::new(Tracker::Wandb) };
        let config =
            json!({"run": {"seed": 3}, "stage": [{"name": "rl", "steps": 7}], "list": [1, 2], "none": {}});
        let warn = |warning: &str| self.warnings.borrow_mut().push(warning.to_owned());
        let options = Follow { config: &config, until_the_end, waits: self.waits, stop: &self.stop };
        let pace = Pace { poll: Duration::from_millis(1), retry: Duration::from_millis(1) };
        let file = lock(&tracking, directory, &options, pace)?;
        let start = || Ok(Recording(&self.recorder, directory));
        Following::open(&tracking, directory, &options, &warn, file, start, pace)?.run()
    }

    /// Tickets of the samples that were passed on, in order.
    fn tickets(&self) -> Vec<u64> {
        let recorder = self.recorder.borrow();
        let mut tickets: Vec<u64> = recorder.samples().iter().map(|row| row[3].as_u64().unwrap()).collect();
        tickets.sort_unstable();
        tickets
    }
}

const ALL_TICKETS: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 100, 103, 107];

#[test]
fn a_finished_run_is_passed_on_once() {
    let lines = events();
    let run = Run::new(&text(&lines));
    for _ in 0..2 {
        run.track(true).unwrap();
        assert_eq!(run.recorder.borrow().logged, reported(&lines));
        assert_eq!(run.tickets(), ALL_TICKETS);
    }
    let recorder = run.recorder.borrow();
    let tables: Vec<u64> = recorder.tables.iter().map(|(step, _)| *step).collect();
    assert_eq!(tables, [0, 3, 7], "of the last samples in them");
    assert_eq!(recorder.states, ["finished", "finished"]);
    let row = json!(["sample", "rl", 1, 1, 0, "1+1=", "1\n", "2", 1.0, null, true, 2, "stop_token"]);
    assert!(recorder.samples().contains(&&row), "{:?}", recorder.tables);
    let [first, second] = &recorder.starts[..] else { panic!("not two starts") };
    assert_eq!(first["key"], second["key"]);
    assert_eq!(first["config"]["run"]["seed"], 3);
    let settings = json!({"run.seed": 3, "stage.rl.name": "rl", "stage.rl.steps": 7, "list": "[1,2]"});
    assert_eq!(first["settings"], settings);
}

#[test]
fn a_later_process_continues() {
    let lines = events();
    let whole = text(&lines);
    for knows_steps in [false, true] {
        let run = Run::new(b"");
        run.recorder.borrow_mut().knows_steps = knows_steps;
        let lock = File::create(run.folder.path().join("lock")).unwrap();
        lock.lock().unwrap();
        for size in (0..whole.len()).step_by(whole.len() / 9) {
            run.write(&whole[..size]); // in the middle of lines
            run.track(false).unwrap();
        }
        drop(lock);
        run.write(&whole);
        run.track(true).unwrap();
        let recorder = run.recorder.borrow();
        assert_eq!(recorder.logged, reported(&lines));
        assert_eq!(recorder.states[recorder.states.len() - 2..], ["running", "finished"]);
        assert_eq!(run.tickets(), ALL_TICKETS);
    }
}

#[test]
fn steps_that_a_tracker_has_lost_are_passed_on_again() {
    let lines = events();
    let run = Run::new(&text(&lines));
    run.recorder.borrow_mut().knows_steps = true;
    run.track(true).unwrap();
    for kept in [3, -1] {
        let mut recorder = run.recorder.borrow_mut();
        recorder.logged.retain(|(step, _)| *step as i64 <= kept);
        recorder.tables.retain(|(step, _)| *step as i64 <= kept);
        drop(recorder);
        run.track(true).unwrap();
        assert_eq!(run.recorder.borrow().logged, reported(&lines));
        assert_eq!(run.tickets(), ALL_TICKETS);
    }
}

#[test]
fn steps_and_samples_that_a_resumed_run_repeats_are_passed_on_once() {
    let mut lines = events();
    lines.truncate(lines.len() - 5); // killed after step 6, saved after step 5
    let wanted = [reported(&lines), reported(&[step(2, 7), evaluation(2, 7)])].concat();
    lines.push(started(2));
    for n in 6..=7 {
        lines.extend([step(2, n), line(2, n, Event::Sample(sample(n)))]);
    }
    lines.extend([evaluation(2, 7), line(2, 7, Event::EvaluationSample(sample(107))), finished(2)]);
    let run = Run::new(&text(&lines));
    run.track(true).unwrap();
    assert_eq!(run.recorder.borrow().logged, wanted);
    assert_eq!(run.tickets(), ALL_TICKETS);
}

#[test]
fn a_running_run_is_followed_to_its_end() {
    let lines = events();
    let whole = text(&lines);
    let run = Run::new(b"");
    let lock = File::create(run.folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let path = run.folder.path().join("events.jsonl");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for piece in whole.chunks(777) {
                File::options().append(true).open(&path).unwrap().write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            drop(lock);
        });
        run.track(true).unwrap();
    });
    assert_eq!(run.recorder.borrow().logged, reported(&lines));
    assert_eq!(run.recorder.borrow().states, ["finished"]);
}

#[test]
fn the_end_of_an_earlier_attempt_does_not_end_the_tracking_of_a_resumed_run() {
    let run = Run::new(&text(&[started(1), step(1, 1), finished(1)]));
    let lock = File::create(run.folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    run.recorder.borrow_mut().on_log = Some(Box::new(move |directory| {
        // The run writes only after the end of the first attempt was read.
        let (directory, lock) = (directory.to_owned(), lock.try_clone().unwrap());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let rest = text(&[started(2), step(2, 2), finished(2)]);
            let file = File::options().append(true).open(directory.join("events.jsonl"));
            file.unwrap().write_all(&rest).unwrap();
            lock.unlock().unwrap();
        });
    }));
    run.track(true).unwrap();
    let steps: Vec<u64> = run.recorder.borrow().logged.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [1, 2]);
}

#[test]
fn a_killed_run_ends_the_tracking() {
    let lines = events();
    let run = Run::new(&text(&lines[..lines.len() - 1]));
    for until_the_end in [true, false] {
        run.track(until_the_end).unwrap();
        assert_eq!(run.tickets(), ALL_TICKETS);
    }
    assert_eq!(run.recorder.borrow().states, ["killed", "killed"]);
}

#[test]
fn damaged_lines_and_unknown_events_are_left_out() {
    let lines = events();
    let damaged = b"null\n{\"event\"\n\xff\xfe\n[]\n\n{\"a\": 1}\n{\"event\":\"new\",\"global_step\":1}\n";
    let run = Run::new(&[damaged, &text(&lines)[..]].concat());
    run.track(true).unwrap();
    assert_eq!(run.recorder.borrow().logged, reported(&lines));
}

#[test]
fn a_run_without_evaluations_has_tables_too() {
    let mut lines = vec![started(1)];
    for n in 1..=120 {
        lines.push(step(1, n));
        lines.extend((0..5).map(|i| line(1, n, Event::Sample(sample(10 * n + i)))));
    }
    let run = Run::new(&text(&lines));
    run.track(true).unwrap();
    let recorder = run.recorder.borrow();
    let sizes: Vec<_> = recorder.tables.iter().map(|(step, rows)| (*step, rows.len())).collect();
    assert_eq!(sizes, [(49, 200), (99, 200), (120, 105)], "the last of 245, 250 and 105");
    assert_eq!(recorder.tables[0].1.last().unwrap()[3], 494, "the newest are kept");
}

#[test]
fn a_call_that_fails_is_repeated() {
    let lines = events();
    let run = Run::new(&text(&lines));
    run.recorder.borrow_mut().failures = ATTEMPTS - 1;
    run.track(true).unwrap();
    assert_eq!(run.recorder.borrow().logged, reported(&lines));
    assert_eq!(*run.warnings.borrow(), ["wandb: ConnectionError: no route"; ATTEMPTS as usize - 1]);
}

#[test]
fn a_tracker_that_keeps_failing_is_given_up_and_continued() {
    let lines = events();
    let run = Run::new(&text(&lines));
    run.recorder.borrow_mut().failures = ATTEMPTS;
    let error = run.track(true).unwrap_err().to_string();
    assert_eq!(error, "wandb: ConnectionError: no route; the same command continues after the last step");
    assert_eq!(run.recorder.borrow().states, ["running"]);
    run.track(true).unwrap();
    assert_eq!(run.recorder.borrow().logged, reported(&lines));
}

#[test]
fn a_start_that_fails_is_repeated() {
    let lines = events();
    let run = Run::new(&text(&lines));
    run.recorder.borrow_mut().failing_starts = ATTEMPTS;
    let error = run.track(true).unwrap_err().to_string();
    assert_eq!(error, "wandb cannot be started: ConnectionError: no route; the same command tries again");
    run.recorder.borrow_mut().failing_starts = ATTEMPTS - 1;
    run.track(true).unwrap();
    assert_eq!(run.recorder.borrow().logged, reported(&lines));
    assert_eq!(*run.warnings.borrow(), ["wandb: ConnectionError: no route"; 2 * (ATTEMPTS as usize - 1)]);
}

#[test]
fn tracking_stops_on_request() {
    let run = Run::new(&text(&events()));
    run.stop.store(true, Ordering::Relaxed);
    assert!(matches!(run.track(true), Err(TrackingError::Interrupted)));
    assert_eq!(run.recorder.borrow().states, ["running"]);
    run.stop.store(false, Ordering::Relaxed);
    run.track(true).unwrap();
    assert_eq!(run.recorder.borrow().logged, reported(&events()));
}

#[test]
fn one_process_at_a_time_tracks_a_run() {
    let run = Run::new(&text(&events()));
    let tracking = Tracking::new(Tracker::Wandb);
    let lock = StateFile::lock(&tracking, run.folder.path()).unwrap();
    let error = run.track(true).unwrap_err().to_string();
    assert_eq!(error, format!("another process passes {} to wandb already", run.folder.path().display()));
    drop(lock);
    run.track(true).unwrap();
}

#[test]
fn a_process_that_waits_continues_after_another() {
    let lines = events();
    let mut run = Run::new(&text(&lines));
    run.waits = true;
    let lock = StateFile::lock(&Tracking::new(Tracker::Wandb), run.folder.path()).unwrap();
    run.stop.store(true, Ordering::Relaxed);
    assert!(matches!(run.track(true), Err(TrackingError::Interrupted)), "a wait can be stopped");
    run.stop.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            drop(lock);
        });
        run.track(true).unwrap();
    });
    assert_eq!(run.recorder.borrow().logged, reported(&lines));
}

#[test]
fn another_project_is_a_warning() {
    let run = Run::new(&text(&events()));
    run.track(true).unwrap();
    assert_eq!(run.warnings.borrow().len(), 0);
    run.track_in("sums", true).unwrap();
    assert_eq!(*run.warnings.borrow(), ["the run is in the project rloom of wandb and stays there"]);
    assert_eq!(run.recorder.borrow().starts[1]["project"], "rloom");
}

#[test]
fn a_damaged_record_is_named() {
    let run = Run::new(&text(&events()));
    run.track(true).unwrap();
    let path = run.folder.path().join("tracking/wandb.json");
    std::fs::write(&path, "{").unwrap();
    let error = run.track(true).unwrap_err().to_string();
    assert_eq!(error, format!("{} is damaged", path.display()));
    assert_eq!(run.recorder.borrow().starts.len(), 1);
}

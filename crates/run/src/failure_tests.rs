//! Whatever fails beside the driver, the run ends as it is configured to, within the deadlines, and says who failed at
//! what, and where; what was saved can be gone on from.

#[path = "../tests/recipe/mod.rs"]
pub(crate) mod recipe;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rloom_config::Config;
use rloom_core::{PolicyVersion, Task, Ticket};
use rloom_env::{BoxFuture, EnvError, Environment, SingleTurn, Start};
use rloom_reward::{Completion, JudgeError, OnError, Reward, Scorer, Verdict};
use rloom_text::Tokenizer;
use tempfile::TempDir;

use crate::episodes::{Attempts, GroupSource};
use crate::stage::{Source, StageParts};
use crate::trainer::Workshop;
use crate::{RunError, StopFlag, Summary};
use rloom_store::{StoreError, faults};
use rloom_telemetry::{Event, EventLine, Observer, read_events};

type Engine = rloom_embedded::EmbeddedRolloutEngine;
type Change = Box<dyn Fn(&mut StageParts, &mut Workshop) + Send>;

thread_local! {
    static CHANGE: RefCell<Option<Change>> = const { RefCell::new(None) };
}

/// Called for every stage before it begins: with what the test of this thread changes.
pub(crate) fn changed(mut parts: StageParts, mut workshop: Workshop) -> (StageParts, Workshop) {
    CHANGE.with_borrow(|change| {
        if let (Some(change), Source::Rollouts(_)) = (change, &parts.source) {
            change(&mut parts, &mut workshop);
        }
    });
    (parts, workshop)
}

/// Something that happens on the training thread.
#[derive(Clone)]
pub(crate) struct Hook(Arc<dyn Fn(PolicyVersion) + Send + Sync>);

impl Hook {
    pub(crate) fn call(&self, version: PolicyVersion) {
        (self.0)(version);
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// What somebody waits at until the test is over, or for good.
#[derive(Debug, Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.1.wait_while(open, |open| !*open));
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// How something fails.
#[derive(Debug, Clone)]
enum Trouble {
    Hang,
    Panic,
    Fail,
    NotFinite,
    /// It does this, and is well.
    Do(Hook),
}

const LATE: Duration = Duration::from_millis(150);

/// A reward that is in trouble with samples of some groups.
#[derive(Debug)]
struct Troubled {
    trouble: Trouble,
    tickets: &'static [u64],
    gate: Gate,
}

impl Reward for Troubled {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, JudgeError> {
        let key = completion.key;
        if key.sample == 1 && self.tickets.contains(&key.ticket.0) {
            match &self.trouble {
                Trouble::Hang => self.gate.wait(),
                Trouble::Panic => panic!("this cannot be"),
                Trouble::Fail => return Err(JudgeError::NoReference { task: completion.task.index }),
                Trouble::NotFinite => return Ok(Verdict::value(f64::NAN)),
                Trouble::Do(hook) => hook.call(PolicyVersion(0)),
            }
        }
        // By its length alone, so that there is something to learn.
        Ok(Verdict::value(completion.tokens as f64))
    }
}

/// An environment that is in trouble with a task.
#[derive(Debug)]
struct Broken {
    trouble: Trouble,
    task: u64,
}

impl Environment for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        if task.index != self.task {
            return SingleTurn.start(task, tokenizer);
        }
        match &self.trouble {
            Trouble::Hang => Box::pin(std::future::pending()),
            Trouble::Panic => panic!("this cannot be"),
            _ => {
                let problem = "it has no such place".to_owned();
                let failed = EnvError::Failed { name: "broken".into(), task: task.index, source: problem.into() };
                Box::pin(std::future::ready(Err(failed)))
            }
        }
    }
}

fn source(parts: &mut StageParts) -> &mut GroupSource<Engine> {
    match &mut parts.source {
        Source::Rollouts(source) => Arc::get_mut(source).unwrap(),
        Source::Demonstrations(_) => panic!("a stage that samples"),
    }
}

fn attempts(parts: &mut StageParts) -> &mut Attempts<Engine> {
    Arc::get_mut(&mut source(parts).attempts).unwrap()
}

fn reward_of(parts: &mut StageParts, reward: Troubled, on_error: OnError) {
    let attempts = attempts(parts);
    attempts.scorer = Arc::new(Scorer::from_rewards(vec![("length".into(), 1.0, Box::new(reward))], on_error));
    attempts.reward_deadline = LATE;
}

/// A reward in trouble with these tickets.
fn reward(trouble: &Trouble, tickets: &'static [u64], on_error: OnError) -> Change {
    let trouble = trouble.clone();
    Box::new(move |parts, _| {
        let troubled = Troubled { trouble: trouble.clone(), tickets, gate: Gate::default() };
        reward_of(parts, troubled, on_error);
    })
}

fn healthy() -> Change {
    reward(&Trouble::Fail, &[], OnError::Fatal)
}

/// An environment in trouble with the task of a ticket.
fn environment(trouble: &Trouble, ticket: u64, deadline: Duration) -> Change {
    let trouble = trouble.clone();
    Box::new(move |parts, workshop| {
        healthy()(parts, workshop);
        let task = source(parts).task_index(Ticket(ticket));
        attempts(parts).environment = Arc::new(Broken { trouble: trouble.clone(), task });
        attempts(parts).deadline = deadline;
    })
}

/// A run in a folder of its own.
struct Trial {
    _directory: TempDir,
    config: Config,
}

/// Runs something on a thread of its own. Whether it ends is what is tested.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || tell.send(work()));
    match told.recv_timeout(Duration::from_mins(2)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

impl Trial {
    fn new(overrides: &[&str]) -> Self {
        let directory = tempfile::tempdir_in(faults::fast_parent()).unwrap();
        let all: Vec<&str> =
            ["stage.warmup.steps=2", "stage.rl.steps=4"].iter().chain(overrides).copied().collect();
        let config = recipe::config(directory.path(), &all);
        Self { _directory: directory, config }
    }

    fn attempt(&self, change: Change, stop: StopFlag, observe: Option<Seen>) -> Result<Summary, RunError> {
        let config = self.config.clone();
        ends(move || {
            CHANGE.set(Some(change));
            let mut observer = observe.unwrap_or(Seen(Box::new(|_| {})));
            let run = config.run_directory();
            if !run.join("config.toml").is_file() {
                return crate::train(&config, &mut observer, &stop);
            }
            loop {
                // A training thread that was left behind holds the lock until its batch is done.
                match crate::resume(&run, &config, &mut observer, &stop) {
                    Err(RunError::Store(StoreError::Locked { .. })) => std::thread::yield_now(),
                    ended => return ended,
                }
            }
        })
    }

    fn run(&self, change: Change) -> Result<Summary, RunError> {
        self.attempt(change, StopFlag::default(), None)
    }

    fn events(&self) -> Vec<Event> {
        let lines = read_events(&self.config.run_directory().join("events.jsonl")).unwrap();
        lines.into_iter().map(|line| line.event).collect()
    }

    /// Weights and moments in the end.
    fn result(&self) -> [Vec<u8>; 2] {
        let steps = self.config.stages[1].steps;
        let last = self.config.run_directory().join(format!("checkpoints/rl-step-{steps:06}"));
        ["model.safetensors", "trainer/optimizer.safetensors"]
            .map(|name| std::fs::read(last.join(name)).unwrap())
    }
}

struct Seen(Box<dyn FnMut(&EventLine) + Send>);

impl Observer for Seen {
    fn observe(&mut self, line: &EventLine) {
        (self.0)(line);
    }
}

/// A group's failure: which it was, and what is said of it.
fn group_failure(error: &RunError) -> (u64, u64, String) {
    let RunError::Group { stage, ticket, step, reason, checkpoint, .. } = error else { panic!("{error}") };
    assert_eq!(stage, "rl");
    assert!(checkpoint.contains("checkpoints/") || checkpoint.starts_with("none"), "{checkpoint}");
    (*ticket, *step, reason.clone())
}

const REWARDS: [(Trouble, &str); 4] = [
    (Trouble::Hang, "reward `length` has not judged sample"),
    (Trouble::Panic, "reward `length` panicked on sample"),
    (Trouble::Fail, "reward `length` failed on sample"),
    (Trouble::NotFinite, "reward `length` gave NaN on sample"),
];

#[test]
fn a_reward_in_trouble_ends_the_run_which_goes_on_where_it_was() {
    let whole = Trial::new(&[]);
    whole.run(healthy()).unwrap();
    for (trouble, message) in REWARDS {
        let trial = Trial::new(&[]);
        let error = trial.run(reward(&trouble, &[8], OnError::Fatal)).unwrap_err();
        let (ticket, step, reason) = group_failure(&error);
        assert_eq!((ticket, step), (8, 2), "{error}");
        assert!(reason.starts_with(message) && reason.contains("Ticket(8), sample: 1"), "{reason}");
        trial.run(healthy()).unwrap();
        assert!(trial.result() == whole.result(), "after {trouble:?}");
    }
}

#[test]
fn a_reward_in_trouble_can_be_passed_over() {
    for (trouble, _) in REWARDS {
        let trial = Trial::new(&["schedule.max_staleness=1"]);
        trial.run(reward(&trouble, &[3, 8], OnError::Skip)).unwrap();
        let failures = trial.events().into_iter().filter_map(|event| match event {
            Event::Step { metrics } => metrics.get("reward_failures/length").copied(),
            _ => None,
        });
        assert_eq!(failures.fold(0.0, f64::max), 2.0, "{trouble:?}");
    }
}

const ENVIRONMENTS: [(Trouble, &str); 3] = [
    (Trouble::Hang, "the `broken` environment has not answered for 0.15 s"),
    (Trouble::Fail, "environment broken, task"),
    (Trouble::Panic, "its task panicked: this cannot be"),
];

#[test]
fn an_environment_in_trouble_ends_the_run() {
    for eta in ["schedule.max_staleness=0", "schedule.max_staleness=2"] {
        for (trouble, message) in ENVIRONMENTS {
            let trial = Trial::new(&[eta]);
            let error = trial.run(environment(&trouble, 7, LATE)).unwrap_err();
            let (ticket, _, reason) = group_failure(&error);
            assert_eq!(ticket, 7, "{error}");
            assert!(reason.starts_with(message), "{reason}");
            trial.run(healthy()).unwrap();
        }
    }
}

const REPLACE: &str = "schedule.on_failure=replace";

#[test]
fn groups_that_fail_are_replaced_as_often_as_they_may() {
    for (trouble, message) in ENVIRONMENTS {
        for eta in ["schedule.max_staleness=0", "schedule.max_staleness=2"] {
            let trial = Trial::new(&[REPLACE, "schedule.max_failures=1", eta]);
            trial.run(environment(&trouble, 7, LATE)).unwrap();
            let failed: BTreeSet<u64> = trial
                .events()
                .into_iter()
                .filter_map(|event| match event {
                    Event::GroupEnded { ticket, end, reason } if end == "failed" => {
                        assert!(reason.unwrap().starts_with(message));
                        Some(ticket)
                    }
                    _ => None,
                })
                .collect();
            assert!(failed.contains(&7), "{failed:?}");
        }
    }
}

/// Tickets of more groups than may fail.
const FROM_SIX: [u64; 40] = {
    let mut tickets = [6; 40];
    let mut at = 0;
    while at < tickets.len() {
        tickets[at] += at as u64;
        at += 1;
    }
    tickets
};

#[test]
fn one_failure_too_many_ends_the_run_and_can_be_gone_on_from() {
    // At staleness 2 groups are made for three batches at a time.
    for (eta, most) in [("schedule.max_staleness=0", 2), ("schedule.max_staleness=2", 6)] {
        let trial = Trial::new(&[REPLACE, "schedule.max_failures=2", eta]);
        let broken = || reward(&Trouble::Fail, &FROM_SIX, OnError::Fatal);
        for _ in 0..2 {
            let error = trial.run(broken()).unwrap_err();
            let RunError::TooManyFailures { failures, last, .. } = &error else { panic!("{error}") };
            assert_eq!(*failures, most + 1);
            assert!(last.starts_with("group ") && last.contains("reward `length` failed"), "{error}");
        }
        trial.run(healthy()).unwrap();
    }
}

/// A lane dies while groups are in it.
fn lane(times: u32) -> Change {
    Box::new(move |parts, _| {
        let engine = parts.engine.clone().unwrap();
        let left = AtomicU32::new(times);
        let fail = move |_| {
            let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            if left.is_ok() {
                engine.fail_lane(0);
            }
        };
        let trouble = Trouble::Do(Hook(Arc::new(fail)));
        reward_of(parts, Troubled { trouble, tickets: &[2, 9], gate: Gate::default() }, OnError::Fatal);
    })
}

#[test]
fn a_lane_that_dies_is_restarted_or_ends_the_run() {
    let whole = Trial::new(&[]);
    whole.run(healthy()).unwrap();
    let trial = Trial::new(&["rollout.restarts=2", "rollout.lanes=1"]);
    trial.run(lane(2)).unwrap();
    assert!(trial.result() == whole.result(), "a failure of the engine changed what it sampled");

    for replace in [&[][..], &[REPLACE]] {
        let overrides =
            [&["rollout.lanes=1", "schedule.max_staleness=2", "eval.every=100"], replace].concat();
        let trial = Trial::new(&overrides);
        let error = trial.run(lane(9)).unwrap_err().to_string();
        assert!(error.contains("the rollout engine failed: lane 0: panicked: failure requested by a test"), "{error}");
        assert!(error.contains("stage `rl`, step") && error.contains("last good checkpoint"), "{error}");
        trial.run(healthy()).unwrap();
    }
}

/// Something happens before the second batch is trained on.
fn training(hook: impl Fn() + Send + Sync + 'static) -> Change {
    let hook = Hook(Arc::new(move |version| {
        if version == PolicyVersion(1) {
            hook();
        }
    }));
    Box::new(move |parts, workshop| {
        healthy()(parts, workshop);
        workshop.before_training = Some(hook.clone());
    })
}

#[test]
fn a_training_thread_that_panics_ends_the_run_with_its_message() {
    for eta in ["schedule.max_staleness=0", "schedule.max_staleness=2"] {
        let trial = Trial::new(&[eta]);
        let error = trial.run(training(|| panic!("this cannot be"))).unwrap_err().to_string();
        let start =
            "stage `rl`, step 2: the training thread panicked: this cannot be\nlast good checkpoint: ";
        assert!(error.starts_with(start), "{error}");
        trial.run(healthy()).unwrap();
    }
}

/// What a stall is reported as, with times and counts replaced by `#`.
fn stall(trial: &Trial, change: Change) -> String {
    let impatient: Change = Box::new(move |parts, workshop| {
        change(parts, workshop);
        parts.stall = Duration::from_millis(300);
    });
    let error = trial.run(impatient).unwrap_err();
    let RunError::Stalled { stage, report, checkpoint, .. } = &error else { panic!("{error}") };
    assert_eq!(stage, "rl");
    assert!(!checkpoint.is_empty());
    let mut shown = String::new();
    for character in report.chars() {
        match character {
            '0'..='9' | '.' if shown.ends_with('#') => {}
            '0'..='9' => shown.push('#'),
            other => shown.push(other),
        }
    }
    shown
}

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn a_stall_is_reported_with_who_waits_for_whom() {
    let one_lane = ["rollout.lanes=1"];
    let idle =
        "rollout lane #: idle for # s, policy version #, # running, # waiting, # queued, # tokens sampled";
    let trial = Trial::new(&one_lane);
    assert_eq!(
        stall(&trial, environment(&Trouble::Hang, 7, LONG)),
        format!(
            "the trainer waits for a batch of # groups: # ready, # under way\n  oldest group: #, for # s, samples done: \
             none{}\n  {idle}",
            "\n    sample # has waited for the `broken` environment for # s".repeat(4)
        )
    );
    trial.run(healthy()).unwrap();

    let trial = Trial::new(&one_lane);
    let judging: Change = Box::new(|parts, _| {
        let troubled = Troubled { trouble: Trouble::Hang, tickets: &[7], gate: Gate::default() };
        reward_of(parts, troubled, OnError::Fatal);
        attempts(parts).reward_deadline = LONG;
    });
    assert_eq!(
        stall(&trial, judging),
        format!(
            "the trainer waits for a batch of # groups: # ready, # under way\n  oldest group: #, for # s, samples done: \
             #, #, #\n    sample # has waited for reward `length` for # s\n  {idle}"
        )
    );

    let trial = Trial::new(&one_lane);
    let gate = Gate::default();
    let closed = gate.clone();
    assert_eq!(
        stall(&trial, training(move || closed.wait())),
        "the driver waits for the trainer: # of # optimiser steps of the batch\n  rollout lane #: without weights for # s, # \
         running, # waiting, # queued, # tokens sampled"
    );
    gate.open();
    trial.run(healthy()).unwrap();

    let trial = Trial::new(&one_lane);
    let evaluating: Change = Box::new(|parts, workshop| {
        healthy()(parts, workshop);
        let evaluator = Arc::get_mut(parts.evaluator.as_mut().unwrap()).unwrap();
        let attempts = Arc::get_mut(&mut evaluator.attempts).unwrap();
        attempts.environment = Arc::new(Broken { trouble: Trouble::Hang, task: 3 });
        attempts.deadline = LONG;
    });
    let report = stall(&trial, evaluating);
    let start = "the driver waits for the evaluation: # of # completions\n  held-out task # has waited for the `broken` \
                 environment for # s\n";
    assert!(report.starts_with(start), "{report}");
}

#[test]
fn a_second_request_to_stop_waits_for_nobody() {
    for (who, eta) in [("training", 2), ("training", 0), ("reward", 2), ("reward", 0)] {
        let trial = Trial::new(&[&format!("schedule.max_staleness={eta}")]);
        let (stop, gate) = (StopFlag::default(), Gate::default());
        let (asked, closed) = (stop.clone(), gate.clone());
        let hold = move || {
            asked.request();
            asked.request();
            closed.wait();
        };
        let change: Change = if who == "training" {
            training(hold)
        } else {
            let hook = Hook(Arc::new(move |_| hold()));
            Box::new(move |parts, _| {
                let trouble = Trouble::Do(hook.clone());
                reward_of(parts, Troubled { trouble, tickets: &[8], gate: Gate::default() }, OnError::Fatal);
                attempts(parts).reward_deadline = LONG;
            })
        };
        let error = trial.attempt(change, stop, None).unwrap_err();
        assert!(matches!(error, RunError::StoppedNow { .. }), "{who}: {error}");
        gate.open();
        trial.run(healthy()).unwrap();
    }
}

/// What was answered in the evaluations of a run, each told once or alike: versions and tasks.
fn answers(trial: &Trial) -> BTreeMap<(u64, u64), String> {
    let lines = read_events(&trial.config.run_directory().join("events.jsonl")).unwrap();
    let mut found = BTreeMap::new();
    for line in lines.into_iter().filter(|line| line.stage == "rl") {
        if let Event::EvaluationSample(sample) = line.event {
            let before = found.entry((line.step, sample.task)).or_insert_with(|| sample.completion.clone());
            assert_eq!(*before, sample.completion, "version {}", line.step);
        }
    }
    found
}

/// The groups that a resumed run has under way are pinned to older versions than the one that it evaluates.
#[test]
fn a_pinned_run_that_is_resumed_before_an_evaluation_evaluates_the_right_weights() {
    let overrides = [
        "stage.rl.steps=6",
        "schedule.max_staleness=2",
        "schedule.pin_version=true",
        "rollout.max_batch=1",
        "rollout.lanes=1",
        "eval.tasks=64",
        "eval.every=1",
        "stage.warmup.steps=60",
        "stage.rl.trainer.learning_rate=0.003",
        "sampling.max_new_tokens=12",
    ];
    let whole = Trial::new(&overrides);
    whole.run(healthy()).unwrap();
    let trial = Trial::new(&overrides);
    let change: Change = Box::new(|parts, _| {
        // Of the fifth batch, which is pinned to version 2.
        let troubled = Troubled { trouble: Trouble::Hang, tickets: &[29], gate: Gate::default() };
        reward_of(parts, troubled, OnError::Fatal);
        attempts(parts).reward_deadline = LONG;
    });
    let stop = StopFlag::default();
    let (asked, mut trained) = (stop.clone(), false);
    let observer = Seen(Box::new(move |line| {
        trained |= line.stage == "rl" && line.step == 3 && matches!(line.event, Event::Step { .. });
        // The driver waits again: the evaluation of version 3 is asked for.
        if trained && matches!(line.event, Event::Progress { .. }) {
            asked.request();
            asked.request();
        }
    }));
    let error = trial.attempt(change, stop, Some(observer)).unwrap_err();
    assert!(matches!(error, RunError::StoppedNow { .. }), "{error}");
    assert!(answers(&trial).keys().all(|(version, _)| *version < 3));
    trial.run(healthy()).unwrap();
    let found = answers(&trial);
    let of = |version: u64| found.range((version, 0)..(version + 1, 0)).map(|(_, answer)| answer);
    assert!(of(3).next().is_some() && !of(2).eq(of(3)), "{found:?}");
    assert_eq!(found, answers(&whole));
    assert!(trial.result() == whole.result());
}

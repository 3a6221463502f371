//! Attempts at a run with injected faults.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Duration;

use std::sync::Arc;

use rloom_config::Config;
use rloom_core::Ticket;
use rloom_data::{Cursor, Dataset, Split};
use rloom_hub::Hub;
use rloom_run::assembly::EmbeddedEngines;
use rloom_run::{Policy, RunError, RunInputs, StopFlag, Summary, context, train_on};
use rloom_store::{StoreError, faults as disk_faults};
use rloom_telemetry::{Event, EventLine, Observer, read_events};
use tempfile::TempDir;

use super::engines::FaultyEngines;
use super::faults::{Faults, RL};
use crate::recipe;

/// A run in a temporary folder.
pub(crate) struct Trial {
    _directory: TempDir,
    pub(crate) config: Config,
}

/// Calls a function with every event.
pub(crate) struct Seen(pub(crate) Box<dyn FnMut(&EventLine) + Send>);

impl Observer for Seen {
    fn observe(&mut self, line: &EventLine) {
        (self.0)(line);
    }
}

/// Runs a function on another thread; fails if it does not return.
fn returns<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(work()));
    match result.recv_timeout(Duration::from_mins(20)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the attempt does not end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

impl Trial {
    pub(crate) fn new(overrides: &[&str]) -> Self {
        let directory = tempfile::tempdir_in(disk_faults::fast_parent()).unwrap();
        let all: Vec<&str> =
            ["stage.warmup.steps=2", "stage.rl.steps=4"].iter().chain(overrides).copied().collect();
        let config = recipe::config(directory.path(), &all);
        Self { _directory: directory, config }
    }

    /// Starts the run, or resumes it.
    pub(crate) fn attempt(
        &self,
        faults: Faults,
        stop: StopFlag,
        observer: Option<Seen>,
    ) -> Result<Summary, RunError> {
        Self::attempt_with(self.config.clone(), faults, stop, observer)
    }

    /// Starts the run with a variant of its configuration, or resumes it.
    pub(crate) fn attempt_with(
        config: Config,
        faults: Faults,
        stop: StopFlag,
        observer: Option<Seen>,
    ) -> Result<Summary, RunError> {
        returns(move || {
            let mut observer = observer.unwrap_or(Seen(Box::new(|_| {})));
            let (policy, ctx) = (Policy::initial(&config, &Hub::from_env())?, context(config.run.threads)?);
            let inputs = RunInputs {
                episode_hook: Some(faults.hook()),
                ..RunInputs::new(&policy, Arc::new(Hub::from_env()), ctx.threads(), config.run.seed)
            };
            let embedded = EmbeddedEngines::new(&policy, &config, ctx);
            let engines = FaultyEngines {
                embedded,
                faults: faults.engines,
                alive: Arc::default(),
                trainers: AtomicU64::new(0),
                rollouts: faults.rollouts,
            };
            loop {
                // An abandoned training thread holds the lock until its batch is done.
                match train_on(&config, &engines, &inputs, &mut observer, &stop) {
                    Err(RunError::Store(StoreError::Locked { .. })) => std::thread::yield_now(),
                    ended => return ended,
                }
            }
        })
    }

    pub(crate) fn run(&self, faults: Faults) -> Result<Summary, RunError> {
        self.attempt(faults, StopFlag::default(), None)
    }

    pub(crate) fn lines(&self) -> Vec<EventLine> {
        read_events(&self.config.run_directory().join("events.jsonl")).unwrap()
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = Event> {
        self.lines().into_iter().map(|line| line.event)
    }

    /// Final weights and optimiser state.
    pub(crate) fn result(&self) -> [Vec<u8>; 2] {
        let steps = self.config.stages[RL as usize].steps;
        let last = self.config.run_directory().join(format!("checkpoints/rl-step-{steps:06}"));
        ["model.safetensors", "trainer/optimizer.safetensors"]
            .map(|name| std::fs::read(last.join(name)).unwrap())
    }

    /// Index of the task that a group of the stage `rl` attempts.
    pub(crate) fn task_of(&self, ticket: Ticket) -> u64 {
        let (stage, seed) = (&self.config.stages[RL as usize], self.config.run.seed);
        let dataset = Dataset::open(&stage.data, Split::Train, seed).unwrap();
        Cursor::new(dataset.len(), stage.order, seed, RL).unwrap().at(ticket.0).index
    }
}

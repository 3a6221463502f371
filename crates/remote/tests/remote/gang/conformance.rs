//! The conformance suite of training engines over gangs.

use std::path::Path;
use std::sync::{Arc, Mutex};

use rloom_algo::{LossStep, TokenScores};
use rloom_core::PolicyVersion;
use rloom_engine::conformance::TrainSuite;
use rloom_engine::{
    Form, LossReport, OptimStep, PackedBatch, ProgressObserver, PublishedPolicy, SavedFile, StepReport,
    TrainCapabilities, TrainEngine, TrainError, Which,
};
use rloom_remote::{Gang, GangSettings};

use super::support::{VOCABULARY, settings, start};

/// Gangs that no engine uses: the suite makes dozens of engines, and PyTorch takes seconds to start.
type Idle = Arc<Mutex<Vec<Gang>>>;

/// A gang that goes back to the idle ones when it is dropped.
struct Lent {
    gang: Option<Gang>,
    idle: Idle,
}

impl Lent {
    fn new(idle: &Idle, settings: &GangSettings) -> Self {
        let free = idle.lock().unwrap().pop();
        let gang = match free {
            Some(mut gang) => gang.reopen(settings.clone()).map(|()| gang).unwrap(),
            None => start(settings.clone()),
        };
        Self { gang: Some(gang), idle: Arc::clone(idle) }
    }

    fn gang(&mut self) -> &mut Gang {
        self.gang.as_mut().unwrap()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.idle.lock().unwrap().extend(self.gang.take());
    }
}

impl TrainEngine for Lent {
    fn observe(&mut self, observer: ProgressObserver) {
        self.gang().observe(observer);
    }
    fn score(&mut self, which: Which, step: &[PackedBatch]) -> Result<Vec<TokenScores>, TrainError> {
        self.gang().score(which, step)
    }
    fn accumulate(&mut self, step: &[PackedBatch], loss: &LossStep<'_>) -> Result<LossReport, TrainError> {
        self.gang().accumulate(step, loss)
    }
    fn step(&mut self, step: &OptimStep) -> Result<StepReport, TrainError> {
        self.gang().step(step)
    }
    fn publish(&mut self, version: PolicyVersion, form: Form) -> Result<PublishedPolicy, TrainError> {
        self.gang().publish(version, form)
    }
    fn digest(&mut self) -> Result<u64, TrainError> {
        self.gang().digest()
    }
    fn save(&mut self, directory: &Path) -> Result<Vec<SavedFile>, TrainError> {
        self.gang().save(directory)
    }
    fn restore(&mut self, directory: &Path) -> Result<(), TrainError> {
        self.gang().restore(directory)
    }
    fn capabilities(&self) -> TrainCapabilities {
        self.gang.as_ref().unwrap().capabilities()
    }
    fn park(&mut self) -> Result<(), TrainError> {
        self.gang().park()
    }
}

fn conforms(ranks: usize, sequence_parallel: usize) {
    let folder = tempfile::tempdir().unwrap();
    let settings = GangSettings { sequence_parallel, ..settings(folder.path(), ranks) };
    let idle = Idle::default();
    let create = || Lent::new(&idle, &settings);
    assert_eq!(TrainSuite::new(&create, VOCABULARY, folder.path(), 0.0).run(), Ok(()));
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn one_rank_conforms() {
    conforms(1, 1);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn two_ranks_conform() {
    conforms(2, 1);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn three_ranks_conform() {
    conforms(3, 1);
}

#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn ranks_that_divide_the_tokens_conform() {
    conforms(2, 2);
}

//! The training thread of a stage: owns the models and does one job after another, concurrent with the driver.

use std::any::Any;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use rloom_algo::AlgorithmState;
use rloom_core::{Group, PolicyId, PolicyVersion};
use rloom_engine::{Form, PublishedPolicy, TrainEngine, TrainError};
use rloom_learn::{BatchPosition, BatchReport, BatchTrainer, GivenAdvantages, Models};
use rloom_model::OptimizerSettings;
use rloom_store::checkpoint::{
    CheckpointName, CheckpointState, Checkpoints, pinned_weights_folder, policy_folder,
};
use rloom_store::disk;
use rloom_text::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::LearnerState;
use crate::probe::WeightProbe;
use crate::trainer_progress::TrainerProgress;
use crate::validation::Validated;
use crate::writer::PolicyWriter;
use crate::{Publication, StageError, WorkerError};

/// Folder of a checkpoint that holds a critic with its own backbone.
const CRITIC: &str = "trainer/critic";
/// Folder of a checkpoint that holds the process-reward model.
const PRM: &str = "trainer/prm";

/// Everything that the training thread works with.
#[derive(Debug)]
pub struct TrainerThread<T> {
    /// Policy, critic and process-reward model.
    pub models: Models<T>,
    /// Training on a batch.
    pub training: BatchTrainer,
    /// Learning-rate schedule and optimiser.
    pub optimizer: OptimizerSettings,
    /// Optimiser steps of the whole stage, for the learning-rate schedule.
    pub total_optimizer_steps: u64,
    /// Groups of a batch.
    pub groups_per_batch: u64,
    /// The policy that is trained.
    pub policy: PolicyId,
    /// Scored with every version for engines whose log-probabilities carry noise.
    pub probe: Option<WeightProbe>,
    /// Form in which weights are published.
    pub form: Form,
    /// The rollout engine uses the trainer's device between the batches.
    pub parks: bool,
    /// Written to every checkpoint.
    pub tokenizer: Arc<Tokenizer>,
    /// Writes published weights of older versions.
    pub writer: Arc<dyn PolicyWriter>,
    /// Folder of the checkpoints.
    pub checkpoints: Checkpoints,
    /// Lock of the run directory, held until the thread has ended: it may be writing a checkpoint.
    pub lock: Arc<File>,
}

#[derive(Debug)]
enum Job {
    /// Publish the weights as they are, as this version.
    Publish(PolicyVersion),
    /// Train on a batch and publish.
    Train(Box<TrainJob>),
    /// Write a checkpoint.
    Save(Box<SaveJob>),
    /// Measure the loss on held-out rows, with this state of the algorithm.
    Validate(Arc<[Group]>, AlgorithmState),
}

/// A batch to train on.
#[derive(Debug)]
pub(crate) struct TrainJob {
    /// Batches trained before.
    pub(crate) version: PolicyVersion,
    pub(crate) groups: Vec<Group>,
    /// Advantages from a Python function, if there is one.
    pub(crate) advantages: Option<GivenAdvantages>,
    /// State after the batch before.
    pub(crate) learner: LearnerState,
    /// Held-out rows on which the new version is validated.
    pub(crate) held_out: Option<Arc<[Group]>>,
}

/// A checkpoint to write.
#[derive(Debug)]
pub(crate) struct SaveJob {
    pub(crate) name: CheckpointName,
    pub(crate) state: CheckpointState,
    /// Weights of older versions that go with it.
    pub(crate) older: Vec<PublishedPolicy>,
    /// Names and weights of frozen policies.
    pub(crate) frozen: Vec<(String, PublishedPolicy)>,
}

/// A finished job.
#[derive(Debug)]
pub(crate) struct TrainerEvent {
    pub(crate) result: TrainerResult,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// Result of a job.
#[derive(Debug)]
pub(crate) enum TrainerResult {
    /// Published weights.
    Published(Result<Publication, TrainError>),
    /// A batch.
    Trained(Box<TrainedBatch>),
    /// The loss on held-out rows.
    Validated(Result<Validated, TrainError>),
    /// A checkpoint: its folder and its size in bytes.
    Saved { version: u64, result: Result<(PathBuf, u64), StageError> },
}

/// A batch that was trained on, or could not be.
#[derive(Debug)]
pub(crate) struct TrainedBatch {
    /// Number of the batch: the version that it was trained from.
    pub(crate) batch: u64,
    pub(crate) groups: Vec<Group>,
    pub(crate) result: Result<BatchResult, TrainError>,
}

/// Report and new weights of a batch.
#[derive(Debug)]
pub(crate) struct BatchResult {
    pub(crate) report: BatchReport,
    /// Time at which training ended.
    pub(crate) trained: Instant,
    /// The loss of the new version on held-out rows.
    pub(crate) validated: Option<Validated>,
    pub(crate) weights: Publication,
}

/// Handle of the training thread.
#[derive(Debug)]
pub struct TrainerHandle<T> {
    jobs: mpsc::Sender<Job>,
    events: UnboundedReceiver<TrainerEvent>,
    thread: JoinHandle<Result<TrainerThread<T>, String>>,
    progress: Arc<TrainerProgress>,
    abandon: AbandonOnDrop,
}

/// Keeps the thread from starting another job: a run that ends with an error does not wait for it.
#[derive(Debug)]
struct AbandonOnDrop(Arc<TrainerProgress>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl<T: TrainEngine + 'static> TrainerHandle<T> {
    /// Starts the thread.
    pub fn start(trainer: TrainerThread<T>) -> Result<Self, StageError> {
        let (jobs, queue) = mpsc::channel();
        let (sender, events) = unbounded_channel();
        let progress = Arc::new(TrainerProgress::default());
        let shared = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("trainer".into())
            .spawn(move || {
                let mut trainer = trainer;
                shared.observe(&mut trainer.models);
                // A panic drops the trainer, whose state is unknown then.
                let result = catch_unwind(AssertUnwindSafe(|| trainer.run(&queue, &sender, &shared)));
                result.map(|()| trainer).map_err(|panic| panic_message(panic.as_ref()).to_owned())
            })
            .map_err(|source| StageError::Thread { name: "trainer", source })?;
        let abandon = AbandonOnDrop(Arc::clone(&progress));
        Ok(Self { jobs, events, thread, progress, abandon })
    }

    fn send(&self, job: Job) {
        // A thread that has died is noticed by `next`.
        let _ = self.jobs.send(job);
    }

    pub(crate) fn publish(&self, version: PolicyVersion) {
        self.send(Job::Publish(version));
    }

    pub(crate) fn train(&self, job: TrainJob) {
        self.send(Job::Train(Box::new(job)));
    }

    pub(crate) fn validate(&self, held_out: Arc<[Group]>, state: AlgorithmState) {
        self.send(Job::Validate(held_out, state));
    }

    pub(crate) fn save(&self, job: SaveJob) {
        self.send(Job::Save(Box::new(job)));
    }

    /// Resolves to the next finished job; `None` when the thread has ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<TrainerEvent> {
        self.events.recv().await
    }

    /// Progress of the current job.
    pub(crate) fn progress(&self) -> &TrainerProgress {
        &self.progress
    }

    /// Ends the thread after its current job, and drops what it worked with.
    pub(crate) fn abandon(self) {
        drop(self.abandon);
        drop(self.jobs);
        // A panic changes nothing: its models are dropped in any case.
        let _ = self.thread.join();
    }

    /// Ends the thread and returns what it worked with.
    pub fn end(self) -> Result<TrainerThread<T>, WorkerError> {
        let Self { jobs, thread, abandon, .. } = self;
        drop(jobs);
        let panicked = |message: String| WorkerError::TrainerPanicked { message };
        let ended = thread.join();
        drop(abandon);
        ended.map_err(|panic| panicked(panic_message(panic.as_ref()).to_owned()))?.map_err(panicked)
    }
}

impl<T: TrainEngine> TrainerThread<T> {
    fn run(
        &mut self,
        jobs: &mpsc::Receiver<Job>,
        events: &UnboundedSender<TrainerEvent>,
        progress: &TrainerProgress,
    ) {
        while let Ok(job) = jobs.recv() {
            if progress.is_abandoned() {
                return;
            }
            progress.start_job();
            let start = Instant::now();
            let result = match job {
                Job::Publish(version) => TrainerResult::Published(self.publish(version)),
                Job::Train(job) => TrainerResult::Trained(Box::new(self.train(*job, progress))),
                Job::Save(job) => TrainerResult::Saved { version: job.name.step, result: self.save(*job) },
                Job::Validate(held_out, state) => TrainerResult::Validated(self.validate(&held_out, &state)),
            };
            // The receiver is gone if the run has ended with an error.
            let _ = events.send(TrainerEvent { result, start, end: Instant::now() });
        }
    }

    /// Publishes all policies in the form that the rollout engine takes.
    fn publish(&mut self, version: PolicyVersion) -> Result<Publication, TrainError> {
        let published = self.models.policy.publish(version, self.form)?;
        let main = self.complete(published)?;
        let form = self.form;
        let further =
            self.models.further.iter_mut().map(|policy| {
                Ok(PublishedPolicy { policy: policy.id, ..policy.engine.publish(version, form)? })
            });
        Ok(Publication { main, further: further.collect::<Result<_, TrainError>>()? })
    }

    /// Adds what belongs to a publication, and leaves the device.
    fn complete(&mut self, mut published: PublishedPolicy) -> Result<PublishedPolicy, TrainError> {
        published.policy = self.policy;
        if let Some(probe) = &self.probe {
            probe.add_to(&mut published, &mut self.models.policy)?;
        }
        if self.parks {
            let Models { policy, critic, prm, further } = &mut self.models;
            let further = further.iter_mut().map(|policy| &mut policy.engine);
            for engine in critic.iter_mut().chain(prm).chain(further) {
                engine.park()?;
            }
            // Weights that are sent from the device stay there until they have arrived, and nothing else.
            if self.form.is_live() {
                policy.trim()?;
            } else {
                policy.park()?;
            }
        }
        Ok(published)
    }

    /// Publishes all policies for a stage that begins when this trainer has ended.
    pub fn publish_last(&mut self, version: PolicyVersion) -> Result<Publication, TrainError> {
        if self.form.is_live() {
            self.form = Form::Folder;
        }
        let published = self.models.policy.publish_exact(version, self.form)?;
        let main = self.complete(published)?;
        let form = self.form;
        let further = self.models.further.iter_mut().map(|policy| {
            Ok(PublishedPolicy { policy: policy.id, ..policy.engine.publish_exact(version, form)? })
        });
        Ok(Publication { main, further: further.collect::<Result<_, TrainError>>()? })
    }

    fn train(&mut self, job: TrainJob, progress: &TrainerProgress) -> TrainedBatch {
        let TrainJob { version, groups, advantages, learner, held_out } = job;
        let (total, optimizer) = (self.total_optimizer_steps, self.optimizer.clone());
        let rate = move |step: u64| optimizer.learning_rate_at(learner.optimizer_steps + step, total);
        let position = BatchPosition {
            version,
            state: learner.algorithm.clone(),
            skipped_steps: learner.skipped_steps,
            given_advantages: advantages.as_ref(),
            learning_rate: &rate,
        };
        let mut report_steps = |done, total| progress.set_steps(done, total);
        let trained = self.training.train(&mut self.models, &groups, &position, &mut report_steps);
        let result = trained.and_then(|report| {
            let trained = Instant::now();
            let validated = held_out.map(|groups| self.validate(&groups, &report.state)).transpose()?;
            let weights = self.publish(PolicyVersion(version.0 + 1))?;
            Ok(BatchResult { report, trained, validated, weights })
        });
        TrainedBatch { batch: version.0, groups, result }
    }

    /// Measures the loss on held-out rows.
    fn validate(&mut self, held_out: &[Group], state: &AlgorithmState) -> Result<Validated, TrainError> {
        let start = Instant::now();
        let validation =
            self.training.validate(&mut self.models, held_out, state, self.groups_per_batch as usize)?;
        Ok(Validated { validation, start, end: Instant::now() })
    }

    fn save(&mut self, job: SaveJob) -> Result<(PathBuf, u64), StageError> {
        let SaveJob { name, mut state, older, frozen } = job;
        state.pinned_versions = older.iter().map(|weights| weights.version).collect();
        let Self { checkpoints, models, tokenizer, writer, .. } = self;
        checkpoints.write(&name, |folder| {
            save_models(models, folder)?;
            tokenizer.save(folder)?;
            let older = older.iter().map(|weights| (pinned_weights_folder(folder, weights.version), weights));
            let names_of_frozen = frozen.iter().map(|(name, _)| name);
            let frozen = frozen.iter().map(|(name, weights)| (policy_folder(folder, name), weights));
            for (own, weights) in older.chain(frozen) {
                disk::create_folder("checkpoint", &own)?;
                writer.write(weights, &own)?;
            }
            let further = models.further.iter().map(|policy| &policy.name);
            for name in further.chain(names_of_frozen) {
                tokenizer.save(&policy_folder(folder, name))?;
            }
            Ok(state.save(folder)?)
        })
    }
}

/// Writes all models to the folder of a checkpoint.
fn save_models<T: TrainEngine>(models: &mut Models<T>, folder: &Path) -> Result<(), StageError> {
    models.policy.save(folder)?;
    for (name, engine) in [(CRITIC, &mut models.critic), (PRM, &mut models.prm)] {
        if let Some(engine) = engine {
            let own = folder.join(name);
            disk::create_folder("checkpoint", &own)?;
            engine.save(&own)?;
        }
    }
    for policy in &mut models.further {
        let own = policy_folder(folder, &policy.name);
        disk::create_folder("checkpoint", &own)?;
        policy.engine.save(&own)?;
    }
    Ok(())
}

/// Restores all models from the folder of a checkpoint.
pub fn restore_models<T: TrainEngine>(models: &mut Models<T>, folder: &Path) -> Result<(), StageError> {
    models.policy.restore(folder)?;
    for (name, engine) in [(CRITIC, &mut models.critic), (PRM, &mut models.prm)] {
        if let Some(engine) = engine {
            engine.restore(&folder.join(name))?;
        }
    }
    for policy in &mut models.further {
        policy.engine.restore(&policy_folder(folder, &policy.name))?;
    }
    Ok(())
}

/// Message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

//! The training side of a stage: a thread that owns the models and does one job after the other, beside the driver.

use std::any::Any;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use rloom_algo::AlgorithmState;
use rloom_core::{Group, PolicyVersion};
use rloom_embedded::{EmbeddedTrainEngine, model_of};
use rloom_engine::{Form, PublishedPolicy, TrainEngine, TrainError};
use rloom_model::{GenerationConfig, OptimizerSettings};
use rloom_text::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::RunError;
use crate::batch::{BatchReport, BatchTraining, Engines, Moment};
use crate::checkpoint::{CheckpointName, Checkpoints};
use crate::state::{TrainerState, sampler_folder};

/// What the thread works with.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) engines: Engines<EmbeddedTrainEngine>,
    pub(crate) training: BatchTraining,
    pub(crate) optimizer: OptimizerSettings,
    /// Optimiser steps of the whole stage, for the learning-rate schedule.
    pub(crate) total_optimizer_steps: u64,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) generation: GenerationConfig,
    pub(crate) checkpoints: Checkpoints,
    /// Held until the thread has ended, also where nobody waits for it: it may be writing a checkpoint.
    pub(crate) _lock: Arc<File>,
    /// What a test has happen on the thread before a batch of a stage that samples is trained on.
    #[cfg(test)]
    pub(crate) before_training: Option<crate::failure_tests::Hook>,
}

/// What it is to do.
#[derive(Debug)]
enum Job {
    /// Hand over the weights as they are, as this version.
    Publish(PolicyVersion),
    /// Train on a batch and hand over the weights.
    Train(Box<TrainJob>),
    /// Write a checkpoint.
    Save(Box<SaveJob>),
}

/// A batch to train on.
#[derive(Debug)]
pub(crate) struct TrainJob {
    /// Batches trained before.
    pub(crate) version: PolicyVersion,
    pub(crate) groups: Vec<Group>,
    /// What the algorithm carried on from the batch before.
    pub(crate) state: AlgorithmState,
    /// Optimiser steps of the stage before this batch.
    pub(crate) optimizer_steps: u64,
}

/// A checkpoint to write.
#[derive(Debug)]
pub(crate) struct SaveJob {
    pub(crate) name: CheckpointName,
    pub(crate) state: TrainerState,
    /// Weights of older versions that go with it.
    pub(crate) older: Vec<PublishedPolicy>,
}

/// What was done, and from when to when.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) what: Work,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// What was done.
#[derive(Debug)]
pub(crate) enum Work {
    /// Weights to load.
    Published(Result<PublishedPolicy, TrainError>),
    /// A batch.
    Trained(Box<Trained>),
    /// A checkpoint, and its bytes.
    Saved { version: u64, result: Result<(PathBuf, u64), RunError> },
}

/// A batch that was trained on, or could not be.
#[derive(Debug)]
pub(crate) struct Trained {
    /// The batch's number: the version that it was trained from.
    pub(crate) batch: u64,
    pub(crate) groups: Vec<Group>,
    pub(crate) result: Result<TrainedWeights, TrainError>,
}

/// What training on a batch gave.
#[derive(Debug)]
pub(crate) struct TrainedWeights {
    pub(crate) report: BatchReport,
    pub(crate) weights: PublishedPolicy,
}

/// The thread, seen from the driver.
#[derive(Debug)]
pub(crate) struct Trainer {
    jobs: mpsc::Sender<Job>,
    done: UnboundedReceiver<Done>,
    thread: JoinHandle<Result<Workshop, String>>,
    progress: Arc<Progress>,
    leaving: Leaving,
}

/// How far the job under way is: optimiser steps.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    /// Nobody wants what is still to be done.
    abandoned: AtomicBool,
}

/// Tells the thread to begin no other job: it is not waited for where the run ends with an error or at once.
#[derive(Debug)]
struct Leaving(Arc<Progress>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
    }
}

impl Trainer {
    pub(crate) fn start(workshop: Workshop) -> Result<Self, RunError> {
        let (jobs, to_do) = mpsc::channel();
        let (tell, done) = unbounded_channel();
        let progress = Arc::new(Progress::default());
        let seen = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("trainer".into())
            .spawn(move || {
                let mut workshop = workshop;
                // What a panic left half-done is dropped with the workshop.
                let worked = catch_unwind(AssertUnwindSafe(|| workshop.work(&to_do, &tell, &seen)));
                worked.map(|()| workshop).map_err(|panic| message(panic.as_ref()).to_owned())
            })
            .map_err(|e| RunError::Setup(format!("could not start the training thread: {e}")))?;
        let leaving = Leaving(Arc::clone(&progress));
        Ok(Self { jobs, done, thread, progress, leaving })
    }

    fn send(&self, job: Job) {
        // A thread that has ended says why when it is listened to.
        let _ = self.jobs.send(job);
    }

    pub(crate) fn publish(&self, version: PolicyVersion) {
        self.send(Job::Publish(version));
    }

    pub(crate) fn train(&self, job: TrainJob) {
        self.progress.total.store(0, Ordering::Relaxed);
        self.send(Job::Train(Box::new(job)));
    }

    pub(crate) fn save(&self, job: SaveJob) {
        self.send(Job::Save(Box::new(job)));
    }

    /// The next job that is done; `None` when the thread has ended. May be dropped while it waits.
    pub(crate) async fn done(&mut self) -> Option<Done> {
        self.done.recv().await
    }

    /// Optimiser steps of the batch under way, and how many there will be; 0 before the first.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.progress.done.load(Ordering::Relaxed), self.progress.total.load(Ordering::Relaxed))
    }

    /// Ends the thread and hands over what it worked with.
    pub(crate) fn end(self) -> Result<Workshop, RunError> {
        let Self { jobs, thread, leaving, .. } = self;
        drop(jobs);
        let panicked = |what: String| RunError::Setup(format!("the training thread panicked: {what}"));
        let ended = thread.join();
        drop(leaving);
        ended.map_err(|panic| panicked(message(panic.as_ref()).to_owned()))?.map_err(panicked)
    }
}

impl Workshop {
    fn work(&mut self, jobs: &mpsc::Receiver<Job>, tell: &UnboundedSender<Done>, progress: &Progress) {
        while let Ok(job) = jobs.recv() {
            if progress.abandoned.load(Ordering::Relaxed) {
                return;
            }
            let start = Instant::now();
            let what = match job {
                Job::Publish(version) => Work::Published(self.publish(version)),
                Job::Train(job) => Work::Trained(Box::new(self.train(*job, progress))),
                Job::Save(job) => Work::Saved { version: job.name.step, result: self.save(*job) },
            };
            // Nobody listens any more when the run has ended with an error.
            let _ = tell.send(Done { what, start, end: Instant::now() });
        }
    }

    fn publish(&mut self, version: PolicyVersion) -> Result<PublishedPolicy, TrainError> {
        self.engines.policy.publish(version, Form::Memory)
    }

    fn train(&mut self, job: TrainJob, progress: &Progress) -> Trained {
        let TrainJob { version, groups, state, optimizer_steps } = job;
        #[cfg(test)]
        if let Some(hook) = &self.before_training {
            hook.call(version);
        }
        let (total, optimizer) = (self.total_optimizer_steps, self.optimizer.clone());
        let rate = move |step: u64| optimizer.learning_rate_at(optimizer_steps + step, total);
        let moment = Moment { version, state, learning_rate: &rate };
        let mut tell = |done, total| {
            progress.done.store(done, Ordering::Relaxed);
            progress.total.store(total, Ordering::Relaxed);
        };
        let trained = self.training.train(&mut self.engines, &groups, &moment, &mut tell);
        let result = trained.and_then(|report| {
            let weights = self.publish(PolicyVersion(version.0 + 1))?;
            Ok(TrainedWeights { report, weights })
        });
        Trained { batch: version.0, groups, result }
    }

    fn save(&mut self, job: SaveJob) -> Result<(PathBuf, u64), RunError> {
        let SaveJob { name, mut state, older } = job;
        state.samplers = older.iter().map(|weights| weights.version).collect();
        let setup = |e: &dyn std::fmt::Display| RunError::Setup(e.to_string());
        self.checkpoints.write(&name, |folder| {
            self.engines.save(folder)?;
            self.tokenizer.save(folder).map_err(|e| setup(&e))?;
            for weights in &older {
                let own = sampler_folder(folder, weights.version);
                std::fs::create_dir_all(&own).map_err(|source| RunError::io("create", &own, source))?;
                let model = model_of(weights)
                    .ok_or_else(|| RunError::Setup("the weights are not in memory".into()))?;
                model.save(&own, &self.generation).map_err(|e| setup(&e))?;
            }
            state.save(folder)
        })
    }
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

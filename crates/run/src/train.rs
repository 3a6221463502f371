//! A whole run: its stages in order, from the beginning or from where an earlier attempt got to.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rloom_config::{Config, Stage as StageConfig};
use rloom_model::{Model, Weights};
use rloom_rollout::RolloutSettings;
use rloom_sched::{Scheduler, SchedulerSettings};

use crate::batch::{BatchTraining, Engines, optimizer_steps};
use crate::checkpoint::{CheckpointName, Checkpoints};
use crate::directory::RunDirectory;
use crate::disk::write_atomically;
use crate::events::{Event, EventStream, Observer, StageOutline};
use crate::journal::{Journal, Recovered};
use crate::setup::{Policy, Shared, context, numeric_path, start_of};
use crate::stage::{Ended, Groups, Keeping, Publisher, Replay, Source, Stage, StageParts, Watch, restore};
use crate::state::{Best, TrainerState, sampler_folder};
use crate::trainer::{Trainer, Workshop};
use crate::{RunError, StopFlag, report, runtime};

/// What became of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The run directory.
    pub directory: PathBuf,
    /// The folder of the last checkpoint, which `transformers` opens as it is.
    pub model: Option<PathBuf>,
    /// The best version by held-out accuracy.
    pub best: Option<Best>,
    /// Whether it was interrupted and can be resumed.
    pub interrupted: bool,
    /// Seconds that this attempt took.
    pub seconds: f64,
}

/// Starts a run in `config.run_directory()`.
pub fn train(config: &Config, observer: &mut dyn Observer, stop: &StopFlag) -> Result<Summary, RunError> {
    let directory = RunDirectory::create(&config.run_directory())?;
    write_atomically("config", &directory.config(), config.to_toml().as_bytes())?;
    work(config, &directory, observer, stop)
}

/// Goes on with the run in `path`, whose resolved configuration is `config`.
pub fn resume(
    path: &Path,
    config: &Config,
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let directory = RunDirectory::open(path)?;
    work(config, &directory, observer, stop)
}

/// Does the work, and tells the event stream how it ended.
fn work(
    config: &Config,
    directory: &RunDirectory,
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let mut events = EventStream::open(&directory.events(), &directory.tensorboard(), observer);
    let result = Run::begin(config, directory, &mut events, stop).and_then(|mut run| run.stages());
    let seconds = events.elapsed();
    match &result {
        Ok(done) if done.interrupted => events.emit(Event::RunInterrupted { seconds }),
        Ok(done) => {
            let model = done.model.as_deref().unwrap_or(directory.path());
            let model = model.strip_prefix(directory.path()).unwrap_or(model).display().to_string();
            let lost_lines = events.lost_lines();
            events.emit(Event::RunFinished { seconds, model, lost_lines });
        }
        Err(error) => events.emit(Event::RunFailed { error: error.to_string() }),
    }
    // The report is a reader of the stream: that it cannot be written does not undo the run.
    if let Err(error) = report::write(directory.path()) {
        events.warn(format!("no report was written: {error}"));
    }
    result
}

struct Run<'r, 's> {
    config: &'r Config,
    directory: &'r RunDirectory,
    events: &'r mut EventStream<'s>,
    stop: &'r StopFlag,
    checkpoints: Checkpoints,
    shared: Shared,
    initial: Policy,
    /// The newest whole checkpoint of an earlier attempt.
    found: Option<(CheckpointName, PathBuf)>,
    best: Option<Best>,
    last: Option<PathBuf>,
}

impl<'r, 's> Run<'r, 's> {
    fn begin(
        config: &'r Config,
        directory: &'r RunDirectory,
        events: &'r mut EventStream<'s>,
        stop: &'r StopFlag,
    ) -> Result<Self, RunError> {
        let checkpoints = Checkpoints::open(directory.checkpoints())?;
        let ctx = context(config.run.threads)?;
        let initial = Policy::initial(config)?;
        let (found, damaged) = checkpoints.newest_sound()?;
        events.emit(Event::RunStarted {
            name: config.run.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: config.run.seed,
            threads: ctx.threads(),
            isa: numeric_path(&ctx, config.compute),
            parameters: initial.model.parameter_count(),
            resumed_from: found.as_ref().map(|(name, _)| name.folder()),
            stages: config.stages.iter().map(outline).collect(),
        });
        for error in damaged {
            let used = found.as_ref().map_or("the beginning".to_owned(), |(name, _)| name.folder());
            events.warn(format!("{error}; going on from {used}"));
        }
        let shared = Shared::new(&initial, ctx, config.run.seed);
        Ok(Self {
            config,
            directory,
            events,
            stop,
            checkpoints,
            shared,
            initial,
            found,
            best: None,
            last: None,
        })
    }

    fn stages(&mut self) -> Result<Summary, RunError> {
        let mut base = 0;
        let first = self.found.as_ref().map_or(0, |(name, _)| name.stage as usize);
        let mut previous: Option<(usize, Arc<Model>)> = None;
        let mut interrupted = false;
        for (index, stage) in self.config.stages.iter().enumerate() {
            if index >= first {
                let resumed = if index == first { self.resume_state(index)? } else { None };
                let policy = self.starting_policy(index, stage, previous.take())?;
                let start = self.events.elapsed();
                let (ended, policy) = self.stage(index, stage, base, policy, resumed)?;
                previous = Some((index, policy));
                if ended == Ended::Interrupted {
                    interrupted = true;
                    break;
                }
                let seconds = self.events.elapsed() - start;
                self.events.emit(Event::StageFinished { name: stage.name.clone(), seconds });
            }
            base += stage.steps;
        }
        Ok(Summary {
            directory: self.directory.path().to_owned(),
            model: self.last.clone(),
            best: self.best.clone(),
            interrupted,
            seconds: self.events.elapsed(),
        })
    }

    /// The state that the found checkpoint holds, checked against the recipe.
    fn resume_state(&mut self, index: usize) -> Result<Option<TrainerState>, RunError> {
        let Some((_, path)) = &self.found else {
            return Ok(None);
        };
        let state = TrainerState::load(path)?;
        let stage = &self.config.stages[index];
        if state.stage_name != stage.name || state.seed != self.config.run.seed {
            return Err(RunError::Setup(format!(
                "{} belongs to stage `{}` with seed {}, the configuration has `{}` with seed {}\nhint: resume with \
                 the configuration that the run began with, or start a new run",
                path.display(),
                state.stage_name,
                state.seed,
                stage.name,
                self.config.run.seed
            )));
        }
        let isa = numeric_path(&self.shared.ctx, self.config.compute);
        if state.isa != isa {
            self.events.warn(format!(
                "the checkpoint was computed with {}, this machine computes with {isa}",
                state.isa
            ));
        }
        self.best.clone_from(&state.best);
        self.last = Some(path.clone());
        Ok(Some(state))
    }

    /// The weights that a stage starts from.
    fn starting_policy(
        &self,
        index: usize,
        stage: &StageConfig,
        previous: Option<(usize, Arc<Model>)>,
    ) -> Result<Arc<Model>, RunError> {
        let Some(from) = start_of(stage) else {
            return Ok(Arc::clone(&self.initial.model));
        };
        if let Some((trained, model)) = previous
            && trained == from
        {
            return Ok(model);
        }
        let source = &self.config.stages[from];
        let name = CheckpointName { stage: from as u32, step: source.steps, stage_name: source.name.clone() };
        let path = self.directory.checkpoints().join(name.folder());
        crate::checkpoint::verify(&path).map_err(|error| {
            RunError::Setup(format!("stage {index} starts from the end of `{}`: {error}", source.name))
        })?;
        let model = Model::load(&path).map_err(setup)?;
        Ok(Arc::new(model.with_compute(self.config.compute)))
    }

    fn stage(
        &mut self,
        index: usize,
        stage: &StageConfig,
        base: u64,
        start: Arc<Model>,
        resumed: Option<TrainerState>,
    ) -> Result<(Ended, Arc<Model>), RunError> {
        let from_step = resumed.as_ref().map_or(0, |s| s.scheduler.version.0);
        self.events.place(&stage.name, base, from_step);
        self.events.emit(Event::StageStarted { outline: outline(stage), from_step });
        let (parts, workshop) = self.parts(index, stage, base, start, resumed.is_some())?;
        #[cfg(test)]
        let (parts, workshop) = crate::failure_tests::changed(parts, workshop);
        let settings = scheduler_settings(stage, parts.evaluator.is_some());
        // Demonstrations give the same weights again without a journal, and a stage that is at its end gives none.
        let samples = stage.rollout.is_some() && from_step < stage.steps;
        let (journal, recovered) =
            Journal::open(&self.directory.journal(), index as u32, from_step, samples)?;
        self.tell_recovered(&recovered);
        let optimizer_steps = resumed.as_ref().map_or(0, |s| s.optimizer_steps);
        let algorithm = resumed.as_ref().map(|s| s.algorithm).unwrap_or_default();
        let drawn = resumed.as_ref().map(|s| s.drawn.clone()).unwrap_or_default();
        let same_isa = resumed.as_ref().is_none_or(|state| state.isa == parts.isa);
        // What was sampled in another way is not what training would compute here.
        let mut workshop = workshop;
        workshop.training.is_sampler_exact &= same_isa;
        let mut publisher = Publisher::default();
        if let Some((state, (_, path))) = resumed.as_ref().zip(self.found.as_ref()) {
            for &version in &state.samplers {
                let model = Model::load(&sampler_folder(path, version)).map_err(setup)?;
                let model = model.with_compute(self.config.compute);
                publisher.pinned.push_back(Weights { version, model: Arc::new(model) });
            }
        }
        let mut groups = Groups::default();
        let mut state = resumed.map(|state| state.scheduler).unwrap_or_default();
        if matches!(parts.source, Source::Rollouts(_)) || from_step > 0 {
            restore(&mut groups, recovered.head, &mut state);
        }
        let saved = self.last.clone().filter(|_| from_step > 0).map(|path| (from_step, path));
        let mut running = Stage {
            scheduler: Scheduler::resume(settings, state)?,
            directory: self.directory,
            checkpoints: &self.checkpoints,
            events: self.events,
            stop: self.stop,
            journal,
            replay: Replay::new(recovered.log, same_isa),
            groups,
            trainer: Some(Trainer::start(workshop)?),
            publisher,
            evaluation: None,
            pending: std::collections::VecDeque::new(),
            optimizer_steps,
            algorithm,
            drawn,
            best: self.best.take(),
            saved,
            saving: None,
            checkpoint_asked: false,
            watch: Watch::default(),
            parts,
        };
        let ended = runtime::block_on(running.run())??;
        self.best = running.best;
        self.last = running.saved.map(|(_, path)| path).or(self.last.take());
        let Some(trainer) = running.trainer else {
            return Err(RunError::Setup("the training thread ended before the stage".into()));
        };
        Ok((ended, trainer.end()?.engines.policy.into_policy()))
    }

    /// Says what a journal had lost.
    fn tell_recovered(&mut self, recovered: &Recovered) {
        if recovered.torn_bytes > 0 {
            self.events.warn(format!(
                "the journal ended in a torn record of {} bytes, which was cut off; what it told of is made again",
                recovered.torn_bytes
            ));
        }
        for path in &recovered.dropped_segments {
            self.events.warn(format!(
                "{} was removed: the segment that it follows is missing; its groups are made again",
                path.display()
            ));
        }
    }

    /// What the driver and the training thread of a stage work with.
    fn parts(
        &self,
        index: usize,
        stage: &StageConfig,
        base: u64,
        start: Arc<Model>,
        resumed: bool,
    ) -> Result<(StageParts, Workshop), RunError> {
        let split = Split::of(stage, self.shared.ctx.threads());
        let settings = stage.rollout.as_ref().map(|r| &r.engine);
        let eval = self.config.eval.as_ref().filter(|_| stage.eval_every > 0);
        let engine = match settings.or(eval.map(|e| &e.rollout)) {
            Some(settings) => {
                let settings = RolloutSettings { threads: split.rollout, ..settings.clone() };
                Some(self.shared.engine(&self.initial, &settings)?)
            }
            None => None,
        };
        let evaluator = match eval.zip(engine.as_ref()) {
            Some((eval, engine)) => Some(Arc::new(self.shared.evaluator(eval, engine)?)),
            None => None,
        };
        let ctx = self.shared.ctx_of(split.trainer)?;
        let isa = numeric_path(&ctx, self.config.compute);
        let generation = self.initial.generation.clone();
        let mut engines = Engines::of_stage(
            &ctx,
            &stage.algorithm,
            &stage.optimizer,
            stage.trainer.recompute,
            start,
            &generation,
        );
        if resumed && let Some((_, path)) = &self.found {
            engines.restore(path)?;
        }
        let context = self.shared.context;
        let training = BatchTraining::of_stage(stage, index as u32, self.config.run.seed, context);
        let tokenizer = Arc::clone(&self.shared.tokenizer);
        let workshop = Workshop {
            engines,
            training,
            optimizer: stage.optimizer.clone(),
            total_optimizer_steps: optimizer_steps(stage),
            tokenizer: Arc::clone(&tokenizer),
            generation,
            checkpoints: self.checkpoints.clone(),
            _lock: self.directory.lock(),
            #[cfg(test)]
            before_training: None,
        };
        let run = &self.config.run;
        let parts = StageParts {
            index: index as u32,
            outline: outline(stage),
            base,
            groups_per_batch: stage.batch,
            seed: run.seed,
            source: self.shared.source(index as u32, stage, engine.as_ref())?,
            evaluator,
            training,
            schedule: stage.schedule(),
            tokenizer,
            isa,
            keeping: Keeping { last: run.keep_last as usize, every: run.keep_every },
            shown_samples: 4,
            stall: Duration::from_secs(run.stall_seconds),
            engine,
        };
        Ok((parts, workshop))
    }
}

/// How many threads train, and how many roll out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Split {
    trainer: usize,
    rollout: usize,
}

impl Split {
    /// What the stage asks for, and otherwise all threads for both, also where they work at once: whoever has more to
    /// do then gets more of the processor, which measured faster than any fixed share of two cores.
    fn of(stage: &StageConfig, threads: usize) -> Self {
        let or_all = |asked: usize| if asked > 0 { asked } else { threads };
        let rollout = stage.rollout.as_ref().map_or(0, |rollout| rollout.engine.threads);
        // An engine with threads of its own does not wait for those that train.
        let rollout = if stage.schedule().overlaps() { or_all(rollout) } else { rollout };
        Self { trainer: or_all(stage.trainer.threads), rollout }
    }
}

fn scheduler_settings(stage: &StageConfig, evaluates: bool) -> SchedulerSettings {
    let evaluate_every = if evaluates { stage.eval_every } else { 0 };
    SchedulerSettings::new(
        &stage.schedule(),
        stage.batch,
        stage.steps,
        evaluate_every,
        stage.checkpoint_every,
    )
}

fn setup(error: impl std::fmt::Display) -> RunError {
    RunError::Setup(error.to_string())
}

fn outline(stage: &StageConfig) -> StageOutline {
    StageOutline {
        name: stage.name.clone(),
        method: stage.algorithm.method.name().to_owned(),
        steps: stage.steps,
    }
}

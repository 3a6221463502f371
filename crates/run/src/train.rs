//! Runs the stages of a recipe in order, from the start or from the last checkpoint.

mod engines;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_cluster::Program;
use rloom_collect::{AgentPolicies, BoundedEngine};
use rloom_config::{Config, Stage as StageConfig, StageRollout};
use rloom_core::{PolicyVersion, Purpose, RandomKey};
use rloom_engine::{Form, PublishedPolicy, RolloutEngine, TrainEngine};
use rloom_hub::Hub;
use rloom_learn::{BatchTrainer, Models};
use rloom_reward::{ComponentSettings, Kind};
use rloom_sched::SchedulerSettings;
use rloom_store::checkpoint::{Best, CheckpointName, CheckpointState, Checkpoints, StoredCheckpoint};
use rloom_store::directory::RunDirectory;
use rloom_store::disk;
use rloom_store::journal::{Journal, LaterStages, Recovered};
use rloom_telemetry::{Event, EventStream, Observer, report};

use crate::absolute_paths::with_absolute_paths;
use crate::assembly::{AgentServers, EngineFactory, is_exact};
use crate::auto_resume::continued;
use crate::data_record::DataRecord;
use crate::initial::policy_of_new_run;
use crate::pin::{download, pin};
use crate::policies::RunPolicies;
use crate::prompts::KeptRows;
use crate::reference::{GivenBatches, score_all};
use crate::restarts::{Restarts, lost_trainer};
use crate::resume::{ResumeOptions, resume};
use crate::stage_setup::{
    RunInputs, batch_trainer, for_sampler, optimizer_steps, outline, stage_domains, stage_scheduler,
    trainer_threads,
};
use crate::start::{announce, engines, measure_prompts};
use crate::{RunError, StopFlag, runtime};
use rloom_stage::{
    CheckpointRetention, EndedStage, GroupSource, LearnerState, Publication, Stage, StageCheckpoints,
    StageContext, StageEnd, StageError, StageEvaluation, StageGroups, StageJournal, StageParts,
    StagePolicies, TrainerHandle, TrainerThread, WeightProbe, WeightPublisher, restore_groups,
};

use engines::{Router, StageStarts, common_form};

/// Completions of each step in the event stream.
const SHOWN_SAMPLES: usize = 4;

/// Result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The run directory.
    pub directory: PathBuf,
    /// Folder of the last checkpoint, which `transformers` opens directly.
    pub model: Option<PathBuf>,
    /// The best version by held-out accuracy, or by validation loss if nothing is evaluated.
    pub best: Option<Best>,
    /// True if the run was interrupted and can be resumed.
    pub interrupted: bool,
    /// Duration of this attempt in seconds.
    pub seconds: f64,
}

/// Starts a run in `config.run_directory()`, or resumes it if it exists and `run.resume` is `"auto"`. Models and data sets
/// of a hub are pinned to their present commits.
pub fn train(config: &Config, observer: &mut dyn Observer, stop: &StopFlag) -> Result<Summary, RunError> {
    if let Some(wanted) = continued(config)? {
        return resume(&config.run_directory(), &wanted, ResumeOptions::default(), observer, stop);
    }
    let hub = Arc::new(observer.observe_hub(Hub::from_env()));
    let config = &with_absolute_paths(pin(config, &hub)?)?;
    // Before the run directory exists: an interrupted download leaves no run without steps behind.
    download(config, &hub)?;
    let directory = create(config)?;
    attempt(&directory, observer, |events| {
        let data = DataRecord::open(&directory, config, false)?;
        let policy = policy_of_new_run(&directory, config, &hub)?;
        let (engines, inputs) = engines(&directory, config, &policy, &hub, events, stop)?;
        run(config, &directory, &engines, &inputs, data, events, stop)
    })
}

/// Starts a run on other engines than those that the configuration names, or resumes it if its directory exists.
pub fn train_on<F: EngineFactory>(
    config: &Config,
    engines: &F,
    inputs: &RunInputs,
    observer: &mut dyn Observer,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    let path = config.run_directory();
    let directory =
        if path.join("config.toml").is_file() { RunDirectory::open(&path)? } else { create(config)? };
    attempt(&directory, observer, |events| {
        let data = DataRecord::open(&directory, config, false)?;
        run(config, &directory, engines, inputs, data, events, stop)
    })
}

fn create(config: &Config) -> Result<RunDirectory, RunError> {
    let directory = RunDirectory::create(&config.run_directory())?;
    disk::write_atomically("config", &directory.config(), config.to_toml().as_bytes())?;
    Ok(directory)
}

/// Runs one attempt, and reports how it ended.
pub(crate) fn attempt(
    directory: &RunDirectory,
    observer: &mut dyn Observer,
    run: impl FnOnce(&mut EventStream<'_>) -> Result<Summary, RunError>,
) -> Result<Summary, RunError> {
    let mut events = EventStream::open(&directory.events(), &directory.tensorboard(), observer);
    let started = Instant::now();
    let result = run(&mut events);
    let seconds = started.elapsed().as_secs_f64();
    match &result {
        Ok(summary) if summary.interrupted => events.emit(Event::RunInterrupted { seconds }),
        Ok(summary) => {
            let model = summary.model.as_deref().unwrap_or(directory.path());
            let model = model.strip_prefix(directory.path()).unwrap_or(model).display().to_string();
            let lost_lines = events.lost_lines();
            events.emit(Event::RunFinished { seconds, model, lost_lines });
        }
        Err(error) => {
            let hints = rloom_core::hints(error);
            events.emit(Event::RunFailed { error: error.to_string(), hints });
        }
    }
    // The report only reads the event stream: failing to write it does not fail the run.
    if let Err(error) = report::write(directory.path()) {
        events.warn(format!("no report was written: {error}"));
    }
    result
}

pub(crate) fn run<F: EngineFactory>(
    config: &Config,
    directory: &RunDirectory,
    engines: &F,
    inputs: &RunInputs,
    data: DataRecord,
    events: &mut EventStream<'_>,
    stop: &StopFlag,
) -> Result<Summary, RunError> {
    events.track(&config.run.tracking, directory.path(), &Program::current().path);
    let agents = Arc::new(AgentServers::in_folder(directory.agents()));
    let inputs = &RunInputs { agents, ..inputs.clone() };
    Run::start(config, directory, engines, inputs, data, events, stop)?.stages()
}

/// One attempt at a run.
struct Run<'r, 's, F> {
    config: &'r Config,
    directory: &'r RunDirectory,
    engines: &'r F,
    inputs: &'r RunInputs,
    /// The policies besides the main one.
    policies: RunPolicies,
    data: DataRecord,
    events: &'r mut EventStream<'s>,
    started: Instant,
    stop: &'r StopFlag,
    checkpoints: Checkpoints,
    /// The newest valid checkpoint of an earlier attempt.
    found: Option<StoredCheckpoint>,
    rows: KeptRows,
    best: Option<Best>,
    last: Option<PathBuf>,
}

/// Threads, engines and exactness of a stage.
struct StageEngines<R, T> {
    rollout: Option<Arc<R>>,
    models: Models<T>,
    /// Weights of frozen policies.
    frozen: Vec<PublishedPolicy>,
    form: Form,
    is_exact: bool,
    numeric_path: String,
}

impl<'r, 's, F: EngineFactory> Run<'r, 's, F> {
    fn start(
        config: &'r Config,
        directory: &'r RunDirectory,
        engines: &'r F,
        inputs: &'r RunInputs,
        data: DataRecord,
        events: &'r mut EventStream<'s>,
        stop: &'r StopFlag,
    ) -> Result<Self, RunError> {
        let checkpoints = Checkpoints::open(directory.checkpoints())?;
        let (found, damaged) = checkpoints.newest_valid()?;
        announce(config, engines, inputs, found.as_ref(), &damaged, events);
        let first = found.as_ref().map_or(0, |(name, _)| name.stage as usize);
        let policies = RunPolicies::open(config, inputs)?;
        let rows = measure_prompts(config, first, inputs, directory, events, stop)?;
        for warning in config.warnings().iter().filter(|warning| warning.stage >= first) {
            let is_exact = engines.is_sampler_exact(&config.stages[warning.stage]);
            if is_exact || !warning.exact_sampler_only {
                events.warn(warning.to_string());
            }
        }
        Ok(Self {
            config,
            directory,
            engines,
            inputs,
            policies,
            data,
            events,
            started: Instant::now(),
            stop,
            checkpoints,
            found,
            rows,
            best: None,
            last: None,
        })
    }

    fn stages(&mut self) -> Result<Summary, RunError> {
        let mut base = 0;
        let first = self.found.as_ref().map_or(0, |(name, _)| name.stage as usize);
        let mut previous: Option<(usize, Publication)> = None;
        let mut interrupted = false;
        for (index, stage) in self.config.stages.iter().enumerate() {
            if index >= first {
                let resumed = if index == first { self.resume_state(index)? } else { None };
                let start = self.stage_start(index, stage, previous.take())?;
                // Not that of the events, which starts again with every restart.
                let started = Instant::now();
                let (end, weights) = self.restarted_stage(index, stage, base, start, resumed)?;
                previous = Some((index, weights));
                if end == StageEnd::Interrupted {
                    interrupted = true;
                    break;
                }
                self.rows.release(self.config, index + 1);
                let seconds = started.elapsed().as_secs_f64();
                self.events.emit(Event::StageFinished { name: stage.name.clone(), seconds });
            }
            base += stage.steps;
        }
        Ok(Summary {
            directory: self.directory.path().to_owned(),
            model: self.last.clone(),
            best: self.best.clone(),
            interrupted,
            seconds: self.started.elapsed().as_secs_f64(),
        })
    }

    /// The state of the found checkpoint, checked against the recipe.
    fn resume_state(&mut self, index: usize) -> Result<Option<CheckpointState>, RunError> {
        let Some((_, path)) = &self.found else { return Ok(None) };
        let state = CheckpointState::load(path)?;
        let stage = &self.config.stages[index];
        if state.stage_name != stage.name || state.seed != self.config.run.seed {
            return Err(RunError::OtherRun {
                path: path.clone(),
                stage: state.stage_name,
                seed: state.seed,
                expected_stage: stage.name.clone(),
                expected_seed: self.config.run.seed,
            });
        }
        let numeric_path = self.engines.train_capabilities(stage).numeric_path;
        if state.numeric_path != numeric_path {
            self.events.warn(format!(
                "the checkpoint was computed with {}, this machine computes with {numeric_path}",
                state.numeric_path
            ));
        }
        self.best.clone_from(&state.best);
        self.last = Some(path.clone());
        Ok(Some(state))
    }

    /// Runs a stage. If its trainer is lost, it runs again from the last checkpoint, as in a resumed run; the rollout engine
    /// stays.
    fn restarted_stage(
        &mut self,
        index: usize,
        stage: &StageConfig,
        base: u64,
        mut start: StageStarts,
        mut resumed: Option<CheckpointState>,
    ) -> Result<(StageEnd, Publication), RunError> {
        let (best, mut restarts, mut rollout) = (self.best.clone(), Restarts::default(), None);
        loop {
            let error = match self.stage(index, stage, base, start, resumed, &mut rollout) {
                Err(error) => error,
                ended => return ended,
            };
            let Some(lost) = lost_trainer(&error) else { return Err(error) };
            self.checkpoints = Checkpoints::open(self.directory.checkpoints())?;
            let (newest, damaged) = self.checkpoints.newest_valid()?;
            let found = newest.clone().filter(|(name, _)| name.stage as usize == index);
            let limit = stage.trainer.restarts();
            let Some(restart) = restarts.next(found.as_ref().map(|(name, _)| name), limit) else {
                return Err(error);
            };
            let from = found.as_ref().map_or("its start".to_owned(), |(name, _)| name.folder());
            self.events.warn(format!(
                "the trainer was lost {lost}; restart {restart} of {limit}: stage `{}` continues from {from} with a new \
                 one, and what was recorded after it is trained again",
                stage.name
            ));
            self.events.next_attempt();
            announce(self.config, self.engines, self.inputs, newest.as_ref(), &damaged, self.events);
            (self.found, self.best) = (found, best.clone());
            resumed = self.resume_state(index)?;
            start = self.stage_start(index, stage, None)?;
        }
    }

    fn stage(
        &mut self,
        index: usize,
        stage: &StageConfig,
        base: u64,
        start: StageStarts,
        resumed: Option<CheckpointState>,
        kept: &mut Option<Arc<Router<F>>>,
    ) -> Result<(StageEnd, Publication), RunError> {
        let from_step = resumed.as_ref().map_or(0, |state| state.scheduler.version.0);
        self.events.set_position(&stage.name, base, from_step);
        self.events.emit(Event::StageStarted { outline: outline(self.config, stage), from_step });
        let recorded = self.config.run.rollouts.is_some();
        if kept.is_none() && !recorded {
            *kept = self.rollout_engine(stage, &start.main)?;
        }
        let rollout = kept.clone();
        let capabilities = rollout.as_ref().map(|engine| engine.capabilities());
        let trainer = self.engines.train_capabilities(stage);
        // Recorded groups were sampled by other weights than those that are trained here.
        let is_exact =
            !recorded && capabilities.as_ref().is_none_or(|rollout| is_exact(stage, rollout, &trainer));
        let stage = &*for_sampler(stage, is_exact)?;
        let stage = &*self.with_reward_models(stage);
        let threads = trainer_threads(stage, self.inputs.threads);
        let found = self.found.as_ref().map(|(_, path)| path.as_path());
        let (models, frozen) = self.models(stage, threads, start, found.zip(resumed.as_ref()))?;
        let engines = StageEngines {
            form: common_form(capabilities.as_ref(), &trainer)?,
            models,
            frozen,
            numeric_path: trainer.numeric_path,
            rollout,
            is_exact,
        };
        let parts = self.parts(index, stage, base, engines, resumed)?;
        let events = &mut *self.events;
        let EndedStage { end, best, newest, trainer } = runtime::block_on(Stage::new(parts, events).run())??;
        // Before the last weights are published once more: its copy of them has the same name.
        *kept = None;
        self.best = best;
        self.last = newest.or(self.last.take());
        let trainer = trainer.ok_or(RunError::TrainerEnded { stage: stage.name.clone() })?;
        let mut trainer = trainer.end().map_err(|cause| StageError::Worker {
            stage: stage.name.clone(),
            step: stage.steps,
            cause,
            checkpoint: self.last.as_ref().map_or("none".to_owned(), |path| path.display().to_string()),
        })?;
        Ok((end, trainer.publish_last(PolicyVersion(stage.steps)).map_err(StageError::from)?))
    }

    /// The stage with the folders of the reward models that earlier stages have trained.
    fn with_reward_models<'c>(&self, stage: &'c StageConfig) -> Cow<'c, StageConfig> {
        let is_of_stage = |component: &ComponentSettings| matches!(&component.kind, Kind::RewardModel(model) if model.stage().is_some());
        let reads = |rollout: &StageRollout| rollout.reward.components.iter().any(is_of_stage);
        if !stage.rollout.as_ref().is_some_and(reads) {
            return Cow::Borrowed(stage);
        }
        let mut stage = stage.clone();
        let components = stage.rollout.iter_mut().flat_map(|rollout| &mut rollout.reward.components);
        for component in components {
            if let Kind::RewardModel(model) = &mut component.kind
                && let Some(path) = model.stage().and_then(|name| self.last_checkpoint_of(name))
            {
                model.model = path.display().to_string();
            }
        }
        Cow::Owned(stage)
    }

    /// Folder of the last checkpoint of a stage.
    fn last_checkpoint_of(&self, name: &str) -> Option<PathBuf> {
        let (index, stage) = self.config.stages.iter().enumerate().find(|(_, stage)| stage.name == name)?;
        let checkpoint = CheckpointName {
            policy: self.inputs.policy,
            stage: index as u32,
            step: stage.steps,
            stage_name: stage.name.clone(),
        };
        Some(self.directory.checkpoints().join(checkpoint.folder()))
    }

    /// Assembles a stage from its start or from a checkpoint.
    fn parts(
        &mut self,
        index: usize,
        stage: &StageConfig,
        base: u64,
        mut engines: StageEngines<Router<F>, F::Train>,
        resumed: Option<CheckpointState>,
    ) -> Result<StageParts<'r, Router<F>, F::Train>, RunError> {
        let from_step = resumed.as_ref().map_or(0, |state| state.scheduler.version.0);
        let bounded = engines.rollout.as_ref().map(|engine| Arc::new(BoundedEngine::new(Arc::clone(engine))));
        let has_policies = stage.rollout.is_some() && !self.policies.is_empty();
        let (of_agents, leagues) = if has_policies {
            self.policies.of_agents(self.inputs, index as u32, resumed.as_ref())
        } else {
            (AgentPolicies::all(self.inputs.policy), Vec::new())
        };
        let (source, cursor, several_domains) = self.inputs.source(
            index as u32,
            stage,
            bounded.as_ref(),
            &of_agents,
            self.config.run.rollouts.as_deref(),
            &self.rows,
        )?;
        self.data.check_order(&stage.name, &cursor)?;
        let domains = stage_domains(stage, several_domains, self.config.run.rollouts.is_some());
        let evaluator =
            match self.config.eval.as_ref().filter(|_| stage.samples_held_out()).zip(bounded.as_ref()) {
                Some((eval, engine)) => Some(Arc::new(self.inputs.evaluator(
                    index as u32,
                    eval,
                    engine,
                    &of_agents,
                    &self.rows,
                )?)),
                None => None,
            };
        let same_numeric_path =
            resumed.as_ref().is_none_or(|state| state.numeric_path == engines.numeric_path);
        // Log-probabilities sampled on another numeric path are not those that training computes here.
        let is_exact = engines.is_exact && same_numeric_path;
        let repeats_bits = same_numeric_path && engines.models.policy.capabilities().repeats_bits;
        let (seed, tokenizer) = (self.config.run.seed, Arc::clone(&self.inputs.tokenizer));
        // An engine with noise of its own cannot be checked otherwise.
        let is_probed =
            engines.rollout.as_ref().is_some_and(|engine| engine.capabilities().numeric_path.is_none());
        let probe = is_probed.then(|| WeightProbe::new(self.inputs.vocabulary, self.inputs.context));
        let mut training = BatchTrainer {
            main: has_policies.then_some(self.inputs.policy),
            ..batch_trainer(stage, index as u32, seed, self.inputs.context, is_exact)?
        };
        if let GroupSource::Demonstrations(source) = &source
            && let Some(folder) = stage.trainer.reference.as_ref().and_then(|own| own.cache.as_deref())
        {
            let (groups_per_batch, batches) = (stage.groups_per_batch, from_step..stage.steps);
            let given = GivenBatches { source, groups_per_batch, batches };
            let events = &mut *self.events;
            let warn = &mut |message: String| events.warn(message);
            let engine = &mut engines.models.policy;
            training.reference.scores = score_all(folder, &given, &training, engine, self.stop, warn)?;
        }
        let trainer = TrainerHandle::start(TrainerThread {
            models: engines.models,
            training: training.clone(),
            optimizer: stage.optimizer.clone(),
            total_optimizer_steps: optimizer_steps(stage),
            groups_per_batch: stage.groups_per_batch,
            policy: self.inputs.policy,
            probe,
            form: engines.form,
            parks: stage.rollout.as_ref().is_some_and(|rollout| rollout.engine.sleeps()),
            tokenizer: Arc::clone(&tokenizer),
            writer: self.engines.writer(),
            checkpoints: self.checkpoints.clone(),
            lock: self.directory.lock(),
        })?;
        let pinned = self.pinned_weights(resumed.as_ref())?;
        // Demonstrations are repeatable without a journal, and a stage at its end records nothing.
        let samples = source.samples() && from_step < stage.steps;
        let later_stages = if samples { LaterStages::Remove } else { LaterStages::Keep };
        let (journal, recovered) =
            Journal::open(&self.directory.journal(), index as u32, from_step, later_stages)?;
        if source.samples() {
            self.warn_recovered(&recovered);
        }
        let Recovered { snapshot, log, .. } = recovered;
        let (learner, counters) = resumed.as_ref().map_or_else(Default::default, |state| {
            let learner = LearnerState {
                optimizer_steps: state.optimizer_steps,
                skipped_steps: state.skipped_steps,
                algorithm: state.algorithm.clone(),
            };
            (learner, state.counters.clone())
        });
        let mut scheduler = resumed.map(|state| state.scheduler).unwrap_or_default();
        let is_sampled = matches!(source, GroupSource::Rollouts(_));
        let mut groups = StageGroups::new(source);
        if is_sampled || from_step > 0 {
            restore_groups(&mut groups, snapshot, &mut scheduler);
        }
        let schedule = stage.schedule();
        let eval_every = if evaluator.is_some() { stage.eval_every } else { 0 };
        let settings = SchedulerSettings::new(
            &schedule,
            stage.groups_per_batch,
            stage.steps,
            eval_every,
            stage.checkpoint_every,
            RandomKey::new(seed, index as u32, Purpose::Reuse, 0),
        );
        let run = &self.config.run;
        let retention = CheckpointRetention { last: run.keep_last as usize, every: run.keep_every };
        let saved = self.last.clone().filter(|_| from_step > 0).map(|path| (from_step, path));
        let scheduler = stage_scheduler(settings, &domains, counters.success.as_ref(), scheduler)?;
        let mut evaluation = StageEvaluation::new(evaluator, &stage.name, self.best.take());
        let later = &self.config.stages[index + 1..];
        if stage.trains_reward_model() && later.iter().any(|stage| !stage.trains_reward_model()) {
            // A later stage trains a policy, and the best version of such a run is a policy.
            evaluation = evaluation.without_best();
        }
        Ok(StageParts {
            scheduler,
            directory: self.directory,
            journal: StageJournal::new(journal, log, repeats_bits),
            groups,
            weights: WeightPublisher::new(
                engines.rollout,
                schedule,
                stage.groups_per_batch,
                pinned,
                engines.frozen,
            ),
            leagues,
            evaluation,
            validation: self.inputs.validation(index as u32, stage, &self.rows)?,
            checkpoints: StageCheckpoints::new(self.checkpoints.clone(), index as u32, retention, saved),
            trainer,
            learner,
            counters,
            stop: self.stop,
            context: StageContext {
                index: index as u32,
                outline: outline(self.config, stage),
                base,
                policy: self.inputs.policy,
                policies: if has_policies { self.policies.of_stage() } else { StagePolicies::default() },
                groups_per_batch: stage.groups_per_batch,
                domains,
                seed,
                training,
                schedule,
                tokenizer,
                numeric_path: engines.numeric_path,
                shown_samples: SHOWN_SAMPLES,
                keep_rollouts: run.keep_rollouts.steps(),
                stall_timeout: Duration::from_secs(run.stall_seconds),
            },
        })
    }

    /// Warns about records that the journal has lost. A stage that samples nothing loses nothing with them.
    fn warn_recovered(&mut self, recovered: &Recovered) {
        if recovered.torn_bytes > 0 {
            self.events.warn(format!(
                "the journal ended in an incomplete record of {} bytes, which was removed; its content is regenerated",
                recovered.torn_bytes
            ));
        }
        for path in &recovered.removed_segments {
            self.events.warn(format!(
                "{} was removed: the segment before it is missing; its groups are regenerated",
                path.display()
            ));
        }
    }
}

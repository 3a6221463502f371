//! From the configuration of a stage to its collectors.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rloom_algo::{Algorithm, Sampler};
use rloom_collect::{
    AgentHost, AgentPolicies, BoundedEngine, DemonstrationReader, DemonstrationSource, EpisodeRunner,
    EpisodeSettings, Evaluator, GroupRunner, GroupSettings, OutcomeRule, RecordedSource, SomeDemonstrations,
};
use rloom_config::layered::suggest;
use rloom_config::{Config, EvalSettings, MAIN_POLICY, PolicySettings, Stage, StageRollout, Start};
use rloom_core::PolicyId;
use rloom_data::{Cursor, DataSettings, Dataset, RowKind, Split};
use rloom_engine::{ReferenceSettings, RolloutEngine, RolloutEngineSettings};
use rloom_env::{EnvironmentSettings, Solo, World};
use rloom_function::Host;
use rloom_hub::Hub;
use rloom_learn::{BatchTrainer, MethodError, MethodFunctions, ReferenceUse};
use rloom_reward::{DomainSet, RewardSettings, Scorer};
use rloom_sched::{Priority, SchedError, Scheduler, SchedulerSettings, SchedulerState, SuccessRates};
use rloom_telemetry::StageOutline;
use rloom_text::Tokenizer;

use crate::assembly::{AgentServers, EmbeddedJudges, FunctionHosts, eval_prefix};
use crate::prompts::{KeptRows, PromptCheck, row_kind, split_rows};
use crate::{Policy, RunError};
use rloom_stage::{GroupSource, StageDomains, StageValidation};

/// Rewards computed at once beyond one per thread.
const EXTRA_REWARD_SLOTS: usize = 2;

/// Adjusts the settings of episodes before they run, for programs that bring their own rewards or environments. The
/// `stage` of evaluations is [`u32::MAX`].
#[derive(Clone)]
pub struct EpisodeHook(Arc<dyn Fn(&mut EpisodeSettings) + Send + Sync>);

impl EpisodeHook {
    /// Wraps a function that is called once per stage and once per evaluation of a stage.
    pub fn new(adjust: impl Fn(&mut EpisodeSettings) + Send + Sync + 'static) -> Self {
        Self(Arc::new(adjust))
    }
}

impl fmt::Debug for EpisodeHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EpisodeHook")
    }
}

/// Inputs that all stages of a run share.
#[derive(Debug, Clone)]
pub struct RunInputs {
    /// The main policy, which is trained.
    pub policy: PolicyId,
    /// Seed of the run.
    pub seed: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Tokenizer of the policy.
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end a completion.
    pub stop_tokens: Arc<[u32]>,
    /// Context length of the policy in tokens.
    pub context: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Parameters of the policy.
    pub parameters: u64,
    /// Hub of the data sets.
    pub hub: Arc<Hub>,
    /// Adjusts the settings of episodes.
    pub episode_hook: Option<EpisodeHook>,
    /// Judges that this process computes.
    pub judges: Arc<EmbeddedJudges>,
    /// Servers of the agents that run outside of this program.
    pub agents: Arc<AgentServers>,
    /// Machines of functions and reward models; without them this process starts them.
    pub functions: Option<FunctionHosts>,
}

impl RunInputs {
    /// The inputs for a policy.
    pub fn new(policy: &Policy, hub: Arc<Hub>, threads: usize, seed: u64) -> Self {
        Self {
            policy: PolicyId::MAIN,
            seed,
            threads,
            tokenizer: Arc::clone(&policy.tokenizer),
            stop_tokens: policy.stop_tokens(),
            context: policy.context,
            vocabulary: policy.vocabulary,
            parameters: policy.parameters,
            judges: Arc::new(EmbeddedJudges::new(Arc::clone(&hub), threads)),
            hub,
            episode_hook: None,
            agents: Arc::default(),
            functions: None,
        }
    }

    /// Checks the prompts of the run's data.
    pub(crate) fn prompt_check(&self) -> PromptCheck<'_> {
        PromptCheck::new(&self.tokenizer, self.context, self.threads, self.seed, &self.hub)
    }

    /// The tokenizer with the variables of the chat template for some data.
    fn tokenizer_of(&self, data: &DataSettings) -> Arc<Tokenizer> {
        let variables = &data.prompt_format.template_variables;
        if variables.is_empty() {
            return Arc::clone(&self.tokenizer);
        }
        Arc::new(Tokenizer::clone(&self.tokenizer).with_template_variables(variables))
    }

    fn episodes<R: RolloutEngine + 'static>(
        &self,
        engine: &Arc<BoundedEngine<R>>,
        (name, data): (&str, &DataSettings),
        (environment, world): (&EnvironmentSettings, Arc<dyn World>),
        reward: &RewardSettings,
        rollout: &RolloutEngineSettings,
        stage: u32,
        policies: &AgentPolicies,
        host_of: &dyn Fn(&str) -> Option<Arc<dyn Host>>,
    ) -> Result<Arc<EpisodeRunner<R>>, RunError> {
        let scorer = Arc::new(Scorer::new(reward, self.seed, stage)?);
        scorer.place(&|component| host_of(&format!("reward {component}")));
        scorer.open_models(self.judges.as_ref())?;
        let tokenizer = self.tokenizer_of(data);
        let runner = |agent| self.agents.runner(self, agent, name, data, &tokenizer, reward).map(Arc::new);
        let runner = environment.agent().map(runner).transpose()?;
        let mut settings = EpisodeSettings {
            world: runner.clone().map_or(world, |runner| Arc::new(Solo::new(runner))),
            host: runner.map(|runner| runner as Arc<dyn AgentHost>),
            tokenizer,
            reward_slots: self.threads + EXTRA_REWARD_SLOTS + scorer.waiting_slots(),
            scorer,
            context: self.context,
            policies: policies.clone(),
            seed: self.seed,
            stage,
            stop_tokens: Arc::clone(&self.stop_tokens),
            timeout: Duration::from_secs_f64(rollout.timeout_seconds()),
            reward_timeout: reward.timeout(),
        };
        if let Some(EpisodeHook(adjust)) = &self.episode_hook {
            adjust(&mut settings);
        }
        if stage != u32::MAX {
            known_policies(&settings)?;
        }
        Ok(Arc::new(EpisodeRunner::new(Arc::clone(engine), settings)))
    }

    /// The source of a stage's groups, the order of its tasks, and true if groups of several domains are sampled.
    pub(crate) fn source<R: RolloutEngine + 'static>(
        &self,
        index: u32,
        stage: &Stage,
        engine: Option<&Arc<BoundedEngine<R>>>,
        policies: &AgentPolicies,
        recorded: Option<&Path>,
        rows: &KeptRows,
    ) -> Result<(GroupSource<R>, Cursor, bool), RunError> {
        let seed = self.seed;
        let host_of = |role: &str| self.functions.as_ref()?.of(index as usize, role);
        let open = |split, kind| rows.open(&stage.data, (split, kind), &stage.environment, seed, &self.hub);
        let quotas = stage.rollout.as_ref().map(|rollout| rollout.domains.names()).unwrap_or_default();
        let cursor = |dataset: &Dataset| Cursor::over(dataset, &quotas, stage.order, seed, index);
        if let Some(run) = recorded.filter(|_| stage.rollout.is_some()) {
            let group_size = stage.algorithm.group_size;
            let source =
                RecordedSource::open(run, &stage.name, stage.steps, stage.groups_per_batch, group_size)?;
            let (split, kind) = split_rows(stage);
            let dataset = open(split, kind)?;
            return Ok((GroupSource::Recorded(source), cursor(&dataset)?, false));
        }
        let Some((rollout, engine)) = stage.rollout.as_ref().zip(engine) else {
            let source = self.rows(index, stage, Split::Demonstration, rows)?;
            let cursor = source.cursor.clone();
            return Ok((GroupSource::Demonstrations(source), cursor, false));
        };
        let (split, kind) = split_rows(stage);
        let dataset = open(split, kind)?;
        let cursor = cursor(&dataset)?;
        let timeout = Duration::from_secs_f64(rollout.engine.timeout_seconds());
        let demonstrations = kind.is_offline().then(|| {
            let sampled_share = stage.algorithm.distillation.map_or(1.0, |d| d.on_policy_share());
            Ok::<_, RunError>(SomeDemonstrations {
                reader: self.reader(index, stage, timeout)?,
                sampled_share,
                seed,
                stage: index,
            })
        });
        let world = stage.environment.world(timeout, host_of("environment"))?;
        let episodes = self.episodes(
            engine,
            (&stage.name, &stage.data),
            (&stage.environment, world),
            &rollout.reward,
            &rollout.engine,
            index,
            policies,
            &host_of,
        )?;
        let settings = GroupSettings {
            group_size: stage.algorithm.group_size,
            has_baseline: stage.algorithm.needs_baseline_episode(),
            recombination: stage.algorithm.recombination(),
            overlong: stage.algorithm.overlong,
            completion_limit: completion_limit(stage, rollout),
            sampling: rollout.sampling.clone(),
            oldest_first: rollout.schedule.priority == Priority::Oldest,
            demonstrations: demonstrations.transpose()?,
        };
        let several_domains = dataset.domains().len() > 1;
        let runner = GroupRunner::new(episodes, Arc::new(dataset), cursor.clone(), settings);
        Ok((GroupSource::Rollouts(Arc::new(runner)), cursor, several_domains))
    }

    /// The rows of a split of a stage that learns from them.
    fn rows(
        &self,
        index: u32,
        stage: &Stage,
        split: Split,
        rows: &KeptRows,
    ) -> Result<DemonstrationSource, RunError> {
        let kept = (split, row_kind(stage));
        let dataset = rows.open(&stage.data, kept, &stage.environment, self.seed, &self.hub)?;
        let timeout = Duration::from_secs_f64(RolloutEngineSettings::default().timeout_seconds());
        Ok(DemonstrationSource {
            cursor: Cursor::over(&dataset, &[], stage.order, self.seed, index)?,
            dataset,
            reader: self.reader(index, stage, timeout)?,
        })
    }

    /// The reader of the rows of a stage.
    fn reader(&self, index: u32, stage: &Stage, timeout: Duration) -> Result<DemonstrationReader, RunError> {
        let host = self.functions.as_ref().and_then(|hosts| hosts.of(index as usize, "environment"));
        Ok(DemonstrationReader {
            tokenizer: self.tokenizer_of(&stage.data),
            environment: stage.environment.environment(timeout, host)?,
            context: self.context,
            timeout,
        })
    }

    /// The loss on held-out rows of a stage; `None` if it has none.
    pub(crate) fn validation(
        &self,
        index: u32,
        stage: &Stage,
        rows: &KeptRows,
    ) -> Result<Option<StageValidation>, RunError> {
        let Some(settings) = &stage.validation else { return Ok(None) };
        let source = self.rows(index, stage, Split::Eval, rows)?;
        Ok(Some(StageValidation::new(source, settings.rows, settings.every, stage.steps)))
    }

    /// The held-out evaluation of a stage. Its random streams belong to no stage, so that all evaluations share their noise.
    pub(crate) fn evaluator<R: RolloutEngine + 'static>(
        &self,
        index: u32,
        eval: &EvalSettings,
        engine: &Arc<BoundedEngine<R>>,
        policies: &AgentPolicies,
        rows: &KeptRows,
    ) -> Result<Evaluator<R>, RunError> {
        let of_set = |(name, eval): (Option<&str>, EvalSettings)| {
            let evaluator = self.set_evaluator(index, &eval_prefix(name), &eval, engine, policies, rows)?;
            Ok((name.unwrap_or_default().to_owned(), evaluator))
        };
        let mut sets = eval.all_sets().map(of_set).collect::<Result<Vec<_>, RunError>>()?;
        let (_, own) = sets.remove(0);
        Ok(own.with_sets(sets))
    }

    fn set_evaluator<R: RolloutEngine + 'static>(
        &self,
        index: u32,
        prefix: &str,
        eval: &EvalSettings,
        engine: &Arc<BoundedEngine<R>>,
        policies: &AgentPolicies,
        rows: &KeptRows,
    ) -> Result<Evaluator<R>, RunError> {
        let split = (Split::Eval, RowKind::Prompts);
        let dataset = rows.open(&eval.data, split, &eval.environment, self.seed, &self.hub)?;
        let timeout = Duration::from_secs_f64(eval.rollout.timeout_seconds());
        let host_of = |role: &str| self.functions.as_ref()?.of(index as usize, &format!("{prefix}{role}"));
        let world = eval.environment.world(timeout, host_of("environment"))?;
        let episodes = self.episodes(
            engine,
            (&prefix.trim().replace(' ', "-"), &eval.data),
            (&eval.environment, world),
            &eval.reward,
            &eval.rollout,
            u32::MAX,
            policies,
            &host_of,
        )?;
        let samples = if eval.sampling.is_greedy() { 0 } else { eval.samples };
        Ok(Evaluator::new(episodes, dataset, eval.tasks, samples, eval.sampling.clone()))
    }
}

/// Checks that the policies which agents name are those of the run.
fn known_policies(settings: &EpisodeSettings) -> Result<(), RunError> {
    let EpisodeSettings { world, policies, .. } = settings;
    let mut known = vec![MAIN_POLICY];
    known.extend(policies.others.keys().chain(policies.leagues.keys()).map(String::as_str));
    let Some(agent) = world.agents().iter().find(|agent| !known.contains(&agent.policy.as_str())) else {
        return Ok(());
    };
    let near = suggest::nearest(&agent.policy, &known).map(|near| format!("did you mean \"{near}\"? "));
    let known = format!("{}known are {}", near.unwrap_or_default(), suggest::list(&known));
    let (agent, policy) = (agent.name.clone(), agent.policy.clone());
    Err(RunError::UnknownPolicy { environment: world.name().to_owned(), agent, policy, known })
}

/// Most policy tokens of an episode, over all its turns.
fn completion_limit(stage: &Stage, rollout: &StageRollout) -> u64 {
    (rollout.sampling.max_new_tokens * stage.environment.max_turns()) as u64
}

/// Training on the batches of the stage at `index` of its recipe. `context` is the context length of the policy in
/// tokens, `is_sampler_exact` follows from the engines' capabilities.
pub(crate) fn batch_trainer(
    stage: &Stage,
    index: u32,
    seed: u64,
    context: usize,
    is_sampler_exact: bool,
) -> Result<BatchTrainer, RunError> {
    let reward = stage.rollout.as_ref().map(|rollout| &rollout.reward);
    let limit = stage.rollout.as_ref().map(|rollout| completion_limit(stage, rollout));
    // A KL is measured to the teacher, if there is one.
    let reads_reference = stage.algorithm.needs_reference() && stage.teacher.is_none();
    let reference = stage.trainer.reference.as_ref().filter(|_| reads_reference);
    Ok(BatchTrainer {
        algorithm: stage.algorithm,
        functions: MethodFunctions::of(&stage.algorithm).map_err(MethodError::from)?,
        completion_limit: limit.unwrap_or(context as u64),
        micro_batch_tokens: stage.trainer.micro_batch_tokens,
        share_prompts: stage.trainer.shares_prompts(),
        max_skipped_steps: stage.trainer.max_skipped_steps,
        is_sampler_exact,
        seed,
        stage: index,
        reference: ReferenceUse {
            is_other: reference.is_some_and(|own| own.model.is_some() || own.sync_every.is_some()),
            sync: reference.and_then(ReferenceSettings::sync),
            scores: None,
        },
        outcome: OutcomeRule {
            verified: reward.map_or_else(DomainSet::none, RewardSettings::verified),
            is_shaped: stage.algorithm.overlong.is_some(),
        },
        step_reward_weight: reward.and_then(RewardSettings::environment_weight).unwrap_or(0.0),
        has_teacher: stage.teacher.is_some(),
        main: None,
    })
}

/// The stage with its algorithm resolved for an inexact sampler, which is corrected for by default.
pub(crate) fn for_sampler(stage: &Stage, is_exact: bool) -> Result<Cow<'_, Stage>, RunError> {
    if is_exact || stage.rollout.is_none() {
        return Ok(Cow::Borrowed(stage));
    }
    let sampler = Sampler { max_staleness: stage.schedule().max_trained_age(), is_exact };
    let algorithm = Algorithm::resolve(stage.algorithm.method, &stage.algorithm_settings, sampler)?;
    Ok(Cow::Owned(Stage { algorithm, ..stage.clone() }))
}

/// Treatment of the domains of a stage. Recorded groups are what they are.
pub(crate) fn stage_domains(stage: &Stage, are_reported: bool, is_recorded: bool) -> StageDomains {
    let Some(rollout) = stage.rollout.as_ref().filter(|_| !is_recorded) else {
        return StageDomains::default();
    };
    let domains = &rollout.domains;
    StageDomains {
        are_reported,
        filters: domains.filters.clone(),
        max_draws: domains.draws(),
        names: domains.names(),
        weights: domains.weights(),
        curriculum: domains.curriculum,
    }
}

/// The scheduler of a stage, new or resumed from its state.
pub(crate) fn stage_scheduler(
    settings: SchedulerSettings,
    domains: &StageDomains,
    success: Option<&SuccessRates>,
    state: SchedulerState,
) -> Result<Scheduler, SchedError> {
    if domains.names.is_empty() {
        Scheduler::resume(settings, state)
    } else {
        Scheduler::with_quotas(settings, &domains.weights_after(success), state)
    }
}

/// Optimiser steps of the whole stage: the end of its learning-rate schedule.
pub(crate) fn optimizer_steps(stage: &Stage) -> u64 {
    stage.steps * stage.algorithm.steps_per_batch()
}

/// The stage that another one starts from; `None` for the configuration's model.
pub(crate) fn start_of(stage: &Stage) -> Option<usize> {
    match stage.start {
        Start::Model => None,
        Start::Stage(index) => Some(index),
    }
}

/// The stage of a configuration as events announce it.
pub(crate) fn outline(config: &Config, stage: &Stage) -> StageOutline {
    let described = |(name, policy): (&String, &PolicySettings)| match &policy.league {
        Some(league) => format!("{name} (league of {})", league.of),
        None if policy.frozen => format!("{name} (frozen)"),
        None => name.clone(),
    };
    let policies = config.policies.iter().filter(|_| stage.rollout.is_some());
    StageOutline {
        policies: policies.map(described).collect(),
        name: stage.name.clone(),
        method: stage.algorithm.method.name().to_owned(),
        steps: stage.steps,
        quantize: stage
            .rollout
            .as_ref()
            .and_then(|rollout| rollout.engine.quantize())
            .map(|format| format.name().to_owned()),
    }
}

/// Threads of a stage's trainer, of those of the run. By default trainer and rollout engine both use all threads, also
/// when they overlap: the operating system then gives more to the one with more work, which measured faster than any
/// fixed split of two cores.
pub(crate) fn trainer_threads(stage: &Stage, threads: usize) -> usize {
    if stage.trainer.threads > 0 { stage.trainer.threads } else { threads }
}

/// Settings of a stage's rollout engine; `None` if it neither samples nor evaluates. A stage that samples evaluates with
/// the same engine; one that only evaluates has an engine with the settings of evaluation.
pub(crate) fn rollout_settings(
    stage: &Stage,
    eval: Option<&EvalSettings>,
    threads: usize,
) -> Option<RolloutEngineSettings> {
    let own = stage.rollout.as_ref().map(|rollout| &rollout.engine);
    let eval = eval.filter(|_| stage.samples_held_out()).map(|eval| &eval.rollout);
    let mut settings = own.or(eval)?.clone();
    // Taking turns with the trainer is a matter of stages that sample.
    if let (None, RolloutEngineSettings::Vllm(servers) | RolloutEngineSettings::Sglang(servers)) =
        (own, &mut settings)
    {
        servers.sleep = false;
    }
    // An engine with its own threads does not wait for those that train; with 0 it shares the threads of the run.
    if let RolloutEngineSettings::Embedded(embedded) = &mut settings
        && stage.schedule().overlaps()
        && embedded.threads == 0
    {
        embedded.threads = threads;
    }
    Some(settings)
}

#[cfg(test)]
mod tests {
    use rloom_engine::{RolloutSettings, Speculation};

    use super::*;

    /// Every setting of an engine has another value than by default.
    const ENGINE: &str = "{ threads = 3, lanes = 3, kv_memory_mib = 30, max_batch = 31, prefill_chunk = 32, \
                          speculation = 'ngram', quantize = 'int8', timeout_seconds = 33.0, restarts = 34 }";

    /// Settings of the engine of each stage.
    fn all(overrides: &[&str]) -> Vec<Option<RolloutEngineSettings>> {
        let text = "model.new = { layers = 1, hidden_size = 8, heads = 1, intermediate_size = 8, \
                    max_positions = 16 }\nsampling.max_new_tokens = 4\ndata.generator = 'arithmetic'\nreward.components = [{ kind = 'exact' }]\n\
                    eval = {}\n\
                    [[stage]]\nname = 'warmup'\nmethod = 'sft'\nsteps = 1\ngroups_per_batch = 1\n\
                    [[stage]]\nname = 'rl'\nmethod = 'grpo'\nsteps = 1\ngroups_per_batch = 1\n";
        let config =
            Config::from_text("test.toml", text, overrides).map_err(|errors| errors.to_string()).unwrap();
        config.stages.iter().map(|stage| rollout_settings(stage, config.eval.as_ref(), 2)).collect()
    }

    fn settings(overrides: &[&str]) -> Vec<Option<RolloutSettings>> {
        let embedded = |engine: RolloutEngineSettings| match engine {
            RolloutEngineSettings::Embedded(settings) => settings,
            other => panic!("{other:?}"),
        };
        all(overrides).into_iter().map(|engine| engine.map(embedded)).collect()
    }

    #[test]
    fn the_engine_of_a_supervised_stage_has_every_setting_of_evaluation() {
        let expected = RolloutSettings {
            threads: 3,
            lanes: 3,
            kv_memory_mib: 30,
            max_batch: 31,
            prefill_chunk: 32,
            speculation: Speculation::Ngram,
            quantize: Some(rloom_engine::RolloutQuantization::Int8),
            timeout_seconds: 33.0,
            restarts: 34,
        };
        let of_eval = settings(&[&format!("eval.rollout={ENGINE}")]);
        assert_eq!(of_eval, [Some(expected.clone()), Some(RolloutSettings::default())]);
        let shared = settings(&[&format!("rollout={ENGINE}"), "stage.warmup.eval_every=0"]);
        assert_eq!(shared, [None, Some(expected)]);
    }

    /// The trainer of a stage without rollouts keeps its weights on the GPU.
    #[test]
    fn servers_that_only_evaluate_do_not_sleep() {
        const VLLM: &str = "{ engine = 'vllm', sleep = true }";
        let overrides = ["rollout", "eval.rollout"].map(|key| format!("{key}={VLLM}"));
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let sleeps: Vec<bool> = all(&overrides).iter().flatten().map(RolloutEngineSettings::sleeps).collect();
        assert_eq!(sleeps, [false, true]);
    }

    #[test]
    fn an_engine_that_overlaps_with_training_has_its_own_threads() {
        let threads = |overrides: &[&str]| -> Vec<usize> {
            settings(overrides).into_iter().flatten().map(|settings| settings.threads).collect()
        };
        assert_eq!(threads(&[]), [0, 0]);
        assert_eq!(threads(&["schedule.max_staleness=1"]), [0, 2]);
        assert_eq!(threads(&["schedule.max_staleness=1", "rollout.threads=1"]), [1, 1]);
    }
}

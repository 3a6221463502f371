//! The policies of a run besides the main one: their weights, train engines and rollout engines.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rloom_collect::{AgentPolicies, Opponents};
use rloom_config::{Config, ModelSource, NEW_MODEL, OpponentDraw, PolicySettings, Stage};
use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{PolicyRouter, PublishedPolicy, RolloutEngineSettings};
use rloom_hub::Hub;
use rloom_learn::{FurtherPolicy, Models};
use rloom_stage::{Publication, StageLeague, StagePolicies};
use rloom_store::checkpoint::{CheckpointState, policy_folder};

use crate::assembly::{EngineFactory, StageStart};
use crate::stage_setup::RunInputs;
use crate::{Policy, RunError, teacher};

/// The policies of a run besides the main one, in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct RunPolicies {
    all: Vec<RunPolicy>,
}

/// A policy besides the main one.
#[derive(Debug)]
struct RunPolicy {
    name: String,
    settings: PolicySettings,
    /// One id, or one for each version that a league keeps.
    ids: Range<u32>,
    /// A model of its own, or that of the policy whose versions it plays; `None` for the weights that the main policy starts from.
    own: Option<Policy>,
}

impl RunPolicy {
    fn id(&self) -> PolicyId {
        PolicyId(self.ids.start)
    }

    /// Ids with the names of their folders in a checkpoint.
    fn folders(&self) -> impl Iterator<Item = (PolicyId, String)> {
        let name = |slot: u32| match &self.settings.league {
            None => self.name.clone(),
            Some(_) => format!("{}/{slot}", self.name),
        };
        (0..).zip(self.ids.clone()).map(move |(slot, id)| (PolicyId(id), name(slot)))
    }

    /// The weights that the policy starts a stage from, where `main` is the start of the main policy.
    fn open<F: EngineFactory>(&self, engines: &F, main: &StageStart) -> Result<PublishedPolicy, RunError> {
        let opened = match &self.own {
            Some(own) => engines.of_policy(own)?.open_start(StageStart::Initial)?,
            None => engines.open_start(main.clone())?,
        };
        Ok(PublishedPolicy { policy: self.id(), version: PolicyVersion(0), ..opened })
    }

    /// Opens its weights in a checkpoint.
    fn load<F: EngineFactory>(
        &self,
        engines: &F,
        folder: &Path,
        version: PolicyVersion,
    ) -> Result<PublishedPolicy, RunError> {
        let opened = match &self.own {
            Some(own) => engines.of_policy(own)?.open(folder, version)?,
            None => engines.open(folder, version)?,
        };
        Ok(PublishedPolicy { policy: self.id(), ..opened })
    }
}

impl RunPolicies {
    /// Opens the models that the configuration names.
    pub(crate) fn open(config: &Config, inputs: &RunInputs) -> Result<Self, RunError> {
        let own = |name: &str, settings: &PolicySettings, id: u32| match settings.model.as_deref() {
            None => Ok(None),
            Some(model) => own_model(config, name, model, id, inputs).map(Some),
        };
        let mut all = Vec::new();
        for (name, settings, ids) in config.policy_ids() {
            let own = own(name, settings, ids.start)?;
            all.push(RunPolicy { name: name.to_owned(), settings: settings.clone(), ids, own });
        }
        // Versions of a policy have its architecture.
        let models: Vec<(String, Option<Policy>)> =
            all.iter().map(|policy| (policy.name.clone(), policy.own.clone())).collect();
        for policy in &mut all {
            if let Some(league) = &policy.settings.league {
                policy.own =
                    models.iter().find(|(name, _)| *name == league.of).and_then(|(_, own)| own.clone());
            }
        }
        Ok(Self { all })
    }

    /// True if the main policy is the only one.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn trained(&self) -> impl Iterator<Item = &RunPolicy> {
        self.all.iter().filter(|policy| policy.settings.is_trained())
    }

    /// The policies that agents sample from in a stage, and its leagues with their states in a checkpoint.
    pub(crate) fn of_agents(
        &self,
        inputs: &RunInputs,
        stage: u32,
        resumed: Option<&CheckpointState>,
    ) -> (AgentPolicies, Vec<StageLeague>) {
        let mut policies = AgentPolicies::all(inputs.policy);
        let mut leagues = Vec::new();
        for policy in &self.all {
            let Some(settings) = &policy.settings.league else {
                policies.others.insert(policy.name.clone(), policy.id());
                continue;
            };
            let opponents = Arc::new(Opponents::new(inputs.seed, stage, policy.id()));
            let state =
                resumed.and_then(|state| state.leagues.get(&policy.name)).cloned().unwrap_or_default();
            opponents.restore(state.drawn.clone());
            policies.leagues.insert(policy.name.clone(), Arc::clone(&opponents));
            let of = self.all.iter().find(|other| other.name == settings.of);
            leagues.push(StageLeague {
                name: policy.name.clone(),
                ids: policy.ids.clone(),
                of: of.map_or(inputs.policy, RunPolicy::id),
                every: settings.every,
                by_win_rate: settings.draw == OpponentDraw::WinRate,
                opponents,
                state,
            });
        }
        (policies, leagues)
    }

    /// The frozen policies of a stage that samples.
    pub(crate) fn of_stage(&self) -> StagePolicies {
        let frozen = self.all.iter().filter(|policy| !policy.settings.is_trained());
        StagePolicies { frozen: frozen.flat_map(RunPolicy::folders).collect() }
    }

    /// Adds the rollout engines of all policies to that of the main one.
    pub(crate) fn rollout<F: EngineFactory>(
        &self,
        engines: &F,
        settings: &RolloutEngineSettings,
        stage: &Stage,
        start: &StageStart,
    ) -> Result<PolicyRouter<F::Rollout>, RunError> {
        let mut router = PolicyRouter::new(engines.rollout_of_stage(settings, stage, start)?);
        for policy in &self.all {
            for id in policy.ids.clone() {
                let engine = match &policy.own {
                    Some(own) => engines.of_policy(own)?.rollout(settings)?,
                    None => engines.rollout_of_stage(settings, stage, start)?,
                };
                router = router.with(PolicyId(id), engine);
            }
        }
        Ok(router)
    }

    /// Adds the train engines of the policies that are trained. `starts` are the weights with which they begin the stage; a
    /// policy that is not among them begins with its own model, or where the main policy begins.
    pub(crate) fn add_models<F: EngineFactory>(
        &self,
        models: &mut Models<F::Train>,
        engines: &F,
        stage: &Stage,
        threads: usize,
        main: &StageStart,
        starts: &[PublishedPolicy],
    ) -> Result<(), RunError> {
        for policy in self.trained() {
            let trainer = policy.settings.trainer;
            let own_stage = Stage { optimizer: trainer.optimizer(&stage.optimizer), ..stage.clone() };
            let start = starts.iter().find(|start| start.policy == policy.id()).cloned();
            let start = start.map(StageStart::Published);
            let of_policy = match &policy.own {
                Some(own) => {
                    let start = start.unwrap_or(StageStart::Initial);
                    engines.of_policy(own)?.models(&own_stage, threads, start)?
                }
                None => engines.models(&own_stage, threads, start.unwrap_or_else(|| main.clone()))?,
            };
            models.further.push(FurtherPolicy {
                id: policy.id(),
                name: policy.name.clone(),
                engine: of_policy.policy,
                learning_rate_scale: trainer.learning_rate_scale(&stage.optimizer),
            });
        }
        Ok(())
    }

    /// The weights of the frozen policies at the start of a stage, or in the checkpoint that it resumes from.
    pub(crate) fn frozen<F: EngineFactory>(
        &self,
        engines: &F,
        main: &StageStart,
        checkpoint: Option<(&Path, &CheckpointState)>,
    ) -> Result<Vec<PublishedPolicy>, RunError> {
        let mut weights = Vec::new();
        for policy in self.all.iter().filter(|policy| !policy.settings.is_trained()) {
            match (&policy.settings.league, checkpoint) {
                (None, None) => weights.push(policy.open(engines, main)?),
                (None, Some((path, _))) => {
                    let folder = policy_folder(path, &policy.name);
                    weights.push(policy.load(engines, &folder, PolicyVersion(0))?);
                }
                // Its first opponent is kept when the stage begins.
                (Some(_), None) => {}
                (Some(_), Some((path, state))) => {
                    let kept = state.leagues.get(&policy.name).map(|league| league.kept.as_slice());
                    for ((id, name), kept) in policy.folders().zip(kept.unwrap_or_default()) {
                        let opened = policy.load(engines, &policy_folder(path, &name), kept.version)?;
                        weights.push(PublishedPolicy { policy: id, ..opened });
                    }
                }
            }
        }
        Ok(weights)
    }

    /// The weights of the trained policies in the checkpoint at the end of a stage that samples.
    pub(crate) fn ends<F: EngineFactory>(
        &self,
        engines: &F,
        checkpoint: &Path,
        version: PolicyVersion,
    ) -> Result<Vec<PublishedPolicy>, RunError> {
        let load =
            |policy: &RunPolicy| policy.load(engines, &policy_folder(checkpoint, &policy.name), version);
        self.trained().map(load).collect()
    }
}

/// The model of a policy, whose tokens are those of the run's model.
fn own_model(
    config: &Config,
    name: &str,
    model: &str,
    id: u32,
    inputs: &RunInputs,
) -> Result<Policy, RunError> {
    if let (NEW_MODEL, ModelSource::New { .. }) = (model, &config.model) {
        // Another seed than that of the main policy, whichever that is.
        let mut other = config.clone();
        other.run.seed = config.run.seed ^ (u64::from(id) << 32);
        return Policy::initial(&other, &inputs.hub);
    }
    let policy = Policy::resolve(model, config.dtype, &inputs.hub)?;
    let sizes = [policy.vocabulary, inputs.vocabulary];
    let rows = (sizes[0] != sizes[1])
        .then(|| format!("it has {} token ids, the run's model {}", sizes[0], sizes[1]));
    match rows.or_else(|| teacher::difference(&policy, inputs)) {
        None => Ok(policy),
        Some(what) => Err(RunError::OtherTokens { policy: name.to_owned(), model: model.to_owned(), what }),
    }
}

/// The source of a policy's model, if it is a folder or on a hub.
pub(crate) fn sources(config: &mut Config) -> impl Iterator<Item = &mut String> {
    let models = config.policies.values_mut().filter_map(|policy| policy.model.as_mut());
    models.filter(|model| *model != NEW_MODEL)
}

/// The names of the models of references.
pub(crate) fn references(config: &mut Config) -> impl Iterator<Item = &mut String> {
    let stages = config.stages.iter_mut().filter_map(|stage| stage.trainer.reference.as_mut());
    stages.filter_map(|reference| reference.model.as_mut())
}

/// Downloads the models of a configuration's policies and references.
pub(crate) fn download(config: &Config, hub: &Hub) -> Result<(), RunError> {
    for model in config.policies.values().filter_map(|policy| policy.model.as_ref()) {
        if model != NEW_MODEL {
            hub.model(model)?;
        }
    }
    let references = config.stages.iter().filter_map(|stage| stage.trainer.reference.as_ref());
    for model in references.filter_map(|reference| reference.model.as_ref()) {
        hub.model(model)?;
    }
    Ok(())
}

/// The publication of a stage's end, for the next stage.
pub(crate) fn start_of_next(end: Publication) -> (StageStart, Vec<PublishedPolicy>) {
    (StageStart::Published(end.main), end.further)
}

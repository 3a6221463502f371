//! The engines that a configuration names: in this process, or in others.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rloom_algo::{Algorithm, Backbone, RewardModelSpec};
use rloom_cluster::{ClusterError, JoinStatus, Machines, MirrorSettings, Mirrors};
use rloom_config::{Config, Stage};
use rloom_core::{PolicyId, PolicyVersion};
use rloom_engine::{
    Backend, Form, PublishedPolicy, PublishedWeights, RolloutEngineSettings, ServerSettings, TorchSettings,
    TrainCapabilities, WeightDigest, WeightFolder, digest_order,
};
use rloom_learn::Models;
use rloom_model::{Dtype, LoadError, Model, StoredTensors};
use rloom_ops::Ctx;
use rloom_remote::{
    AdapterSlots, EnvironmentKind, Gang, GangLora, GangSettings, ModelLimits, PolicyHeads, RankBackend,
    RankDtype, ReplicaPool, ServerMirrors,
};
use rloom_stage::{PolicyWriter, StageError};
use rloom_store::{StoreError, disk};
use rloom_wire::Options;

use super::functions::FunctionHosts;
use super::further::FurtherEngines;
use super::placement::{self, Offer, Place, Placement, Slots, model_places};
use super::ranks::NodeRanks;
use super::rollout::ConfiguredRollout;
use super::servers::{ServerPlan, Servers, connect};
use super::train::ConfiguredTrainer;
use super::transfer;
use super::{EmbeddedEngines, EngineFactory, PolicyEngines, StageStart, reference_folder, set_teacher};
use crate::control::Control;
use crate::teacher::StageTeacher;
use crate::{Policy, RunError};

/// Folder of a run with the weights that are being handed to other processes.
const PUBLICATIONS: &str = "publications";
/// Folder of a run with the output of the processes that it starts.
const LOGS: &str = "logs";

/// Adapters that the servers of a stage serve.
struct ServedAdapters {
    /// The model that they adapt, with which the servers start.
    base: Arc<WeightFolder>,
    slots: AdapterSlots,
}

/// Builds the engines that the configuration of a run names.
#[derive(Debug)]
pub(crate) struct ConfiguredEngines {
    embedded: EmbeddedEngines,
    policy: Policy,
    publications: PathBuf,
    logs: PathBuf,
    /// Weights are handed over as folders, since some engine is in another process.
    uses_folders: bool,
    dtype: Dtype,
    /// Further policies start from whole models, which servers of adapters do not load.
    has_policies: bool,
    /// Most ranks of a stage.
    ranks: usize,
    /// Where processes are started.
    machines: Machines,
    /// Devices of the machines.
    offer: Offer,
    /// Machines of functions and reward models, if daemons start them.
    functions: Option<FunctionHosts>,
    /// Copies of published weights on other machines.
    mirrors: Option<ServerMirrors>,
    /// Lists the processes of the run, and follows the commands of `rloom cluster`.
    control: Control,
    /// Gangs that were started, and start folders that were written.
    numbers: AtomicU64,
}

impl ConfiguredEngines {
    /// The engines of the run in `directory`, of which those of this process compute in `ctx`. Removes weights that an
    /// earlier attempt left behind.
    pub(crate) fn new(
        directory: &Path,
        policy: &Policy,
        config: &Config,
        ctx: Ctx,
        observe: &mut dyn FnMut(&JoinStatus) -> bool,
    ) -> Result<Self, RunError> {
        let (machines, offer) = machines(config, directory, observe)?;
        for stage in &config.stages {
            Placement::of(config, stage, &offer)?;
        }
        // Servers have working directories of their own.
        let publications = std::path::absolute(directory)
            .map_err(|error| StoreError::io("resolve", directory, error))?
            .join(PUBLICATIONS);
        if publications.exists() {
            std::fs::remove_dir_all(&publications)
                .map_err(|error| StoreError::io("remove", &publications, error))?;
        }
        let is_outside = |settings: &RolloutEngineSettings| settings.embedded().is_none();
        let samples_outside = |stage: &Stage| stage.rollout.as_ref().is_some_and(|r| is_outside(&r.engine));
        let evaluates_outside = config.eval.as_ref().is_some_and(|eval| is_outside(&eval.rollout));
        let logs = directory.join(LOGS);
        Ok(Self {
            embedded: EmbeddedEngines::new(policy, config, ctx),
            policy: policy.clone(),
            publications,
            functions: FunctionHosts::new(config, &machines, &offer, &logs)?,
            logs,
            dtype: config.dtype,
            has_policies: !config.policies.is_empty(),
            ranks: placement::most_ranks(config),
            control: Control::start(directory, &machines)?,
            mirrors: machines.members().map(|_| mirrors(config)),
            machines,
            offer,
            numbers: AtomicU64::new(1),
            uses_folders: evaluates_outside
                || config.stages.iter().any(|stage| stage.trains_outside() || samples_outside(stage)),
        })
    }

    /// The machines of the run.
    pub(crate) fn machines(&self) -> &Machines {
        &self.machines
    }

    /// The machines of functions and reward models; `None` if this process starts them.
    pub(crate) fn functions(&self) -> Option<&FunctionHosts> {
        self.functions.as_ref()
    }

    /// A number that no gang and no folder has: what replaces one that was lost has a name of its own.
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A folder with the weights of a start.
    fn start_folder(&self, start: &StageStart) -> Result<Arc<WeightFolder>, RunError> {
        let published = match start {
            StageStart::Initial => match self.policy.folder() {
                Some(folder) if self.machines.agree_on(&folder.join("config.json")) => {
                    return Ok(Arc::new(WeightFolder::kept(folder)));
                }
                Some(folder) => return self.copied(folder),
                None => self.embedded.open_start(StageStart::Initial)?,
            },
            StageStart::Published(published) => published.clone(),
        };
        match &published.weights {
            PublishedWeights::Folder(folder) | PublishedWeights::Adapter(folder) => {
                return Ok(Arc::clone(folder));
            }
            PublishedWeights::Live(sender) => return Ok(sender.folder().map_err(StageError::Sender)?),
            PublishedWeights::Memory(_) => {}
        }
        let folder = self.publications.join(format!("start-{}", self.next_number()));
        disk::create_folder(PUBLICATIONS, &folder)?;
        self.embedded.writer().write(&published, &folder)?;
        // Servers open one, although they get and give tokens.
        self.policy.tokenizer.save(&folder)?;
        Ok(Arc::new(WeightFolder::temporary(folder)))
    }

    /// A copy in the run's folder of a model that other machines do not see.
    fn copied(&self, folder: &Path) -> Result<Arc<WeightFolder>, RunError> {
        let copy = self.publications.join("initial");
        if !copy.exists() {
            disk::create_folder(PUBLICATIONS, &copy)?;
            copy_files(folder, &copy)?;
        }
        Ok(Arc::new(WeightFolder::kept(copy)))
    }

    /// The models of a stage on PyTorch ranks, each with ranks of its own.
    fn gangs(
        &self,
        stage: &Stage,
        torch: &TorchSettings,
        threads: usize,
        start: &StageStart,
    ) -> Result<Models<ConfiguredTrainer>, RunError> {
        let folder = self.start_folder(start)?;
        let reference = reference_folder(stage)?.unwrap_or_else(|| folder.path().to_owned());
        let base = Model::base_of(folder.path())?;
        if base.is_some() && stage.trainer.lora.is_none() {
            return Err(RunError::AdapterStart { stage: stage.name.clone() });
        }
        let model_folder = base.as_deref().unwrap_or(folder.path());
        let Algorithm { critic, prm, .. } = &stage.algorithm;
        let backbone = critic.as_ref().map(|critic| critic.backbone);
        let places = model_places(stage, &self.offer)?;
        let all: Vec<&Place> = places.iter().flat_map(|(_, places)| places).collect();
        let threads = self.rank_threads(stage, &all, threads);
        let sizes = stage.trainer.sizes();
        let gang = |model: &'static str, heads, has_reference: bool| {
            let epoch = self.next_number();
            let trains_adapter = heads != PolicyHeads::Critic;
            let settings = GangSettings {
                heads,
                pad_token: self.policy.tokenizer.pad_id(),
                lora: stage.trainer.lora.as_ref().filter(|_| trains_adapter).map(|lora| GangLora {
                    settings: lora.clone(),
                    seed: self.embedded.seed,
                    start: folder.path().to_owned(),
                }),
                merged: base.is_some().then(|| folder.path().to_owned()).filter(|_| !trains_adapter),
                backend: match stage.trainer.backend {
                    Backend::Deepspeed(_) => RankBackend::Deepspeed,
                    Backend::Megatron(_) => RankBackend::Megatron,
                    _ => RankBackend::Torch,
                },
                reference: match model {
                    "policy" => has_reference.then(|| reference.clone()),
                    _ => has_reference.then(|| folder.path().to_owned()),
                },
                optimizer: stage.optimizer.clone(),
                ranks: torch.ranks,
                shard: (torch.shard > 0).then_some(torch.shard),
                sequence_parallel: torch.sequence_parallel,
                tensor_parallel: sizes.tensor_parallel,
                pipeline_parallel: sizes.pipeline_parallel,
                context_parallel: sizes.context_parallel,
                expert_parallel: sizes.expert_parallel,
                dtype: match self.dtype {
                    Dtype::F32 => RankDtype::F32,
                    Dtype::Bf16 => RankDtype::Bf16,
                },
                activation_checkpointing: stage.trainer.activation_checkpointing,
                offload: torch.offload,
                deterministic: torch.deterministic,
                threads,
                step_deadline: Duration::from_secs_f64(torch.step_timeout_seconds),
                ..GangSettings::new(model_folder, self.publications.join(format!("{model}-{epoch}")))
            };
            let python = interpreter(Path::new(&torch.python), EnvironmentKind::Torch)?;
            let own = places.iter().find(|(role, _)| role.strip_suffix(" rank") == Some(model));
            let ranks = NodeRanks {
                machines: self.machines.clone(),
                places: own.map(|(_, places)| places.clone()).unwrap_or_default(),
                has_gpus: self.offer.has_gpus(),
                python,
                model,
                logs: self.logs.clone(),
            };
            let gang = Gang::start(settings, &ranks, epoch)?;
            Ok::<_, RunError>(ConfiguredTrainer::Gang { gang: Box::new(gang), _start: Arc::clone(&folder) })
        };
        let heads = match stage.algorithm.reward_model {
            Some(RewardModelSpec::Sequence { .. }) => PolicyHeads::Reward,
            Some(RewardModelSpec::Process) => PolicyHeads::ProcessReward,
            None if backbone == Some(Backbone::Shared) => PolicyHeads::PolicyAndValue,
            None => PolicyHeads::Policy,
        };
        Ok(Models {
            policy: gang("policy", heads, stage.algorithm.needs_reference())?,
            critic: (backbone == Some(Backbone::Own))
                .then(|| gang("critic", PolicyHeads::Critic, false))
                .transpose()?,
            prm: prm.as_ref().map(|_| gang("prm", PolicyHeads::Policy, true)).transpose()?,
            further: Vec::new(),
        })
    }

    /// Threads of each rank of all models: its share of the cores of its machine, of which this one gives `threads` to the
    /// trainer.
    fn rank_threads(&self, stage: &Stage, places: &[&Place], threads: usize) -> usize {
        let of_machine = |machine: usize| {
            let ranks = places.iter().filter(|place| place.machine == machine).count().max(1);
            let threads = match self.machines.members() {
                None => threads,
                Some(_) if stage.trainer.threads > 0 => stage.trainer.threads,
                Some(members) => {
                    let member = members.into_iter().nth(machine).flatten();
                    member.map_or(threads, |member| member.offer.cores)
                }
            };
            threads / ranks
        };
        places.iter().map(|place| of_machine(place.machine)).min().unwrap_or(1).max(1)
    }

    /// A pool over servers of one kind, which run already or are started.
    fn servers(
        &self,
        settings: &ServerSettings,
        engine: EnvironmentKind,
        adapters: Option<ServedAdapters>,
    ) -> Result<ConfiguredRollout, RunError> {
        let Policy { context, vocabulary, .. } = self.policy;
        let limits = ModelLimits { context, vocabulary };
        let tokenizer = Some((*self.policy.tokenizer).clone());
        let slots = adapters.as_ref().map(|adapters| adapters.slots);
        let pool = Arc::new(match slots {
            Some(slots) => ReplicaPool::of_adapters(limits, settings, tokenizer, slots.rank)?,
            None => ReplicaPool::new(limits, settings, tokenizer)?,
        });
        if !settings.urls.is_empty() {
            for url in &settings.urls {
                pool.join(connect(engine, url)?);
            }
            return Ok(ConfiguredRollout::Pool { pool, _model: None });
        }
        let model = match adapters {
            Some(adapters) => adapters.base,
            None => self.start_folder(&StageStart::Initial)?,
        };
        let servers = Servers::new(
            &pool,
            ServerPlan {
                engine,
                settings: ServerSettings {
                    python: interpreter(&settings.python, engine)?,
                    ..settings.clone()
                },
                limits,
                adapters: slots,
                model: Arc::clone(&model),
                modules: self.publications.join("modules"),
                logs: self.logs.clone(),
                machines: self.machines.clone(),
                offer: self.offer.clone(),
                ranks: self.ranks,
                mirrors: self.mirrors.clone(),
            },
        );
        servers.scale(settings.replicas)?;
        self.control.follow(Arc::new(servers));
        Ok(ConfiguredRollout::Pool { pool, _model: Some(model) })
    }

    /// A folder as the publication of a version.
    pub(super) fn open_folder(folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        Ok(PublishedPolicy {
            policy: PolicyId::MAIN,
            version,
            digest: folder_digest(folder)?,
            weights: if Model::base_of(folder)?.is_some() {
                PublishedWeights::Adapter(Arc::new(WeightFolder::kept(folder)))
            } else {
                PublishedWeights::Folder(Arc::new(WeightFolder::kept(folder)))
            },
            probe: None,
        })
    }
}

impl Drop for ConfiguredEngines {
    fn drop(&mut self) {
        // What is left costs space, and the next attempt removes it.
        let _ = std::fs::remove_dir_all(&self.publications);
    }
}

impl EngineFactory for ConfiguredEngines {
    type Rollout = ConfiguredRollout;
    type Train = ConfiguredTrainer;

    fn rollout(&self, settings: &RolloutEngineSettings) -> Result<Self::Rollout, RunError> {
        Ok(match settings {
            RolloutEngineSettings::Embedded(_) => {
                ConfiguredRollout::Embedded(Box::new(self.embedded.rollout(settings)?))
            }
            RolloutEngineSettings::Vllm(servers) => self.servers(servers, EnvironmentKind::Vllm, None)?,
            RolloutEngineSettings::Sglang(servers) => self.servers(servers, EnvironmentKind::Sglang, None)?,
        })
    }

    fn rollout_of_stage(
        &self,
        settings: &RolloutEngineSettings,
        stage: &Stage,
        start: &StageStart,
    ) -> Result<Self::Rollout, RunError> {
        let rank = transfer::served_rank(stage, settings).filter(|_| !self.has_policies);
        let (Some(rank), RolloutEngineSettings::Vllm(servers)) = (rank, settings) else {
            return self.rollout(settings);
        };
        let folder = self.start_folder(start)?;
        let base = Model::base_of(folder.path())?.map(|base| Arc::new(WeightFolder::kept(base)));
        let slots = AdapterSlots { rank, versions: transfer::versions_in_use(stage) };
        let adapters = ServedAdapters { base: base.unwrap_or(folder), slots };
        self.servers(servers, EnvironmentKind::Vllm, Some(adapters))
    }

    fn models(
        &self,
        stage: &Stage,
        threads: usize,
        start: StageStart,
    ) -> Result<Models<Self::Train>, RunError> {
        if let Some(ranks) = stage.trainer.ranks() {
            return self.gangs(stage, ranks, threads, &start);
        }
        let Models { policy, critic, prm, .. } = self.embedded.models(stage, threads, start)?;
        let policy = if self.uses_folders { policy.with_publications_in(&self.publications) } else { policy };
        let embedded = |engine| ConfiguredTrainer::Embedded(Box::new(engine));
        Ok(Models {
            policy: embedded(policy),
            critic: critic.map(embedded),
            prm: prm.map(embedded),
            further: Vec::new(),
        })
    }

    fn open(&self, folder: &Path, version: PolicyVersion) -> Result<PublishedPolicy, RunError> {
        if self.uses_folders {
            Self::open_folder(folder, version)
        } else {
            self.embedded.open(folder, version)
        }
    }

    fn open_start(&self, start: StageStart) -> Result<PublishedPolicy, RunError> {
        match self.policy.folder().filter(|_| self.uses_folders && matches!(start, StageStart::Initial)) {
            Some(folder) => Self::open_folder(folder, PolicyVersion(0)),
            None => self.embedded.open_start(start),
        }
    }

    fn train_capabilities(&self, stage: &Stage) -> TrainCapabilities {
        let embedded = self.embedded.train_capabilities(stage);
        let adapter = stage.trainer.lora.as_ref().filter(|lora| lora.is_portable()).map(|_| Form::Adapter);
        let Some(torch) = stage.trainer.ranks() else {
            return if self.uses_folders {
                let forms = [Form::Memory, Form::Folder].into_iter().chain(adapter).collect();
                TrainCapabilities { forms, ..embedded }
            } else {
                embedded
            };
        };
        let form = transfer::form(stage, self.ranks, &self.offer).ok().filter(|form| form.is_live());
        TrainCapabilities {
            ranks: stage.trainer.groups(),
            repeats_bits: torch.deterministic,
            shares_prompts: false,
            numeric_path: format!("torch/{}/{}", self.dtype.name(), torch.ranks),
            // Of the live forms, the one that the placement allows.
            forms: std::iter::once(Form::Folder).chain(form).chain(adapter).collect(),
            candidates: matches!(stage.trainer.backend, Backend::Torch(_)),
            attachments: false,
        }
    }

    fn is_sampler_exact(&self, stage: &Stage) -> bool {
        let samples_here = stage.rollout.as_ref().is_none_or(|rollout| rollout.engine.embedded().is_some());
        samples_here && !stage.trains_outside() && self.embedded.is_sampler_exact(stage)
    }

    fn writer(&self) -> Arc<dyn PolicyWriter> {
        Arc::new(ConfiguredWriter { embedded: self.embedded.writer() })
    }

    fn add_teacher(&self, models: &mut Models<Self::Train>, teacher: StageTeacher) -> Result<(), RunError> {
        match &mut models.policy {
            ConfiguredTrainer::Embedded(engine) => set_teacher(engine, teacher),
            ConfiguredTrainer::Gang { gang, .. } => match teacher {
                StageTeacher::Endpoint(endpoint) => {
                    gang.set_remote_teacher(endpoint);
                    Ok(())
                }
                StageTeacher::Model { folder, .. } => {
                    let base = Model::base_of(&folder)?;
                    let adapter = base.is_some().then_some(&*folder);
                    let opened = gang.set_teacher(base.as_deref().unwrap_or(&folder), adapter);
                    Ok(opened.map_err(StageError::from)?)
                }
            },
        }
    }

    fn of_policy(&self, policy: &Policy) -> Result<Box<PolicyEngines<'_, Self>>, RunError> {
        Ok(Box::new(FurtherEngines(self.embedded.for_policy(policy))))
    }
}

/// Writes publications in memory and copies those in folders.
#[derive(Debug)]
struct ConfiguredWriter {
    embedded: Arc<dyn PolicyWriter>,
}

impl PolicyWriter for ConfiguredWriter {
    fn write(&self, policy: &PublishedPolicy, folder: &Path) -> Result<(), StageError> {
        let source = match &policy.weights {
            PublishedWeights::Folder(source) | PublishedWeights::Adapter(source) => Arc::clone(source),
            PublishedWeights::Live(sender) => sender.folder().map_err(StageError::Sender)?,
            PublishedWeights::Memory(_) => return self.embedded.write(policy, folder),
        };
        Ok(copy_files(source.path(), folder)?)
    }
}

/// Copies the files of a folder.
fn copy_files(source: &Path, folder: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::io("read", source, error);
    for entry in std::fs::read_dir(source).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            disk::link_or_copy("checkpoint", &path, &folder.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// The machines of a run and their devices. Others have to see the run's folder.
fn machines(
    config: &Config,
    directory: &Path,
    observe: &mut dyn FnMut(&JoinStatus) -> bool,
) -> Result<(Machines, Offer), RunError> {
    let Some(cluster) = &config.cluster else { return Ok((Machines::default(), Offer::of_machine())) };
    let machines = Machines::join(cluster, Options::default(), observe).map_err(|error| match error {
        ClusterError::Interrupted => StageError::StoppedNow { path: directory.to_owned() }.into(),
        error => RunError::from(error),
    })?;
    machines.prove_shared(directory)?;
    let Some(members) = machines.members() else { return Ok((machines, Offer::of_machine())) };
    let slots = members.into_iter().flatten().enumerate().map(|(machine, member)| {
        let is_cpu_node = machine >= cluster.nodes;
        let of_settings = if is_cpu_node { cluster.cpus_per_cpu_node } else { cluster.cpus_per_node };
        let gpus = if is_cpu_node { Some(0) } else { cluster.gpus_per_node };
        let cores = member.offer.cores.min(of_settings.unwrap_or(usize::MAX));
        match member.offer.gpus.min(gpus.unwrap_or(usize::MAX)) {
            0 => (Slots::Cores(cores), cores),
            gpus => (Slots::Gpus(gpus), cores),
        }
    });
    let offer = Offer::of_cluster(slots.collect(), cluster.nodes);
    Ok((machines, offer))
}

/// Copies of the weights that a run publishes on its machines.
fn mirrors(config: &Config) -> ServerMirrors {
    let shares_backbone = |stage: &Stage| {
        stage.algorithm.critic.as_ref().is_some_and(|critic| critic.backbone == Backbone::Shared)
    };
    // The digest of an adapter is not that of the weights with which it is merged.
    let has_digests =
        !config.stages.iter().any(|stage| shares_backbone(stage) || stage.trainer.lora.is_some());
    let delta = config.cluster.as_ref().is_some_and(|cluster| cluster.delta);
    let mirrors = Mirrors::new(MirrorSettings { delta, ..MirrorSettings::default() });
    ServerMirrors { mirrors, always: false, has_digests }
}

/// Interpreter of an engine's processes.
fn interpreter(configured: &Path, engine: EnvironmentKind) -> Result<PathBuf, RunError> {
    rloom_remote::interpreter(configured, engine).ok_or(RunError::NoEnvironment { engine })
}

/// Digest of the weights in a folder: that of the engine which has written them.
fn folder_digest(folder: &Path) -> Result<u64, RunError> {
    let tensors = StoredTensors::open(folder).map_err(LoadError::from)?;
    let mut names: Vec<&str> = tensors.names().collect();
    names.sort_by(|a, b| digest_order(a).cmp(&digest_order(b)));
    let mut digest = WeightDigest::default();
    for name in names {
        digest.update(&tensors.read(name).map_err(LoadError::from)?);
    }
    Ok(digest.value())
}

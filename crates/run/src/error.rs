mod hints;

use std::path::PathBuf;

use rloom_collect::CollectError;
use rloom_engine::{Form, RolloutError, TrainError};
use rloom_stage::StageError;
use rloom_store::StoreError;

use hints::{rebuild_hint, sampling_stages_hint, steps_hint};

/// Reason why a sample cannot be generated again.
#[derive(Debug, Clone, PartialEq, Eq, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum NotRepeatable {
    /// A turn mixes keys and values of several versions.
    #[error(
        "its version changed in the middle of a turn, and with on_update = \"keep\" the later tokens were computed \
         from keys and values of the earlier weights"
    )]
    #[diagnostic(help("on_update = \"recompute\" gives samples that can be repeated"))]
    MixedVersions,
    /// The rollout engine does not give the same bits again.
    #[error("its rollout engine does not repeat results bitwise: log-probabilities carry noise")]
    #[diagnostic(help(
        "the recorded tokens and log-probabilities are in `rollouts/`; `rloom inspect` shows them"
    ))]
    InexactEngine,
    /// The samplers had the weights of a quantized base, which checkpoints do not hold.
    #[error("its stage has a quantized base (`lora.quantize`), and checkpoints hold the adapter alone")]
    QuantizedBase,
    /// Several policies have sampled the run.
    #[error("the run has several policies")]
    SeveralPolicies,
}

/// Reason why a run or one of its commands failed.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A stage failed or was stopped.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Stage(#[from] StageError),
    /// Run directory, journal or checkpoint.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Store(#[from] StoreError),
    /// The model could not be opened, built or written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(#[from] rloom_model::LoadError),
    /// The model's shape is not supported.
    #[error(transparent)]
    #[diagnostic(transparent)]
    ModelConfig(#[from] rloom_model::ConfigError),
    /// A stage trains all weights of a model that has an adapter.
    #[error("stage `{stage}` trains all weights, but its model is an adapter over a base")]
    #[diagnostic(help(
        "continue the adapter with `lora`, or start from `rloom export ADAPTER model --merge --out FOLDER`"
    ))]
    AdapterStart {
        /// The stage.
        stage: String,
    },
    /// Training starts from an adapter that the embedded engine adds to its base.
    #[error("{} is a DoRA adapter, from which only further stages of its run on PyTorch ranks continue", path.display())]
    #[diagnostic(help("start from `rloom export ADAPTER model --merge --out FOLDER`"))]
    DoraStart {
        /// The adapter.
        path: PathBuf,
    },
    /// A stage continues an adapter with other settings.
    #[error("stage `{stage}`: the adapter that it continues was made with other settings of `lora`")]
    #[diagnostic(help("set `lora` to the rank, `alpha` and layers in its adapter_config.json"))]
    OtherAdapter {
        /// The stage.
        stage: String,
    },
    /// A reference with other tokens than the policy.
    #[error(
        "stage `{stage}`: the reference has a vocabulary of {own} tokens and the policy one of {expected}; it needs the tokenizer of \
         the policy"
    )]
    OtherVocabulary {
        /// The stage.
        stage: String,
        /// Size of the reference's vocabulary.
        own: usize,
        /// Size of the policy's.
        expected: usize,
    },
    /// The model could not be downloaded.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Hub(#[from] rloom_hub::HubError),
    /// Agents outside of this program cannot be served.
    #[error("`environment`: {0}")]
    #[diagnostic(forward(0))]
    Agents(#[from] rloom_agents::AgentError),
    /// The initial model of an existing run is neither among its files nor available where it came from.
    #[error("{} needs its initial model: {error}", run.display())]
    #[diagnostic(help("{reason}: make the model available again"))]
    InitialModelMissing {
        /// The run directory.
        run: PathBuf,
        /// The need of the model.
        reason: String,
        /// The cause.
        #[source]
        #[diagnostic_source]
        error: rloom_hub::HubError,
    },
    /// The kept files of the initial model are damaged, and the model has changed where it came from.
    #[error(
        "{} is damaged, and {} differs from the model that the run started with",
        kept.display(),
        path.display()
    )]
    #[diagnostic(help("restore the file, or remove {} to continue with the model as it is now", kept.display()))]
    InitialModelChanged {
        /// Folder with the kept files.
        kept: PathBuf,
        /// The first file that differs.
        path: PathBuf,
    },
    /// The files of the initial model could not be kept.
    #[error("could not keep the initial model, which resumed attempts read, in {}: {error}", path.display())]
    #[diagnostic(help(
        "free disk space, or set `run.directory` to a folder on the file system of the model, where its weights are \
         linked instead of copied"
    ))]
    InitialModelNotKept {
        /// Folder for the files.
        path: PathBuf,
        /// The cause.
        #[source]
        error: Box<RunError>,
    },
    /// The tokenizer could not be opened, built or written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Text(#[from] rloom_text::TextError),
    /// The data could not be opened.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Data(#[from] rloom_data::DataError),
    /// The prompts of a stage or of the evaluation do not fit, or cannot be rendered.
    #[error("{used_by}: {source}")]
    #[diagnostic(forward(source))]
    Prompts {
        /// Name of the stage; `eval` for the evaluation.
        used_by: String,
        /// The cause.
        source: Box<rloom_collect::PromptError>,
    },
    /// Tasks that no component of the reward judges.
    #[error(
        "{used_by}: no component of the reward judges the domain `{domain}`{}",
        if judged.is_empty() { String::new() } else { format!("; they judge {}", quoted(judged)) }
    )]
    DomainNotJudged {
        /// Name of the stage or of the evaluation.
        used_by: String,
        /// The domain.
        domain: String,
        /// Domains that components name.
        judged: Vec<String>,
    },
    /// Rows that are read as texts, in an environment that would have to play them.
    #[error(
        "{used_by}: {rows}: only for the environment `single_turn`, but the stage has `{environment}`; remove one of the two"
    )]
    UnplayedRows {
        /// Name of the stage.
        used_by: String,
        /// What is read as texts.
        rows: &'static str,
        /// Name of the environment.
        environment: String,
    },
    /// A summary that is never requested.
    #[error(
        "{used_by}: `environment.history.summary.limit` is {limit}, but the context of the model has {context} tokens: set a limit below it"
    )]
    SummaryTooLate {
        /// Name of the stage or of the evaluation.
        used_by: String,
        /// The limit.
        limit: usize,
        /// Context length of the policy in tokens.
        context: usize,
    },
    /// Held-out tasks that no component of the reward verifies.
    #[error(
        "{used_by}: no verifier among the components of the reward judges the domain `{domain}`, so its accuracy is unknown"
    )]
    DomainNotVerified {
        /// Name of the evaluation.
        used_by: String,
        /// The domain.
        domain: String,
    },
    /// A filter of a domain without tasks.
    #[error(
        "{used_by}: `domains.filters` names the domain `{domain}`, of which the data has no task; its domains are {}",
        quoted(found)
    )]
    UnknownDomain {
        /// Name of the stage.
        used_by: String,
        /// The domain.
        domain: String,
        /// Domains of the data.
        found: Vec<String>,
    },
    /// The configuration of a run could not be read.
    #[error(transparent)]
    Config(#[from] rloom_config::ConfigErrors),
    /// Settings that a resumed run cannot change.
    #[error("a resumed run cannot change these settings:\n  {}", refused.join("\n  "))]
    #[diagnostic(help("start a new run, or resume without these changes"))]
    CannotChange {
        /// The changes, with reasons.
        refused: Vec<String>,
    },
    /// A run without the checkpoint.
    #[error("{} has no checkpoint `{name}`", run.display())]
    #[diagnostic(help("it has {}", if available.is_empty() { "none".to_owned() } else { available.join(", ") }))]
    NoCheckpoint {
        /// The run directory.
        run: PathBuf,
        /// The requested checkpoint.
        name: String,
        /// Checkpoints of the run.
        available: Vec<String>,
    },
    /// Fewer steps than a stage has done.
    #[error("stage `{stage}` cannot have {steps} steps: {done} are trained")]
    #[diagnostic(help("{}", steps_hint(stage, *trained)))]
    StepsAreDone {
        /// The stage.
        stage: String,
        /// Requested number of steps.
        steps: u64,
        /// Steps that are done.
        done: String,
        /// Number of steps that are done, if the stage is not finished.
        trained: Option<u64>,
    },
    /// The data or a Python function of a resumed run has changed.
    #[error("{change}")]
    #[diagnostic(help(
        "restore the file, or pass `--accept-changed-data` with `--resume {}` to continue with the files as they are now",
        run.display()
    ))]
    DataChanged {
        /// The directory of the run that started with other data.
        run: PathBuf,
        /// The difference.
        change: rloom_data::DataChange,
    },
    /// The record of the run's data cannot be read or written.
    #[error("{} cannot be read or written: {source}", path.display())]
    #[diagnostic(help("remove the file to record the present data as that of the run"))]
    DataRecord {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The order of the data could not be built, or has changed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Cursor(#[from] rloom_data::CursorError),
    /// The reward could not be built.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Reward(#[from] rloom_reward::RewardError),
    /// A Python function of an algorithm cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Method(#[from] rloom_learn::MethodError),
    /// The environment could not be built.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Environment(#[from] rloom_env::EnvironmentUnusable),
    /// The algorithm does not fit the engines.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Algorithm(#[from] rloom_algo::AlgoError),
    /// The daemon that starts processes.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Cluster(#[from] rloom_cluster::ClusterError),
    /// PyTorch ranks could not be started.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Gang(#[from] rloom_remote::GangError),
    /// A stage needs more devices than there are.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Placement(#[from] crate::assembly::PlacementError),
    /// Processes without an interpreter to start them with.
    #[error("`{}` is empty, and no environment for {engine} is installed", engine.key())]
    #[diagnostic(help(
        "`rloom engines install {engine}` makes one; or set `{}` to the interpreter of another",
        engine.key()
    ))]
    NoEnvironment {
        /// The engine.
        engine: rloom_remote::EnvironmentKind,
    },
    /// An address that is not that of a server.
    #[error("rollout.urls: {url} is not the address of a server: {reason}")]
    ServerAddress {
        /// The address.
        url: String,
        /// The defect.
        reason: String,
    },
    /// A change of the servers that is not possible.
    #[error("not possible: {reason}")]
    Scale {
        /// Reason.
        reason: String,
    },
    /// A run without processes of its own, or that does not run.
    #[error("{} is not running, or has started no processes", path.display())]
    NoProcesses {
        /// The run directory.
        path: PathBuf,
    },
    /// A run that does not follow commands.
    #[error("the run in {} has not answered for {seconds} s", path.display())]
    NoAnswer {
        /// The run directory.
        path: PathBuf,
        /// The time allowed.
        seconds: u64,
    },
    /// An engine that this process does not have.
    #[error(
        "the rollout engine \"{engine}\" runs in processes of its own, and this command uses the embedded one"
    )]
    NotEmbedded {
        /// Name of the engine.
        engine: &'static str,
    },
    /// Neither addresses of servers nor a folder with their model.
    #[error("there are no addresses of inference servers, or the model is not in a folder")]
    NoServers,
    /// The rollout engine could not be built, or failed outside of a stage.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Rollout(#[from] RolloutError),
    /// The train engine could not be built, or failed outside of a stage.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Train(#[from] TrainError),
    /// An evaluation outside of a run failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Collect(#[from] CollectError),
    /// The compute threads could not be started.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Compute(#[from] rloom_ops::OpsError),
    /// A telemetry file could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Telemetry(#[from] rloom_telemetry::TelemetryError),
    /// From the scheduler.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Sched(#[from] rloom_sched::SchedError),
    /// The asynchronous runtime could not be started.
    #[error("could not start the runtime: {source}")]
    Runtime {
        /// The cause.
        source: std::io::Error,
    },
    /// The engines have no common way of handing weights over.
    #[error(
        "the trainer publishes weights as {}, the rollout engine loads {}",
        forms(published),
        forms(loaded)
    )]
    NoCommonForm {
        /// Forms that the trainer publishes.
        published: Vec<Form>,
        /// Forms that the rollout engine loads.
        loaded: Vec<Form>,
    },
    /// The checkpoint belongs to another configuration.
    #[error(
        "{} belongs to stage `{stage}` with seed {seed}, the configuration has `{expected_stage}` with seed \
         {expected_seed}",
        path.display()
    )]
    #[diagnostic(help("resume with the configuration that the run started with, or start a new run"))]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// Stage of the checkpoint.
        stage: String,
        /// Seed of the checkpoint.
        seed: u64,
        /// Stage of the configuration.
        expected_stage: String,
        /// Seed of the configuration.
        expected_seed: u64,
    },
    /// The checkpoint that a stage starts from is missing or damaged.
    #[error("stage {stage} starts from the end of `{source_stage}`: {error}")]
    #[diagnostic(forward(error))]
    StartMissing {
        /// Index of the stage.
        stage: usize,
        /// The stage that it starts from.
        source_stage: String,
        /// The cause.
        error: Box<StoreError>,
    },
    /// The training thread is gone at the end of a stage.
    #[error("the training thread of stage `{stage}` ended before the stage")]
    TrainerEnded {
        /// The stage.
        stage: String,
    },
    /// The run's files do not contain the sample.
    #[error("stage `{stage}` has no sample {ticket}/{sample} in its rollouts or its journal")]
    #[diagnostic(help("{known}"))]
    NoSample {
        /// The stage.
        stage: String,
        /// The group.
        ticket: u64,
        /// Index in the group.
        sample: u32,
        /// The available samples, as a sentence.
        known: String,
    },
    /// The name of a whole group where one sample is needed.
    #[error("{name} names a whole group")]
    #[diagnostic(help("add the sample: {name}/0"))]
    WholeGroup {
        /// The name.
        name: String,
    },
    /// No stage of that name samples.
    #[error("{}", no_sampling_stage(name.as_deref()))]
    #[diagnostic(help("{}", sampling_stages_hint(stages)))]
    NoSamplingStage {
        /// The requested stage.
        name: Option<String>,
        /// Stages that sample.
        stages: Vec<String>,
    },
    /// The weights of a version are gone.
    #[error(
        "stage `{stage}`: weights of version {} are not available; available: {}",
        list(missing),
        list(available)
    )]
    #[diagnostic(help("{}", rebuild_hint(*base, *missing_batch)))]
    VersionMissing {
        /// The stage.
        stage: String,
        /// Requested versions that are missing.
        missing: Vec<u64>,
        /// Available versions.
        available: Vec<u64>,
        /// The last available version before the first missing one.
        base: u64,
        /// A later batch whose groups are gone, so that it cannot be retrained.
        missing_batch: Option<u64>,
    },
    /// A retrained batch gave other weights than it did in the run.
    #[error("stage `{stage}`, batch {batch}: retraining gives other weights than the journal has")]
    #[diagnostic(help(
        "weights are bitwise identical only with the same build and the same numeric path; this machine computes \
             with {numeric_path}"
    ))]
    OtherWeights {
        /// The stage.
        stage: String,
        /// The batch.
        batch: u64,
        /// Numeric path of this machine.
        numeric_path: String,
    },
    /// An agent is played by a policy that the recipe does not describe.
    #[error(
        "agent `{agent}` of the `{environment}` environment is played by policy \"{policy}\", which `[policies]` does not \
         have; {known}"
    )]
    UnknownPolicy {
        /// The environment.
        environment: String,
        /// The agent.
        agent: String,
        /// Its policy.
        policy: String,
        /// The nearest name, and all.
        known: String,
    },
    /// The model of a policy does not share the tokens of the run's model.
    #[error("policy `{policy}` cannot use the model {model}: {what}")]
    OtherTokens {
        /// The policy.
        policy: String,
        /// Its model.
        model: String,
        /// The difference.
        what: String,
    },
    /// A teacher behind an endpoint.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Teacher(#[from] rloom_remote::TeacherError),
    /// A teacher whose distributions are over other tokens than those of the student.
    #[error("stage `{stage}` cannot learn from the teacher {model}: {what}")]
    #[diagnostic(help(
        "a student is compared with its teacher token by token: choose a teacher with the tokenizer of the run's model, or \
         train on completions that it has written (method `sft`)"
    ))]
    OtherTeacher {
        /// The stage.
        stage: String,
        /// The teacher.
        model: String,
        /// The difference.
        what: String,
    },
    /// Engines that do not compare a policy with a teacher.
    #[error("these engines do not compare a policy with a teacher; the embedded train engine does")]
    NoTeacherEngine,
    /// Engines without further policies.
    #[error(
        "these engines have one policy; a further one with a model of its own needs those of this program"
    )]
    OnePolicy,
    /// A sample that cannot be generated again.
    #[error("sample {ticket}/{sample} cannot be repeated: {reason}")]
    #[diagnostic(forward(reason))]
    NotRepeatable {
        /// The group.
        ticket: u64,
        /// Index in the group.
        sample: u32,
        /// The reason.
        reason: NotRepeatable,
    },
}

fn forms(forms: &[Form]) -> String {
    if forms.is_empty() {
        return "nothing".to_owned();
    }
    forms.iter().map(|form| form.name()).collect::<Vec<_>>().join(", ")
}

fn list(versions: &[u64]) -> String {
    versions.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn no_sampling_stage(name: Option<&str>) -> String {
    let which =
        name.map_or_else(|| "no stage samples".to_owned(), |name| format!("no stage `{name}` samples"));
    format!("{which}: there is nothing to generate again")
}

/// Names in backticks, separated by commas.
fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

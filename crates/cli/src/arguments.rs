//! Command-line arguments.

mod bench;
mod cluster;
mod export;
mod node;
mod play;
mod reward;
mod serve;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rloom_telemetry::Tracker;

pub(crate) use self::bench::{Bench, Checkpointing, Format, GrpoSize, Workload};
pub(crate) use self::cluster::{Cluster, ClusterLogs, Manifest, ManifestKind};
pub(crate) use self::export::{Export, Exported, ExportedModel};
pub(crate) use self::node::{Guard, Node};
pub(crate) use self::play::{Env, Play};
pub(crate) use self::reward::{Calibrate, Reward, RewardTest};
pub(crate) use self::serve::{Serve, ServerEngine};

/// Trains language models with reinforcement learning.
#[derive(Debug, Parser)]
#[command(name = "rloom", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    failure
  2    invalid usage or configuration; nothing was started
  130  interrupted; the run is saved and can be resumed

Data is written to standard output, everything else to standard error. NO_COLOR is honoured.";

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Write JSON to standard output, one value per line.
    #[arg(long, global = true, display_order = 90)]
    pub(crate) json: bool,
    /// Disable colours.
    #[arg(long, global = true, display_order = 91)]
    pub(crate) no_color: bool,
    /// Print only results, warnings and errors.
    #[arg(short, long, global = true, display_order = 92)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a training recipe.
    Train(Train),
    /// Evaluate a model, or the best checkpoint of a run, on held-out tasks.
    Eval(Eval),
    /// Complete prompts.
    Generate(Generate),
    /// Chat with a model.
    Chat(Chat),
    /// Serve a model by the APIs of OpenAI and Anthropic.
    Serve(Serve),
    /// Show the results of a run, or the lineage of a sample.
    Inspect(Inspect),
    /// Write the report of a run, also while it is running.
    Report(Report),
    /// Write the events, trained rollouts or configuration of a run as JSON lines.
    Export(Export),
    /// Follow a running or finished run and pass it to an experiment tracker.
    Track(Track),
    /// Simulate a recipe on other hardware and recommend a split of its devices.
    Plan(Plan),
    /// Generate a sample of a run again and compare it bitwise with its record.
    Replay(Replay),
    /// List the algorithms, or show the equations and settings of one.
    Algo {
        #[command(subcommand)]
        command: Algo,
    },
    /// List the environments, or play one in the terminal.
    Env {
        #[command(subcommand)]
        command: Env,
    },
    /// Test the reward of a recipe before training, and calibrate its judges.
    Reward {
        #[command(subcommand)]
        command: Reward,
    },
    /// Measure training and generation speed, and compare it with the limits of this machine.
    Bench(Bench),
    /// Install and list the Python environments of PyTorch, vLLM and SGLang.
    Engines {
        #[command(subcommand)]
        command: Engines,
    },
    /// Start runs on several machines, and list, show and change the processes of a run there.
    Cluster {
        #[command(subcommand)]
        command: Cluster,
    },
    /// Check this machine and this installation.
    Doctor(Doctor),
    /// Run the processes of a run on this machine. Started by `rloom train`.
    #[command(hide = true)]
    Node(Node),
    /// Run one process of a node. Started by `rloom node`.
    #[command(hide = true)]
    Guard(Guard),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom train recipes/arithmetic.toml
  rloom train recipe.toml mine.toml --set trainer.learning_rate=1e-5 --set stage.rl.steps=20
  rloom train recipe.toml --dry-run
  rloom train --resume runs/arithmetic
  rloom train --resume runs/arithmetic --set stage.rl.steps=500

The first Ctrl-C finishes the current step and saves; the second stops at once. SIGTERM and SIGHUP act as the first.")]
pub(crate) struct Train {
    /// Configuration files (TOML); later files override earlier ones.
    #[arg(value_name = "FILE", required_unless_present = "resume", conflicts_with = "resume")]
    pub(crate) files: Vec<PathBuf>,
    /// Override a setting; may be repeated. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Start a new run from this checkpoint of the run, such as rl-step-000125; the run stays as it is.
    #[arg(long, value_name = "CHECKPOINT", requires = "resume")]
    pub(crate) from: Option<String>,
    /// Name of the run and of its folder.
    #[arg(long, value_name = "NAME")]
    pub(crate) run_name: Option<String>,
    /// Print the resolved configuration and its resource estimate, then exit.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
    /// Resume a run: its name under `runs`, or its folder. `--set` may change steps, learning rate, evaluation,
    /// checkpoints, timeouts and threads.
    #[arg(long, value_name = "RUN")]
    pub(crate) resume: Option<PathBuf>,
    /// Resume although data files or files of Python functions have changed since the run started.
    #[arg(long, requires = "resume")]
    pub(crate) accept_changed_data: bool,
    /// Train on the recorded rollouts of another run, without a sampler: its name under `runs`, or its folder.
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    pub(crate) rollouts: Option<PathBuf>,
    /// Show a completion every N steps; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) show_every: u64,
    /// The process that starts the run owns it: it gets the run's folder on standard output and passes Ctrl-C on, and
    /// the run is saved when it ends.
    #[arg(long, hide = true)]
    pub(crate) owned: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom eval runs/arithmetic
  rloom eval runs/arithmetic --checkpoint rl-step-000050 --set eval.tasks=1000
  rloom eval runs/reward-model --checkpoint latest --against sft-step-000700
  rloom eval path/to/model --config recipe.toml")]
pub(crate) struct Eval {
    /// Folder of a run; with --config a model: a folder or a hub name.
    #[arg(value_name = "RUN|MODEL")]
    pub(crate) target: String,
    /// Checkpoint of the run: `best`, `latest`, or a folder below `checkpoints`.
    #[arg(long, value_name = "CHECKPOINT", default_value = "best", conflicts_with = "config")]
    pub(crate) checkpoint: String,
    /// Also evaluate another checkpoint of the run, or with --config another model, and count on how many tasks its completion has the
    /// lower reward.
    #[arg(long, value_name = "CHECKPOINT|MODEL")]
    pub(crate) against: Option<String>,
    /// Configuration with the `[eval]` table to use for a model that does not belong to a run.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Override a setting; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Number of completions to show.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) samples: usize,
}

/// Sampling settings. Those not given default to the model's `generation_config.json`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sampling {
    /// Sampling temperature; 0 for greedy decoding [default: the model's, or 1].
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Sample from the K most probable tokens; 0 for no limit [default: the model's, or 0].
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Sample from the smallest set of tokens with this total probability; 1 for no limit [default: the model's, or 1].
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Minimum probability relative to the most probable token; 0 for no limit [default: the model's, or 0].
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Seed of the random streams.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Number of compute threads; 0 for one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Format of matrix products [default: the run's, or f32].
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub(crate) dtype: Option<Format>,
}

/// Length of completions.
#[derive(Debug, Clone, Args)]
pub(crate) struct Length {
    /// Maximum number of tokens per completion.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_new_tokens: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom generate runs/arithmetic '47+85='
  rloom generate path/to/model --chat 'Name three rivers.' --temperature 0
  cat prompts.txt | rloom generate org/name --json")]
pub(crate) struct Generate {
    /// A model folder, a hub name, or a run's folder (its best checkpoint).
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Prompts to complete; by default each line of standard input.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompts: Vec<String>,
    /// Render each prompt as a user message with the model's chat template.
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message; implies --chat.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Number of completions per prompt.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    pub(crate) samples: u32,
    /// Stop string; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) length: Length,
}

#[derive(Debug, Args)]
#[command(after_help = "Empty lines are skipped; `/reset` clears the conversation; Ctrl-D or `/exit` quits.")]
pub(crate) struct Chat {
    /// A model folder, a hub name, or a run's folder (its best checkpoint).
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) length: Length,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rloom inspect arithmetic
  rloom inspect arithmetic 12/3                  lineage of sample 3 of ticket 12
  rloom inspect arithmetic rl/12                 all samples of ticket 12 of stage rl
  rloom inspect arithmetic --trace trace.json    then open the file at https://ui.perfetto.dev")]
pub(crate) struct Inspect {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Show the lineage of samples: TICKET for a whole group, TICKET/SAMPLE for one, preceded by STAGE/ if several
    /// stages have the ticket.
    #[arg(value_name = "SAMPLE", conflicts_with_all = ["trace", "samples"])]
    pub(crate) sample: Option<String>,
    /// Write a timeline of rollout and training as a trace for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE", conflicts_with = "samples")]
    pub(crate) trace: Option<PathBuf>,
    /// Maximum number of completions of the last step to show.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) samples: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom report arithmetic
  rloom report runs/arithmetic --output today.html")]
pub(crate) struct Report {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// File of the report [default: report.html in the folder of the run].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// An experiment tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrackerName {
    // No doc comments: with help for its values, clap prints every option on two lines.
    Wandb,
    Mlflow,
    Trackio,
}

impl From<TrackerName> for Tracker {
    fn from(name: TrackerName) -> Self {
        match name {
            TrackerName::Wandb => Self::Wandb,
            TrackerName::Mlflow => Self::Mlflow,
            TrackerName::Trackio => Self::Trackio,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  WANDB_MODE=offline rloom track arithmetic --to wandb
  MLFLOW_TRACKING_URI=http://localhost:5000 rloom track arithmetic --to mlflow
  rloom track arithmetic --to trackio --project sums --python .venv/bin/python

Needs a Python environment with the tracker's package, whose own environment variables apply. A second call continues
after the last step that the first has passed on.")]
pub(crate) struct Track {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Tracker to pass the run to.
    #[arg(long, value_enum, value_name = "TRACKER")]
    pub(crate) to: TrackerName,
    /// Project of the tracker; of MLflow, the experiment.
    #[arg(long, value_name = "NAME", default_value = rloom_telemetry::DEFAULT_PROJECT)]
    pub(crate) project: String,
    /// Python interpreter of an environment with the tracker's package.
    #[arg(long, value_name = "PATH", default_value = rloom_telemetry::DEFAULT_PYTHON)]
    pub(crate) python: String,
    /// Pass on what there is of a running run and end, instead of following it to its end.
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Wait for the end of another process that passes the run to the tracker. Runs start their trackers with it.
    #[arg(long, hide = true)]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom plan recipes/arithmetic.toml
  rloom plan recipes/gsm8k.toml --profile node-8xH100 --sweep --svg frontier.svg
  rloom plan --calibrate runs/arithmetic --devices 16
  rloom plan --calibrate runs/on-servers --replicas 4
  rloom plan recipe.toml --profile cluster-1024 --set schedule.max_staleness=2 --set schedule.oversample=64

The simulation runs the scheduler of real runs on a hardware model, described in docs/plan.md. A profile is one of
laptop-cpu, node-8xH100 and cluster-1024, or a TOML file.")]
pub(crate) struct Plan {
    /// Configuration files (TOML); later files override earlier ones.
    #[arg(value_name = "FILE", required_unless_present = "calibrate")]
    pub(crate) files: Vec<PathBuf>,
    /// Override a setting; may be repeated. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Stage to simulate [default: the last one that samples].
    #[arg(long, value_name = "NAME")]
    pub(crate) stage: Option<String>,
    /// Hardware profile: a name or a file [default: laptop-cpu].
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "calibrate")]
    pub(crate) profile: Option<String>,
    /// Fit the profile to a run; its configuration is simulated unless files are given.
    #[arg(long, value_name = "RUN")]
    pub(crate) calibrate: Option<PathBuf>,
    /// Write the fitted profile to this file.
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    pub(crate) save_profile: Option<PathBuf>,
    /// Total number of devices [default: the profile's].
    #[arg(long, value_name = "N")]
    pub(crate) devices: Option<u32>,
    /// Number of devices for rollouts; the others train [default: the fastest split].
    #[arg(long, value_name = "N")]
    pub(crate) rollout_devices: Option<u32>,
    /// Number of inference servers, with a profile that was measured on servers [default: the recipe's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) replicas: Option<u32>,
    /// Number of steps to simulate [default: the stage's, limited to a few seconds of simulation].
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// Show every split and staleness bound that was simulated.
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Write a chart of the simulated splits to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Distribution of completion lengths: `constant`, `lognormal:SIGMA`, or `tail:FRACTION` of sequences at full
    /// length [default: the profile's].
    #[arg(long, value_name = "SHAPE")]
    pub(crate) lengths: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom replay runs/arithmetic 12/0
  rloom replay runs/arithmetic rl/12/0 --rebuild

Exits with 0 if tokens and log-probabilities are bitwise identical, otherwise with 1.
The run's files are not modified.")]
pub(crate) struct Replay {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// TICKET/SAMPLE of the last sampling stage, or STAGE/TICKET/SAMPLE.
    #[arg(value_name = "SAMPLE")]
    pub(crate) sample: String,
    /// Retrain versions that no checkpoint contains, on the recorded batches.
    #[arg(long)]
    pub(crate) rebuild: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Algo {
    /// List the algorithms.
    List,
    /// Show the sampling, credit assignment, loss and settings of an algorithm.
    Show {
        /// Name of the algorithm, as in a recipe's `method`.
        name: String,
    },
}

/// An engine with a Python environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    // No doc comments: with help for its values, clap prints every option on two lines.
    Torch,
    Vllm,
    Sglang,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Engines {
    /// Make the environment of an engine with the versions that were tested.
    Install(InstallEngine),
    /// List the environments and their versions.
    List,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom engines install vllm
  rloom engines install torch --python python3.12
  rloom engines install vllm --directory /data/vllm

Uses `uv` if it is on the PATH, otherwise `venv` and `pip`. Needs the network and up to 8 GB of disk
space. vLLM is installed for GPUs if this machine has one, otherwise for processors. The default
folder is `rloom/engines` in XDG_CACHE_HOME or ~/.cache; recipes whose `trainer.python` or
`rollout.python` is empty use it.")]
pub(crate) struct InstallEngine {
    /// The engine.
    #[arg(value_name = "ENGINE", value_enum)]
    pub(crate) engine: EngineName,
    /// Folder of the environment [default: one in the user's caches].
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Python interpreter to make the environment with, 3.11 to 3.14.
    #[arg(long, value_name = "INTERPRETER", default_value = "python3")]
    pub(crate) python: String,
    /// Replace an environment that is there.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom doctor
  rloom doctor --engines
  rloom doctor --engines recipes/arithmetic.toml recipes/torch-vllm.toml")]
pub(crate) struct Doctor {
    /// Check the Python environments of the engines instead: those of a recipe, or those that are installed.
    #[arg(long)]
    pub(crate) engines: bool,
    /// Configuration files (TOML) of the recipe; later files override earlier ones.
    #[arg(value_name = "FILE", requires = "engines")]
    pub(crate) files: Vec<PathBuf>,
    /// Override a setting; may be repeated. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "files")]
    pub(crate) overrides: Vec<String>,
}

//! What the command line understands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rloom_model::Dtype;
use rloom_run::lineage::SampleName;

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
  0    done
  1    failed
  2    wrong usage or configuration; nothing was started
  130  interrupted; the run is saved and can be resumed

Data goes to standard output, everything else to standard error. NO_COLOR is honoured.";

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Write JSON to standard output, one value per line.
    #[arg(long, global = true, display_order = 90)]
    pub(crate) json: bool,
    /// Write no colours.
    #[arg(long, global = true, display_order = 91)]
    pub(crate) no_color: bool,
    /// Say nothing but results, warnings and errors.
    #[arg(short, long, global = true, display_order = 92)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train as a recipe says.
    Train(Train),
    /// Measure a model, or a run's best checkpoint, on held-out tasks.
    Eval(Eval),
    /// Complete prompts.
    Generate(Generate),
    /// Talk with a model.
    Chat(Chat),
    /// Show what a run did.
    Inspect(Inspect),
    /// Simulate a recipe on other hardware, and recommend how to divide it.
    Plan(Plan),
    /// Generate a sample of a run again and compare it, bit for bit.
    Replay(Replay),
    /// List the algorithms, or show one with its equations and knobs.
    Algo {
        #[command(subcommand)]
        command: Algo,
    },
    /// Measure how fast this machine trains and generates, and what keeps it from going faster.
    Bench(Bench),
    /// Check this machine and this program.
    Doctor,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom train recipes/arithmetic.toml
  rloom train recipe.toml mine.toml --set trainer.learning_rate=1e-5 --set stage.rl.steps=20
  rloom train recipe.toml --dry-run
  rloom train --resume runs/arithmetic

The first Ctrl-C finishes the step under way and saves; the second stops at once.")]
pub(crate) struct Train {
    /// Configuration files (TOML); later ones win over earlier ones.
    #[arg(value_name = "FILE", required_unless_present = "resume", conflicts_with = "resume")]
    pub(crate) files: Vec<PathBuf>,
    /// Override one setting, as often as you like. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE", conflicts_with = "resume")]
    pub(crate) overrides: Vec<String>,
    /// Name of the run, and of its folder.
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    pub(crate) run_name: Option<String>,
    /// Print the resolved configuration and what it will take, and stop.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
    /// Go on with a run: its name under `runs`, or its folder.
    #[arg(long, value_name = "RUN")]
    pub(crate) resume: Option<PathBuf>,
    /// Show a completion every so many steps; 0 shows none.
    #[arg(long, value_name = "STEPS", default_value_t = 10)]
    pub(crate) show_every: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom eval runs/arithmetic
  rloom eval runs/arithmetic --checkpoint rl-step-000050 --set eval.tasks=1000
  rloom eval path/to/model --config recipe.toml")]
pub(crate) struct Eval {
    /// A run's folder, or with --config a model: a folder or a hub id.
    #[arg(value_name = "RUN|MODEL")]
    pub(crate) target: String,
    /// Which checkpoint of the run: `best`, `latest`, or a folder of its `checkpoints`.
    #[arg(long, value_name = "CHECKPOINT", default_value = "best", conflicts_with = "config")]
    pub(crate) checkpoint: String,
    /// The configuration whose `[eval]` to use for a model that is no run's.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Override one setting, as often as you like.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Show so many of the completions.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) samples: usize,
}

/// How tokens are chosen. What is not given is as the model's `generation_config.json` recommends.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sampling {
    /// Divide the logits; 0 takes the most probable token [default: the model's, or 1].
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Keep the so many most probable tokens; 0 keeps all [default: the model's, or 0].
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Keep the smallest set of tokens with this probability; 1 keeps all [default: the model's, or 1].
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Keep tokens at least so probable relative to the best one; 0 keeps all [default: the model's, or 0].
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_new_tokens: usize,
    /// Seed of the random streams.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Threads that compute; 0 takes one per core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) threads: usize,
    /// Format of matrix products [default: the run's, or f32].
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) compute: Option<Format>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom generate runs/arithmetic '47+85='
  rloom generate path/to/model --chat 'Name three rivers.' --temperature 0
  cat prompts.txt | rloom generate org/name --json")]
pub(crate) struct Generate {
    /// A folder, a hub id, or a run's folder (its best checkpoint).
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// What to complete; without any, each line of standard input is a prompt.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompts: Vec<String>,
    /// Put each prompt into the model's chat template as a user's message.
    #[arg(long)]
    pub(crate) chat: bool,
    /// A system message; implies --chat.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Completions of each prompt.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    pub(crate) samples: u32,
    /// Stop at this text, as often as you like.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
}

#[derive(Debug, Args)]
#[command(
    after_help = "An empty line is skipped; `/reset` forgets the conversation; Ctrl-D or `/exit` ends it."
)]
pub(crate) struct Chat {
    /// A folder, a hub id, or a run's folder (its best checkpoint).
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// A system message.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  rloom inspect arithmetic
  rloom inspect arithmetic 12/3                  the way of sample 3 of ticket 12
  rloom inspect arithmetic rl/12                 every sample of ticket 12 of the stage rl
  rloom inspect arithmetic --trace trace.json    then open the file at https://ui.perfetto.dev")]
pub(crate) struct Inspect {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Tell of a sample: TICKET for all of its group, TICKET/SAMPLE for one, with their stage before them where several
    /// have the ticket.
    #[arg(value_name = "SAMPLE", conflicts_with_all = ["trace", "samples"])]
    pub(crate) sample: Option<SampleName>,
    /// Write who was busy when, as a trace that Perfetto and chrome://tracing open.
    #[arg(long, value_name = "FILE", conflicts_with = "samples")]
    pub(crate) trace: Option<PathBuf>,
    /// Show completions of the last step that has any, at most so many.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) samples: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom plan recipes/arithmetic.toml
  rloom plan recipes/gsm8k.toml --profile node-8xH100 --sweep --svg frontier.svg
  rloom plan --calibrate runs/arithmetic --devices 16
  rloom plan recipe.toml --profile cluster-1024 --set schedule.max_staleness=2 --set schedule.oversample=64

The scheduler is the one that trains; the hardware is a model of it, described in docs/plan.md. A profile is one of
laptop-cpu, node-8xH100 and cluster-1024, or a TOML file.")]
pub(crate) struct Plan {
    /// Configuration files (TOML); later ones win over earlier ones.
    #[arg(value_name = "FILE", required_unless_present = "calibrate")]
    pub(crate) files: Vec<PathBuf>,
    /// Override one setting, as often as you like. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// The stage to simulate; by default the last one that samples.
    #[arg(long, value_name = "NAME")]
    pub(crate) stage: Option<String>,
    /// The hardware: a profile's name or file [default: laptop-cpu].
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "calibrate")]
    pub(crate) profile: Option<String>,
    /// Fit the profile to what a run showed; its configuration is simulated unless another is given.
    #[arg(long, value_name = "RUN")]
    pub(crate) calibrate: Option<PathBuf>,
    /// Write the fitted profile to this file.
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    pub(crate) save_profile: Option<PathBuf>,
    /// Devices in all [default: the profile's].
    #[arg(long, value_name = "N")]
    pub(crate) devices: Option<u32>,
    /// Devices that generate; the others train [default: the fastest split].
    #[arg(long, value_name = "N")]
    pub(crate) rollout_devices: Option<u32>,
    /// Batches to simulate [default: the stage's, but at most as many as take a moment].
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// Show every split and bound on staleness that was looked at.
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Draw them into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Lengths: `constant`, `lognormal:SIGMA`, or `tail:SHARE` for so many sequences of full length [default: the
    /// profile's].
    #[arg(long, value_name = "SHAPE")]
    pub(crate) lengths: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom replay runs/arithmetic 12/0
  rloom replay runs/arithmetic rl/12/0 --rebuild

Exits with 0 when tokens and log-probabilities are the same to the bit, otherwise with 1.
The run's files are only read.")]
pub(crate) struct Replay {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// TICKET/SAMPLE of the last stage that samples, or STAGE/TICKET/SAMPLE.
    #[arg(value_name = "SAMPLE")]
    pub(crate) sample: SampleName,
    /// Train versions that no checkpoint holds again, by the recorded batches.
    #[arg(long)]
    pub(crate) rebuild: bool,
}

/// What `bench` can measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Work {
    /// The matrix products and the attention of the shape, one by one.
    Kernels,
    /// A training step: forward, cross-entropy, backward, AdamW.
    Train,
    /// Greedy generation of a batch of prompts.
    Decode,
    /// A step of GRPO: rollout, random rewards, one optimiser step, new weights for the rollout.
    Grpo,
}

/// Format of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // Help that says more than the names would make every option take two lines.
    F32,
    Bf16,
}

impl From<Format> for Dtype {
    fn from(format: Format) -> Self {
        match format {
            Format::F32 => Self::F32,
            Format::Bf16 => Self::Bf16,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Shapes:
  S       4 layers of 256, 8 heads, 4 key-value heads, FFN 704, vocabulary 512; trains on
          32 x 128 tokens, generates 64 x 64 after prompts of 16, GRPO 16 prompts x 8 samples x 64
  M       24 layers of 896, 14 heads, 2 key-value heads, FFN 4864, vocabulary 32,000; trains on
          2 x 128 tokens, generates 8 x 16 after prompts of 16, GRPO 2 prompts x 8 samples x 16
  FOLDER  as its config.json says, with random weights and the batches of S, or of M above
          256 MiB of f32 weights

Examples:
  rloom bench
  rloom bench train decode --compute bf16
  rloom bench decode --shape path/to/model --threads 1 --json

GFLOP/s count a multiply-add as 2: the products of linear layers and the unmasked part of
attention, each once forward and twice backward, whatever is computed again. Ceilings are measured
first, on the same threads.")]
pub(crate) struct Bench {
    /// What to measure [default: everything].
    #[arg(value_name = "WORK", value_enum)]
    pub(crate) works: Vec<Work>,
    /// The model: S, M, or a model's folder.
    #[arg(long, value_name = "S|M|FOLDER", default_value = "S")]
    pub(crate) shape: String,
    /// Format of matrix products.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "f32")]
    pub(crate) compute: Format,
    /// Threads that compute; 0 takes one per core.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: u16,
    /// Measurements of each work, after warming up; their median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Algo {
    /// List the algorithms.
    List,
    /// Show one: what is sampled, how credit is given, its loss and its knobs.
    Show {
        /// Its name, as a recipe's `method` has it.
        name: String,
    },
}

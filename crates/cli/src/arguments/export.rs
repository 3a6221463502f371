//! Arguments of `rloom export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Format;

/// Content of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Exported {
    /// Events that no later attempt has superseded, then an object with the state of the run.
    Events,
    /// Trained trajectories with tokens, log-probabilities and rewards.
    Rollouts,
    /// The resolved configuration, as one object.
    Config,
    /// The weights, in a folder for other programs; the run may also be the folder of a checkpoint or model.
    Model,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom export arithmetic events --kind step --kind evaluation
  rloom export arithmetic rollouts --stage rl --step 3
  rloom export arithmetic config
  rloom export arithmetic model --out arithmetic-bf16 --dtype bf16
  rloom export lora model --merge --out merged")]
pub(crate) struct Export {
    /// The run: its name under `runs`, or its folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Content to write.
    #[arg(value_name = "CONTENT", value_enum)]
    pub(crate) content: Exported,
    /// Kind of events, such as `step`; may be repeated [default: all].
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Vec<String>,
    /// Stage of the rollouts [default: all].
    #[arg(long, value_name = "NAME")]
    pub(crate) stage: Option<String>,
    /// Step of the rollouts within its stage; may be repeated [default: all].
    #[arg(long, value_name = "N")]
    pub(crate) step: Vec<u64>,
    #[command(flatten)]
    pub(crate) model: ExportedModel,
}

/// Options of an exported model.
#[derive(Debug, Args)]
pub(crate) struct ExportedModel {
    /// Folder of the model, which does not exist or is empty.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Checkpoint of the run, such as `latest` [default: best].
    #[arg(long, value_name = "NAME")]
    pub(crate) checkpoint: Option<String>,
    /// Add the LoRA adapter to the weights of its base.
    #[arg(long)]
    pub(crate) merge: bool,
    /// Format of the weights [default: f32].
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<Format>,
}

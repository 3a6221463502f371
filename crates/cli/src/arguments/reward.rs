//! Arguments of `rloom reward`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Reward {
    /// Compare a judge with labels, and try to fool it.
    Calibrate(Calibrate),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom reward calibrate recipe.toml --data labelled.jsonl
  rloom reward calibrate recipe.toml --data labelled.jsonl --component style --questions 100

Each line of the data is a JSON object: `prompt`, `response`, `label` (true or false) and, if the judge sees one, the reference
`answer`. For pairwise judges: `prompt`, `response_a`, `response_b` and `label` (\"a\", \"b\" or \"tie\"); for ranking ones:
`prompt`, `responses` and `labels`.")]
pub(crate) struct Calibrate {
    /// Configuration files (TOML) with the judge; later files override earlier ones.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Labelled responses (JSON lines).
    #[arg(long, value_name = "FILE")]
    pub(crate) data: PathBuf,
    /// Name of the component [default: the only judge].
    #[arg(long, value_name = "NAME")]
    pub(crate) component: Option<String>,
    /// Number of questions that are also answered without content.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) questions: usize,
    /// File of the calibration [default: `calibration` of the component].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Override a setting; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

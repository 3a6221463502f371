//! Arguments of `rloom reward`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Reward {
    /// Judge the reference answers of a recipe, and given completions, without a model.
    Test(RewardTest),
    /// Compare a judge with labels, and try to fool it.
    Calibrate(Calibrate),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom reward test recipe.toml --rows 500
  rloom reward test recipe.toml --template '<think></think><answer>{answer}</answer>'
  rloom reward test recipe.toml --completions completions.jsonl --json

A reference answer is judged as a completion: the demonstration of its row, or else the answer in the
first form of `extract`. Completions are JSON lines: {\"task\": 0, \"completion\": \"…\"}, where `task` is
the index of the row. Exits with 1 if fewer references than --min-solved solve their tasks.")]
pub(crate) struct RewardTest {
    /// Configuration files (TOML); later files override earlier ones.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Override a setting; may be repeated. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Stage whose reward and data are tested [default: the last one with a reward].
    #[arg(long, value_name = "NAME")]
    pub(crate) stage: Option<String>,
    /// Number of rows to judge, spread evenly over the data; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) rows: u64,
    /// Completion that gives a reference answer, with {answer} in its place.
    #[arg(long, value_name = "TEXT")]
    pub(crate) template: Option<String>,
    /// File of completions to judge as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) completions: Option<PathBuf>,
    /// Smallest share of references that must solve their tasks.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    pub(crate) min_solved: f64,
    /// Number of completions with problems to show.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) show: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom reward calibrate recipe.toml --data labelled.jsonl
  rloom reward calibrate recipe.toml --data labelled.jsonl --component style --questions 100

Each line of the data is a JSON object with `prompt`, `response`, `label` (true or false) and, if the
judge sees one, the reference `answer`; for pairwise judges with `prompt`, `response_a`, `response_b`
and `label` (\"a\", \"b\" or \"tie\"); for ranking ones with `prompt`, `responses` and `labels`. Exits
with 1 if a false-positive rate is above `max_false_positive_rate` of the component.")]
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

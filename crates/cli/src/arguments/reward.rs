//! Arguments of `rloom reward`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Reward {
    /// Judge the reference answers of a recipe, and given completions, without a model.
    Test(RewardTest),
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

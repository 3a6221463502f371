use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum Env {
    /// List the environments of this program.
    List,
    /// Play an episode in the terminal, in the place of a policy.
    Play(Play),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom env play tic_tac_toe --opponent best
  rloom env play frozen_lake --task 3 --set slippery=true --set data.map_size=6
  rloom env play my-recipe.toml

One turn per line. Without a terminal the turns are read from standard input; --json prints one object per turn. An empty line
shows the position again, Ctrl-D ends the game.")]
pub(crate) struct Play {
    /// A game, or the recipe of an environment.
    #[arg(value_name = "NAME|RECIPE")]
    pub(crate) source: PathBuf,
    /// The opponent of a game for two.
    #[arg(long, value_name = "OPPONENT")]
    pub(crate) opponent: Option<OpponentName>,
    /// A setting of the environment, or of its tasks as `data.KEY=VALUE`; with a recipe, any setting. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Index of the task.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) task: u64,
    /// Seed of the tasks and of chance within the episode.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpponentName {
    // No doc comments: with help for its values, clap prints every option on two lines.
    Random,
    Best,
}

//! Settings of environments: the table of kinds and what each has to provide.
//!
//! To add an environment, write its file with its settings, which implement [`Kind`] and list their keys with `keys!`, and
//! give it a line in the table below.

mod flat;
mod kind;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{EarlierReasoning, History, SettingError, SettingProblem, SummarySettings};
use rloom_function::{FunctionError, Host, PythonEnvironment};

use rloom_sandbox::SandboxError;
use rloom_tools::ToolError;
use serde_json::Value;

pub(crate) use kind::Kind;

use crate::agent::AgentEnvironment;
use crate::games::{
    BanditSettings, BlackjackSettings, ConnectFourSettings, FrozenLakeSettings, KuhnPokerSettings,
    SelfPlaySettings, SokobanSettings, SudokuSettings, TicTacToeSettings, WordleSettings,
};
use crate::graphs::{ChainSettings, ConversationSettings, DebateSettings, MixtureSettings};
use crate::history::Remembering;
use crate::single_turn::NoKeys;
use crate::{AgentSpec, Environment, GuessSettings, Solo, ToolsEnvironment, World};

table::environments! {
    /// One completion per prompt. The default.
    SingleTurn(NoKeys) = "single_turn";
    /// The number-guessing game.
    Guess(GuessSettings) = "guess",
    /// A bandit with several arms.
    Bandit(BanditSettings) = "bandit",
    /// Blackjack with the moves hit and stand.
    Blackjack(BlackjackSettings) = "blackjack",
    /// Connect Four against a built-in opponent.
    ConnectFour(ConnectFourSettings) = "connect_four",
    /// Frozen lake: walk over the ice to the goal.
    FrozenLake(FrozenLakeSettings) = "frozen_lake",
    /// Kuhn poker against a built-in opponent.
    KuhnPoker(KuhnPokerSettings) = "kuhn_poker",
    /// Sokoban: push boxes onto goals.
    Sokoban(SokobanSettings) = "sokoban",
    /// Sudoku on a grid of 4×4.
    Sudoku(SudokuSettings) = "sudoku",
    /// Tic-tac-toe against a built-in opponent.
    TicTacToe(TicTacToeSettings) = "tic_tac_toe",
    /// Wordle: find a secret word.
    Wordle(WordleSettings) = "wordle",
    /// A Python class or generator function.
    Python(PythonEnvironment) = "python",
    /// Tools that the policy calls.
    Tools(ToolsEnvironment) = "tools",
    /// Agents that take turns in a given order.
    Chain(ChainSettings) = "chain",
    /// Agents that speak in turns until one of them ends the conversation.
    Conversation(ConversationSettings) = "conversation",
    /// Agents that answer, read the others' answers and answer again.
    Debate(DebateSettings) = "debate",
    /// Agents that answer, and one that makes one answer of theirs.
    Mixture(MixtureSettings) = "mixture",
    /// A game of two agents that play each other.
    SelfPlay(SelfPlaySettings) = "self_play",
    /// An agent outside of this program that calls the policy over HTTP.
    Agent(AgentEnvironment) = "agent",
}

/// An environment that cannot be created.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum EnvironmentUnusable {
    /// A Python function.
    #[error("`environment`: {0}")]
    #[diagnostic(forward(0))]
    Function(#[from] FunctionError),
    /// Tools.
    #[error("`environment`: {0}")]
    #[diagnostic(forward(0))]
    Tools(#[from] ToolError),
    /// An environment with several agents, where a single one acts.
    #[error(
        "`environment`: it has several agents, and demonstrations and `rloom env play` have one; set an environment with a \
         single one there"
    )]
    SeveralAgents,
    /// A file of an agent's sandbox that does not exist.
    #[error("`environment`: there is no file {}", file.display())]
    AgentFile {
        /// The file.
        file: PathBuf,
    },
    /// A machine without a sandbox for agents.
    #[error("`environment`: {0}")]
    #[diagnostic(forward(0))]
    Sandbox(#[from] SandboxError),
    /// An agent whose program does not exist.
    #[error("`environment`: there is no program `{program}`")]
    Agent {
        /// The program.
        program: String,
    },
}

impl EnvironmentSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.kind().validate()?;
        let Some(history) = self.kind().history() else { return Ok(()) };
        history.validate()?;
        if !history.is_full() && self.kind().earlier_reasoning() == EarlierReasoning::NewSegment {
            return Err(SettingProblem::Conflict { other: "history" }.at("earlier_reasoning"));
        }
        Ok(())
    }

    /// Maximum number of turns in an episode, summaries included.
    pub fn max_turns(&self) -> usize {
        let turns = self.kind().max_turns();
        if self.summary().is_some() { 2 * turns } else { turns }
    }

    /// Number of tokens of a segment above which the policy is asked for a summary; `None` if it is not.
    pub fn summary_limit(&self) -> Option<usize> {
        self.summary().map(|summary| summary.limit as usize)
    }

    fn summary(&self) -> Option<&SummarySettings> {
        match self.kind().history() {
            Some(History::Summary(summary)) => Some(summary),
            _ => None,
        }
    }

    /// True if an episode can have several segments: those of several agents, or of a limited history.
    pub fn divides_episodes(&self) -> bool {
        !self.agents().is_empty() || self.kind().history().is_some_and(|history| !history.is_full())
    }

    /// True if the environment gives step rewards.
    pub fn has_steps(&self) -> bool {
        self.kind().has_steps()
    }

    /// True if the environment reads the reference answers of tasks.
    pub fn reads_answer(&self) -> bool {
        self.kind().reads_answer()
    }

    /// The generator whose tasks the environment plays; `None` if it plays those of any generator.
    pub fn generator(&self) -> Option<&'static str> {
        self.kind().game().or_else(|| self.kind().is_game().then_some(self.name()))
    }

    /// The agents of an environment with several; empty if it has a single one.
    pub fn agents(&self) -> Vec<AgentSpec> {
        self.kind().agents()
    }

    /// True if each turn of several agents is judged by itself.
    pub fn rewards_turns(&self) -> bool {
        match self {
            Self::Debate(debate) => debate.reward_turns,
            Self::Chain(chain) => chain.reward_turns,
            Self::Mixture(mixture) => mixture.reward_turns,
            _ => false,
        }
    }

    /// True if turns of different episodes can be combined: each of several agents takes a single turn that depends on no other.
    pub fn combines_turns(&self) -> bool {
        self.kind().combines_turns()
    }

    /// All characters of the observations, for the alphabet of a character tokenizer.
    pub fn alphabet(&self) -> String {
        let request = self.summary().map_or("", |summary| &summary.request);
        self.kind().alphabet() + request
    }

    /// Makes the path of a Python file absolute, so that it does not depend on the working directory.
    pub fn make_absolute(&mut self) {
        if let Some(kind) = self.kind_mut() {
            kind.make_absolute();
        }
    }

    /// The Python function, if it is one: `file.py:name` or `caller:name`.
    pub fn python_function(&self) -> Option<&str> {
        self.kind().python_function()
    }

    /// Number of processes of a Python function; `None` if it is none, or one of the caller's process.
    pub fn processes(&self) -> Option<usize> {
        self.kind().processes()
    }

    /// The agent, if episodes are played outside of this program.
    pub fn agent(&self) -> Option<&AgentEnvironment> {
        match self {
            Self::Agent(settings) => Some(settings),
            _ => None,
        }
    }

    /// Loads the Python function, if it is one, on the machines of `host` or on this one.
    pub fn check(&self, host: Option<Arc<dyn Host>>) -> Result<(), EnvironmentUnusable> {
        self.kind().check(host)
    }

    /// The tools that prompts declare, as chat templates receive them. Creates their sources.
    pub fn declared_tools(&self) -> Result<Vec<Value>, EnvironmentUnusable> {
        self.kind().declared_tools()
    }

    /// Creates the environment of a single agent; `timeout` limits each answer of a Python function, whose processes start on the machines of
    /// `host` or on this one.
    pub fn environment(
        &self,
        timeout: Duration,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        let environment = self.kind().environment(timeout, host)?;
        Ok(match self.kind().history() {
            Some(history) => Remembering::wrap(environment, history),
            None => environment,
        })
    }

    /// Creates the environment as a world, as [`environment`](Self::environment) does.
    pub fn world(
        &self,
        timeout: Duration,
        host: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn World>, EnvironmentUnusable> {
        match self.kind().world() {
            Some(world) => Ok(world),
            None => Ok(Arc::new(Solo::new(self.environment(timeout, host)?))),
        }
    }
}

//! Environments.
//!
//! An [`Environment`] starts an [`Interaction`] for a task: it provides the tokens of the prompt, receives the policy's
//! turns, and responds with an observation or ends the episode. An [`Attempt`] holds the tokens of one episode and
//! assembles its [`Trajectory`](rloom_core::Trajectory). This crate is independent of engines: a [`Turn`] is plain data.
//!
//! ```text
//! Attempt::start ──► tokens() ──► (an engine samples) ──► turn(Turn) ──┬─ Continue: again from tokens()
//!                                                                     └─ Done: finish() ──► segments
//! ```
//!
//! An interaction belongs to one episode and is never reset. Observations are appended as tokens; earlier tokens are
//! never rendered or tokenised again. An environment can also end the segment and continue the episode in a new one with
//! another prompt ([`Next::NewSegment`]): each segment is a trajectory of its own.
//!
//! An environment can also give step rewards and name the states in which turns are taken: the attempt records both in
//! the trajectory ([`StepReward`](rloom_core::StepReward)), for algorithms with step-level credit.
//!
//! Every environment must pass [`conformance::check`].
//!
//! A [`World`] has several agents, each with prompts, turns and segments of its own: its [`Play`] says whose turns can be
//! taken now, and a [`Playthrough`] assembles the segments of all agents. An environment is a world of one agent ([`Solo`]).

mod agent;
mod agent_sandbox;
mod agent_segments;
mod attempt;
pub mod conformance;
mod demonstration;
mod dialogue;
mod environment;
mod error;
mod games;
mod graphs;
mod guess;
mod history;
mod keys;
mod offline;
mod playthrough;
mod prompts;
mod python;
mod render;
mod roles;
mod script;
mod settings;
mod single_turn;
mod solo;
mod tools;
mod unrendered;
mod world;

pub use agent::{Agent, AgentEnvironment};
pub use agent_sandbox::AgentSandbox;
pub use agent_segments::AgentSegments;
pub use attempt::{Attempt, Progress, RecordedResponse, Turn};
pub use demonstration::{demonstrate, demonstration_length};
pub use environment::{
    BoxFuture, Environment, Interaction, NewSegment, Next, Observation, Response, Start, View,
};
pub use error::{EnvError, TurnProblem};
pub use games::{
    BanditSettings, BlackjackSettings, ConnectFourSettings, FrozenLakeSettings, KuhnPokerSettings, Observe,
    Opponent, SelfPlaySettings, SokobanSettings, SudokuSettings, TicTacToeSettings, VersusGame,
    WordleSettings,
};
pub use graphs::{ChainSettings, ConversationSettings, DebateConclusion, DebateSettings, MixtureSettings};
pub use guess::{Guess, GuessSettings};
pub use offline::{RowLength, read_row, row_length};
pub use playthrough::{FinishedEpisode, Playthrough};
pub use python::PythonPlays;
pub use render::render_prompt;
pub use rloom_function::PythonEnvironment;
pub use roles::RoleSettings;
pub use settings::{EnvironmentSettings, EnvironmentUnusable};
pub use single_turn::SingleTurn;
pub use solo::Solo;
pub use tools::{OnMalformed, OnResume, Tools, ToolsEnvironment};
pub use unrendered::{MessagePart, Unrendered, find_unrendered};
pub use world::{Ack, AgentId, AgentSpec, Ask, Input, JudgedTurn, MAIN_POLICY, Outcome, Play, World};

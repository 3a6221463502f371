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

mod agent;
mod attempt;
pub mod conformance;
mod demonstration;
mod dialogue;
mod environment;
mod error;
mod games;
mod guess;
mod history;
mod keys;
mod python;
mod render;
mod script;
mod settings;
mod single_turn;
mod tools;
mod unrendered;

pub use agent::{Agent, AgentEnvironment};
pub use attempt::{Attempt, Progress, RecordedResponse, Turn};
pub use demonstration::{demonstrate, demonstration_length};
pub use environment::{
    BoxFuture, Environment, Interaction, NewSegment, Next, Observation, Response, Start, View,
};
pub use error::{EnvError, TurnProblem};
pub use games::{
    BanditSettings, BlackjackSettings, ConnectFourSettings, FrozenLakeSettings, KuhnPokerSettings, Observe,
    Opponent, SokobanSettings, SudokuSettings, TicTacToeSettings, WordleSettings,
};
pub use guess::{Guess, GuessSettings};
pub use python::PythonPlays;
pub use render::render_prompt;
pub use rloom_function::PythonEnvironment;
pub use settings::{EnvironmentSettings, EnvironmentUnusable};
pub use single_turn::SingleTurn;
pub use tools::{OnMalformed, OnResume, Tools, ToolsEnvironment};
pub use unrendered::{MessagePart, Unrendered, find_unrendered};

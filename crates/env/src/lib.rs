//! Environments: what a policy acts in.
//!
//! An [`Environment`] begins an [`Interaction`] with a task: it gives the prompt's tokens, is told what the
//! policy wrote, and answers with an observation or says that the episode is over. An [`Attempt`] keeps the
//! tokens of one such interaction and assembles the [`Trajectory`](rloom_core::Trajectory) that training
//! sees. No engine is known here: a [`Turn`] is plain data, whoever sampled it.
//!
//! ```text
//! Attempt::start ──► tokens() ──► (an engine samples) ──► turn(Turn) ──┬─ Continue: again from tokens()
//!                                                                     └─ Done: finish() ──► Trajectory
//! ```
//!
//! An interaction is for one episode and is never reset. What was said stays said: observations are appended
//! as tokens, and nothing before them is rendered or tokenised anew.
//!
//! An environment may also reward single turns and name the state that each was taken in: the attempt writes both
//! into the trajectory as [`Step`](rloom_core::Step)s, for algorithms that give credit step by step.
//!
//! Every environment has to pass [`conformance::check`].

mod attempt;
pub mod conformance;
mod demonstration;
mod dialogue;
mod environment;
mod error;
mod guess;
mod render;
mod settings;
mod single_turn;

pub use attempt::{Attempt, Progress, Turn};
pub use demonstration::demonstrate;
pub use environment::{Answer, BoxFuture, Environment, Interaction, Next, Observation, Start};
pub use error::EnvError;
pub use guess::{Guess, GuessSettings};
pub use render::render_prompt;
pub use settings::EnvironmentSettings;
pub use single_turn::SingleTurn;

//! Games of two agents that play each other.
//!
//! A [`Versus`] is the logic of one episode for both players. To add a game, write its file, give it a variant in
//! [`VersusGame`] and a line in `VersusGame::begin`.

mod connect_four;
mod kuhn_poker;
mod play;
mod settings;
mod tic_tac_toe;

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConnectFourSettings, Draws, KuhnPokerSettings, Observe, Rules, TicTacToeSettings};

pub use settings::SelfPlaySettings;

/// The player that moves first, and its opponent.
const PLAYERS: [&str; 2] = ["first", "second"];

/// A game of two players.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VersusGame {
    /// Tic-tac-toe.
    TicTacToe,
    /// Connect Four.
    ConnectFour,
    /// Kuhn poker.
    KuhnPoker,
}

/// One episode of a game between two players, who move in turns.
trait Versus: Debug + Send {
    /// The player that moves next: 0 or 1.
    fn mover(&self) -> usize;

    /// Plays a move of the player that moves next; false if it is not a legal one.
    fn play(&mut self, text: &str) -> bool;

    /// Rewards of both players at the end of the game; `None` before its end.
    fn scores(&self) -> Option<[f64; 2]>;

    /// The position as the prompt of a player has it.
    fn position(&self, player: usize) -> String;

    /// What a player sees before a later move.
    fn observation(&self, player: usize) -> String;

    /// State key of a player's next move.
    fn state(&self, player: usize) -> String;

    /// The legal moves.
    fn moves(&self) -> Vec<String>;
}

impl VersusGame {
    /// Name of the game's own environment, and of the generator of its tasks.
    fn name(self) -> &'static str {
        match self {
            Self::TicTacToe => TicTacToeSettings::NAME,
            Self::ConnectFour => ConnectFourSettings::NAME,
            Self::KuhnPoker => KuhnPokerSettings::NAME,
        }
    }

    /// The form of a task's answer, with an example.
    fn start(self) -> &'static str {
        match self {
            Self::TicTacToe => TicTacToeSettings::START,
            Self::ConnectFour => ConnectFourSettings::START,
            Self::KuhnPoker => KuhnPokerSettings::START,
        }
    }

    /// All characters of positions and observations.
    fn alphabet(self) -> &'static str {
        match self {
            Self::TicTacToe => " 123456789XO./?",
            Self::ConnectFour => " 1234567XO./?",
            Self::KuhnPoker => "JQKpb?",
        }
    }

    /// Begins a game; `None` if the task's answer does not contain one.
    fn begin(self, answer: &str, observe: Observe, draws: Draws) -> Option<Box<dyn Versus>> {
        match self {
            Self::TicTacToe => tic_tac_toe::begin(answer, observe),
            Self::ConnectFour => connect_four::begin(answer, observe),
            Self::KuhnPoker => kuhn_poker::begin(answer, draws),
        }
    }
}

/// Rewards of a game that a player has won.
fn won_by(player: usize, amount: f64) -> [f64; 2] {
    if player == 0 { [amount, -amount] } else { [-amount, amount] }
}

//! Games of this program, one per file.
//!
//! A [`Game`] is the logic of one episode: moves in, rewards and observations out, as text. [`Playing`] makes an
//! environment of it: it counts turns, refuses what is not a move, and tokenises.
//!
//! To add a game, write its file (settings, rules and logic) and give it a line in the table of
//! [`EnvironmentSettings`](crate::EnvironmentSettings); its tasks are a generator of crate `data` with the same name.

mod bandit;
mod blackjack;
mod connect_four;
mod frozen_lake;
mod kuhn_poker;
mod playing;
mod settings;
mod sokoban;
mod sudoku;
mod tic_tac_toe;
mod versus;
mod wordle;

use std::fmt::Debug;

use rloom_core::{RandomKey, RandomStream, SettingError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bandit::BanditSettings;
pub use blackjack::BlackjackSettings;
pub use connect_four::ConnectFourSettings;
pub use frozen_lake::FrozenLakeSettings;
pub use kuhn_poker::KuhnPokerSettings;
pub(crate) use playing::Playing;
pub use sokoban::SokobanSettings;
pub use sudoku::SudokuSettings;
pub use tic_tac_toe::TicTacToeSettings;
pub use versus::{SelfPlaySettings, VersusGame};
pub use wordle::WordleSettings;

/// Settings of a game: its rules.
pub(crate) trait Rules: Debug + Clone + Send + Sync + 'static {
    /// Name in a configuration.
    const NAME: &'static str;
    /// All characters of observations.
    const ALPHABET: &'static str;
    /// The form of a task's answer, with an example.
    const START: &'static str;

    /// Checks the settings of this game alone.
    fn check(&self) -> Result<(), SettingError> {
        Ok(())
    }

    /// Begins a game; `None` if the task's answer does not contain one.
    fn begin(&self, answer: &str, draws: Draws) -> Option<Box<dyn Game>>;
}

/// One episode of a game.
pub(crate) trait Game: Debug + Send {
    /// Plays a move and whatever follows before the next one; `None` for a text that is not a legal move.
    fn play(&mut self, text: &str) -> Option<Played>;

    /// The legal moves. Games in which any number of texts are moves have examples.
    fn moves(&self) -> Vec<String>;

    /// Moves of demonstrations: those of somebody who knows the rules but has no strategy.
    fn suggestions(&self) -> Vec<String> {
        self.moves()
    }

    /// The position as the task's prompt has it, if each turn has a prompt of its own.
    fn position(&self) -> Option<String> {
        None
    }

    /// State key: equal for turns in which the policy has the same information.
    fn state(&self) -> String;

    /// The position for a person.
    fn board(&self) -> String;
}

/// An answer without a game.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error("the answer {answer:?} does not contain a game")]
#[diagnostic(help("write it as {form}, like the `{game}` generator"))]
pub(crate) struct InvalidGame {
    pub(crate) answer: String,
    pub(crate) game: &'static str,
    pub(crate) form: &'static str,
}

/// A prompt without the position of its task, which the later ones take the place of.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[error(
    "the prompt does not contain the position {position:?}, in whose place later ones would be; set \
     `environment.observation` to another value"
)]
pub(crate) struct NoPosition {
    pub(crate) position: String,
}

/// Consequence of a move.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Played {
    pub(crate) reward: f64,
    /// What the policy sees next; `None` at the end of the game.
    pub(crate) observation: Option<String>,
}

impl Played {
    pub(crate) fn over(reward: f64) -> Self {
        Self { reward, observation: None }
    }

    pub(crate) fn next(observation: String) -> Self {
        Self { reward: 0.0, observation: Some(observation) }
    }
}

/// The built-in opponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Opponent {
    /// Plays any legal move.
    #[default]
    Random,
    /// Plays one of the best moves.
    Best,
}

/// What the policy sees after a move of the opponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Observe {
    /// The board.
    #[default]
    Board,
    /// The opponent's move alone.
    Move,
    /// The position in a prompt of its own: the task's with the new position, without the turns before.
    Position,
}

/// Chance in one episode: random numbers in sequence.
#[derive(Debug, Clone)]
pub(crate) struct Draws {
    stream: RandomStream,
    position: u64,
}

/// Segments of the streams of environments. Those of trajectories count from 0.
const CHANCE: u32 = u32::MAX;
const SUGGESTIONS: u32 = u32::MAX - 1;

impl Draws {
    fn new(episode: RandomKey, segment: u32) -> Self {
        Self { stream: RandomKey { segment, ..episode }.stream(), position: 0 }
    }

    /// Chance within the rules: moves of the opponent, cards, slips.
    pub(crate) fn chance(episode: RandomKey) -> Self {
        Self::new(episode, CHANCE)
    }

    /// Choices of suggested moves.
    pub(crate) fn suggestions(episode: RandomKey) -> Self {
        Self::new(episode, SUGGESTIONS)
    }

    /// A seed for a generator of another library, which may accept 32 bits only.
    pub(crate) fn seed(&mut self) -> u32 {
        self.position += 1;
        self.stream.bits(self.position - 1) as u32
    }

    /// Uniform in 0 ≤ x < 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.position += 1;
        self.stream.uniform(self.position - 1)
    }

    /// Uniform index into `len` items; 0 without items.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.position += 1;
        self.stream.below(self.position - 1, len.max(1) as u64) as usize
    }

    /// One of the items.
    pub(crate) fn choose<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.index(items.len())).copied()
    }
}

/// The integer of a text of one ASCII digit.
pub(crate) fn digit(text: &str) -> Option<usize> {
    match text.as_bytes() {
        [byte @ b'0'..=b'9'] => Some(usize::from(byte - b'0')),
        _ => None,
    }
}

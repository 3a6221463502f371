//! Tasks of the games that environments of the same names play.
//!
//! A task is where a game begins: the prompt has what the policy sees, and the answer has the whole of it for the
//! environment. Most demonstrations have no turns, so the environment plays them: it follows the rules
//! without a strategy.

mod bandit;
mod blackjack;
mod connect_four;
mod frozen_lake;
mod kuhn_poker;
mod sokoban;
mod sudoku;
mod tic_tac_toe;
mod wordle;

use std::fmt::Debug;

use rloom_core::{Demonstration, SettingError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bandit::BanditSettings;
pub use blackjack::BlackjackSettings;
pub use connect_four::ConnectFourSettings;
pub use frozen_lake::FrozenLakeSettings;
pub use kuhn_poker::KuhnPokerSettings;
pub use sokoban::SokobanSettings;
pub use sudoku::SudokuSettings;
pub use tic_tac_toe::{Notation, TicTacToeSettings};
pub use wordle::WordleSettings;

use super::{
    ATTEMPTS, GeneratedTask, RandomDraws, SplitShares, check_sizes, fixed_key, sampled_len, task_key,
};
use crate::{DataError, Split};

/// Settings of the tasks of a game.
pub(crate) trait Deal: Debug + Clone {
    /// All characters of prompts and turns, sorted.
    const ALPHABET: &'static str;

    /// Checks the settings of this game alone.
    fn check(&self) -> Result<(), SettingError> {
        Ok(())
    }

    /// Begins a game. `None` if what was drawn is not a game; it is then drawn again.
    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt>;
}

/// The beginning of a game.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dealt {
    pub(crate) prompt: String,
    pub(crate) answer: String,
    /// Turns of the demonstration; empty if the environment plays it.
    pub(crate) turns: Vec<String>,
}

impl Dealt {
    fn new(prompt: String, answer: String) -> Self {
        Self { prompt, answer, turns: Vec::new() }
    }
}

/// Who moves first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Seat {
    /// The policy.
    #[default]
    First,
    /// The opponent.
    Second,
    /// Either, with equal probability.
    Both,
}

impl Seat {
    /// True if the policy moves first in the next game.
    fn is_first(self, draws: &mut RandomDraws) -> bool {
        match self {
            Self::First => true,
            Self::Second => false,
            Self::Both => draws.index(2) == 0,
        }
    }
}

/// Sizes and splits of the tasks of a game.
pub(crate) trait Parts: Deal {
    /// Number of tasks per epoch and of evaluation tasks, if they are set.
    fn sizes(&self) -> (Option<u64>, Option<u64>);

    /// Fractions of the splits; `None` for games whose tasks are the same in all of them and differ by chance alone.
    fn shares(&self) -> Option<SplitShares>;

    fn check_all(&self) -> Result<(), DataError> {
        self.check()?;
        if let Some(shares) = self.shares() {
            shares.validate()?;
        }
        let (size, eval_size) = self.sizes();
        check_sizes(size, eval_size)
    }
}

/// The tasks of one split.
#[derive(Debug, Clone)]
pub(crate) struct Games<S> {
    settings: S,
    split: Split,
    seed: u64,
}

impl<S: Parts> Games<S> {
    pub(crate) fn new(settings: &S, split: Split, seed: u64) -> Result<Self, DataError> {
        settings.check_all()?;
        Ok(Self { settings: settings.clone(), split, seed })
    }

    pub(crate) fn len(&self) -> u64 {
        let (size, eval_size) = self.settings.sizes();
        sampled_len(self.split, size, eval_size)
    }

    pub(crate) fn task(&self, position: u64) -> Result<GeneratedTask, DataError> {
        let mut draws = RandomDraws::new(task_key(self.seed, self.split, position));
        for _ in 0..ATTEMPTS {
            let Some(Dealt { prompt, answer, turns }) = self.settings.deal(&mut draws) else { continue };
            if let Some(shares) = self.settings.shares()
                && shares.split_of(&[hash(&answer)]) != self.split
            {
                continue;
            }
            return Ok(GeneratedTask {
                prompt,
                answer,
                demonstration: Demonstration::Turns(turns),
                tests: None,
            });
        }
        Err(DataError::Exhausted { position, attempts: ATTEMPTS, raise: "the size of the game" })
    }
}

/// A fixed hash of a text.
fn hash(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |hash, byte| {
        fixed_key(hash ^ u64::from(byte).rotate_left(32)).stream().bits(1)
    })
}

/// Defines the settings of the tasks of a game with the keys that every game has. With `divided`, a fixed hash of the answer
/// divides the tasks into splits.
macro_rules! game_tasks {
    (
        $(#[doc = $about:literal])+
        $settings:ident divided {
            $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $crate::generator::games::game_tasks! {
            @with
            $(#[doc = $about])+
            $settings {
                $($(#[doc = $doc])+ $key: $type = $default,)*
                /// Fraction of the tasks that is held out, between 0.01 and 0.99.
                held_out_share: f64 = 0.25,
                /// Fraction of the remaining tasks that demonstrations use, between 0.01 and 0.99; training uses the rest.
                demonstration_share: f64 = 0.5,
            }
            |settings| Some($crate::generator::SplitShares {
                held_out: settings.held_out_share,
                demonstration: settings.demonstration_share,
            })
        }
    };
    (
        $(#[doc = $about:literal])+
        $settings:ident {
            $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $crate::generator::games::game_tasks! {
            @with
            $(#[doc = $about])+
            $settings { $($(#[doc = $doc])+ $key: $type = $default,)* }
            |_| None
        }
    };
    (
        @with
        $(#[doc = $about:literal])+
        $settings:ident {
            $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr,)*
        }
        $shares:expr
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $settings {
            $($(#[doc = $doc])+ pub $key: $type,)*
            /// Number of tasks per epoch of demonstrations or training. Default: 65536.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub size: Option<u64>,
            /// Number of evaluation tasks. Default: 512.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub eval_size: Option<u64>,
        }

        impl Default for $settings {
            fn default() -> Self {
                Self { $($key: $default,)* size: None, eval_size: None }
            }
        }

        impl $settings {
            /// Checks the settings.
            pub fn validate(&self) -> Result<(), $crate::DataError> {
                $crate::generator::games::Parts::check_all(self)
            }

            /// All characters of the prompts and completions, sorted.
            pub fn alphabet(&self) -> String {
                <Self as $crate::generator::games::Deal>::ALPHABET.into()
            }
        }

        impl $crate::generator::games::Parts for $settings {
            fn sizes(&self) -> (Option<u64>, Option<u64>) {
                (self.size, self.eval_size)
            }

            fn shares(&self) -> Option<$crate::generator::SplitShares> {
                let shares: fn(&Self) -> Option<$crate::generator::SplitShares> = $shares;
                shares(self)
            }
        }
    };
}
pub(crate) use game_tasks;

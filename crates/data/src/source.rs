//! The sources of tasks: files, mixtures and the table of generators.
//!
//! To add a generator, write its file with its settings (`validate`, `alphabet`, `eval_size`) and its tasks (`new`, `len`,
//! `task`), and give it a line in the table. Keys that no other source has are listed in `settings.rs` as well.

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::generator::{Arithmetic, Countdown, Games, GeneratedTask, Guess, Programs, Sorting};
use crate::mixture::{self, WeightedSource};
use crate::settings::from_own_keys;
use crate::{
    ArithmeticSettings, BanditSettings, BlackjackSettings, ConnectFourSettings, CountdownSettings, DataError,
    FileSettings, FrozenLakeSettings, GuessSettings, KuhnPokerSettings, ProgramsSettings, SokobanSettings,
    SortingSettings, Split, SudokuSettings, TicTacToeSettings, WordleSettings,
};

/// Generates [`Source`] and `Generator` from the table: the settings and the tasks of each generator, its name, and the
/// verifiers that judge its tasks.
macro_rules! generators {
    (
        $($(#[doc = $doc:literal])+ $kind:ident($settings:ident, $tasks:ty) = $name:literal, verified by $verifiers:expr,)+
    ) => {
        /// Source of tasks.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "a recipe has few of them")]
        pub enum Source {
            /// JSONL or Parquet files.
            Files(FileSettings),
            /// Several sources with weights.
            Mixture(Vec<WeightedSource>),
            $($(#[doc = $doc])+ $kind($settings),)+
        }

        /// The tasks of a split of a generator.
        #[derive(Debug, Clone)]
        pub(crate) enum Generator {
            $($kind($tasks),)+
        }

        impl Source {
            /// Name in messages; for generators also the domain of the tasks.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Files(_) => "files",
                    Self::Mixture(_) => "sources",
                    $(Self::$kind(_) => $name,)+
                }
            }

            /// Verifiers that can judge the tasks of a generator; empty for files.
            pub fn verifiers(&self) -> &'static [&'static str] {
                match self {
                    Self::Files(_) | Self::Mixture(_) => &[],
                    $(Self::$kind(_) => $verifiers,)+
                }
            }

            /// A source of the same kind with its default settings; files stay as they are.
            #[must_use]
            pub fn with_defaults(&self) -> Self {
                match self {
                    Self::Files(_) | Self::Mixture(_) => self.clone(),
                    $(Self::$kind(_) => Self::$kind($settings::default()),)+
                }
            }

            /// Number of evaluation tasks of a generator, if it is set.
            pub fn eval_size(&self) -> Option<u64> {
                match self {
                    Self::Files(_) => None,
                    Self::Mixture(sources) => sources.iter().map(|own| own.data.source.eval_size()).sum(),
                    $(Self::$kind(settings) => settings.eval_size,)+
                }
            }

            pub(crate) fn validate(&self) -> Result<(), DataError> {
                match self {
                    Self::Files(settings) => settings.validate(),
                    Self::Mixture(sources) => mixture::validate(sources),
                    $(Self::$kind(settings) => settings.validate(),)+
                }
            }

            /// All characters of a generator's tasks.
            pub(crate) fn alphabet(&self) -> Option<String> {
                match self {
                    Self::Files(_) => None,
                    Self::Mixture(sources) => sources.iter().map(|own| own.data.alphabet()).collect(),
                    $(Self::$kind(settings) => Some(settings.alphabet()),)+
                }
            }

            /// The tasks of a split of a generator; `None` for files and mixtures.
            pub(crate) fn generator(&self, split: Split, seed: u64) -> Result<Option<Generator>, DataError> {
                Ok(match self {
                    Self::Files(_) | Self::Mixture(_) => None,
                    $(Self::$kind(settings) => {
                        Some(Generator::$kind(<$tasks>::new(settings, split, seed)?))
                    })+
                })
            }

            /// The settings of a generator; keys of other sources are errors.
            pub(crate) fn from_given<E: Error>(
                generator: GeneratorName,
                given: Map<String, Value>,
            ) -> Result<Self, E> {
                match generator {
                    $(GeneratorName::$kind => from_own_keys(given, $name).map(Self::$kind),)+
                }
            }

            /// The keys and values of the settings.
            pub(crate) fn to_json(&self) -> serde_json::Result<Value> {
                match self {
                    Self::Files(settings) => serde_json::to_value(settings),
                    Self::Mixture(sources) => serde_json::to_value(sources),
                    $(Self::$kind(settings) => serde_json::to_value(settings),)+
                }
            }
        }

        impl Generator {
            pub(crate) fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $name,)+
                }
            }

            pub(crate) fn len(&self) -> u64 {
                match self {
                    $(Self::$kind(tasks) => tasks.len(),)+
                }
            }

            pub(crate) fn task(&self, position: u64) -> Result<GeneratedTask, DataError> {
                match self {
                    $(Self::$kind(tasks) => tasks.task(position),)+
                }
            }
        }

        /// Name of a generator in a configuration.
        #[derive(Clone, Copy, Serialize, Deserialize)]
        pub(crate) enum GeneratorName {
            $(#[serde(rename = $name)] $kind,)+
        }

        impl GeneratorName {
            pub(crate) const NAMES: &'static [&'static str] = &[$($name),+];
        }

        /// The schema of the table of a generator.
        #[derive(JsonSchema)]
        #[serde(tag = "generator")]
        #[expect(dead_code, reason = "only its schema is used")]
        pub(crate) enum GeneratorTable {
            $(#[serde(rename = $name)] $kind($settings),)+
        }
    };
}

generators! {
    /// Arithmetic with two operands.
    Arithmetic(ArithmeticSettings, Arithmetic) = "arithmetic", verified by &["exact", "numeric", "math"],
    /// Countdown: expressions that reach a target.
    Countdown(CountdownSettings, Countdown) = "countdown", verified by &["countdown"],
    /// Number guessing, over several turns.
    Guess(GuessSettings, Guess) = "guess", verified by GAME,
    /// Bandits.
    Bandit(BanditSettings, Games<BanditSettings>) = "bandit", verified by GAME,
    /// Blackjack.
    Blackjack(BlackjackSettings, Games<BlackjackSettings>) = "blackjack", verified by GAME,
    /// Connect Four.
    ConnectFour(ConnectFourSettings, Games<ConnectFourSettings>) = "connect_four", verified by GAME,
    /// Frozen lake: maps.
    FrozenLake(FrozenLakeSettings, Games<FrozenLakeSettings>) = "frozen_lake", verified by GAME,
    /// Kuhn poker.
    KuhnPoker(KuhnPokerSettings, Games<KuhnPokerSettings>) = "kuhn_poker", verified by GAME,
    /// Levels of Sokoban.
    Sokoban(SokobanSettings, Games<SokobanSettings>) = "sokoban", verified by GAME,
    /// Sudoku on a grid of 4×4.
    Sudoku(SudokuSettings, Games<SudokuSettings>) = "sudoku", verified by GAME,
    /// Tic-tac-toe.
    TicTacToe(TicTacToeSettings, Games<TicTacToeSettings>) = "tic_tac_toe", verified by GAME,
    /// Wordle.
    Wordle(WordleSettings, Games<WordleSettings>) = "wordle", verified by GAME,
    /// Tiny programs with tests.
    Programs(ProgramsSettings, Programs) = "programs", verified by &["code"],
    /// Lists to sort.
    Sorting(SortingSettings, Sorting) = "sorting", verified by &["exact"],
}

/// Verifiers of games: the environment of the same name.
const GAME: &[&str] = &["environment"];

impl Source {
    /// Settings of files; `None` for generators.
    pub fn files(&self) -> Option<&FileSettings> {
        match self {
            Self::Files(files) => Some(files),
            _ => None,
        }
    }

    /// True for games, which the environment of the same name plays.
    pub fn is_game(&self) -> bool {
        self.verifiers() == GAME
    }
}

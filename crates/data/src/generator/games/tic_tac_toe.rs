use rloom_core::{SettingError, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Deal, Dealt, Seat, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Tic-tac-toe: the prompt `X .../.../...:` has the policy's mark and the board. If the opponent moves first, its first
    /// move, which is random, is on the board. Games differ by the moves of the opponent, so all splits have the same boards.
    TicTacToeSettings {
        /// Place of the policy.
        seat: Seat = Seat::First,
        /// Maximum number of random moves of both players with which games begin, from 0 to 8. Their number is uniform among those
        /// after which the policy moves.
        opening: u32 = 0,
        /// How the beginning of a game is written.
        notation: Notation = Notation::Board,
    }
}

/// How the beginning of a game of tic-tac-toe is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notation {
    /// The policy's mark and the board: `O .../.X./...`.
    #[default]
    Board,
    /// The policy's mark and all moves: `X` and `O X5`.
    Moves,
}

const LINES: [[usize; 3]; 8] =
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];

impl TicTacToeSettings {
    /// Number of moves on the board.
    fn moves(&self, draws: &mut RandomDraws) -> usize {
        let least = usize::from(!self.seat.is_first(draws));
        let most = (self.opening as usize).max(least);
        match (most - least) / 2 {
            0 => least,
            rounds => least + 2 * draws.index(rounds + 1),
        }
    }
}

impl Deal for TicTacToeSettings {
    const ALPHABET: &'static str = " ./123456789:OX";

    fn check(&self) -> Result<(), SettingError> {
        ValueRange::between(0.0, 8.0).check("opening", self.opening.into())
    }

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let count = self.moves(draws);
        let mut cells = [b'.'; 9];
        let mut moves = String::new();
        for number in 0..count {
            let empty: Vec<usize> = (0..9).filter(|&cell| cells[cell] == b'.').collect();
            let cell = empty[draws.index(empty.len())];
            cells[cell] = mark(number);
            moves.extend([char::from(mark(number)), char::from(b'1' + cell as u8)]);
        }
        if is_won(cells) {
            return None;
        }
        let rows: Vec<String> =
            cells.chunks(3).map(|row| row.iter().copied().map(char::from).collect()).collect();
        let position = match self.notation {
            Notation::Board => rows.join("/"),
            Notation::Moves => moves,
        };
        let game = format!("{} {position}", char::from(mark(count))).trim_end().to_owned();
        Some(Dealt::new(format!("{game}:"), game))
    }
}

/// The mark of the player that moves after `count` moves.
fn mark(count: usize) -> u8 {
    if count.is_multiple_of(2) { b'X' } else { b'O' }
}

fn is_won(cells: [u8; 9]) -> bool {
    LINES.iter().any(|&[a, b, c]| cells[a] != b'.' && cells[a] == cells[b] && cells[b] == cells[c])
}

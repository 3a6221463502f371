use super::{Deal, Dealt, Seat, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Tic-tac-toe: the prompt `X .../.../...:` has the policy's mark and the board. If the opponent moves first, its first
    /// move, which is random, is on the board. Games differ by the moves of the opponent, so all splits have the same boards.
    TicTacToeSettings {
        /// Place of the policy.
        seat: Seat = Seat::First,
    }
}

impl Deal for TicTacToeSettings {
    const ALPHABET: &'static str = " ./123456789:OX";

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let is_first = self.seat.is_first(draws);
        let mut cells = [b'.'; 9];
        if !is_first {
            cells[draws.index(9)] = b'X';
        }
        let rows: Vec<String> =
            cells.chunks(3).map(|row| row.iter().copied().map(char::from).collect()).collect();
        let game = format!("{} {}", if is_first { 'X' } else { 'O' }, rows.join("/"));
        Some(Dealt::new(format!("{game}:"), game))
    }
}

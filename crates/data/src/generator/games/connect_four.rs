use super::{Deal, Dealt, Seat, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Connect Four: the prompt `X:` has the policy's mark. If the opponent moves first, its first move, which is random, follows:
    /// `O 4:`. Games differ by the moves of the opponent, so all splits have the same beginnings.
    ConnectFourSettings {
        /// Place of the policy.
        seat: Seat = Seat::First,
    }
}

impl Deal for ConnectFourSettings {
    const ALPHABET: &'static str = " 1234567:OX";

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        if self.seat.is_first(draws) {
            return Some(Dealt::new("X:".to_owned(), "-".to_owned()));
        }
        let column = draws.between(1, 7);
        Some(Dealt::new(format!("O {column}:"), column.to_string()))
    }
}

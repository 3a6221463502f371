use super::super::connect_four::{Board, CELLS, position};
use super::super::{Observe, digit};
use super::{Versus, won_by};

/// Connect Four between two players; the first one is X.
#[derive(Debug)]
struct ConnectFour {
    board: Board,
    observe: Observe,
    /// Columns of all moves.
    columns: String,
}

pub(super) fn begin(answer: &str, observe: Observe) -> Option<Box<dyn Versus>> {
    let mut game = ConnectFour { board: Board::default(), observe, columns: String::new() };
    for column in answer.trim().trim_matches('-').chars() {
        if game.scores().is_some() || !game.play(column.encode_utf8(&mut [0; 4])) {
            return None;
        }
    }
    game.scores().is_none().then(|| Box::new(game) as Box<dyn Versus>)
}

impl Versus for ConnectFour {
    fn mover(&self) -> usize {
        self.board.count() % 2
    }

    fn play(&mut self, text: &str) -> bool {
        let column = digit(text).and_then(|column| column.checked_sub(1));
        let Some(column) = column.filter(|column| self.board.moves().contains(column)) else { return false };
        self.board = self.board.with(column);
        self.columns += text;
        true
    }

    fn scores(&self) -> Option<[f64; 2]> {
        if self.board.is_won() {
            return Some(won_by(1 - self.mover(), 1.0));
        }
        (self.board.count() == CELLS).then_some([0.0; 2])
    }

    fn position(&self, player: usize) -> String {
        position(player == 0, &self.columns)
    }

    fn observation(&self, _: usize) -> String {
        match self.observe {
            Observe::Board | Observe::Position => self.board.text("/"),
            Observe::Move => self.columns.chars().next_back().into_iter().collect(),
        }
    }

    fn state(&self, _: usize) -> String {
        self.board.text("/")
    }

    fn moves(&self) -> Vec<String> {
        self.board.moves().into_iter().map(|column| (column + 1).to_string()).collect()
    }
}

use super::super::tic_tac_toe::{Board, End, Mark, Start};
use super::super::{Observe, digit};
use super::{Versus, won_by};

/// Tic-tac-toe between two players; the first one is X.
#[derive(Debug)]
struct TicTacToe {
    board: Board,
    observe: Observe,
    last: Option<usize>,
    /// All moves, if positions are written as moves.
    moves: Option<String>,
}

pub(super) fn begin(answer: &str, observe: Observe) -> Option<Box<dyn Versus>> {
    let Start { board, moves } = Start::read(answer)?;
    Some(Box::new(TicTacToe { board, observe, last: None, moves }))
}

fn player(mark: Mark) -> usize {
    usize::from(mark == Mark::O)
}

impl Versus for TicTacToe {
    fn mover(&self) -> usize {
        player(self.board.mover())
    }

    fn play(&mut self, text: &str) -> bool {
        let cell = digit(text).and_then(|cell| cell.checked_sub(1));
        let Some(cell) = cell.filter(|cell| self.board.empty().contains(cell)) else { return false };
        if let Some(moves) = &mut self.moves {
            *moves += self.board.mover().name();
            *moves += &(cell + 1).to_string();
        }
        self.board = self.board.with(cell);
        self.last = Some(cell);
        true
    }

    fn scores(&self) -> Option<[f64; 2]> {
        Some(match self.board.result()? {
            End::Won(mark) => won_by(player(mark), 1.0),
            End::Draw => [0.0; 2],
        })
    }

    fn position(&self, player: usize) -> String {
        let mark = if player == 0 { Mark::X } else { Mark::O };
        let position = self.moves.clone().unwrap_or_else(|| self.board.text("/"));
        format!("{} {position}", mark.name()).trim_end().to_owned()
    }

    fn observation(&self, _: usize) -> String {
        match (self.observe, self.last) {
            (Observe::Move, Some(cell)) => (cell + 1).to_string(),
            _ => self.board.text("/"),
        }
    }

    fn state(&self, _: usize) -> String {
        self.board.text("/")
    }

    fn moves(&self) -> Vec<String> {
        self.board.empty().into_iter().map(|cell| (cell + 1).to_string()).collect()
    }
}

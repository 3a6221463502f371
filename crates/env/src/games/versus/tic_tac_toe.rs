use super::super::tic_tac_toe::{End, Mark, Position};
use super::super::{Observe, digit};
use super::{Versus, won_by};

/// Tic-tac-toe between two players; the first one is X.
#[derive(Debug)]
struct TicTacToe {
    position: Position,
    observe: Observe,
    last: Option<usize>,
}

pub(super) fn begin(answer: &str, observe: Observe) -> Option<Box<dyn Versus>> {
    Some(Box::new(TicTacToe { position: Position::read(answer)?, observe, last: None }))
}

fn player(mark: Mark) -> usize {
    usize::from(mark == Mark::O)
}

impl Versus for TicTacToe {
    fn mover(&self) -> usize {
        player(self.position.board.mover())
    }

    fn play(&mut self, text: &str) -> bool {
        let cell = digit(text).and_then(|cell| cell.checked_sub(1));
        let Some(cell) = cell.filter(|cell| self.position.board.empty().contains(cell)) else { return false };
        self.position.play(cell);
        self.last = Some(cell);
        true
    }

    fn scores(&self) -> Option<[f64; 2]> {
        Some(match self.position.board.result()? {
            End::Won(mark) => won_by(player(mark), 1.0),
            End::Draw => [0.0; 2],
        })
    }

    fn position(&self, player: usize) -> String {
        self.position.text(if player == 0 { Mark::X } else { Mark::O })
    }

    fn observation(&self, _: usize) -> String {
        match (self.observe, self.last) {
            (Observe::Move, Some(cell)) => (cell + 1).to_string(),
            _ => self.position.board.text("/"),
        }
    }

    fn state(&self, _: usize) -> String {
        self.position.board.text("/")
    }

    fn moves(&self) -> Vec<String> {
        self.position.board.empty().into_iter().map(|cell| (cell + 1).to_string()).collect()
    }
}

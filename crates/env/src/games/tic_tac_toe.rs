//! Tic-tac-toe against a built-in opponent.

use std::collections::HashMap;
use std::sync::LazyLock;

use rloom_core::{SettingError, SettingProblem, ValueRange};

use super::settings::game_settings;
use super::{Draws, Game, Observe, Opponent, Played, Rules, digit};

game_settings! {
    /// Tic-tac-toe against a built-in opponent.
    ///
    /// A move is the number of a cell, from `1` (top left) to `9` (bottom right). The observation is the board after the
    /// opponent's move, `X.O/.../...`, that move alone, or a new prompt. A win earns 1 and a loss −1.
    TicTacToeSettings turns 9 {
        /// The opponent.
        opponent: Opponent = Opponent::Random,
        /// Reward of a draw, from −1 to 1; with 1 a draw counts as success.
        draw_reward: f64 = 0.0,
        /// What the policy sees after a move.
        observation: Observe = Observe::Board,
        /// Play on after each move that the opponent may choose, one after the other: an episode has all games against this opponent
        /// from its beginning, and earns the lowest of their rewards. `max_turns` counts the turns of all of them. Needs
        /// `observation = "position"`.
        every_reply: bool = false,
    }
}

impl Rules for TicTacToeSettings {
    const NAME: &'static str = "tic_tac_toe";
    const ALPHABET: &'static str = "123456789XO./?";
    const START: &'static str =
        "the policy's mark and a board or the moves, such as `X .../.../...` or `O X5`";

    fn check(&self) -> Result<(), SettingError> {
        if self.every_reply && self.observation != Observe::Position {
            let (value, expected) = ("true".to_owned(), "false without `observation = \"position\"`");
            return Err(SettingProblem::Invalid { value, expected }.at("every_reply"));
        }
        ValueRange::between(-1.0, 1.0).check("draw_reward", self.draw_reward)
    }

    fn begin(&self, answer: &str, draws: Draws) -> Option<Box<dyn Game>> {
        let position = Position::read(answer)?;
        let (mark, settings) = (position.board.mover(), self.clone());
        Some(Box::new(Match { settings, mark, position, draws, left: Vec::new(), lowest: None }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    X,
    O,
}

/// The end of a game.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Won(Mark),
    Draw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Board([Option<Mark>; 9]);

const LINES: [[usize; 3]; 8] =
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];

/// A position as prompts and the answers of tasks have it.
#[derive(Debug, Clone)]
pub(super) struct Position {
    pub(super) board: Board,
    /// All moves, if they are written instead of the board.
    moves: Option<String>,
}

impl Position {
    /// Reads the beginning of a game, `X .../.../...`, `X` or `O X5`: the mark of the player that moves next, and the board or
    /// all moves. The game is not over.
    pub(super) fn read(answer: &str) -> Option<Self> {
        let answer = answer.trim();
        let (mark, position) = answer.split_once(' ').unwrap_or((answer, ""));
        let start = if position.contains('/') {
            Self { board: Board::read(position)?, moves: None }
        } else {
            Self { board: Board::after(position)?, moves: Some(position.to_owned()) }
        };
        (start.board.result().is_none() && start.board.mover().name() == mark).then_some(start)
    }

    /// Plays a move of the mark that moves next, on an empty cell.
    pub(super) fn play(&mut self, cell: usize) {
        if let Some(moves) = &mut self.moves {
            *moves += self.board.mover().name();
            *moves += &(cell + 1).to_string();
        }
        self.board = self.board.with(cell);
    }

    /// The position after a move.
    fn after(&self, cell: usize) -> Self {
        let mut next = self.clone();
        next.play(cell);
        next
    }

    /// The position for the player of a mark.
    pub(super) fn text(&self, mark: Mark) -> String {
        let position = self.moves.clone().unwrap_or_else(|| self.board.text("/"));
        format!("{} {position}", mark.name()).trim_end().to_owned()
    }
}

impl Mark {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X => "X",
            Self::O => "O",
        }
    }
}

impl Board {
    /// The board after moves such as `X5O1`.
    fn after(moves: &str) -> Option<Self> {
        let mut board = Self([None; 9]);
        let mut rest = moves;
        while !rest.is_empty() {
            let (cell, after) = rest.strip_prefix(board.mover().name())?.split_at_checked(1)?;
            let cell = digit(cell)?.checked_sub(1).filter(|cell| board.empty().contains(cell))?;
            board = board.with(cell);
            rest = after;
        }
        Some(board)
    }

    fn read(text: &str) -> Option<Self> {
        let mut cells = [None; 9];
        let mut rows = 0;
        for (r, row) in text.split('/').enumerate() {
            if r >= 3 || row.len() != 3 {
                return None;
            }
            for (c, cell) in row.bytes().enumerate() {
                cells[3 * r + c] = match cell {
                    b'X' => Some(Mark::X),
                    b'O' => Some(Mark::O),
                    b'.' => None,
                    _ => return None,
                };
            }
            rows += 1;
        }
        let board = Self(cells);
        let (x, o) = (board.count(Mark::X), board.count(Mark::O));
        (rows == 3 && (x == o || x == o + 1)).then_some(board)
    }

    fn count(&self, mark: Mark) -> usize {
        self.0.iter().filter(|cell| **cell == Some(mark)).count()
    }

    /// The mark that moves next.
    pub(super) fn mover(&self) -> Mark {
        if self.count(Mark::X) == self.count(Mark::O) { Mark::X } else { Mark::O }
    }

    pub(super) fn with(mut self, cell: usize) -> Self {
        self.0[cell] = Some(self.mover());
        self
    }

    pub(super) fn empty(&self) -> Vec<usize> {
        (0..9).filter(|&cell| self.0[cell].is_none()).collect()
    }

    /// The end of the game; `None` while it is open.
    pub(super) fn result(&self) -> Option<End> {
        for line in LINES {
            if let Some(first) = self.0[line[0]]
                && line.iter().all(|&cell| self.0[cell] == Some(first))
            {
                return Some(End::Won(first));
            }
        }
        self.0.iter().all(Option::is_some).then_some(End::Draw)
    }

    /// Value for the mark that moves next, if both play their best: positive for a win, larger for an early one; 0 for a
    /// draw.
    fn value(&self) -> i8 {
        VALUES.get(self).copied().unwrap_or_default()
    }

    /// The best moves of the mark that moves next.
    fn best(&self) -> Vec<usize> {
        let cells = self.empty();
        let best = cells.iter().map(|&cell| -self.with(cell).value()).max();
        cells.into_iter().filter(|&cell| Some(-self.with(cell).value()) == best).collect()
    }

    pub(super) fn text(&self, separator: &str) -> String {
        let cell = |cell: &Option<Mark>| match cell {
            Some(Mark::X) => 'X',
            Some(Mark::O) => 'O',
            None => '.',
        };
        let rows: Vec<String> = self.0.chunks(3).map(|row| row.iter().map(cell).collect()).collect();
        rows.join(separator)
    }
}

/// Values of all boards that can occur.
static VALUES: LazyLock<HashMap<Board, i8>> = LazyLock::new(|| {
    let mut values = HashMap::new();
    evaluate(Board([None; 9]), &mut values);
    values
});

fn evaluate(board: Board, values: &mut HashMap<Board, i8>) -> i8 {
    if let Some(&value) = values.get(&board) {
        return value;
    }
    let value = match board.result() {
        // Only the mark that moved last can have won.
        Some(End::Won(_)) => board.count(Mark::X) as i8 + board.count(Mark::O) as i8 - 10,
        Some(End::Draw) => 0,
        None => board.empty().into_iter().map(|cell| -evaluate(board.with(cell), values)).max().unwrap_or(0),
    };
    values.insert(board, value);
    value
}

#[derive(Debug)]
struct Match {
    settings: TicTacToeSettings,
    mark: Mark,
    position: Position,
    draws: Draws,
    /// Positions of other games that are still to be played on.
    left: Vec<Position>,
    /// The lowest reward of the games that are over, if all are played.
    lowest: Option<f64>,
}

impl Match {
    /// The reward of a game, if it is over.
    fn reward(&self, position: &Position) -> Option<f64> {
        Some(match position.board.result()? {
            End::Won(winner) if winner == self.mark => 1.0,
            End::Won(_) => -1.0,
            End::Draw => self.settings.draw_reward,
        })
    }

    /// The moves among which the opponent chooses.
    fn replies(&self) -> Vec<usize> {
        match self.settings.opponent {
            Opponent::Random => self.position.board.empty(),
            Opponent::Best => self.position.board.best(),
        }
    }

    /// Plays one of the opponent's moves.
    fn reply(&mut self) -> Option<Played> {
        let reply = self.draws.choose(&self.replies())?;
        self.position.play(reply);
        if let Some(reward) = self.reward(&self.position) {
            return Some(Played::over(reward));
        }
        Some(Played::next(match self.settings.observation {
            Observe::Board => self.position.board.text("/"),
            Observe::Move => (reply + 1).to_string(),
            Observe::Position => self.position.text(self.mark),
        }))
    }

    /// Branches after the policy's move into the games of all replies, and continues with one that is not over.
    fn branch(&mut self) -> Played {
        let replies = if self.reward(&self.position).is_some() { Vec::new() } else { self.replies() };
        let mut next: Vec<Position> = replies.into_iter().map(|reply| self.position.after(reply)).collect();
        if next.is_empty() {
            next.push(self.position.clone());
        }
        for position in next {
            match self.reward(&position) {
                Some(reward) => self.lowest = Some(self.lowest.map_or(reward, |lowest| lowest.min(reward))),
                None => self.left.push(position),
            }
        }
        match self.left.pop() {
            Some(position) => {
                self.position = position;
                Played::next(self.position.text(self.mark))
            }
            None => Played::over(self.lowest.unwrap_or(0.0)),
        }
    }
}

impl Game for Match {
    fn play(&mut self, text: &str) -> Option<Played> {
        let cell = digit(text)?.checked_sub(1).filter(|&cell| self.position.board.0[cell].is_none())?;
        self.position.play(cell);
        if self.settings.every_reply {
            return Some(self.branch());
        }
        match self.reward(&self.position) {
            Some(reward) => Some(Played::over(reward)),
            None => self.reply(),
        }
    }

    fn moves(&self) -> Vec<String> {
        self.position.board.empty().into_iter().map(|cell| (cell + 1).to_string()).collect()
    }

    fn position(&self) -> Option<String> {
        (self.settings.observation == Observe::Position).then(|| self.position.text(self.mark))
    }

    fn state(&self) -> String {
        self.position.board.text("/")
    }

    fn board(&self) -> String {
        self.position.board.text("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities that X wins, draws and loses, when X and O choose uniformly among the moves that they are given.
    fn outcomes(board: Board, x: fn(&Board) -> Vec<usize>, o: fn(&Board) -> Vec<usize>) -> [f64; 3] {
        match board.result() {
            Some(End::Won(Mark::X)) => return [1.0, 0.0, 0.0],
            Some(End::Won(Mark::O)) => return [0.0, 0.0, 1.0],
            Some(End::Draw) => return [0.0, 1.0, 0.0],
            None => {}
        }
        let moves = if board.mover() == Mark::X { x(&board) } else { o(&board) };
        let mut sum = [0.0; 3];
        for &cell in &moves {
            for (total, p) in sum.iter_mut().zip(outcomes(board.with(cell), x, o)) {
                *total += p / moves.len() as f64;
            }
        }
        sum
    }

    /// The move of the mark that moves next with the most wins less losses, if the other mark moves at random.
    fn best_against_random(board: &Board) -> Vec<usize> {
        let value = |cell: usize| {
            let next = board.with(cell);
            let ([won, _, lost], sign) = match board.mover() {
                Mark::X => (outcomes(next, best_against_random, Board::empty), 1.0),
                Mark::O => (outcomes(next, Board::empty, best_against_random), -1.0),
            };
            sign * (won - lost)
        };
        let values: Vec<(usize, f64)> = board.empty().into_iter().map(|cell| (cell, value(cell))).collect();
        let most = values.iter().map(|(_, value)| *value).fold(-1.0, f64::max);
        values.into_iter().find(|(_, value)| *value == most).map(|(cell, _)| cell).into_iter().collect()
    }

    fn assert_near(found: [f64; 3], expected: [f64; 3]) {
        let is_near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.0006);
        assert!(is_near, "{found:?}, expected {expected:?}");
    }

    #[test]
    fn random_and_best_players_have_their_known_figures() {
        let empty = Board([None; 9]);
        let (random, best) = (Board::empty, Board::best);
        assert_near(outcomes(empty, random, random), [0.585, 0.127, 0.288]);
        assert_near(outcomes(empty, best_against_random, random), [0.995, 0.005, 0.0]);
        assert_near(outcomes(empty, random, best_against_random), [0.007, 0.060, 0.932]);
        // The built-in opponent never loses, but expects the best moves, so it wins less against random ones.
        assert_near(outcomes(empty, best, random), [0.968, 0.032, 0.0]);
        assert_near(outcomes(empty, random, best), [0.0, 0.2225, 0.7775]);
        assert_near(outcomes(empty, best, best), [0.0, 1.0, 0.0]);
    }

    #[test]
    fn boards_that_cannot_occur_are_refused() {
        for wrong in ["", ".../...", ".../.../.../...", "OO./.../...", "XXX/.../...", "x../.../...", "X..."] {
            let board = Board::read(wrong);
            assert_eq!(board, None, "{wrong:?}");
        }
        let settings = TicTacToeSettings::default();
        let draws = || Draws::chance(rloom_core::RandomKey::new(1, 0, rloom_core::Purpose::Rollout, 1));
        for wrong in [
            "O .../.../...",
            "X X../.../...",
            "X XXX/OO./...",
            ".../.../...",
            "Y .../.../...",
            "",
            "O",
            "X X1",
            "X X1X2",
            "X X1O",
            "X X1O0",
            "X X1O1",
            "O X1O4X2O5X3",
        ] {
            assert!(settings.begin(wrong, draws()).is_none(), "{wrong:?}");
        }
        for start in ["O X../.../...", "X", "O X9", "X X5O1"] {
            assert!(settings.begin(start, draws()).is_some(), "{start:?}");
        }
        assert_eq!(Board::after("X5O1"), Board::read("O../.X./..."));
    }
}

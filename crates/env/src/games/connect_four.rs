//! Connect Four against a built-in opponent.

use rloom_core::{SettingError, SettingProblem, ValueRange};

use super::settings::game_settings;
use super::{Draws, Game, Observe, Opponent, Played, Rules, digit};

game_settings! {
    /// Connect Four on seven columns and six rows against a built-in opponent.
    ///
    /// A move is the number of a column, from `1` to `7`. The observation is the opponent's move, the board, six rows of `X`,
    /// `O` and `.` from the top, or a new prompt with the columns of all moves. A win earns 1 and a loss −1.
    ConnectFourSettings turns 21 {
        /// The opponent; `best` looks `depth` moves ahead.
        opponent: Opponent = Opponent::Random,
        /// Moves that the opponent `best` looks ahead, from 1 to 6. Default: 2.
        depth: Option<u32> = None,
        /// Reward of a draw, from −1 to 1; with 1 a draw counts as success.
        draw_reward: f64 = 0.0,
        /// What the policy sees after a move.
        observation: Observe = Observe::Move,
    }
}

impl Rules for ConnectFourSettings {
    const NAME: &'static str = "connect_four";
    const ALPHABET: &'static str = "1234567XO./?";
    const START: &'static str = "the columns played so far, such as `44`, or `-` for none";

    fn check(&self) -> Result<(), SettingError> {
        if let Some(depth) = self.depth {
            if self.opponent != Opponent::Best {
                return Err(SettingProblem::Unused { other: "opponent", value: "\"best\"" }.at("depth"));
            }
            ValueRange::between(1.0, 6.0).check("depth", depth.into())?;
        }
        ValueRange::between(-1.0, 1.0).check("draw_reward", self.draw_reward)
    }

    fn begin(&self, answer: &str, draws: Draws) -> Option<Box<dyn Game>> {
        let mut board = Board::default();
        let played = answer.trim().trim_matches('-');
        for column in played.chars() {
            let column = digit(column.encode_utf8(&mut [0; 4]))?.checked_sub(1)?;
            if board.is_won() || !board.moves().contains(&column) {
                return None;
            }
            board = board.with(column);
        }
        let is_open = !board.is_won() && board.count < CELLS;
        is_open.then(|| {
            let (has_x, columns) = (board.count.is_multiple_of(2), played.to_owned());
            Box::new(Match { settings: self.clone(), has_x, board, columns, draws }) as Box<dyn Game>
        })
    }
}

const COLUMNS: usize = 7;
const ROWS: usize = 6;
pub(super) const CELLS: usize = COLUMNS * ROWS;
/// Bits of a column: its rows and an empty one above, so that lines do not continue in the next column.
const STRIDE: usize = ROWS + 1;
/// Default of `depth`.
const DEPTH: u32 = 2;

/// Discs as bits, from the bottom of the first column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Board {
    /// Discs of the player that moves next.
    mover: u64,
    /// Discs of the player that moved last.
    other: u64,
    /// Number of discs.
    count: usize,
}

impl Board {
    fn height(&self, column: usize) -> usize {
        let bits = (self.mover | self.other) >> (column * STRIDE) & ((1 << ROWS) - 1);
        bits.count_ones() as usize
    }

    /// Number of discs.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn moves(&self) -> Vec<usize> {
        (0..COLUMNS).filter(|&column| self.height(column) < ROWS).collect()
    }

    pub(super) fn with(&self, column: usize) -> Self {
        let disc = 1 << (column * STRIDE + self.height(column));
        Self { mover: self.other, other: self.mover | disc, count: self.count + 1 }
    }

    /// The player that moved last has four in a line.
    pub(super) fn is_won(&self) -> bool {
        [1, STRIDE - 1, STRIDE, STRIDE + 1].iter().any(|step| {
            let pairs = self.other & (self.other >> step);
            pairs & (pairs >> (2 * step)) != 0
        })
    }

    /// Value for the player that moves next, looking `depth` moves ahead: positive for a win, larger for an early one.
    fn value(&self, depth: u32, mut low: i32, high: i32) -> i32 {
        if self.is_won() {
            return -(CELLS as i32 + 1 - self.count as i32);
        }
        if depth == 0 || self.count == CELLS {
            return 0;
        }
        let mut best = i32::MIN + 1;
        for column in self.moves() {
            best = best.max(-self.with(column).value(depth - 1, -high, -low));
            low = low.max(best);
            if low >= high {
                break;
            }
        }
        best
    }

    /// The best moves, looking `depth` moves ahead.
    fn best(&self, depth: u32) -> Vec<usize> {
        let value = |column: &usize| -self.with(*column).value(depth - 1, -1000, 1000);
        let values: Vec<(usize, i32)> =
            self.moves().into_iter().map(|column| (column, value(&column))).collect();
        let best = values.iter().map(|(_, value)| *value).max();
        values.into_iter().filter(|(_, value)| Some(*value) == best).map(|(column, _)| column).collect()
    }

    pub(super) fn text(&self, separator: &str) -> String {
        let (x, o) =
            if self.count.is_multiple_of(2) { (self.mover, self.other) } else { (self.other, self.mover) };
        let cell = |row: usize, column: usize| match 1u64 << (column * STRIDE + row) {
            bit if x & bit != 0 => 'X',
            bit if o & bit != 0 => 'O',
            _ => '.',
        };
        let rows =
            (0..ROWS).rev().map(|row| (0..COLUMNS).map(|column| cell(row, column)).collect::<String>());
        rows.collect::<Vec<_>>().join(separator)
    }
}

/// The position as prompts have it: the player's mark and the columns of all moves.
pub(super) fn position(has_x: bool, columns: &str) -> String {
    let mark = if has_x { "X" } else { "O" };
    format!("{mark} {columns}").trim_end().to_owned()
}

#[derive(Debug)]
struct Match {
    settings: ConnectFourSettings,
    /// The policy plays X.
    has_x: bool,
    board: Board,
    /// Columns of all moves.
    columns: String,
    draws: Draws,
}

impl Match {
    fn play_in(&mut self, column: usize) {
        self.board = self.board.with(column);
        self.columns += &(column + 1).to_string();
    }

    /// The end of the game after a move of the policy or of the opponent.
    fn end(&self, won: f64) -> Option<Played> {
        if self.board.is_won() {
            return Some(Played::over(won));
        }
        (self.board.count == CELLS).then(|| Played::over(self.settings.draw_reward))
    }
}

impl Game for Match {
    fn play(&mut self, text: &str) -> Option<Played> {
        let column = digit(text)?.checked_sub(1).filter(|column| self.board.moves().contains(column))?;
        self.play_in(column);
        if let Some(end) = self.end(1.0) {
            return Some(end);
        }
        let columns = match self.settings.opponent {
            Opponent::Random => self.board.moves(),
            Opponent::Best => self.board.best(self.settings.depth.unwrap_or(DEPTH)),
        };
        let reply = self.draws.choose(&columns)?;
        self.play_in(reply);
        Some(self.end(-1.0).unwrap_or_else(|| {
            Played::next(match self.settings.observation {
                Observe::Board => self.board.text("/"),
                Observe::Move => (reply + 1).to_string(),
                Observe::Position => position(self.has_x, &self.columns),
            })
        }))
    }

    fn moves(&self) -> Vec<String> {
        self.board.moves().into_iter().map(|column| (column + 1).to_string()).collect()
    }

    fn position(&self) -> Option<String> {
        (self.settings.observation == Observe::Position).then(|| position(self.has_x, &self.columns))
    }

    fn state(&self) -> String {
        self.board.text("/")
    }

    fn board(&self) -> String {
        let mark = if self.has_x { 'X' } else { 'O' };
        format!("1234567\n{}\nyou play {mark}", self.board.text("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(columns: &str) -> Board {
        columns.bytes().fold(Board::default(), |board, column| board.with(usize::from(column - b'1')))
    }

    #[test]
    fn four_in_any_line_win() {
        for (columns, is_won) in [
            ("1213141", true),     // a column
            ("1122334", true),     // a row
            ("12233434454", true), // rising
            ("43322121161", true), // falling
            ("121314", false),
            ("112233", false),
        ] {
            assert_eq!(board(columns).is_won(), is_won, "{columns}\n{}", board(columns).text("\n"));
        }
        // The top of a column and the bottom of the next are no line.
        let board = Board { other: 0b111 << 3 | 1 << STRIDE, ..Board::default() };
        assert!(!board.is_won());
    }

    #[test]
    fn looking_ahead_wins_and_blocks() {
        assert_eq!(board("112233").best(1), [3], "wins");
        assert_eq!(board("11223").best(2), [3], "blocks");
        assert_eq!(board("").best(1).len(), 7);
        // Two open ends cannot both be blocked: three moves ahead, the middle wins.
        assert_eq!(board("3747").best(3), [1, 4]);
    }

    /// Share of games that X wins, looking `x` moves ahead against `o`; 0 is random.
    fn wins(x: u32, o: u32) -> f64 {
        let games = 200;
        let won = (0..games).filter(|&ticket| {
            let key = rloom_core::RandomKey::new(1, 0, rloom_core::Purpose::Rollout, ticket);
            let (mut draws, mut board) = (Draws::chance(key), Board::default());
            while board.count < CELLS && !board.is_won() {
                let depth = if board.count.is_multiple_of(2) { x } else { o };
                let moves = if depth == 0 { board.moves() } else { board.best(depth) };
                board = board.with(draws.choose(&moves).unwrap());
            }
            board.is_won() && board.count % 2 == 1
        });
        won.count() as f64 / games as f64
    }

    #[test]
    fn looking_further_wins_more() {
        let [equal, shallow, deep, weak] = [wins(0, 0), wins(2, 0), wins(4, 2), wins(0, 2)];
        assert!((0.45..0.65).contains(&equal), "{equal}");
        assert!(shallow > 0.93 && deep > 0.7 && weak < 0.1, "{shallow} {deep} {weak}");
    }
}

//! Sudoku on a grid of 4×4.

use super::settings::game_settings;
use super::{Draws, Game, Played, Rules};

game_settings! {
    /// Sudoku on a grid of 4×4: every row, column and quarter has the digits 1 to 4.
    ///
    /// A move is row, column and digit, such as `132`. The observation is the grid, `1.34/3412/...`. A digit that its row, column or
    /// quarter has is not a legal move. The full grid earns 1; a grid with a cell that no digit fits ends the game with 0.
    SudokuSettings turns 16 {}
}

impl Rules for SudokuSettings {
    const NAME: &'static str = "sudoku";
    const ALPHABET: &'static str = "1234./?";
    const START: &'static str = "a grid such as `1.34/3412/21.3/.321`";

    fn begin(&self, answer: &str, _: Draws) -> Option<Box<dyn Game>> {
        let grid = Grid::read(answer.trim())?;
        (!grid.is_full() && !grid.is_stuck()).then(|| Box::new(grid) as Box<dyn Game>)
    }
}

const SIZE: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Grid([[u8; SIZE]; SIZE]);

impl Grid {
    fn read(text: &str) -> Option<Self> {
        let mut grid = Self([[0; SIZE]; SIZE]);
        let rows: Vec<&str> = text.split('/').collect();
        if rows.len() != SIZE || rows.iter().any(|row| row.len() != SIZE) {
            return None;
        }
        for (r, row) in rows.iter().enumerate() {
            for (c, cell) in row.bytes().enumerate() {
                match cell {
                    b'.' => {}
                    b'1'..=b'4' if grid.fits(r, c, cell - b'0') => grid.0[r][c] = cell - b'0',
                    _ => return None,
                }
            }
        }
        Some(grid)
    }

    /// True if the digit is not in the row, the column or the quarter of the cell.
    fn fits(&self, r: usize, c: usize, digit: u8) -> bool {
        let (top, left) = (r / 2 * 2, c / 2 * 2);
        (0..SIZE).all(|i| {
            self.0[r][i] != digit && self.0[i][c] != digit && self.0[top + i / 2][left + i % 2] != digit
        })
    }

    fn empty(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..SIZE * SIZE).map(|i| (i / SIZE, i % SIZE)).filter(|&(r, c)| self.0[r][c] == 0)
    }

    fn is_full(&self) -> bool {
        self.empty().next().is_none()
    }

    /// True if no digit fits one of the cells.
    fn is_stuck(&self) -> bool {
        self.empty().any(|(r, c)| (1..=4).all(|digit| !self.fits(r, c, digit)))
    }

    fn text(&self, separator: &str) -> String {
        let cell = |digit: &u8| if *digit == 0 { '.' } else { char::from(b'0' + digit) };
        let rows: Vec<String> = self.0.iter().map(|row| row.iter().map(cell).collect()).collect();
        rows.join(separator)
    }
}

impl Game for Grid {
    fn play(&mut self, text: &str) -> Option<Played> {
        let &[r @ b'1'..=b'4', c @ b'1'..=b'4', digit @ b'1'..=b'4'] = text.as_bytes() else { return None };
        let (r, c, digit) = (usize::from(r - b'1'), usize::from(c - b'1'), digit - b'0');
        if self.0[r][c] != 0 || !self.fits(r, c, digit) {
            return None;
        }
        self.0[r][c] = digit;
        Some(if self.is_full() {
            Played::over(1.0)
        } else if self.is_stuck() {
            Played::over(0.0)
        } else {
            Played::next(self.text("/"))
        })
    }

    fn moves(&self) -> Vec<String> {
        let digits = |(r, c): (usize, usize)| {
            (1..=4)
                .filter(move |&digit| self.fits(r, c, digit))
                .map(move |digit| format!("{}{}{digit}", r + 1, c + 1))
        };
        self.empty().flat_map(digits).collect()
    }

    fn state(&self) -> String {
        self.text("/")
    }

    fn board(&self) -> String {
        self.text("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_read_played_and_ended() {
        for wrong in
            ["", "1.../..../....", "11../..../..../....", "5.../..../..../....", "1.../.1../..../...."]
        {
            assert_eq!(Grid::read(wrong), None, "{wrong}");
        }
        let draws = || Draws::chance(rloom_core::RandomKey::new(1, 0, rloom_core::Purpose::Rollout, 1));
        let settings = SudokuSettings::default();
        assert!(settings.begin("1234/3412/2143/4321", draws()).is_none(), "nothing is left to do");
        let mut game = settings.begin("1234/3412/2143/43..", draws()).unwrap();
        assert_eq!(game.moves(), ["432", "441"]);
        for illegal in ["431", "112", "43", "4321", "053", ""] {
            assert_eq!(game.play(illegal), None, "{illegal}");
        }
        assert_eq!(game.play("432"), Some(Played::next("1234/3412/2143/432.".to_owned())));
        assert_eq!(game.play("441"), Some(Played::over(1.0)));
        let mut game = settings.begin("12../..../..../..3.", draws()).unwrap();
        assert_eq!(game.play("144"), Some(Played::over(0.0)), "neither 3 nor 4 fits the third cell");
    }
}

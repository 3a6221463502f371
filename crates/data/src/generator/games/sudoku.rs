use rloom_core::{SettingError, ValueRange};

use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Sudoku on a grid of 4×4: the prompt `1.34/3412/21.3/.321:` is a grid with one solution. A fixed hash of the grid assigns it to a
    /// split.
    SudokuSettings divided {
        /// Minimum number of empty cells, at least 1.
        min_blanks: u32 = 3,
        /// Maximum number of empty cells, at most 10.
        max_blanks: u32 = 6,
    }
}

impl Deal for SudokuSettings {
    const ALPHABET: &'static str = "./1234:";

    fn check(&self) -> Result<(), SettingError> {
        ValueRange::between(1.0, self.max_blanks.into())
            .max_from("max_blanks")
            .check("min_blanks", self.min_blanks.into())?;
        ValueRange::between(1.0, 10.0).check("max_blanks", self.max_blanks.into())
    }

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let mut grid = Grid::default();
        grid.fill(draws);
        let blanks = draws.between(self.min_blanks.into(), self.max_blanks.into()) as usize;
        let mut cells: Vec<usize> = (0..CELLS).collect();
        let mut removed = 0;
        while removed < blanks && !cells.is_empty() {
            let cell = cells.swap_remove(draws.index(cells.len()));
            let digit = std::mem::take(&mut grid.0[cell]);
            if grid.solutions(2) == 1 {
                removed += 1;
            } else {
                grid.0[cell] = digit;
            }
        }
        (removed == blanks).then(|| Dealt::new(format!("{}:", grid.text()), grid.text()))
    }
}

const SIZE: usize = 4;
const CELLS: usize = SIZE * SIZE;

/// Digits of the cells; 0 for an empty one.
#[derive(Debug, Clone, Default)]
struct Grid([u8; CELLS]);

impl Grid {
    fn fits(&self, cell: usize, digit: u8) -> bool {
        let (r, c) = (cell / SIZE, cell % SIZE);
        (0..CELLS).filter(|&other| self.0[other] == digit).all(|other| {
            let (row, column) = (other / SIZE, other % SIZE);
            row != r && column != c && (row / 2, column / 2) != (r / 2, c / 2)
        })
    }

    /// Fills the empty cells with digits in random order; false if that is impossible.
    fn fill(&mut self, draws: &mut RandomDraws) -> bool {
        let Some(cell) = self.0.iter().position(|digit| *digit == 0) else { return true };
        let mut digits = vec![1, 2, 3, 4];
        while !digits.is_empty() {
            let digit = digits.swap_remove(draws.index(digits.len()));
            if self.fits(cell, digit) {
                self.0[cell] = digit;
                if self.fill(draws) {
                    return true;
                }
                self.0[cell] = 0;
            }
        }
        false
    }

    /// Number of solutions, up to `limit`.
    fn solutions(&self, limit: usize) -> usize {
        let Some(cell) = self.0.iter().position(|digit| *digit == 0) else { return 1 };
        let mut found = 0;
        for digit in (1..=4).filter(|&digit| self.fits(cell, digit)) {
            let mut next = self.clone();
            next.0[cell] = digit;
            found += next.solutions(limit - found);
            if found >= limit {
                break;
            }
        }
        found
    }

    fn text(&self) -> String {
        let cell = |digit: &u8| if *digit == 0 { '.' } else { char::from(b'0' + digit) };
        let rows: Vec<String> = self.0.chunks(SIZE).map(|row| row.iter().map(cell).collect()).collect();
        rows.join("/")
    }
}

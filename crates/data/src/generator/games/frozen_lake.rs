use rloom_core::{SettingError, ValueRange};

use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Maps of frozen lake: the prompt `SFFF/FHFH/FFFH/HFFG:` is a map whose goal can be reached.
    ///
    /// The start is at the top left and the goal at the bottom right; other tiles are ice or holes. A fixed hash of the map
    /// assigns it to a split.
    FrozenLakeSettings divided {
        /// Rows and columns of a map, from 2 to 10.
        map_size: u32 = 4,
        /// Probability that a tile is ice, between 0.5 and 1.
        ice_share: f64 = 0.8,
    }
}

impl Deal for FrozenLakeSettings {
    const ALPHABET: &'static str = "/:DFGHLRSU";

    fn check(&self) -> Result<(), SettingError> {
        ValueRange::between(2.0, 10.0).check("map_size", self.map_size.into())?;
        ValueRange::between(0.5, 1.0).check("ice_share", self.ice_share)
    }

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let size = self.map_size as usize;
        let last = size * size - 1;
        let tiles: Vec<u8> = (0..=last)
            .map(|i| match i {
                0 => b'S',
                _ if i == last => b'G',
                _ if draws.uniform() < self.ice_share => b'F',
                _ => b'H',
            })
            .collect();
        let rows: Vec<String> =
            tiles.chunks(size).map(|row| row.iter().copied().map(char::from).collect()).collect();
        let map = rows.join("/");
        is_possible(&tiles, size).then(|| Dealt::new(format!("{map}:"), map))
    }
}

/// True if the last tile can be reached from the first.
fn is_possible(tiles: &[u8], size: usize) -> bool {
    let mut reached = vec![false; tiles.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if tiles[at] == b'H' || std::mem::replace(&mut reached[at], true) {
            continue;
        }
        let (row, column) = (at / size, at % size);
        open.extend((column > 0).then(|| at - 1));
        open.extend((column + 1 < size).then(|| at + 1));
        open.extend((row > 0).then(|| at - size));
        open.extend((row + 1 < size).then(|| at + size));
    }
    reached.last().copied().unwrap_or(false)
}

use std::collections::{HashSet, VecDeque};

use rloom_core::{SettingError, ValueRange};

use super::{Deal, Dealt, game_tasks};
use crate::generator::RandomDraws;

game_tasks! {
    /// Levels of Sokoban: the prompt `@--/-$-/--.:` is a map that can be solved. Beyond its edge are walls. A fixed hash of the map
    /// assigns it to a split.
    SokobanSettings divided {
        /// Rows and columns of a map, from 3 to 8.
        map_size: u32 = 4,
        /// Number of boxes, from 1 to 3.
        boxes: u32 = 1,
        /// Probability that a tile is a wall, from 0 to 0.5.
        wall_share: f64 = 0.1,
    }
}

/// Most positions that are examined for a solution; a map that has more is drawn again.
const MAX_POSITIONS: usize = 50_000;

impl Deal for SokobanSettings {
    const ALPHABET: &'static str = "#$-./:@DLRU";

    fn check(&self) -> Result<(), SettingError> {
        ValueRange::between(3.0, 8.0).check("map_size", self.map_size.into())?;
        ValueRange::between(1.0, 3.0).check("boxes", self.boxes.into())?;
        ValueRange::between(0.0, 0.5).check("wall_share", self.wall_share)
    }

    fn deal(&self, draws: &mut RandomDraws) -> Option<Dealt> {
        let size = self.map_size as usize;
        let walls: Vec<bool> = (0..size * size).map(|_| draws.uniform() < self.wall_share).collect();
        let mut floor: Vec<usize> = (0..walls.len()).filter(|&tile| !walls[tile]).collect();
        let mut place = || (!floor.is_empty()).then(|| floor.swap_remove(draws.index(floor.len())));
        let player = place()?;
        let mut boxes: Vec<usize> = (0..self.boxes).map(|_| place()).collect::<Option<_>>()?;
        let goals: Vec<usize> = (0..self.boxes).map(|_| place()).collect::<Option<_>>()?;
        boxes.sort_unstable();
        let tile = |tile: usize| match tile {
            _ if walls[tile] => '#',
            _ if tile == player => '@',
            _ if boxes.contains(&tile) => '$',
            _ if goals.contains(&tile) => '.',
            _ => '-',
        };
        let tiles: Vec<char> = (0..walls.len()).map(tile).collect();
        let rows: Vec<String> = tiles.chunks(size).map(String::from_iter).collect();
        let map = rows.join("/");
        let level = Level { size, walls, goals };
        level.can_be_solved(player, boxes).then(|| Dealt::new(format!("{map}:"), map))
    }
}

struct Level {
    size: usize,
    walls: Vec<bool>,
    goals: Vec<usize>,
}

impl Level {
    fn neighbour(&self, at: usize, direction: usize) -> Option<usize> {
        let next = match direction {
            0 => (!at.is_multiple_of(self.size)).then(|| at - 1),
            1 => Some(at + self.size),
            2 => (!(at + 1).is_multiple_of(self.size)).then(|| at + 1),
            _ => at.checked_sub(self.size),
        };
        next.filter(|&next| next < self.walls.len() && !self.walls[next])
    }

    /// Searches all positions in the order of their number of moves.
    fn can_be_solved(&self, player: usize, boxes: Vec<usize>) -> bool {
        let mut seen = HashSet::from([(player, boxes.clone())]);
        let mut open = VecDeque::from([(player, boxes)]);
        while let Some((player, boxes)) = open.pop_front() {
            if boxes.iter().all(|place| self.goals.contains(place)) {
                return true;
            }
            if seen.len() > MAX_POSITIONS {
                return false;
            }
            for direction in 0..4 {
                let Some(to) = self.neighbour(player, direction) else { continue };
                let mut next = boxes.clone();
                if let Some(pushed) = next.iter().position(|place| *place == to) {
                    let beyond = self.neighbour(to, direction).filter(|beyond| !boxes.contains(beyond));
                    let Some(beyond) = beyond else { continue };
                    next[pushed] = beyond;
                    next.sort_unstable();
                }
                if seen.insert((to, next.clone())) {
                    open.push_back((to, next));
                }
            }
        }
        false
    }
}

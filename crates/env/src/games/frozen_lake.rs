//! Frozen lake: walk over the ice to the goal without falling into a hole.

use super::settings::game_settings;
use super::{Draws, Game, Played, Rules};

game_settings! {
    /// Frozen lake: walk from the start to the goal without falling into a hole.
    ///
    /// A move is `L`, `D`, `R` or `U`. The observation is the position and its neighbours in that order: `01SHF#` is row 0,
    /// column 1, with the start to the left, a hole below, ice to the right and the edge above. The goal earns 1 and ends
    /// the game; a hole ends it with 0. A move against the edge changes nothing.
    FrozenLakeSettings turns 20 {
        /// The ice is slippery: a move goes in its own direction or to either side of it, with probability 1/3 each.
        slippery: bool = false,
    }
}

impl Rules for FrozenLakeSettings {
    const NAME: &'static str = "frozen_lake";
    const ALPHABET: &'static str = "0123456789SFHG#?";
    const START: &'static str = "a map such as `SFFF/FHFH/FFFH/HFFG`";

    fn begin(&self, answer: &str, draws: Draws) -> Option<Box<dyn Game>> {
        let (map, at) = Map::read(answer)?;
        Some(Box::new(Lake { map, at, slippery: self.slippery, draws }))
    }
}

/// Row and column.
type Place = (usize, usize);

/// Directions in the order of their names.
const MOVES: [&str; 4] = ["L", "D", "R", "U"];
/// Largest number of rows and columns: a coordinate is one digit.
const MAX_SIZE: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Map {
    rows: Vec<Vec<u8>>,
}

impl Map {
    /// Reads a map and its start.
    fn read(text: &str) -> Option<(Self, Place)> {
        let rows: Vec<Vec<u8>> = text.trim().split('/').map(|row| row.as_bytes().to_vec()).collect();
        let width = rows.first()?.len();
        let is_valid = (1..=MAX_SIZE).contains(&width)
            && rows.len() <= MAX_SIZE
            && rows.iter().all(|row| row.len() == width && row.iter().all(|tile| b"SFHG".contains(tile)));
        let map = Self { rows };
        let mut starts = map.places(b'S');
        let start = starts.next()?;
        let is_one = starts.next().is_none();
        drop(starts);
        (is_valid && is_one && map.places(b'G').next().is_some()).then_some((map, start))
    }

    fn places(&self, tile: u8) -> impl Iterator<Item = Place> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(r, row)| row.iter().enumerate().map(move |(c, &found)| (r, c, found)))
            .filter_map(move |(r, c, found)| (found == tile).then_some((r, c)))
    }

    /// The neighbour of a place; `None` beyond the edge.
    fn neighbour(&self, (r, c): Place, direction: usize) -> Option<Place> {
        let (r, c) = match direction {
            0 => (r, c.checked_sub(1)?),
            1 => (r + 1, c),
            2 => (r, c + 1),
            _ => (r.checked_sub(1)?, c),
        };
        (r < self.rows.len() && c < self.rows[0].len()).then_some((r, c))
    }

    fn tile(&self, (r, c): Place) -> u8 {
        self.rows[r][c]
    }

    /// Where a move leads.
    fn step(&self, at: Place, direction: usize) -> Place {
        self.neighbour(at, direction).unwrap_or(at)
    }
}

#[derive(Debug)]
struct Lake {
    map: Map,
    at: Place,
    slippery: bool,
    draws: Draws,
}

impl Lake {
    fn observation(&self) -> String {
        let tiles = (0..MOVES.len()).map(|direction| match self.map.neighbour(self.at, direction) {
            Some(place) => char::from(self.map.tile(place)),
            None => '#',
        });
        format!("{}{}{}", self.at.0, self.at.1, tiles.collect::<String>())
    }
}

impl Game for Lake {
    fn play(&mut self, text: &str) -> Option<Played> {
        let meant = MOVES.iter().position(|name| *name == text)?;
        // To either side of the direction, or straight on.
        let slip = if self.slippery { self.draws.index(3) } else { 1 };
        self.at = self.map.step(self.at, (meant + slip + 3) % 4);
        Some(match self.map.tile(self.at) {
            b'G' => Played::over(1.0),
            b'H' => Played::over(0.0),
            _ => Played::next(self.observation()),
        })
    }

    fn moves(&self) -> Vec<String> {
        MOVES.map(str::to_owned).to_vec()
    }

    /// Moves that do not lead into a hole.
    fn suggestions(&self) -> Vec<String> {
        let is_hole = |direction| self.map.tile(self.map.step(self.at, direction)) == b'H';
        let safe = (0..MOVES.len()).filter(|&direction| !is_hole(direction));
        safe.map(|direction| MOVES[direction].to_owned()).collect()
    }

    fn state(&self) -> String {
        format!("{}{}", self.at.0, self.at.1)
    }

    fn board(&self) -> String {
        let rows = self.map.rows.iter().enumerate().map(|(r, row)| {
            let tiles = row.iter().enumerate();
            tiles.map(|(c, &tile)| if (r, c) == self.at { '@' } else { char::from(tile) }).collect::<String>()
        });
        rows.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probability of reaching the goal within `turns` moves of a policy that gives each direction's probability.
    fn chance(map: &Map, turns: usize, at: Place, policy: [f64; 4]) -> f64 {
        let mut here = vec![vec![0.0; map.rows[0].len()]; map.rows.len()];
        here[at.0][at.1] = 1.0;
        let mut won = 0.0;
        for _ in 0..turns {
            let mut next = vec![vec![0.0; map.rows[0].len()]; map.rows.len()];
            for (r, row) in here.iter().enumerate() {
                for (c, &p) in row.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                    for (direction, share) in policy.iter().enumerate() {
                        let (to, chance) = (map.step((r, c), direction), p * share);
                        match map.tile(to) {
                            b'G' => won += chance,
                            b'H' => {}
                            _ => next[to.0][to.1] += chance,
                        }
                    }
                }
            }
            here = next;
        }
        won
    }

    /// Moves of the shortest path; `None` without one.
    fn shortest(map: &Map, start: Place) -> Option<usize> {
        let mut seen = vec![start];
        let mut at = 0;
        let mut moves = vec![0];
        while at < seen.len() {
            if map.tile(seen[at]) == b'G' {
                return Some(moves[at]);
            }
            for direction in 0..4 {
                let to = map.step(seen[at], direction);
                if map.tile(to) != b'H' && !seen.contains(&to) {
                    seen.push(to);
                    moves.push(moves[at] + 1);
                }
            }
            at += 1;
        }
        None
    }

    #[test]
    fn random_walks_and_shortest_paths_have_their_known_figures() {
        // All maps of 4×4 whose tiles are ice with probability 0.8, given that the goal can be reached.
        let (mut possible, mut random, mut random_of_ten, mut length) = (0.0, 0.0, 0.0, 0.0);
        for holes in 0..1u32 << 14 {
            let tile = |i: usize| match i {
                0 => 'S',
                15 => 'G',
                _ if holes >> (i - 1) & 1 == 1 => 'H',
                _ => 'F',
            };
            let rows: Vec<String> = (0..4).map(|r| (0..4).map(|c| tile(4 * r + c)).collect()).collect();
            let (map, start) = Map::read(&rows.join("/")).unwrap();
            let Some(moves) = shortest(&map, start) else { continue };
            let p = 0.2f64.powi(holes.count_ones() as i32) * 0.8f64.powi(14 - holes.count_ones() as i32);
            possible += p;
            length += p * moves as f64;
            random += p * chance(&map, 20, start, [0.25; 4]);
            random_of_ten += p * chance(&map, 10, start, [0.25; 4]);
        }
        assert!((random / possible - 0.0547).abs() < 0.0001, "{}", random / possible);
        assert!((random_of_ten / possible - 0.0154).abs() < 0.0001, "{}", random_of_ten / possible);
        assert!((length / possible - 6.0).abs() < 0.01, "{}", length / possible);
    }

    #[test]
    fn maps_have_one_start_and_a_goal() {
        for wrong in ["", "FFG", "SSG", "SFF", "SFG/FF", "SFX/FFG", "SFFFFFFFFFG", "S/G/é"] {
            assert_eq!(Map::read(wrong), None, "{wrong:?}");
        }
        assert_eq!(Map::read("FFG/SHH\n").unwrap().1, (1, 0));
    }

    #[test]
    fn slips_go_to_both_sides_and_never_back() {
        let settings = FrozenLakeSettings { slippery: true, ..Default::default() };
        let mut ends = [0; 4];
        for ticket in 0..3000 {
            let key = rloom_core::RandomKey::new(1, 0, rloom_core::Purpose::Rollout, ticket);
            let mut game = settings.begin("FFF/FSF/FFG", Draws::chance(key)).unwrap();
            game.play("R").unwrap();
            let state = game.state();
            ends[["10", "21", "12", "01"].iter().position(|place| *place == state).unwrap()] += 1;
        }
        assert_eq!(ends[0], 0, "back");
        assert!(ends[1..].iter().all(|count| (900..1100).contains(count)), "{ends:?}");
    }
}

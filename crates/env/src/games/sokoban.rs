//! Sokoban: push the boxes onto the goals.

use super::settings::game_settings;
use super::{Draws, Game, Played, Rules};

game_settings! {
    /// Sokoban: push all boxes onto goals.
    ///
    /// A move is `L`, `D`, `R` or `U`. The observation is the map: `#` wall, `-` floor, `@` player, `$` box, `.` goal, `*` box on
    /// a goal, `+` player on a goal; beyond the edge are walls. A move that a wall or a box blocks is not legal. When all boxes
    /// are on goals, the game ends with 1.
    SokobanSettings turns 30 {}
}

impl Rules for SokobanSettings {
    const NAME: &'static str = "sokoban";
    const ALPHABET: &'static str = "#-@$.*+/?";
    const START: &'static str = "a map such as `@--/-$-/--.`";

    fn begin(&self, answer: &str, _: Draws) -> Option<Box<dyn Game>> {
        let level = Level::read(answer.trim())?;
        (!level.is_solved()).then(|| Box::new(level) as Box<dyn Game>)
    }
}

const MOVES: [&str; 4] = ["L", "D", "R", "U"];
const MAX_SIZE: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Level {
    width: usize,
    walls: Vec<bool>,
    goals: Vec<bool>,
    boxes: Vec<bool>,
    player: usize,
}

impl Level {
    fn read(text: &str) -> Option<Self> {
        let rows: Vec<&str> = text.split('/').collect();
        let width = rows.first()?.len();
        let is_valid = (1..=MAX_SIZE).contains(&width)
            && rows.len() <= MAX_SIZE
            && rows
                .iter()
                .all(|row| row.len() == width && row.bytes().all(|tile| b"#-@$.*+".contains(&tile)));
        let tiles: Vec<u8> = rows.concat().into_bytes();
        let all = |kinds: &[u8]| tiles.iter().map(|tile| kinds.contains(tile)).collect::<Vec<_>>();
        let players: Vec<usize> = (0..tiles.len()).filter(|&i| b"@+".contains(&tiles[i])).collect();
        let (walls, goals, boxes) = (all(b"#"), all(b".*+"), all(b"$*"));
        let count = |places: &[bool]| places.iter().filter(|is| **is).count();
        let is_valid = is_valid && players.len() == 1 && count(&boxes) >= 1 && count(&goals) >= count(&boxes);
        is_valid.then(|| Self { width, walls, goals, boxes, player: players[0] })
    }

    fn neighbour(&self, at: usize, direction: usize) -> Option<usize> {
        let (row, column) = (at / self.width, at % self.width);
        let next = match direction {
            0 => (column > 0).then(|| at - 1),
            1 => Some(at + self.width),
            2 => (column + 1 < self.width).then(|| at + 1),
            _ => (row > 0).then(|| at - self.width),
        };
        next.filter(|&next| next < self.walls.len() && !self.walls[next])
    }

    /// The level after a move; `None` if it is blocked.
    fn after(&self, direction: usize) -> Option<Self> {
        let to = self.neighbour(self.player, direction)?;
        let mut next = self.clone();
        next.player = to;
        if self.boxes[to] {
            let beyond = self.neighbour(to, direction).filter(|&beyond| !self.boxes[beyond])?;
            next.boxes[to] = false;
            next.boxes[beyond] = true;
        }
        Some(next)
    }

    fn is_solved(&self) -> bool {
        self.boxes.iter().zip(&self.goals).all(|(is_box, is_goal)| !is_box || *is_goal)
    }

    fn text(&self, separator: &str) -> String {
        let tile = |at: usize| match (self.player == at, self.boxes[at], self.goals[at]) {
            (true, _, true) => '+',
            (true, _, false) => '@',
            (_, true, true) => '*',
            (_, true, false) => '$',
            (_, _, true) => '.',
            _ if self.walls[at] => '#',
            _ => '-',
        };
        let tiles: Vec<char> = (0..self.walls.len()).map(tile).collect();
        tiles.chunks(self.width).map(String::from_iter).collect::<Vec<_>>().join(separator)
    }
}

impl Game for Level {
    fn play(&mut self, text: &str) -> Option<Played> {
        let direction = MOVES.iter().position(|name| *name == text)?;
        *self = self.after(direction)?;
        Some(if self.is_solved() { Played::over(1.0) } else { Played::next(self.text("/")) })
    }

    fn moves(&self) -> Vec<String> {
        let legal = (0..MOVES.len()).filter(|&direction| self.after(direction).is_some());
        legal.map(|direction| MOVES[direction].to_owned()).collect()
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
    fn boxes_are_pushed_and_never_pulled() {
        let mut level = Level::read("@$-./----").unwrap();
        assert_eq!(level.moves(), ["D", "R"]);
        assert_eq!(level.play("L"), None);
        assert_eq!(level.play("R"), Some(Played::next("-@$./----".to_owned())));
        assert_eq!(level.play("L"), Some(Played::next("@-$./----".to_owned())), "the box stays");
        assert_eq!(level.play("R"), Some(Played::next("-@$./----".to_owned())));
        assert_eq!(level.play("R"), Some(Played::over(1.0)));
        // Two boxes in a row, and a box at a wall, do not move.
        assert_eq!(Level::read("@$$-..").unwrap().moves(), [""; 0]);
        assert_eq!(Level::read("@$#./----").unwrap().moves(), ["D"]);
        for wrong in ["", "@-.", "$.", "@@$.", "@$-", "@$./-", "@$.x"] {
            assert_eq!(Level::read(wrong), None, "{wrong}");
        }
    }
}

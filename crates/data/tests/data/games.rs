//! The tasks of games: deterministic, possible, with disjoint splits where they differ.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeSet;

use rloom_core::{Demonstration, PromptSource, Task};
use rloom_data::{DataSettings, Dataset, Split};
use serde_json::{Value, json};

const GAMES: [&str; 9] = [
    "bandit",
    "blackjack",
    "connect_four",
    "frozen_lake",
    "kuhn_poker",
    "sokoban",
    "sudoku",
    "tic_tac_toe",
    "wordle",
];
/// Games whose answers are divided into splits.
const DIVIDED: [&str; 3] = ["frozen_lake", "sokoban", "sudoku"];

fn settings(mut table: Value, game: &str) -> DataSettings {
    table["generator"] = json!(game);
    let settings: DataSettings = serde_json::from_value(table).unwrap();
    settings.validate().unwrap();
    settings
}

fn tasks(settings: &DataSettings, split: Split, seed: u64) -> Vec<Task> {
    let dataset = Dataset::open(settings, split, seed).unwrap();
    (0..200).map(|position| dataset.get(position).unwrap()).collect()
}

fn answers(tasks: &[Task]) -> BTreeSet<&str> {
    tasks.iter().map(|task| task.answer.as_str()).collect()
}

#[test]
fn tasks_repeat_and_depend_on_the_seed() {
    for game in GAMES {
        let settings = settings(json!({}), game);
        let first = tasks(&settings, Split::Train, 1);
        assert_eq!(first, tasks(&settings, Split::Train, 1), "{game}");
        // Games that differ by chance alone have few beginnings.
        if !["connect_four", "tic_tac_toe"].contains(&game) {
            assert_ne!(first, tasks(&settings, Split::Train, 2), "{game}");
        }
        assert!(first.iter().all(|task| task.domain == game));
    }
}

#[test]
fn characters_of_tasks_are_in_the_alphabet() {
    for game in GAMES {
        let settings = settings(json!({}), game);
        let alphabet = settings.alphabet().unwrap();
        for task in tasks(&settings, Split::Demonstration, 1) {
            let PromptSource::Text(prompt) = &task.prompt else { unreachable!("the prompt is text") };
            let turns = task.demonstration.iter().flat_map(Demonstration::turns);
            let mut characters = prompt.chars().chain(turns.flat_map(|turn| turn.chars()));
            assert!(characters.all(|character| alphabet.contains(character)), "{game}: {prompt} {alphabet}");
        }
    }
}

#[test]
fn maps_levels_and_grids_are_in_one_split() {
    for game in DIVIDED {
        let settings = settings(json!({}), game);
        let [demonstrated, trained, held_out] =
            [Split::Demonstration, Split::Train, Split::Eval].map(|split| tasks(&settings, split, 1));
        let [a, b, c] = [&demonstrated, &trained, &held_out].map(|tasks| answers(tasks));
        assert!(a.is_disjoint(&b) && b.is_disjoint(&c) && a.is_disjoint(&c), "{game}");
        assert!(a.len() > 50 && b.len() > 50 && c.len() > 50, "{game}");
    }
}

#[test]
fn seats_decide_who_has_moved() {
    for (game, empty) in [("tic_tac_toe", "X .../.../..."), ("connect_four", "-")] {
        let first = settings(json!({ "seat": "first" }), game);
        assert_eq!(answers(&tasks(&first, Split::Train, 1)), BTreeSet::from([empty]));
        let second = tasks(&settings(json!({ "seat": "second" }), game), Split::Train, 1);
        assert!(!answers(&second).contains(empty) && answers(&second).len() >= 7, "{game}");
        let both = tasks(&settings(json!({ "seat": "both" }), game), Split::Train, 1);
        let count = both.iter().filter(|task| task.answer == empty).count();
        assert!((70..130).contains(&count), "{game}: {count} of 200");
    }
}

#[test]
fn games_begin_with_an_opening() {
    let lines = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];
    for (seat, opening, expected) in [
        ("first", 5, &[0, 2, 4][..]),
        ("second", 6, &[1, 3, 5]),
        ("second", 0, &[1]),
        ("both", 8, &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ] {
        let settings = settings(json!({ "seat": seat, "opening": opening }), "tic_tac_toe");
        let mut seen = BTreeSet::new();
        for task in tasks(&settings, Split::Train, 1) {
            let (mark, board) = task.answer.split_once(' ').unwrap();
            let cells: String = board.split('/').collect();
            let of = |mark: char| cells.matches(mark).count();
            assert!(of('X') == of('O') + usize::from(mark == "O"), "{}", task.answer);
            let cell = |index: usize| cells.as_bytes()[index];
            let is_full =
                |line: &[usize; 3]| cell(line[0]) != b'.' && line.iter().all(|&c| cell(c) == cell(line[0]));
            assert!(!lines.iter().any(is_full), "{}", task.answer);
            seen.insert(of('X') + of('O'));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected, "{seat}");
    }
}

#[test]
fn games_of_tic_tac_toe_are_written_as_moves() {
    let table = |notation: &str| json!({ "seat": "both", "opening": 6, "notation": notation });
    let [boards, moves] =
        ["board", "moves"].map(|notation| tasks(&settings(table(notation), "tic_tac_toe"), Split::Train, 1));
    for (board, moves) in boards.iter().zip(&moves) {
        assert_eq!(moves.prompt, PromptSource::Text(format!("{}:", moves.answer)));
        let (mark, listed) = moves.answer.split_once(' ').unwrap_or((&moves.answer, ""));
        let mut cells = *b".../.../...";
        for pair in listed.as_bytes().chunks(2) {
            let cell = usize::from(pair[1] - b'1');
            cells[cell + cell / 3] = pair[0];
        }
        assert_eq!(board.answer, format!("{mark} {}", String::from_utf8(cells.to_vec()).unwrap()));
    }
    assert!(moves.iter().any(|task| task.answer == "X"));
}

#[test]
fn grids_have_their_number_of_blanks_and_one_solution() {
    let settings = settings(json!({ "min_blanks": 8, "max_blanks": 9 }), "sudoku");
    for task in tasks(&settings, Split::Train, 1).iter().take(20) {
        let blanks = task.answer.matches('.').count();
        assert!((8..=9).contains(&blanks), "{}", task.answer);
        let cells: Vec<u8> = task.answer.bytes().filter(|byte| *byte != b'/').collect();
        assert_eq!(solutions(cells), 1, "{}", task.answer);
    }
}

/// Number of grids that complete the cells, by trying all digits.
fn solutions(mut cells: Vec<u8>) -> usize {
    let Some(cell) = cells.iter().position(|digit| *digit == b'.') else { return 1 };
    let mut found = 0;
    for digit in b'1'..=b'4' {
        let (r, c) = (cell / 4, cell % 4);
        let is_seen = |other: usize| {
            let (row, column) = (other / 4, other % 4);
            row == r || column == c || (row / 2 == r / 2 && column / 2 == c / 2)
        };
        if !(0..16).any(|other| cells[other] == digit && is_seen(other)) {
            cells[cell] = digit;
            found += solutions(cells.clone());
        }
    }
    found
}

#[test]
fn settings_out_of_range_are_errors() {
    for (game, key, value) in [
        ("frozen_lake", "map_size", json!(11)),
        ("frozen_lake", "ice_share", json!(0.1)),
        ("sokoban", "boxes", json!(0)),
        ("sokoban", "wall_share", json!(0.9)),
        ("sudoku", "max_blanks", json!(11)),
        ("wordle", "words", json!(193)),
        ("bandit", "arms", json!(1)),
        ("tic_tac_toe", "opening", json!(9)),
    ] {
        let settings: DataSettings =
            serde_json::from_value(json!({ "generator": game, key: value })).unwrap();
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{key}`")), "{game}: {error}");
    }
}

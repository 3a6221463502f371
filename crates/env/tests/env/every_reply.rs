//! Tic-tac-toe against every reply: all games are played, and the lowest reward counts.

use std::time::Duration;

use rloom_core::{PromptSource, Purpose, RandomKey, SampleKey, StopReason, Task, Ticket, Trajectory};
use rloom_env::{Attempt, EnvironmentSettings};
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Value, json};

use crate::support::{now, turn};

type Board = [u8; 9];
type Moves = fn(Board) -> Vec<usize>;

const LINES: [[usize; 3]; 8] =
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];
const DRAW: f64 = 0.5;

fn empty(board: Board) -> Vec<usize> {
    (0..9).filter(|&cell| board[cell] == b'.').collect()
}

fn mover(board: Board) -> u8 {
    if empty(board).len() % 2 == 1 { b'X' } else { b'O' }
}

fn with(mut board: Board, cell: usize) -> Board {
    board[cell] = mover(board);
    board
}

/// The score of a mark at the end of a game.
fn score(board: Board, mark: u8) -> Option<f64> {
    let of_line =
        |&[a, b, c]: &[usize; 3]| (board[a] == board[b] && board[b] == board[c]).then_some(board[a]);
    match LINES.iter().filter_map(of_line).find(|&owner| owner != b'.') {
        Some(owner) => Some(if owner == mark { 1.0 } else { -1.0 }),
        None => empty(board).is_empty().then_some(DRAW),
    }
}

/// Value of a move for the mark that plays it, larger for an early win and a late loss.
fn value(board: Board, cell: usize) -> i32 {
    let next = with(board, cell);
    match score(next, mover(board)) {
        Some(DRAW) => 0,
        Some(_) => 1 + empty(next).len() as i32,
        None => -empty(next).into_iter().map(|reply| value(next, reply)).max().unwrap(),
    }
}

fn best(board: Board) -> Vec<usize> {
    let most = empty(board).into_iter().map(|cell| value(board, cell)).max();
    empty(board).into_iter().filter(|&cell| Some(value(board, cell)) == most).collect()
}

/// The lowest score of a mark that plays the first of its moves, and the number of its turns, over all games.
fn lowest(board: Board, mark: u8, own: Moves, replies: Moves) -> (f64, usize) {
    if let Some(score) = score(board, mark) {
        return (score, 0);
    }
    let moves = if mover(board) == mark { vec![own(board)[0]] } else { replies(board) };
    let games = moves.into_iter().map(|cell| lowest(with(board, cell), mark, own, replies));
    let own_turn = usize::from(mover(board) == mark);
    games.fold((1.0, own_turn), |(least, turns), (score, more)| (least.min(score), turns + more))
}

fn settings(more: &Value) -> EnvironmentSettings {
    let mut settings =
        json!({ "kind": "tic_tac_toe", "max_turns": 1000, "draw_reward": DRAW, "every_reply": true });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(settings).unwrap()
}

/// The sum of the step rewards and the number of turns of a policy that plays the first of its moves.
fn played(opponent: &str, start: Board, own: Moves) -> (f64, usize) {
    let settings = settings(&json!({ "opponent": opponent, "observation": "position" }));
    settings.validate().unwrap();
    let environment = settings.environment(Duration::MAX, None).unwrap();
    let rows: Vec<&str> = start.chunks(3).map(|row| std::str::from_utf8(row).unwrap()).collect();
    let position = format!("{} {}", char::from(mover(start)), rows.join("/"));
    let task = Task {
        index: 0,
        prompt: PromptSource::Text(format!("{position}:")),
        answer: position,
        demonstration: None,
        domain: String::new(),
        extra: std::sync::Arc::default(),
    };
    let tokenizer = Tokenizer::characters(&CharacterSettings::new(" ./123456789:?OX")).unwrap();
    let key = SampleKey { ticket: Ticket(1), sample: 0, segment: 0 };
    let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key);
    let mut attempt = now(Attempt::start(environment.as_ref(), &task, &tokenizer, 1000, random)).unwrap();
    while !attempt.is_over() {
        let prompt = tokenizer.decode(attempt.tokens(), false).unwrap();
        let rows = prompt.trim().trim_end_matches(':').split_once(' ').unwrap().1.replace('/', "");
        let board: Board = rows.as_bytes().try_into().unwrap();
        let tokens = tokenizer.encode(&format!("{}<|eos|>", own(board)[0] + 1), false).unwrap();
        now(attempt.turn(turn(&tokens, StopReason::StopToken))).unwrap();
    }
    let segments = attempt.finish().unwrap();
    let rewards: Vec<f64> = segments.iter().flat_map(Trajectory::steps).map(|step| step.reward).collect();
    (rewards.iter().sum(), rewards.len())
}

#[test]
fn every_reply_is_played_and_the_lowest_reward_counts() {
    let mut found = Vec::new();
    for (opponent, replies) in [("best", best as Moves), ("random", empty as Moves)] {
        for start in [b".........", b"....X....", b".X.......", b"XO......."] {
            for own in [empty as Moves, best as Moves] {
                let expected = lowest(*start, mover(*start), own, replies);
                assert_eq!(played(opponent, *start, own), expected, "{opponent}");
                found.push(expected.0);
            }
        }
    }
    // Perfect play against perfect play is a draw, and won after a bad reply to the first move.
    assert_eq!([found[1], found[3], found[5], found[7]], [DRAW, DRAW, DRAW, 1.0]);
    assert!(found.iter().step_by(2).any(|&reward| reward == -1.0));
}

#[test]
fn every_reply_needs_prompts_with_positions() {
    let error = settings(&json!({ "observation": "move" })).validate().unwrap_err();
    assert!(error.to_string().contains("observation = \"position\""), "{error}");
}

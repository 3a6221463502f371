//! The games: the contract of environments, chance, demonstrations, illegal turns.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rloom_core::{PromptSource, Purpose, RandomKey, SampleKey, StopReason, Task, Ticket, Trajectory};
use rloom_data::{DataSettings, Dataset, Split};
use rloom_env::{Attempt, Environment, EnvironmentSettings, conformance, demonstrate};
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::json;

use crate::support::{TEMPLATE, now, one, turn};

/// The games with legal and illegal turns.
const GAMES: [(&str, &[&str]); 9] = [
    ("bandit", &["a", "z", "b", "ab"]),
    ("blackjack", &["h", "x", "h", "s"]),
    ("connect_four", &["4", "4", "9", "3"]),
    ("frozen_lake", &["R", "D", "left", "U"]),
    ("kuhn_poker", &["?", "p", "b"]),
    ("sokoban", &["R", "D", "L", "U", "x"]),
    ("sudoku", &["111", "122", "1", "443"]),
    ("tic_tac_toe", &["5", "5", "1", "9", "0"]),
    ("wordle", &["crane", "CRANE", "house"]),
];

fn settings(game: &str) -> EnvironmentSettings {
    serde_json::from_value(json!({ "kind": game })).unwrap()
}

fn environment(settings: &EnvironmentSettings) -> Arc<dyn Environment> {
    settings.validate().unwrap();
    settings.environment(Duration::MAX, None).unwrap()
}

fn tasks(game: &str, split: Split) -> Dataset {
    let data: DataSettings = serde_json::from_value(json!({ "generator": game, "size": 200 })).unwrap();
    Dataset::open(&data, split, 1).unwrap()
}

/// A tokenizer with the characters of the game alone.
fn tokenizer(game: &str) -> Tokenizer {
    let data: DataSettings = serde_json::from_value(json!({ "generator": game })).unwrap();
    let observed = settings(game).alphabet().clone();
    let characters: std::collections::BTreeSet<char> =
        data.alphabet().unwrap().chars().chain(observed.chars()).collect();
    Tokenizer::characters(&CharacterSettings::new(String::from_iter(characters))).unwrap()
}

fn wide_tokenizer() -> Tokenizer {
    static WIDE: LazyLock<Tokenizer> = LazyLock::new(|| {
        let mut settings = CharacterSettings::new((' '..='~').chain(['\n']).collect::<String>());
        settings.chat_template = Some(TEMPLATE.into());
        Tokenizer::characters(&settings).unwrap()
    });
    WIDE.clone()
}

fn key(ticket: u64, sample: u32) -> SampleKey {
    SampleKey { ticket: Ticket(ticket), sample, segment: 0 }
}

/// An episode with these turns; the last one is repeated.
fn played(settings: &EnvironmentSettings, task: &Task, sample: u32, turns: &[&str]) -> Trajectory {
    let tokenizer = wide_tokenizer();
    let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key(task.index, sample));
    let environment = environment(settings);
    let mut attempt = now(Attempt::start(environment.as_ref(), task, &tokenizer, 100_000, random)).unwrap();
    let mut taken = 0;
    while !attempt.is_over() {
        let text = format!("{}<|eos|>", turns[taken.min(turns.len() - 1)]);
        let tokens = tokenizer.encode(&text, false).unwrap();
        now(attempt.turn(turn(&tokens, StopReason::StopToken))).unwrap();
        taken += 1;
    }
    one(attempt.finish().unwrap())
}

fn text(trajectory: &Trajectory) -> String {
    wide_tokenizer().decode(&trajectory.tokens, true).unwrap()
}

fn rewards(trajectory: &Trajectory) -> Vec<f64> {
    trajectory.steps().map(|step| step.reward).collect()
}

fn task(answer: &str) -> Task {
    Task { answer: answer.into(), ..crate::support::task("the game:") }
}

#[test]
fn games_keep_the_contract_of_environments() {
    for (game, turns) in GAMES {
        let environment = environment(&settings(game));
        for position in 0..5 {
            let task = tasks(game, Split::Train).get(position).unwrap();
            let chat = Task {
                prompt: PromptSource::Messages(vec![rloom_core::ChatMessage::new("user", "Play.")]),
                ..task.clone()
            };
            for task in [task, chat] {
                conformance::check(environment.as_ref(), &task, &wide_tokenizer(), turns).unwrap();
            }
        }
    }
}

#[test]
fn demonstrations_are_legal_games_in_the_characters_of_the_game() {
    for (game, _) in GAMES {
        let (settings, tokenizer) = (settings(game), tokenizer(game));
        let environment = environment(&settings);
        let dataset = tasks(game, Split::Demonstration);
        let mut different = std::collections::BTreeSet::new();
        for position in 0..50 {
            let task = dataset.get(position).unwrap();
            let played = now(demonstrate(environment.as_ref(), &task, &tokenizer, 5000, key(position, 0)));
            let played = one(played.unwrap());
            assert!(rewards(&played).iter().all(|reward| *reward != -0.1), "{game}: {played:?}");
            assert!(played.steps().count() <= settings.max_turns());
            assert!(played.steps().all(|step| step.state.is_some()));
            different.insert(tokenizer.decode(&played.tokens, true).unwrap());
        }
        assert!(different.len() >= 8, "{game}: {different:?}");
    }
}

#[test]
fn chance_depends_on_the_sample_and_repeats() {
    let play = |sample| {
        text(&played(&settings("tic_tac_toe"), &task("X .../.../..."), sample, &["5", "1", "2", "3"]))
    };
    let games: Vec<String> = (0..6).map(play).collect();
    assert_eq!(games, (0..6).map(play).collect::<Vec<_>>());
    let different: std::collections::BTreeSet<&String> = games.iter().collect();
    assert!(different.len() > 2, "{games:?}");
}

#[test]
fn illegal_turns_cost_and_are_told_or_end_the_game() {
    let lake = |keys: serde_json::Value| {
        let mut table = json!({ "kind": "frozen_lake", "max_turns": 3 });
        table.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let settings: EnvironmentSettings = serde_json::from_value(table).unwrap();
        played(&settings, &task("SFG"), 0, &["x", "R", "R"])
    };
    let told = lake(json!({}));
    assert_eq!(rewards(&told), [-0.1, 0.0, 1.0]);
    assert_eq!(text(&told), "the game:x?R01S#G#R");
    assert_eq!(rewards(&played(&settings("frozen_lake"), &task("SHG"), 0, &["R"])), [0.0], "a hole");
    // White space around a move is none of it.
    let spaced = played(&settings("frozen_lake"), &task("SFG"), 0, &[" R", "R\n"]);
    assert_eq!(rewards(&spaced), [0.0, 1.0]);
    assert_eq!(rewards(&lake(json!({ "illegal_reward": -2.0, "illegal_ends": true }))), [-2.0]);
    // The last turn ends the game without the goal.
    let late = lake(json!({ "max_turns": 2 }));
    assert_eq!((rewards(&late), late.stop), (vec![-0.1, 0.0], StopReason::StopToken));
}

#[test]
fn a_conversation_is_told_the_legal_moves() {
    let prompt = PromptSource::Messages(vec![rloom_core::ChatMessage::new("user", "Cross the lake.")]);
    let told = played(&settings("frozen_lake"), &Task { prompt, ..task("SFG") }, 0, &["x", "R"]);
    let text = text(&told);
    assert!(text.contains("[user]That is not a legal move. Legal moves: L, D, R, U\n[assistant]R"), "{text}");
}

#[test]
fn draws_and_losses_have_their_rewards() {
    let game = |answer: &str, settings: serde_json::Value, turns: &[&str]| {
        rewards(&played(&serde_json::from_value(settings).unwrap(), &task(answer), 0, turns))
    };
    let best = json!({ "kind": "tic_tac_toe", "opponent": "best", "draw_reward": 0.5 });
    assert_eq!(game("X XOX/XOO/OX.", best.clone(), &["9"]), [0.5], "a draw");
    assert_eq!(game("X OO./X../X..", best, &["9"]), [-1.0], "the opponent wins");
    assert_eq!(game("X XX./OO./...", json!({ "kind": "tic_tac_toe" }), &["3"]), [1.0], "a win");
    let four = json!({ "kind": "connect_four", "opponent": "best" });
    assert_eq!(game("112233", four, &["4"]), [1.0]);
}

#[test]
fn answers_without_a_game_are_errors() {
    for (game, _) in GAMES {
        let environment = environment(&settings(game));
        let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key(1, 0));
        let wrong = task("no game");
        let started = now(Attempt::start(environment.as_ref(), &wrong, &wide_tokenizer(), 1000, random));
        let error = started.unwrap_err();
        assert!(format!("{error:?}").contains("no game"), "{game}: {error:?}");
        assert!(miette::Diagnostic::help(&error).unwrap().to_string().contains(game), "{game}");
    }
}

#[test]
fn settings_out_of_range_are_errors() {
    for (json, key) in [
        (json!({ "kind": "tic_tac_toe", "draw_reward": 2.0 }), "draw_reward"),
        (json!({ "kind": "connect_four", "depth": 2 }), "depth"),
        (json!({ "kind": "connect_four", "opponent": "best", "depth": 7 }), "depth"),
        (json!({ "kind": "bandit", "max_turns": 0 }), "max_turns"),
        (json!({ "kind": "sudoku", "illegal_reward": 0.5 }), "illegal_reward"),
    ] {
        let settings: EnvironmentSettings = serde_json::from_value(json).unwrap();
        assert_eq!(settings.validate().unwrap_err().key, key);
    }
}

/// Share of the episodes of a task with these turns that have each reward in the last one.
fn shares(game: &str, answer: &str, turns: &[&str]) -> std::collections::BTreeMap<i64, f64> {
    let mut shares = std::collections::BTreeMap::new();
    let samples = 2000;
    for sample in 0..samples {
        let last = *rewards(&played(&settings(game), &task(answer), sample, turns)).last().unwrap();
        *shares.entry(last as i64).or_insert(0.0) += 1.0 / f64::from(samples);
    }
    shares
}

fn assert_shares(game: &str, answer: &str, turns: &[&str], expected: &[(i64, f64)]) {
    let found = shares(game, answer, turns);
    let rewards: Vec<i64> = found.keys().copied().collect();
    assert_eq!(
        rewards,
        expected.iter().map(|(reward, _)| *reward).collect::<Vec<_>>(),
        "{game} {answer} {turns:?}"
    );
    for (reward, share) in expected {
        assert!((found[reward] - share).abs() < 0.04, "{game} {answer} {turns:?}: {found:?}");
    }
}

/// The equilibrium of the second player: it bets every third jack and every king after a pass, and calls with every third
/// queen and every king.
#[test]
fn kuhn_poker_is_paid_by_its_rules() {
    for (card, turns, expected) in [
        ("K", &["b"][..], &[(1, 5.0 / 6.0), (2, 1.0 / 6.0)][..]),
        ("J", &["b"], &[(-2, 2.0 / 3.0), (1, 1.0 / 3.0)]),
        ("J", &["p", "p"], &[(-1, 1.0)]),
        ("K", &["p", "b"], &[(1, 5.0 / 6.0), (2, 1.0 / 6.0)]),
        ("Q", &["p", "b"], &[(-2, 0.5), (1, 1.0 / 3.0), (2, 1.0 / 6.0)]),
        ("Q", &["p", "p"], &[(-1, 2.0 / 3.0), (1, 1.0 / 3.0)]),
    ] {
        assert_shares("kuhn_poker", card, turns, expected);
    }
}

/// Shares with a deck without end, as gymnasium has one.
#[test]
fn blackjack_is_paid_by_its_rules() {
    // The dealer draws to 17 and loses with more than 21.
    assert_shares("blackjack", "28 6", &["s"], &[(-1, 0.577), (1, 0.423)]);
    assert_shares("blackjack", "28 A", &["s"], &[(-1, 0.885), (1, 0.115)]);
    // 20 loses against 21 and is equal to 20.
    assert_shares("blackjack", "TT T", &["s"], &[(-1, 0.111), (0, 0.342), (1, 0.547)]);
    // A six, a seven, … or a ten is too much for 16, no card for a soft one.
    assert_shares("blackjack", "T6 T", &["h"], &[(-1, 1.0)]);
    let lost = |answer: &str| {
        let lost = |sample| {
            let rewards = rewards(&played(&settings("blackjack"), &task(answer), sample, &["h", "s"]));
            rewards.len() == 1 && rewards[0] == -1.0
        };
        (0..2000).filter(|sample| lost(*sample)).count() as f64 / 2000.0
    };
    assert!((lost("T6 T") - 8.0 / 13.0).abs() < 0.04);
    assert_eq!(lost("A5 T"), 0.0);
}

#[test]
fn a_person_sees_the_position_and_the_moves() {
    for (game, answer, board, moves) in [
        ("bandit", "0.2 0.9", "a 0/0, b 0/0", "a b"),
        ("blackjack", "A6 T", "your total: s17; the dealer's card: T", "h s"),
        (
            "connect_four",
            "44",
            "1234567\n.......\n.......\n.......\n.......\n...O...\n...X...\nyou play X",
            "1 2 3 4 5 6 7",
        ),
        ("frozen_lake", "SFF/FHG", "@FF\nFHG", "L D R U"),
        ("kuhn_poker", "Q", "your card: Q", "p b"),
        ("sokoban", "@$-./--#-", "@$-.\n--#-", "D R"),
        ("sudoku", "1.34/3412/21.3/.321", "1.34\n3412\n21.3\n.321", "122 334 414"),
        ("tic_tac_toe", "O X../.../...", "X..\n...\n...", "2 3 4 5 6 7 8 9"),
        ("wordle", "crane", "no guesses yet\na word of 5 letters", ""),
    ] {
        let tokenizer = wide_tokenizer();
        let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key(1, 0));
        let environment = environment(&settings(game));
        let mut attempt =
            now(Attempt::start(environment.as_ref(), &task(answer), &tokenizer, 1000, random)).unwrap();
        let view = attempt.view().unwrap();
        assert_eq!((view.board.as_str(), view.moves.join(" ").as_str()), (board, moves), "{game}");
        // Something else than a move changes nothing.
        let tokens = tokenizer.encode("?!<|eos|>", false).unwrap();
        now(attempt.turn(turn(&tokens, StopReason::StopToken))).unwrap();
        assert_eq!(attempt.view().unwrap(), view, "{game}");
    }
}

/// With `observation = "position"` each turn has the task's prompt with the present position, in a text and in a conversation;
/// what follows a turn that is not a legal move continues its segment.
#[test]
fn positions_have_prompts_of_their_own() {
    for (game, start, turns, expected) in [
        ("tic_tac_toe", "X X.O/.../...", &["4", "4", "7"], ["X X.O/.../...", "X X.O/X../O.."]),
        ("tic_tac_toe", "X X1O3", &["4", "4", "7"], ["X X1O3", "X X1O3X4O7"]),
        ("connect_four", "112233", &["7", "9", "9"], ["X 112233", "X 11223374"]),
    ] {
        let json = json!({ "kind": game, "opponent": "best", "observation": "position" });
        let environment = environment(&serde_json::from_value(json).unwrap());
        let prompts = expected.map(|position| format!("Play {position}:"));
        let chat = PromptSource::Messages(vec![
            rloom_core::ChatMessage::new("system", "Win."),
            rloom_core::ChatMessage::new("user", &prompts[0]),
        ]);
        for prompt in [PromptSource::Text(prompts[0].clone()), chat] {
            let task = Task { prompt, ..task(start) };
            conformance::check(environment.as_ref(), &task, &wide_tokenizer(), turns).unwrap();
            let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key(1, 0));
            let tokenizer = wide_tokenizer();
            let mut attempt =
                now(Attempt::start(environment.as_ref(), &task, &tokenizer, 1000, random)).unwrap();
            // The first is legal, and the opponent has one good answer; the others are not legal.
            for text in turns {
                let tokens = tokenizer.encode(&format!("{text}<|eos|>"), false).unwrap();
                now(attempt.turn(turn(&tokens, StopReason::StopToken))).unwrap();
            }
            let segments = attempt.finish().unwrap();
            let texts: Vec<String> = segments.iter().map(text).collect();
            assert_eq!(segments.len(), 2, "{texts:?}");
            let (first, second) = (&texts[0], &texts[1]);
            assert!(first.contains(&prompts[0]) && first.trim_end().ends_with(turns[0]), "{first}");
            assert!(second.contains(&prompts[1]) && second.matches("Play").count() == 1, "{second}");
            let refused = format!("{}?", turns[1]);
            let refusal = if second.contains("[user]") { "not a legal move" } else { &refused };
            assert!(second.contains(refusal), "{second}");
            assert_eq!(segments[1].steps().count(), 2);
        }
    }
    let json = json!({ "kind": "tic_tac_toe", "observation": "position" });
    let environment = environment(&serde_json::from_value(json).unwrap());
    let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key(1, 0));
    let found = now(Attempt::start(environment.as_ref(), &task("X X1O3"), &wide_tokenizer(), 1000, random));
    let error = found.unwrap_err().to_string();
    assert!(error.contains("does not contain the position \"X X1O3\""), "{error}");
}

/// A turn that was cut off may be the beginning of another one: it is no move.
#[test]
fn a_turn_that_was_cut_off_is_no_move() {
    let (tokenizer, task) = (wide_tokenizer(), task("SFG"));
    let random = RandomKey::for_sample(1, 0, Purpose::Rollout, key(1, 0));
    let environment = environment(&settings("frozen_lake"));
    let mut attempt = now(Attempt::start(environment.as_ref(), &task, &tokenizer, 1000, random)).unwrap();
    let tokens = tokenizer.encode("R", false).unwrap();
    now(attempt.turn(turn(&tokens, StopReason::Length))).unwrap();
    assert_eq!(rewards(&one(attempt.finish().unwrap())), [-0.1]);
}

/// The built-in opponent of Connect Four sees the policy's next move, and one of tic-tac-toe sees all.
#[test]
fn opponents_block_and_their_moves_are_told() {
    for sample in 0..20 {
        let four = serde_json::from_value(json!({ "kind": "connect_four", "opponent": "best" })).unwrap();
        assert!(text(&played(&four, &task("112233"), sample, &["7", "7", "?"])).starts_with("the game:74"));
        let three = json!({ "kind": "tic_tac_toe", "opponent": "best", "observation": "move" });
        let three = serde_json::from_value(three).unwrap();
        let played = text(&played(&three, &task("X X../.O./..."), sample, &["2", "?"]));
        assert!(played.starts_with("the game:23"), "{played}");
    }
}

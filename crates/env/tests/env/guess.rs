//! The rules of the guessing game.

use miette::Diagnostic;
use rloom_core::{Author, StopReason, Task, Trajectory};
use rloom_env::{Attempt, EnvError, Guess, GuessSettings, Progress, conformance};

use crate::support::{chat_task, game, now, one, random, task, tokenizer, tokens, turn};

fn guess(max_turns: u32) -> Guess {
    Guess::new(&GuessSettings { max_turns, ..GuessSettings::default() })
}

/// A game with these guesses, each with an end-of-text token.
fn played(task: &Task, max_turns: u32, guesses: &[&str]) -> Trajectory {
    let environment = guess(max_turns);
    let mut attempt = now(Attempt::start(&environment, task, &tokenizer(), 1000, random())).unwrap();
    for guess in guesses {
        assert!(!attempt.is_over(), "over before {guess}");
        now(attempt.turn(turn(&tokens(&format!("{guess}<|eos|>")), StopReason::StopToken))).unwrap();
    }
    assert!(attempt.is_over(), "not over");
    one(attempt.finish().unwrap())
}

/// Reward and state key of each step.
fn steps(trajectory: &Trajectory) -> Vec<(f64, &str)> {
    trajectory.steps().map(|s| (s.reward, s.state.as_deref().unwrap())).collect()
}

#[test]
fn guesses_narrow_the_candidates() {
    let trajectory = played(&game(7), 5, &["4", "8", "7"]);
    let text = tokenizer().decode(&trajectory.tokens, false).unwrap();
    assert_eq!(text, "0-9:4<|eos|>>8<|eos|><7<|eos|>");
    assert_eq!(steps(&trajectory), [(0.0, "0-9"), (0.0, "5-9"), (1.0, "5-7")]);
    assert_eq!(trajectory.stop, StopReason::StopToken);
    let observed: Vec<_> = trajectory
        .spans
        .iter()
        .filter(|s| s.author == Author::Environment)
        .map(|s| (s.range.len(), s.step.clone()))
        .collect();
    assert_eq!(observed, [(1, None), (1, None)]);
}

#[test]
fn invalid_and_excluded_guesses_are_penalised_without_new_information() {
    // 9 and 2 are excluded when they are guessed; `5x` and the empty text are not numbers.
    let trajectory = played(&game(5), 8, &["7", "9", "3", "2", "5x", "", "10", "5"]);
    let text = tokenizer().decode(&trajectory.tokens, true).unwrap();
    assert_eq!(text, "0-9:7<9<3>2>5x??10<5");
    let p = -0.5 / 8.0;
    assert_eq!(
        steps(&trajectory),
        [
            (0.0, "0-9"),
            (p, "0-6"),
            (0.0, "0-6"),
            (p, "4-6"),
            (p, "4-6"),
            (p, "4-6"),
            (p, "4-6"),
            (1.0, "4-6")
        ]
    );
}

#[test]
fn games_with_a_hit_are_worth_more_than_games_without() {
    let total = |t: &Trajectory| t.steps().map(|s| s.reward).sum::<f64>();
    for turns in [1, 2, 5, 40] {
        let mut guesses = vec!["x"; turns];
        let worst_miss = total(&played(&game(5), turns as u32, &guesses));
        guesses[turns - 1] = "5";
        let worst_hit = total(&played(&game(5), turns as u32, &guesses));
        guesses[turns - 1] = "4";
        let miss = total(&played(&game(5), turns as u32, &guesses));
        assert!(worst_hit > 0.5 && miss <= 0.0 && worst_miss >= -0.5 - 1e-12, "{turns} turns");
    }
}

#[test]
fn the_last_turn_ends_the_game_without_an_observation() {
    let trajectory = played(&game(7), 2, &["4", "8"]);
    assert_eq!(steps(&trajectory), [(0.0, "0-9"), (0.0, "5-9")]);
    assert_eq!(trajectory.spans.last().unwrap().author, Author::Policy);
    assert_eq!(trajectory.stop, StopReason::StopToken);
}

#[test]
fn several_numbers_and_truncated_numbers_are_not_guesses() {
    assert_eq!(steps(&played(&game(7), 1, &["6 7 8"]))[0].0, -0.5);
    assert_eq!(steps(&played(&game(7), 1, &["7<7"]))[0].0, -0.5);
    let environment = guess(5);
    let mut attempt = now(Attempt::start(&environment, &game(7), &tokenizer(), 1000, random())).unwrap();
    assert_eq!(now(attempt.turn(turn(&tokens("7"), StopReason::Length))).unwrap(), Progress::Done);
    let trajectory = one(attempt.finish().unwrap());
    assert_eq!((steps(&trajectory), trajectory.stop), (vec![(-0.1, "0-9")], StopReason::Length));
}

#[test]
fn a_stop_string_ends_a_turn_too() {
    let environment = guess(5);
    let mut attempt = now(Attempt::start(&environment, &game(7), &tokenizer(), 1000, random())).unwrap();
    now(attempt.turn(turn(&tokens("7\n"), StopReason::StopString))).unwrap();
    assert_eq!(steps(&one(attempt.finish().unwrap())), [(1.0, "0-9")]);
}

/// Binary search finds any of 2ⁿ − 1 numbers in n turns.
#[test]
fn binary_search_always_hits() {
    for secret in 0..31 {
        let task = Task { answer: format!("0 <= {secret} <= 30"), ..task("0-30:") };
        let environment = guess(5);
        let mut attempt = now(Attempt::start(&environment, &task, &tokenizer(), 1000, random())).unwrap();
        let (mut low, mut high) = (0i64, 30i64);
        while !attempt.is_over() {
            let middle = i64::midpoint(low, high);
            let written = tokens(&format!("{middle}<|eos|>"));
            now(attempt.turn(turn(&written, StopReason::StopToken))).unwrap();
            if secret > middle { low = middle + 1 } else { high = middle - 1 }
        }
        let trajectory = one(attempt.finish().unwrap());
        assert_eq!(trajectory.steps().last().unwrap().reward, 1.0, "secret {secret}");
    }
}

#[test]
fn observations_are_user_messages_in_a_conversation() {
    let task = Task { answer: "0 <= 7 <= 9".into(), ..chat_task() };
    let trajectory = played(&task, 5, &["4", "8", "7"]);
    assert_eq!(
        tokenizer().decode(&trajectory.tokens, false).unwrap(),
        "[user]2+2=?\n[assistant]4<|eos|>\n[user]>\n[assistant]8<|eos|>\n[user]<\n[assistant]7<|eos|>"
    );
}

#[test]
fn answers_without_range_and_secret_are_errors() {
    let error = now(Attempt::start(&guess(5), &task("0-9:"), &tokenizer(), 1000, random())).unwrap_err();
    assert!(matches!(&error, EnvError::Failed { task: 42, .. }), "{error}");
    assert!(error.to_string().ends_with("does not contain range and secret"), "{error}");
    assert!(error.help().is_some(), "the hint of the environment's error is passed on");
}

#[test]
fn the_game_conforms() {
    for (task, replies) in [(game(7), &["4", "8", "7"][..]), (game(7), &["x"]), (game(0), &["0"])] {
        conformance::check(&guess(5), &task, &tokenizer(), replies).unwrap();
    }
    let conversation = Task { answer: "0 <= 7 <= 9".into(), ..chat_task() };
    conformance::check(&guess(5), &conversation, &tokenizer(), &["4<|eos|>", "7<|eos|>"]).unwrap();
}

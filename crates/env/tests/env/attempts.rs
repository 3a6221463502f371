//! Attempts: turns, responses and trajectories.

use miette::Diagnostic;
use rloom_core::{Author, PolicyId, PolicyVersion, StepReward, StopReason, VersionSpan};
use rloom_env::{Attempt, EnvError, Guess, GuessSettings, Progress, SingleTurn, Turn};

use crate::support::{game, key, now, one, random, task, tokenizer, tokens, turn};

fn guess() -> Guess {
    Guess::new(&GuessSettings::default())
}

#[test]
fn trajectories_record_authors_versions_and_step_rewards() {
    let tokenizer = tokenizer();
    let environment = guess();
    let mut attempt = now(Attempt::start(&environment, &game(7), &tokenizer, 100, random())).unwrap();
    let prompt = attempt.tokens().len();
    let first = Turn {
        versions: vec![
            VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(3), range: 0..1 },
            VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(4), range: 1..2 },
        ],
        ..turn(&tokens("3<|eos|>"), StopReason::StopToken)
    };
    assert_eq!(now(attempt.turn(first)).unwrap(), Progress::Continue);
    let observed = attempt.tokens().len();
    let seven = tokenizer.encode("7", false).unwrap();
    assert_eq!(now(attempt.turn(turn(&seven, StopReason::StopString))).unwrap(), Progress::Done);
    let trajectory = one(attempt.finish().unwrap());
    assert_eq!(trajectory.key, key());
    let authors: Vec<_> =
        trajectory.spans.iter().map(|s| (s.author, s.range.clone(), s.temperature, s.step.clone())).collect();
    let step = |reward, state: &str| Some(StepReward { reward, state: Some(state.to_owned()) });
    assert_eq!(
        authors,
        [
            (Author::Prompt, 0..prompt, 1.0, None),
            (Author::Policy, prompt..prompt + 2, 0.7, step(0.0, "0-9")),
            (Author::Environment, prompt + 2..observed, 1.0, None),
            (Author::Policy, observed..observed + 1, 0.7, step(1.0, "4-9")),
        ]
    );
    let versions: Vec<_> = trajectory.versions.iter().map(|v| (v.version.0, v.range.clone())).collect();
    assert_eq!(versions, [(3, prompt..prompt + 1), (4, prompt + 1..prompt + 2), (3, observed..observed + 1)]);
    assert_eq!(trajectory.logprobs, vec![-0.5; 3]);
    assert_eq!(trajectory.stop, StopReason::StopString);
    assert_eq!(trajectory.policy_tokens(), 3);
}

#[test]
fn a_prompt_longer_than_the_context_names_the_task() {
    let error =
        now(Attempt::start(&SingleTurn, &task("2+2=2+2=2+2="), &tokenizer(), 12, random())).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the prompt of task 42 has 12 tokens, but the context is 12"), "{text}");
    assert!(error.help().is_some());
}

#[test]
fn an_observation_without_room_for_a_turn_truncates() {
    let tokenizer = tokenizer();
    let environment = guess();
    // Prompt 4, turn 1, observation 1: a context of 6 leaves no room for another token.
    for (context, over) in [(6, true), (7, false)] {
        let mut attempt = now(Attempt::start(&environment, &game(7), &tokenizer, context, random())).unwrap();
        let progress = now(attempt.turn(turn(&tokens("3"), StopReason::StopToken))).unwrap();
        assert_eq!(progress == Progress::Done, over);
        if over {
            let trajectory = one(attempt.finish().unwrap());
            assert_eq!(trajectory.stop, StopReason::Length);
            assert_eq!(trajectory.tokens.len(), 5);
            assert_eq!(trajectory.steps().count(), 1);
        } else {
            assert_eq!(attempt.room(), 1);
        }
    }
}

#[test]
fn inconsistent_turns_are_refused() {
    let good = turn(&[5, 6], StopReason::StopToken);
    let nan = Turn { logprobs: vec![-1.0, f32::NAN], ..good.clone() };
    let positive = Turn { logprobs: vec![-1.0, 0.5], ..good.clone() };
    let few = Turn { logprobs: vec![-1.0], ..good.clone() };
    let cold = Turn { temperature: 0.0, ..good.clone() };
    let span = |range| VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(1), range };
    let gap = Turn { versions: vec![span(0..1)], ..good.clone() };
    let overlap = Turn { versions: vec![span(0..2), span(1..2)], ..good.clone() };
    let beyond = Turn { versions: vec![span(0..3)], ..good.clone() };
    let long = turn(&[5; 99], StopReason::Length);
    for (bad, expected) in [
        (nan, "the log-probability of token 1 is NaN"),
        (positive, "the log-probability of token 1 is 0.5"),
        (few, "1 log-probabilities for 2 tokens"),
        (cold, "the temperature is 0"),
        (gap, "do not tile its 2 tokens"),
        (overlap, "do not tile its 2 tokens"),
        (beyond, "do not tile its 2 tokens"),
        (long, "99 tokens, but the context has room for 16"),
    ] {
        let mut attempt =
            now(Attempt::start(&SingleTurn, &task("2+2="), &tokenizer(), 20, random())).unwrap();
        let error = now(attempt.turn(bad)).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("sample 5/2, turn 0"), "{error}");
    }
}

#[test]
fn attempts_can_be_aborted() {
    let attempt = now(Attempt::start(&SingleTurn, &task("2+2="), &tokenizer(), 20, random())).unwrap();
    assert!(matches!(attempt.finish(), Err(EnvError::NoTurn { .. })));
    // Aborted before its first token.
    let mut attempt = now(Attempt::start(&SingleTurn, &task("2+2="), &tokenizer(), 20, random())).unwrap();
    let nothing = Turn { versions: Vec::new(), ..turn(&[], StopReason::Aborted) };
    assert_eq!(now(attempt.turn(nothing)).unwrap(), Progress::Done);
    let trajectory = one(attempt.finish().unwrap());
    assert_eq!((trajectory.policy_tokens(), trajectory.stop), (0, StopReason::Aborted));
    assert_eq!(trajectory.steps().count(), 0);
    // In the middle of an episode.
    let environment = guess();
    let tokenizer = tokenizer();
    let mut attempt = now(Attempt::start(&environment, &game(7), &tokenizer, 100, random())).unwrap();
    now(attempt.turn(turn(&tokens("3"), StopReason::StopToken))).unwrap();
    assert_eq!(one(attempt.finish().unwrap()).stop, StopReason::Aborted);
}

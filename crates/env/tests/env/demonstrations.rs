//! Demonstrations as trajectories.

use rloom_core::{Author, Demonstration, StopReason, Task, Trajectory};
use rloom_env::{EnvError, Environment, Guess, GuessSettings, SingleTurn, demonstrate};
use rloom_text::{CharacterSettings, Tokenizer};

use crate::support::{ALPHABET, TEMPLATE, chat_task, game, key, now, one, task, tokenizer};

fn demonstrated(
    environment: &dyn Environment,
    task: &Task,
    tokenizer: &Tokenizer,
    context: usize,
) -> Result<Trajectory, EnvError> {
    now(demonstrate(environment, task, tokenizer, context, key())).map(one)
}

/// The texts of the spans by one author, special tokens included.
fn written(trajectory: &Trajectory, author: Author) -> Vec<String> {
    let spans = trajectory.spans.iter().filter(|s| s.author == author);
    spans.map(|s| tokenizer().decode(&trajectory.tokens[s.range.clone()], false).unwrap()).collect()
}

#[test]
fn demonstrations_continue_the_prompt_of_a_rollout() {
    let plain = demonstrated(&SingleTurn, &task("2+2="), &tokenizer(), 100).unwrap();
    assert_eq!(written(&plain, Author::Prompt), ["2+2="]);
    assert_eq!(written(&plain, Author::Policy), ["4<|eos|>"]);
    assert_eq!((plain.key, plain.stop, plain.steps().count()), (key(), StopReason::StopToken, 0));
    // It was not sampled.
    assert_eq!((plain.logprobs, plain.versions), (vec![0.0; 2], vec![]));
    // The template's line break after the turn does not belong to the policy.
    let chat = demonstrated(&SingleTurn, &chat_task(), &tokenizer(), 100).unwrap();
    assert_eq!(written(&chat, Author::Prompt), ["[user]2+2=?\n[assistant]"]);
    assert_eq!(written(&chat, Author::Policy), ["4<|eos|>"]);
}

#[test]
fn games_follow_the_rules_of_the_environment() {
    let turns =
        |turns: &[&str]| Some(Demonstration::Turns(turns.iter().map(|&turn| turn.to_owned()).collect()));
    let guess = Guess::new(&GuessSettings { max_turns: 3, ..GuessSettings::default() });
    let task = Task { demonstration: turns(&["4", "8", "7"]), ..game(7) };
    let trajectory = demonstrated(&guess, &task, &tokenizer(), 100).unwrap();
    assert_eq!(tokenizer().decode(&trajectory.tokens, true).unwrap(), "0-9:4>8<7");
    assert_eq!(written(&trajectory, Author::Policy), ["4<|eos|>", "8<|eos|>", "7<|eos|>"]);
    assert_eq!(written(&trajectory, Author::Environment), [">", "<"]);
    assert_eq!(trajectory.stop, StopReason::StopToken);
    // The game ends after three turns, even if the demonstration has more.
    let long = Task { demonstration: turns(&["4", "8", "6", "7"]), ..game(7) };
    let trajectory = demonstrated(&guess, &long, &tokenizer(), 100).unwrap();
    assert_eq!(written(&trajectory, Author::Policy).len(), 3);
    // Prompt 4, turns 2 each, observations 1 each.
    demonstrated(&guess, &task, &tokenizer(), 12).unwrap();
    for context in 6..12 {
        let error = demonstrated(&guess, &task, &tokenizer(), context).unwrap_err();
        assert!(matches!(error, EnvError::DemonstrationTooLong { task: 42, .. }), "{context}: {error}");
    }
}

#[test]
fn long_and_missing_demonstrations_are_errors() {
    let tokenizer = tokenizer();
    assert!(demonstrated(&SingleTurn, &task("2+2="), &tokenizer, 6).is_ok());
    let error = demonstrated(&SingleTurn, &task("2+2="), &tokenizer, 5).unwrap_err().to_string();
    assert!(
        error.starts_with("the demonstration of task 42 has 4 + 2 tokens, but the context is 5"),
        "{error}"
    );
    let none = Task { demonstration: None, ..task("2+2=") };
    assert!(matches!(
        demonstrated(&SingleTurn, &none, &tokenizer, 9),
        Err(EnvError::NoDemonstration { task: 42 })
    ));
    let foreign = demonstrated(&SingleTurn, &task("2×2="), &tokenizer, 9).unwrap_err().to_string();
    assert!(foreign.starts_with("task 42: ") && foreign.contains('×'), "{foreign}");
}

#[test]
fn a_template_that_rewrites_the_prompt_still_gives_a_demonstration() {
    let mut settings = CharacterSettings::new(ALPHABET);
    // The prompt contains `[think]`, the finished conversation does not.
    settings.chat_template =
        Some(TEMPLATE.replace("[assistant]{% endif %}", "[assistant][think]{% endif %}"));
    let tokenizer = Tokenizer::characters(&settings).unwrap();
    let trajectory = demonstrated(&SingleTurn, &chat_task(), &tokenizer, 100).unwrap();
    assert_eq!(written(&trajectory, Author::Policy), ["4<|eos|>"]);
}

//! The conformance suite over every environment, and over environments that break its rules.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail loudly too")]

use std::future::ready;

use rloom_core::{
    Author, ChatMessage, PolicyVersion, PromptSource, SampleKey, StopReason, Task, Ticket, VersionSpan,
};
use rloom_env::{
    Attempt, BoxFuture, Demonstration, EnvError, Environment, Interaction, Next, Progress, SingleTurn, Start,
    Turn, conformance, render_prompt,
};
use rloom_text::{CharacterSettings, Tokenizer};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\
    {% if m.role == 'assistant' %}<|eos|>{% endif %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";

fn tokenizer() -> Tokenizer {
    let mut settings = CharacterSettings::new("\n []abcdefghijklmnopqrstuvwxyz0123456789+=?");
    settings.chat_template = Some(TEMPLATE.into());
    Tokenizer::characters(&settings).unwrap()
}

fn task(prompt: &str) -> Task {
    Task {
        index: 42,
        prompt: PromptSource::Text(prompt.into()),
        answer: "4".into(),
        demonstration: Some("4".into()),
        domain: "test".into(),
    }
}

fn chat_task() -> Task {
    let message = ChatMessage { role: "user".into(), content: "2+2=?".into() };
    Task { prompt: PromptSource::Messages(vec![message]), ..task("") }
}

fn key() -> SampleKey {
    SampleKey { ticket: Ticket(5), sample: 2, segment: 0 }
}

fn turn(tokens: &[u32], stop: StopReason) -> Turn {
    Turn {
        tokens: tokens.to_vec(),
        logprobs: vec![-0.5; tokens.len()],
        temperature: 0.7,
        versions: vec![VersionSpan { version: PolicyVersion(3), range: 0..tokens.len() }],
        stop,
    }
}

/// Polls once: nothing in these tests waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the future waits"),
    }
}

/// Guess a number by being told to go up or down: several turns, with a state per episode.
#[derive(Debug)]
struct Guess {
    fault: Option<Fault>,
    begun: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    EmptyPrompt,
    OtherPromptEachTime,
    SharedState,
    Endless,
    EmptyObservation,
}

#[derive(Debug)]
struct Guessing {
    left: usize,
    tokenizer: Tokenizer,
    fault: Option<Fault>,
    begun: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Environment for Guess {
    fn name(&self) -> &'static str {
        "guess"
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        let times = self.begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut prompt = render_prompt(tokenizer, &task.prompt).unwrap();
        match self.fault {
            Some(Fault::EmptyPrompt) => prompt.clear(),
            Some(Fault::OtherPromptEachTime) => prompt.push(3 + times as u32 % 2),
            _ => {}
        }
        let interaction = Box::new(Guessing {
            left: 3,
            tokenizer: tokenizer.clone(),
            fault: self.fault,
            begun: self.begun.clone(),
        });
        Box::pin(ready(Ok(Start { prompt, interaction })))
    }
}

impl Interaction for Guessing {
    fn step<'a>(&'a mut self, turn: &'a Turn) -> BoxFuture<'a, Result<Next, EnvError>> {
        self.left -= usize::from(self.fault != Some(Fault::Endless));
        let text = self.tokenizer.decode(&turn.tokens, true).unwrap();
        let next = if text.trim() == "7" || self.left == 0 {
            Next::Done
        } else {
            let hint = match self.fault {
                Some(Fault::SharedState) => {
                    format!("{}", self.begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 10)
                }
                Some(Fault::EmptyObservation) => String::new(),
                _ if text.trim() < "7" => "up".into(),
                _ => "down".into(),
            };
            Next::Observation(self.tokenizer.encode(&hint, false).unwrap())
        };
        Box::pin(ready(Ok(next)))
    }
}

fn guess(fault: Option<Fault>) -> Guess {
    Guess { fault, begun: std::sync::Arc::default() }
}

#[test]
fn single_turn_conforms() {
    conformance::check(&SingleTurn, &task("2+2="), &tokenizer(), &["4"]).unwrap();
    conformance::check(&SingleTurn, &chat_task(), &tokenizer(), &["4"]).unwrap();
}

#[test]
fn several_turns_conform() {
    conformance::check(&guess(None), &task("which number?"), &tokenizer(), &["3", "9", "7"]).unwrap();
    conformance::check(&guess(None), &task("which number?"), &tokenizer(), &["3"]).unwrap();
}

#[test]
fn conformance_finds_what_is_wrong() {
    for (fault, said) in [
        (Fault::EmptyPrompt, "the prompt of task 42 is empty"),
        (Fault::OtherPromptEachTime, "another trajectory the second time"),
        (Fault::SharedState, "another trajectory the second time"),
        (Fault::Endless, "no end after"),
        (Fault::EmptyObservation, "the environment's observation is empty"),
    ] {
        let found = conformance::check(&guess(Some(fault)), &task("which?"), &tokenizer(), &["3", "4"]);
        let error = found.expect_err("the fault went unseen");
        assert!(error.contains(said), "{fault:?}: {error}");
    }
}

#[test]
fn a_trajectory_says_who_wrote_what() {
    let tokenizer = tokenizer();
    let environment = guess(None);
    let mut attempt = now(Attempt::start(&environment, &task("which?"), &tokenizer, 100, key())).unwrap();
    let prompt = attempt.tokens().len();
    let first = Turn {
        versions: vec![
            VersionSpan { version: PolicyVersion(3), range: 0..1 },
            VersionSpan { version: PolicyVersion(4), range: 1..2 },
        ],
        ..turn(&[35, 1], StopReason::StopToken)
    };
    assert_eq!(now(attempt.turn(first)).unwrap(), Progress::Continue);
    let observed = attempt.tokens().len();
    let seven = tokenizer.encode("7", false).unwrap();
    assert_eq!(now(attempt.turn(turn(&seven, StopReason::StopString))).unwrap(), Progress::Done);
    let trajectory = attempt.finish().unwrap();
    assert_eq!(trajectory.key, key());
    let authors: Vec<_> =
        trajectory.spans.iter().map(|s| (s.author, s.range.clone(), s.temperature)).collect();
    assert_eq!(
        authors,
        [
            (Author::Prompt, 0..prompt, 1.0),
            (Author::Policy, prompt..prompt + 2, 0.7),
            (Author::Environment, prompt + 2..observed, 1.0),
            (Author::Policy, observed..observed + 1, 0.7),
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
    let error = now(Attempt::start(&SingleTurn, &task("2+2=2+2=2+2="), &tokenizer(), 12, key())).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the prompt of task 42 has 12 tokens, but the context holds 12"), "{text}");
    assert!(text.contains("\nhint: "), "{text}");
}

#[test]
fn an_observation_without_room_for_a_turn_truncates() {
    let tokenizer = tokenizer();
    let environment = guess(None);
    let prompt = task("which?");
    // 6 of the prompt, 1 of the turn, 2 of the observation: 9 leave no room for another token.
    for (context, over) in [(9, true), (10, false)] {
        let mut attempt = now(Attempt::start(&environment, &prompt, &tokenizer, context, key())).unwrap();
        let progress = now(attempt.turn(turn(&[35], StopReason::StopToken))).unwrap();
        assert_eq!(progress == Progress::Done, over);
        if over {
            let trajectory = attempt.finish().unwrap();
            assert_eq!(trajectory.stop, StopReason::Length);
            assert_eq!(trajectory.tokens.len(), 7);
        } else {
            assert_eq!(attempt.room(), 1);
        }
    }
}

#[test]
fn turns_that_contradict_themselves_are_refused() {
    let good = turn(&[5, 6], StopReason::StopToken);
    let nan = Turn { logprobs: vec![-1.0, f32::NAN], ..good.clone() };
    let positive = Turn { logprobs: vec![-1.0, 0.5], ..good.clone() };
    let few = Turn { logprobs: vec![-1.0], ..good.clone() };
    let cold = Turn { temperature: 0.0, ..good.clone() };
    let span = |range| VersionSpan { version: PolicyVersion(1), range };
    let gap = Turn { versions: vec![span(0..1)], ..good.clone() };
    let overlap = Turn { versions: vec![span(0..2), span(1..2)], ..good.clone() };
    let beyond = Turn { versions: vec![span(0..3)], ..good.clone() };
    let long = turn(&[5; 99], StopReason::Length);
    for (bad, said) in [
        (nan, "the log-probability of token 1 is NaN"),
        (positive, "the log-probability of token 1 is 0.5"),
        (few, "1 log-probabilities for 2 tokens"),
        (cold, "its temperature is 0"),
        (gap, "do not tile its 2 tokens"),
        (overlap, "do not tile its 2 tokens"),
        (beyond, "do not tile its 2 tokens"),
        (long, "99 tokens, but the context has room for 16"),
    ] {
        let mut attempt = now(Attempt::start(&SingleTurn, &task("2+2="), &tokenizer(), 20, key())).unwrap();
        let error = now(attempt.turn(bad)).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("sample: 2"), "{error}");
    }
}

#[test]
fn an_attempt_can_be_given_up() {
    let attempt = now(Attempt::start(&SingleTurn, &task("2+2="), &tokenizer(), 20, key())).unwrap();
    assert!(matches!(attempt.finish(), Err(EnvError::NoTurn { .. })));
    // Aborted before its first token.
    let mut attempt = now(Attempt::start(&SingleTurn, &task("2+2="), &tokenizer(), 20, key())).unwrap();
    let nothing = Turn { versions: Vec::new(), ..turn(&[], StopReason::Aborted) };
    assert_eq!(now(attempt.turn(nothing)).unwrap(), Progress::Done);
    let trajectory = attempt.finish().unwrap();
    assert_eq!((trajectory.policy_tokens(), trajectory.stop), (0, StopReason::Aborted));
    // In the middle of an episode.
    let environment = guess(None);
    let tokenizer = tokenizer();
    let mut attempt = now(Attempt::start(&environment, &task("which?"), &tokenizer, 100, key())).unwrap();
    now(attempt.turn(turn(&[35], StopReason::StopToken))).unwrap();
    assert_eq!(attempt.finish().unwrap().stop, StopReason::Aborted);
}

#[test]
fn demonstrations_continue_the_prompt_of_a_rollout() {
    let tokenizer = tokenizer();
    let plain = Demonstration::render(&task("2+2="), &tokenizer, 100).unwrap();
    assert_eq!(plain.prompt, render_prompt(&tokenizer, &task("2+2=").prompt).unwrap());
    assert_eq!(tokenizer.decode(&plain.completion, false).unwrap(), "4<|eos|>");
    // The template's line break after the end of the turn is not the policy's.
    let chat = Demonstration::render(&chat_task(), &tokenizer, 100).unwrap();
    assert_eq!(tokenizer.decode(&chat.prompt, false).unwrap(), "[user]2+2=?\n[assistant]");
    assert_eq!(tokenizer.decode(&chat.completion, false).unwrap(), "4<|eos|>");
}

#[test]
fn demonstrations_that_do_not_fit_or_are_not_there() {
    let tokenizer = tokenizer();
    assert!(Demonstration::render(&task("2+2="), &tokenizer, 6).is_ok());
    let error = Demonstration::render(&task("2+2="), &tokenizer, 5).unwrap_err().to_string();
    assert!(
        error.starts_with("the demonstration of task 42 has 4 + 2 tokens, but the context holds 5"),
        "{error}"
    );
    let none = Task { demonstration: None, ..task("2+2=") };
    assert!(matches!(
        Demonstration::render(&none, &tokenizer, 9),
        Err(EnvError::NoDemonstration { task: 42 })
    ));
    let foreign = Demonstration::render(&task("2×2="), &tokenizer, 9).unwrap_err().to_string();
    assert!(foreign.starts_with("task 42: ") && foreign.contains('×'), "{foreign}");
}

#[test]
fn a_template_that_rewrites_the_prompt_still_gives_a_demonstration() {
    let mut settings = CharacterSettings::new("\n []abcdefghijklmnopqrstuvwxyz0123456789+=?");
    // The prompt says `[think]` where the finished conversation does not.
    settings.chat_template =
        Some(TEMPLATE.replace("[assistant]{% endif %}", "[assistant][think]{% endif %}"));
    let tokenizer = Tokenizer::characters(&settings).unwrap();
    let rendered = Demonstration::render(&chat_task(), &tokenizer, 100).unwrap();
    assert_eq!(tokenizer.decode(&rendered.completion, false).unwrap(), "4<|eos|>");
}

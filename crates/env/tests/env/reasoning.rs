//! Reasoning of earlier turns, which the chat template drops.

use rloom_core::{ChatMessage, EarlierReasoning, PromptSource, StopReason, Task, Trajectory};
use rloom_env::{Attempt, Guess, GuessSettings, conformance};
use rloom_text::{CharacterSettings, Tokenizer};
use serde::Deserialize;

use crate::support::{game, now, random, turn};

const FORGETFUL: &str = include_str!("../../../text/tests/golden/templates/forgetful.jinja");
const ALPHABET: &str = "\n |abcdefghijklmnopqrstuvwxyz0123456789:<>?/.-";

/// Prompts of the turns of a game, as `earlier_reasoning.py` writes them.
#[derive(Deserialize)]
struct Golden {
    prompt: String,
    turns: Vec<String>,
    prompts: Vec<String>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/earlier_reasoning.json")).unwrap()
}

fn tokenizer() -> Tokenizer {
    let mut settings = CharacterSettings::new(ALPHABET);
    settings.chat_template = Some(FORGETFUL.replace("<|end|>", "<|eos|>"));
    Tokenizer::characters(&settings).unwrap()
}

fn task() -> Task {
    Task { prompt: PromptSource::Messages(vec![ChatMessage::new("user", golden().prompt)]), ..game(7) }
}

fn guess(earlier_reasoning: EarlierReasoning) -> Guess {
    Guess::new(&GuessSettings { earlier_reasoning, ..GuessSettings::default() })
}

/// The segments, and the text before each turn.
fn played(earlier_reasoning: EarlierReasoning) -> (Vec<Trajectory>, Vec<String>) {
    let (tokenizer, environment) = (tokenizer(), guess(earlier_reasoning));
    let mut attempt = now(Attempt::start(&environment, &task(), &tokenizer, 1000, random())).unwrap();
    let mut before = Vec::new();
    for text in golden().turns {
        before.push(tokenizer.decode(attempt.tokens(), false).unwrap());
        let tokens = tokenizer.encode(&format!("{text}<|eos|>"), false).unwrap();
        now(attempt.turn(turn(&tokens, StopReason::StopToken))).unwrap();
    }
    assert!(attempt.is_over());
    (attempt.finish().unwrap(), before)
}

/// Each prompt is what transformers renders.
#[test]
fn new_segments_have_the_conversation_as_the_template_renders_it() {
    let (segments, prompts) = played(EarlierReasoning::NewSegment);
    assert_eq!(prompts, golden().prompts);
    // The second turn has no reasoning: the third follows it in the same segment.
    let turns: Vec<usize> = segments.iter().map(|own| own.policy_ranges().count()).collect();
    assert_eq!(turns, [1, 2, 1]);
    // What the environment answered is not part of the prompt.
    let text = tokenizer().decode(&segments[1].tokens[segments[1].leading_prompt()..], false).unwrap();
    assert!(text.starts_with("\n<|user|>\n><|eos|>\n<|assistant|>\n8<|eos|>"), "{text}");
    assert_eq!(segments.last().unwrap().steps().last().unwrap().reward, 1.0);
}

#[test]
fn kept_reasoning_stays_in_one_segment() {
    let (segments, before) = played(EarlierReasoning::Keep);
    assert_eq!(segments.len(), 1);
    let turns = golden().turns;
    let mut text = golden().prompts[0].clone();
    for (turn, (observation, before)) in turns.iter().zip([">", "<", ">", ""].iter().zip(&before)) {
        assert_eq!(*before, text);
        text.extend([turn.as_str(), "<|eos|>\n<|user|>\n", observation, "<|eos|>\n<|assistant|>\n"]);
    }
}

#[test]
fn games_read_what_follows_the_reasoning() {
    let (segments, _) = played(EarlierReasoning::NewSegment);
    let rewards: Vec<f64> = segments.iter().flat_map(Trajectory::steps).map(|step| step.reward).collect();
    assert_eq!(rewards, [0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn both_conform() {
    for earlier_reasoning in [EarlierReasoning::Keep, EarlierReasoning::NewSegment] {
        let replies = ["<think>\na\n</think>\n\n3", "4", "<think>\nb\n</think>\n\n5"];
        conformance::check(&guess(earlier_reasoning), &task(), &tokenizer(), &replies).unwrap();
    }
}

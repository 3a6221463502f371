//! Reasoning of earlier turns between the calls of tools, which the chat template drops.

use rloom_core::{ChatMessage, EarlierReasoning, PromptSource};
use rloom_env::{Attempt, Progress, Tools, ToolsEnvironment, conformance};
use rloom_text::calls::ToolDeclaration;
use rloom_text::{RenderOptions, Tokenizer};
use rloom_tools::Source as _;
use serde_json::Value;

use crate::support::random;
use crate::tools::{Played, TestTools, block_on, call, environment, question, settings, tokenizer_with};

/// Drops the reasoning of all turns but the last; the header of a turn opens reasoning if `opens` is true.
fn forgetful(opens: bool) -> Tokenizer {
    tokenizer_with(|template| {
        let template = template.replace("loop.index0 < state.asked_at", "not loop.last");
        template.replace("elif opens_reasoning", if opens { "elif true" } else { "elif false" })
    })
}

fn tools(earlier_reasoning: EarlierReasoning) -> Tools {
    environment(&TestTools::new(), &ToolsEnvironment { earlier_reasoning, ..settings() })
}

/// What the policy writes in its turns, and the results.
fn turns(opens: bool) -> Vec<(String, &'static str)> {
    let begin = if opens { "" } else { "<think>\n" };
    vec![
        (format!("{begin}first\n</think>\n\n{}", call("fast", "1")), "fast 1"),
        (call("fast", "2"), "fast 2"),
        (format!("{begin}third\n</think>\n\nSo: {}", call("fast", "3")), "fast 3"),
    ]
}

/// Plays the turns; the text before each, and that before the turn after them.
fn prompts(played: &mut Played, turns: &[(String, &str)]) -> Vec<String> {
    let before = |played: &Played| played.tokenizer.decode(played.attempt.tokens(), false).unwrap();
    let mut prompts = vec![before(played)];
    for (written, _) in turns {
        assert_eq!(played.advance(written), Progress::Continue);
        prompts.push(before(played));
    }
    prompts
}

/// The prompt after some turns, as the template renders the conversation.
fn rendered(tokenizer: &Tokenizer, turns: &[(String, &str)]) -> String {
    let declared: Vec<Value> = TestTools::new().tools().iter().map(ToolDeclaration::for_template).collect();
    let PromptSource::Messages(mut messages) = question().prompt else { panic!("a conversation") };
    for (written, result) in turns {
        messages.push(ChatMessage::new("assistant", written.as_str()));
        messages.push(ChatMessage::new("tool", *result));
    }
    let options = RenderOptions { tools: Some(&declared), ..RenderOptions::prompt() };
    tokenizer.chat_template().unwrap().render(&messages, &options).unwrap()
}

#[test]
fn new_segments_are_what_the_template_renders() {
    // A turn without reasoning, after a header that opens it, would be all reasoning: it has no calls.
    for (opens, turns) in [(false, turns(false)), (true, [&turns(true)[..1], &turns(true)[2..]].concat())] {
        let tokenizer = forgetful(opens);
        let mut played =
            Played::start_with(tokenizer.clone(), &tools(EarlierReasoning::NewSegment), &question());
        let prompts = prompts(&mut played, &turns);
        for (count, prompt) in prompts.iter().enumerate() {
            assert_eq!(*prompt, rendered(&tokenizer, &turns[..count]), "after {count} turns");
        }
        assert_eq!(played.advance("<think>\nlast\n</think>\n\nThe answer."), Progress::Done);
        let segments = played.attempt.finish().unwrap();
        let of_segments: Vec<usize> = segments.iter().map(|own| own.policy_ranges().count()).collect();
        assert_eq!(of_segments, if opens { vec![1, 1, 1] } else { vec![1, 2, 1] });
        let observed = tokenizer.decode(&segments[1].tokens[segments[1].leading_prompt()..], false).unwrap();
        assert!(observed.starts_with("\n<|im_start|>user\n<tool_response>\nfast 1\n"), "{observed}");
    }
}

#[test]
fn kept_reasoning_stays_in_one_segment() {
    let tokenizer = forgetful(false);
    let mut played = Played::start_with(tokenizer, &tools(EarlierReasoning::Keep), &question());
    let prompts = prompts(&mut played, &turns(false));
    assert!(prompts[3].contains("first") && prompts[3].contains("third"), "{}", prompts[3]);
    assert_eq!(played.advance("The answer."), Progress::Done);
    assert_eq!(played.attempt.finish().unwrap().len(), 1);
}

/// An episode that a resumed run continues has the prompts that it would have had.
#[test]
fn recalled_turns_begin_the_same_segments() {
    for opens in [false, true] {
        let (tokenizer, environment) = (forgetful(opens), tools(EarlierReasoning::NewSegment));
        let turns = [&turns(opens)[..1], &turns(opens)[2..]].concat();
        let mut played = Played::start_with(tokenizer.clone(), &environment, &question());
        let whole = prompts(&mut played, &turns);
        let responses = played.attempt.responses().to_vec();
        let mut attempt =
            block_on(Attempt::start(&environment, &question(), &tokenizer, 4000, random())).unwrap();
        block_on(attempt.recall(&played.written(&turns[0].0), &responses[0])).unwrap();
        block_on(attempt.turn(played.written(&turns[1].0))).unwrap();
        assert_eq!(tokenizer.decode(attempt.tokens(), false).unwrap(), whole[2]);
    }
}

#[test]
fn conforms() {
    let tokenizer = forgetful(false);
    let turns: Vec<String> = turns(false).into_iter().map(|(text, _)| format!("{text}<|stop|>")).collect();
    let replies: Vec<&str> = turns.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    conformance::check(&tools(EarlierReasoning::NewSegment), &question(), &tokenizer, &replies).unwrap();
}

//! Templates that drop the reasoning of earlier turns.

use rloom_core::Author::{Environment, Policy, Prompt};
use rloom_core::EarlierReasoning;
use serde_json::json;

use super::{authors, chat, checked, message};
use crate::script::Setup;

#[test]
fn dropped_reasoning_is_kept_or_begins_a_segment() {
    for (setting, expected) in [
        (EarlierReasoning::Keep, vec![vec![Prompt, Policy, Environment, Policy, Environment, Policy]]),
        (
            EarlierReasoning::NewSegment,
            vec![vec![Prompt, Policy], vec![Prompt, Policy], vec![Prompt, Policy]],
        ),
    ] {
        let mut setup = Setup::saying("<think>\nSecret.\n</think>\n\nAnswer.");
        setup.template = "reasoning.jinja";
        setup.sessions.earlier_reasoning = setting;
        let server = setup.start();
        let session = server.session();
        let mut messages = vec![json!({"role": "user", "content": "First?"})];
        for question in ["Second?", "Third?"] {
            // Most clients do not send the reasoning back.
            let mut answer = message(&chat(&server, &session, &json!(messages)));
            answer.as_object_mut().unwrap().remove("reasoning_content");
            messages.extend([answer, json!({"role": "user", "content": question})]);
        }
        chat(&server, &session, &json!(messages));
        let end = checked(&server, session);
        assert_eq!(end.segments.iter().map(authors).collect::<Vec<_>>(), expected);
        let last = &end.segments[end.segments.len() - 1];
        let text = server.tokenizer.decode(&last.tokens[..last.policy_ranges().last().unwrap().start], false);
        assert_eq!(text.unwrap().contains("Secret."), setting == EarlierReasoning::Keep);
    }
}

/// The template keeps reasoning in a tool loop: there is nothing to begin a segment for.
#[test]
fn kept_reasoning_continues_the_segment() {
    let mut setup = Setup::saying("<think>\nSecret.\n</think>\n\nAnswer.");
    setup.template = "reasoning.jinja";
    setup.sessions.earlier_reasoning = EarlierReasoning::NewSegment;
    let server = setup.start();
    let session = server.session();
    let ask = json!({"role": "user", "content": "First?"});
    let answer = message(&chat(&server, &session, &json!([ask])));
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "r"});
    chat(&server, &session, &json!([ask, answer, result]));
    assert_eq!(checked(&server, session).segments.len(), 1);
}

/// A turn that was cut off in its reasoning is closed by the environment.
#[test]
fn open_reasoning_is_closed() {
    let server = Setup::saying("<think>\nLong thoughts without an end").start();
    let session = server.session();
    let ask = json!({"role": "user", "content": "Count."});
    let body = json!({"messages": [ask], "max_tokens": 16});
    let answer = message(&crate::client::post(server.address, &super::chat_path(&session), &body));
    chat(&server, &session, &json!([ask, answer, {"role": "user", "content": "Go on."}]));
    let end = checked(&server, session);
    let [segment] = end.segments.as_slice() else { panic!("{:?}", end.segments) };
    let range = segment.spans.iter().find(|span| span.author == Environment).unwrap().range.clone();
    let text = server.tokenizer.decode(&segment.tokens[range], false).unwrap();
    assert!(text.starts_with("\n</think>\n\n<|stop|>\n<|im_start|>user\nGo on."), "{text}");
}

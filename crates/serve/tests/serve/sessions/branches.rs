//! Requests that do not continue the last one: forks, sub-agents, condensation.

use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_core::Author::{Environment, Policy, Prompt};
use serde_json::json;

use super::{authors, chat, chat_path, checked, message};
use crate::client::post;
use crate::script::{Setup, TestServer};

/// A server whose answers are numbered.
fn counting() -> TestServer {
    let number = AtomicUsize::new(0);
    Setup::new(move |_| format!("Answer {}", number.fetch_add(1, Ordering::SeqCst))).start()
}

/// Same request without a sign of a repetition: several samples, each with a random stream of its own.
#[test]
fn equal_requests_are_samples_of_their_own() {
    let server = counting();
    let session = server.session();
    let ask = json!([{"role": "user", "content": "Hi"}]);
    let answers: Vec<_> = (0..3).map(|_| message(&chat(&server, &session, &ask))).collect();
    // One of them is continued, twice.
    for question in ["Why?", "How?"] {
        chat(&server, &session, &json!([ask[0], answers[1], {"role": "user", "content": question}]));
    }
    let end = checked(&server, session);
    assert_eq!((end.segments.len(), end.calls), (4, 5));
    let all: Vec<_> = end.segments.iter().map(authors).collect();
    assert_eq!(all[1], [Prompt, Policy, Environment, Policy]);
    // The answer that both continue is the policy's in one of them.
    assert_eq!(all[3], [Prompt, Environment, Policy]);
    let shared = end.segments[3].spans[0].range.clone();
    assert_eq!(end.segments[3].tokens[shared.clone()], end.segments[1].tokens[shared]);
    let keys = server.engine.keys.lock().unwrap();
    let mut streams: Vec<u32> = keys.iter().map(|key| key.segment).collect();
    assert_eq!((streams[0], streams[1]), (0, streams[3]), "a turn has the stream of its branch");
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), 4, "{keys:?}");
    // Prompts of the group's episodes are the same only at their beginning.
    let groups = server.engine.groups.lock().unwrap();
    assert_eq!(*groups, [Some(7), Some(7), Some(7), None, None]);
}

/// Streams of branches depend on what is asked, not on the order.
#[test]
fn streams_do_not_depend_on_the_order() {
    let streams = |questions: [&'static str; 3]| {
        let server = Setup::saying("One").start();
        let session = server.session();
        let first = json!([{"role": "user", "content": "Hi"}]);
        let answer = message(&chat(&server, &session, &first));
        chat(&server, &session, &json!([first[0], answer, {"role": "user", "content": "Go on."}]));
        for question in questions {
            chat(&server, &session, &json!([first[0], answer, {"role": "user", "content": question}]));
        }
        let keys = server.engine.keys.lock().unwrap();
        let mut streams: Vec<_> =
            questions.into_iter().zip(keys[2..].iter().map(|key| key.segment)).collect();
        streams.sort_unstable();
        streams
    };
    assert_eq!(streams(["a", "b", "c"]), streams(["c", "a", "b"]));
}

/// Another system prompt, other tools, an edited message, a summary: segments of the same episode.
#[test]
fn sub_agents_edits_and_summaries_are_segments() {
    let server = counting();
    let session = server.session();
    let system = json!({"role": "system", "content": "Lead."});
    let task = json!({"role": "user", "content": "Task"});
    let planned = message(&chat(&server, &session, &json!([system, task])));
    // A sub-agent, while the conversation of the first is open.
    let sub = json!([{"role": "system", "content": "Search."}, {"role": "user", "content": "Find"}]);
    let found = message(&chat(&server, &session, &sub));
    let mut longer = sub.as_array().unwrap().clone();
    longer.extend([found.clone(), json!({"role": "user", "content": "More"})]);
    chat(&server, &session, &json!(longer));
    // Handed over: the next agent sees the same messages under its own system prompt.
    let handed = json!([{"role": "system", "content": "Write."}, task, planned, {"role": "user", "content": "Write it"}]);
    chat(&server, &session, &handed);
    // The lead continues.
    chat(&server, &session, &json!([system, task, planned, {"role": "user", "content": "Result"}]));
    // An edited answer.
    let edited = json!({"role": "assistant", "content": "Another answer"});
    chat(&server, &session, &json!([system, task, edited, {"role": "user", "content": "Result"}]));
    // A summary in place of the history.
    chat(&server, &session, &json!([system, {"role": "user", "content": "Summary: …"}]));
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let body = json!({"messages": [system, task], "tools": [tool]});
    assert_eq!(post(server.address, &chat_path(&session), &body).status, 200);
    let end = checked(&server, session);
    let all: Vec<_> = end.segments.iter().map(authors).collect();
    let turns = [Prompt, Policy, Environment, Policy];
    let single = [Prompt, Policy];
    let expected: [&[_]; 6] = [&turns, &turns, &single, &single, &single, &single];
    assert_eq!(all, expected);
}

/// AutoGen asks for a summary of a tool's result without the tools; pydantic-ai and others begin with a history of their own.
#[test]
fn calls_without_the_tools_are_segments() {
    let server = super::conversations::agent();
    let session = server.session();
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let ask = json!({"role": "user", "content": "Weather?"});
    let body = json!({"messages": [ask], "tools": [tool]});
    let called = message(&post(server.address, &chat_path(&session), &body));
    let id = called["tool_calls"][0]["id"].clone();
    let result = json!({"role": "tool", "tool_call_id": id, "content": "sun"});
    chat(&server, &session, &json!([ask, called, result]));
    let end = checked(&server, session);
    assert_eq!(end.segments.len(), 2);
    assert_eq!(authors(&end.segments[1]), [Prompt, Policy]);
}

/// A history that was not sampled here is a prompt; what follows a sampled turn stays behind its tokens.
#[test]
fn what_others_wrote_is_no_policy_text() {
    let server = counting();
    let session = server.session();
    let history = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Written by another"},
        {"role": "user", "content": "And?"},
    ]);
    let answer = message(&chat(&server, &session, &history));
    let mut longer = history.as_array().unwrap().clone();
    longer.extend([
        answer,
        json!({"role": "user", "content": "Then?"}),
        json!({"role": "assistant", "content": "Also written by another"}),
        json!({"role": "user", "content": "So?"}),
    ]);
    chat(&server, &session, &json!(longer));
    let end = checked(&server, session);
    let [segment] = end.segments.as_slice() else { panic!("{:?}", end.segments) };
    assert_eq!(authors(segment), [Prompt, Policy, Environment, Policy]);
    let text = server.tokenizer.decode(&segment.tokens, false).unwrap();
    assert!(text.contains("Also written by another<|stop|>\n<|im_start|>user\nSo?"), "{text}");
}

/// Of several answers with the same content, the one whose calls the client repeats is continued.
#[test]
fn identifiers_tell_equal_answers_apart() {
    let server = super::conversations::agent();
    let session = server.session();
    let tool = json!({"type": "function", "function": {"name": "weather"}});
    let ask = json!({"role": "user", "content": "Weather?"});
    let body = json!({"messages": [ask], "tools": [tool]});
    let called: Vec<_> =
        (0..3).map(|_| message(&post(server.address, &chat_path(&session), &body))).collect();
    let result = json!({"role": "tool", "tool_call_id": called[1]["tool_calls"][0]["id"], "content": "sun"});
    let next = json!({"messages": [ask, called[1], result], "tools": [tool]});
    assert_eq!(post(server.address, &chat_path(&session), &next).status, 200);
    let end = checked(&server, session);
    let lengths: Vec<usize> = end.segments.iter().map(|segment| segment.spans.len()).collect();
    assert_eq!(lengths, [2, 4, 2]);
}

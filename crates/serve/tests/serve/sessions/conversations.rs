//! Conversations that continue: prompts are the tokens of what was sampled, and the rendering of what is new.

use rloom_core::Author::{Environment, Policy, Prompt};
use rloom_core::StopReason;
use serde_json::{Value, json};

use super::{authors, chat, chat_path, checked, message};
use crate::client::{post, stream};
use crate::script::{Setup, TestServer};

const CALL: &str =
    "<tool_call>\n{\"name\": \"weather\",   \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>";

/// Calls a tool, and answers after its result. The text of the call is not the one that the template would render.
pub(super) fn agent() -> TestServer {
    Setup::new(|prompt| {
        if prompt.rsplit("<|im_start|>").nth(1).unwrap().contains("tool_response") {
            "Sunny.".to_owned()
        } else {
            format!("I look.\n{CALL}")
        }
    })
    .start()
}

fn tools() -> Value {
    let schema =
        json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    json!([{"type": "function", "function": {"name": "weather", "description": "d", "parameters": schema}}])
}

/// A question, the call in the words of the client, and its result.
fn looped(echo: &Value) -> Value {
    let id = echo["tool_calls"][0]["id"].clone();
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        echo,
        {"role": "tool", "tool_call_id": id, "content": "sun"},
    ])
}

#[test]
fn a_tool_loop_is_one_segment() {
    let server = agent();
    let session = server.session();
    let first = json!({"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"},
    ], "tools": tools()});
    let called = post(server.address, &chat_path(&session), &first);
    let mut messages = looped(&message(&called));
    let body = json!({"messages": messages, "tools": tools()});
    let answer = message(&stream_message(&server, &chat_path(&session), &body));
    messages.as_array_mut().unwrap().extend([answer, json!({"role": "user", "content": "And Rome?"})]);
    post(server.address, &chat_path(&session), &json!({"messages": messages, "tools": tools()}));
    let end = checked(&server, session);
    let [segment] = end.segments.as_slice() else { panic!("{:?}", end.segments) };
    assert_eq!(authors(segment), [Prompt, Policy, Environment, Policy, Environment, Policy]);
    assert_eq!((end.calls, segment.stop), (3, StopReason::StopToken));
    let text = server.tokenizer.decode(&segment.tokens, false).unwrap();
    // The words of the policy, not those of the template.
    assert!(text.contains(CALL), "{text}");
}

/// An answer that was streamed, in the form of one that was not.
fn stream_message(server: &TestServer, path: &str, body: &Value) -> crate::client::Answer {
    let mut answer = stream(server.address, path, body);
    let events = answer.events();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    answer.body = json!({"choices": [{"message": {"role": "assistant", "content": text}}]}).to_string();
    answer
}

/// Clients send back what they received in other words.
#[test]
fn echoes_in_other_words_continue_the_segment() {
    let arguments = [
        r#"{"city":"Oslo","days":2}"#,
        r#"{"days": 2, "city": "Oslo"}"#,
        "{\"city\":\"Oslo\",\"days\":2.0,\"unit\":null}",
    ];
    let contents =
        [json!("I look."), json!([{"type": "text", "text": "I "}, {"type": "text", "text": "look."}])];
    for arguments in arguments {
        for content in &contents {
            let server = agent();
            let session = server.session();
            let first = json!({"messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "Weather?", "name": "user"},
            ], "tools": tools()});
            post(server.address, &chat_path(&session), &first);
            let function = json!({"name": "weather", "arguments": arguments});
            let echo = json!({
                "role": "assistant", "name": "agent", "content": content, "refusal": null,
                "tool_calls": [{"id": "other", "type": "function", "function": function}],
            });
            let body = json!({"messages": looped(&echo), "tools": tools()});
            assert_eq!(post(server.address, &chat_path(&session), &body).status, 200);
            assert_eq!(checked(&server, session).segments.len(), 1, "{arguments} {content}");
        }
    }
}

/// One conversation through three APIs.
#[test]
fn apis_share_their_conversations() {
    let server = agent();
    let session = server.session();
    let parameters = tools()[0]["function"]["parameters"].clone();
    let first = json!({
        "max_tokens": 1000, "system": "Be brief.", "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"name": "weather", "description": "d", "input_schema": parameters}],
    });
    let called = post(server.address, &format!("{}/v1/messages", session.path()), &first).json();
    let id = called["content"][1]["id"].as_str().unwrap();
    let second = json!({
        "instructions": "Be brief.", "store": false,
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": id, "name": "weather", "arguments": "{\"days\":2,\"city\":\"Oslo\"}"},
            {"type": "function_call_output", "call_id": id, "output": "sun"},
        ],
        "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": parameters}],
    });
    let path = format!("{}/v1/responses", session.path());
    assert_eq!(post(server.address, &path, &second).status, 200);
    let mut third = looped(&json!({
        "role": "assistant", "content": "I look.",
        "tool_calls": [{"id": id, "type": "function", "function": {"name": "weather", "arguments": "{\"days\":2,\"city\":\"Oslo\"}"}}],
    }));
    third.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": "Sunny."}),
        json!({"role": "user", "content": "Thanks."}),
    ]);
    let body = json!({"messages": third, "tools": tools()});
    assert_eq!(post(server.address, &chat_path(&session), &body).status, 200);
    let end = checked(&server, session);
    assert_eq!((end.segments.len(), end.calls), (1, 3));
}

/// The model did not end its turn: its end belongs to the environment.
#[test]
fn truncated_turns_are_closed_by_the_environment() {
    let server = Setup::saying("One two three four").start();
    let session = server.session();
    let body = json!({"messages": [{"role": "user", "content": "Count."}], "max_tokens": 3});
    let answer = post(server.address, &chat_path(&session), &body);
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    let echo = message(&answer);
    chat(
        &server,
        &session,
        &json!([{"role": "user", "content": "Count."}, echo, {"role": "user", "content": "More."}]),
    );
    let end = checked(&server, session);
    let [segment] = end.segments.as_slice() else { panic!("{:?}", end.segments) };
    let environment = segment.spans.iter().find(|span| span.author == Environment).unwrap();
    let text = server.tokenizer.decode(&segment.tokens[environment.range.clone()], false).unwrap();
    assert_eq!(text, "<|stop|>\n<|im_start|>user\nMore.<|stop|>\n<|im_start|>assistant\n");
}

/// Plain text continues after the text of the answer, token prompts after its tokens.
#[test]
fn plain_prompts_continue() {
    let server = Setup::new(|prompt| if prompt.contains("= 4") { " Done." } else { " 4" }.to_owned()).start();
    let session = server.session();
    let path = format!("{}/v1/completions", session.path());
    let first = post(server.address, &path, &json!({"prompt": "2 + 2 ="})).json();
    assert_eq!(first["choices"][0]["text"], " 4");
    post(server.address, &path, &json!({"prompt": "2 + 2 = 4\nSo?"}));
    let mut tokens = server.tokenizer.encode("8 =", false).unwrap();
    post(server.address, &path, &json!({ "prompt": tokens }));
    let (prompt, completion) = server.engine.record.lock().unwrap().last().unwrap().clone();
    assert_eq!(prompt, tokens);
    tokens.extend(completion);
    tokens.extend(server.tokenizer.encode(" = 4", false).unwrap());
    post(server.address, &path, &json!({ "prompt": tokens }));
    let end = checked(&server, session);
    assert_eq!((end.segments.len(), end.calls), (2, 4));
}

/// What a client cuts off the text was sampled: it is not added again.
#[test]
fn stop_strings_are_not_repeated() {
    let server = Setup::saying(" look\nObservation: no").start();
    let session = server.session();
    let path = format!("{}/v1/completions", session.path());
    let first = post(server.address, &path, &json!({"prompt": "Act:", "stop": ["\nObservation:"]})).json();
    assert_eq!(first["choices"][0]["text"], " look");
    post(
        server.address,
        &path,
        &json!({"prompt": "Act: look\nObservation: a door\nAct:", "stop": ["\nObservation:"]}),
    );
    let end = checked(&server, session);
    let [segment] = end.segments.as_slice() else { panic!("{:?}", end.segments) };
    let text = server.tokenizer.decode(&segment.tokens, true).unwrap();
    assert!(text.ends_with("Act: look\nObservation: a door\nAct: look\nObservation:"), "{text}");
}

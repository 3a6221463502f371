//! Ends of completions.

use serde_json::{Value, json};

use crate::client::{post, stream};
use crate::script::{CONTEXT, Setup, TestServer};

fn chat(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn the_text_ends_before_a_stop_string() {
    let server = Setup::saying("One two three four").start();
    for (stop, text) in [
        (json!("three"), "One two "),
        (json!(["x", "o th", "o three"]), "One tw"),
        (json!(["five"]), "One two three four"),
        (json!("One"), ""),
        (json!("our"), "One two three f"),
    ] {
        let body = chat(&json!({"stop": stop}));
        let whole = post(server.address, "/v1/chat/completions", &body).json();
        let choice = &whole["choices"][0];
        assert_eq!(
            (choice["message"]["content"].as_str(), choice["finish_reason"].as_str()),
            (Some(text), Some("stop"))
        );
        let events = stream(server.address, "/v1/chat/completions", &body).events();
        let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), text, "{stop}");
    }
    let body = json!({
        "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], "stop_sequences": ["five", "three"],
    });
    let whole = post(server.address, "/v1/messages", &body).json();
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!("three")));
    let completion = post(server.address, "/v1/completions", &json!({"prompt": "a", "stop": " tw"})).json();
    assert_eq!(completion["choices"][0]["text"], "One");
}

#[test]
fn a_stop_string_ends_a_turn_with_calls() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let server = Setup::saying(&format!("{call}\nObservation: none\n{call}")).start();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let whole = post(
        server.address,
        "/v1/chat/completions",
        &chat(&json!({"tools": tools, "stop": ["Observation:"]})),
    );
    let choice = whole.json()["choices"][0].clone();
    assert_eq!(choice["message"]["tool_calls"].as_array().map(Vec::len), Some(1), "{choice}");
}

#[test]
fn lengths_are_limited_by_request_and_context() {
    let server = Setup::saying(&"word ".repeat(CONTEXT)).start();
    let address = server.address;
    let whole = post(address, "/v1/chat/completions", &chat(&json!({"max_completion_tokens": 7}))).json();
    assert_eq!(
        (&whole["choices"][0]["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(7))
    );
    // More than the context holds is what the context holds.
    for more in [json!({}), json!({"max_tokens": 10_000_000})] {
        let usage = &post(address, "/v1/chat/completions", &chat(&more)).json()["usage"];
        assert_eq!(usage["total_tokens"], json!(CONTEXT));
    }
    let body = json!({"max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(post(address, "/v1/messages", &body).json()["stop_reason"], "max_tokens");
    let whole = post(address, "/v1/responses", &json!({"input": "Hi", "max_output_tokens": 3})).json();
    assert_eq!(whole["status"], "incomplete");
    assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let last = stream(address, "/v1/responses", &json!({"input": "Hi", "max_output_tokens": 3})).events();
    assert_eq!(last.last().unwrap()["type"], "response.incomplete");

    let long = chat(&json!({"messages": [{"role": "user", "content": "x".repeat(2 * CONTEXT)}]}));
    let answer = post(address, "/v1/chat/completions", &long);
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(error["param"], "messages");
}

/// A chat completion, whole and streamed: text, number of calls, and reason of its end.
fn both(server: &TestServer, more: &Value) -> (String, usize, Value) {
    let whole = post(server.address, "/v1/chat/completions", &chat(more)).json()["choices"][0].clone();
    let text = whole["message"]["content"].as_str().unwrap_or_default().to_owned();
    let calls = whole["message"]["tool_calls"].as_array().map_or(0, Vec::len);
    let events = stream(server.address, "/v1/chat/completions", &chat(more)).events();
    let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), text);
    let reasons: Vec<&Value> =
        events.iter().map(|e| &e["choices"][0]["finish_reason"]).filter(|reason| !reason.is_null()).collect();
    assert_eq!(reasons, [&whole["finish_reason"]]);
    (text, calls, whole["finish_reason"].clone())
}

/// Number of tokens of a text.
fn tokens(server: &TestServer, text: &str) -> usize {
    server.tokenizer.encode(text, false).unwrap().len()
}

#[test]
fn special_tokens_are_left_out_of_the_text() {
    let server = Setup::saying("One <|turn|>two").start();
    assert_eq!(both(&server, &json!({})), ("One two".to_owned(), 0, json!("stop")));
}

#[test]
fn a_character_that_is_cut_off_is_a_replacement_character() {
    let server = Setup::saying("a b\u{1d11e}").start();
    let limit = tokens(&server, "a b\u{1d11e}") - 1;
    let more = json!({"max_completion_tokens": limit});
    assert_eq!(both(&server, &more), ("a b\u{fffd}".to_owned(), 0, json!("length")));
}

#[test]
fn a_turn_that_is_cut_off_after_a_call_ends_by_its_length() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let server = Setup::saying(&format!("{call}\n{call} and so on")).start();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let more = |limit: usize| json!({"tools": tools, "max_completion_tokens": limit});
    let limit = tokens(&server, &format!("{call}\n{call} and"));
    assert_eq!(both(&server, &more(limit)), (String::new(), 2, json!("length")));
    assert_eq!(both(&server, &more(5000)).2, json!("tool_calls"));
}

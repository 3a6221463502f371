//! Several replies to one request.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::client::{exchange, post, request, stream};
use crate::script::{Setup, TestServer};
use crate::sessions::{authors, chat, checked};

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

/// A server whose answers are numbered.
fn counting(text: &'static str) -> TestServer {
    let number = AtomicUsize::new(0);
    Setup::new(move |_| format!("Answer {}{text}", number.fetch_add(1, Ordering::SeqCst))).start()
}

/// Texts of a stream, by the index of their reply.
fn texts(events: &[Value], part: impl Fn(&Value) -> &Value) -> Vec<String> {
    let mut texts = vec![String::new(); 3];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index].push_str(part(choice).as_str().unwrap_or_default());
    }
    texts
}

#[test]
fn replies_are_sampled_on_their_own() {
    let server = counting("");
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "n": 3, "seed": 5, "logprobs": true});
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    let choices = whole["choices"].as_array().unwrap();
    let mut all: Vec<&str> =
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, ["Answer 0", "Answer 1", "Answer 2"]);
    let sampled: usize =
        choices.iter().map(|choice| choice["logprobs"]["content"].as_array().unwrap().len()).sum();
    assert_eq!(whole["usage"]["completion_tokens"], sampled);
    {
        let keys = server.engine.keys.lock().unwrap();
        let mut samples: Vec<u32> = keys.iter().map(|key| key.sample).collect();
        samples.sort_unstable();
        assert_eq!(samples, [0, 1, 2]);
        assert!(keys.iter().all(|key| key.seed == 5));
    }
    let mut body = body.clone();
    body["stream_options"] = json!({"include_usage": true});
    let events = stream(server.address, "/v1/chat/completions", &body).events();
    let mut streamed = texts(&events, |choice| &choice["delta"]["content"]);
    streamed.sort_unstable();
    assert_eq!(streamed, ["Answer 3", "Answer 4", "Answer 5"]);
    let finished = texts(&events, |choice| &choice["finish_reason"]);
    assert_eq!(finished, ["stop"; 3]);
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], sampled);
    let body = json!({"prompt": "Hi", "n": 2, "logprobs": 0});
    let events = stream(server.address, "/v1/completions", &body).events();
    let mut streamed = texts(&events, |choice| &choice["text"]);
    streamed.sort_unstable();
    assert_eq!(streamed, ["", "Answer 6", "Answer 7"]);
    assert_eq!(post(server.address, "/v1/completions", &body).json()["choices"][1]["index"], 1);
    for n in [json!(0), json!(129), json!("2"), json!(-1)] {
        let answer = post(server.address, "/v1/completions", &json!({"prompt": "Hi", "n": n}));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("n")));
    }
}

/// Each reply has calls with identifiers of its own, counted from 0 in a stream.
#[test]
fn replies_have_their_own_calls() {
    let server = counting(CALL);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "n": 2});
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    let id = |choice: usize| whole["choices"][choice]["message"]["tool_calls"][0]["id"].as_str().unwrap();
    assert_ne!(id(0), id(1));
    let events = stream(server.address, "/v1/chat/completions", &body).events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
    let numbers: Vec<&Value> = deltas.filter(|call| !call.is_null()).map(|call| &call["index"]).collect();
    assert_eq!(numbers, [0; 4]);
}

/// Replies of a session are branches; each can be continued, and a repetition has the same ones.
#[test]
fn replies_of_a_session_are_branches() {
    let server = counting("");
    let session = server.session();
    let ask = json!({"role": "user", "content": "Hi"});
    let body = json!({"messages": [ask], "n": 3}).to_string();
    let send = |headers: &str| {
        let path = super::sessions::chat_path(&session);
        exchange(server.address, &request("POST", &path, headers, body.as_bytes())).unwrap()
    };
    let first = send("");
    assert_eq!(send("x-stainless-retry-count: 1\r\n").body, first.body);
    for choice in [2, 0] {
        let answer = &first.json()["choices"][choice]["message"];
        chat(&server, &session, &json!([ask, answer, {"role": "user", "content": "Why?"}]));
    }
    let end = checked(&server, session);
    assert_eq!((end.calls, end.segments.len()), (5, 3));
    let mut turns: Vec<usize> = end.segments.iter().map(|segment| authors(segment).len()).collect();
    turns.sort_unstable();
    assert_eq!(turns, [2, 4, 4]);
    let keys = server.engine.keys.lock().unwrap();
    let mut streams: Vec<u32> = keys.iter().map(|key| key.segment).collect();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), 3);
}

//! Wire formats of all endpoints, complete and streamed.

use serde_json::{Value, json};

use crate::client::{get, post, stream};
use crate::script::{Setup, TestServer, logprob};

const TEXT: &str = "Hello! Grüße 🙂.";

fn chat() -> Value {
    json!({"model": "any", "messages": [{"role": "user", "content": "Hi"}]})
}

/// JSON for snapshots: without the time.
fn shown(value: &Value) -> String {
    let mut value = value.clone();
    for field in ["created", "created_at"] {
        for path in ["", "/data/0", "/response"] {
            if let Some(object) = value.pointer_mut(path).and_then(Value::as_object_mut)
                && let Some(time) = object.get_mut(field)
            {
                assert!(time.as_u64().unwrap() > 1_700_000_000, "{time}");
                *time = json!("TIME");
            }
        }
    }
    serde_json::to_string_pretty(&value).unwrap()
}

/// The lines of a stream: names of events and their data.
fn lines(body: &str) -> String {
    let line = |line: &str| match line.strip_prefix("data: ").map(serde_json::from_str::<Value>) {
        Some(Ok(data)) => format!("data: {}", compact(&data)),
        _ => line.to_owned(),
    };
    body.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn compact(value: &Value) -> String {
    let shown = serde_json::from_str::<Value>(&shown(value)).unwrap();
    shown.to_string()
}

fn server() -> TestServer {
    Setup::saying(TEXT).start()
}

#[test]
fn chat_completions() {
    let server = server();
    let answer = post(server.address, "/v1/chat/completions", &chat());
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    insta::assert_snapshot!("chat", shown(&answer.json()));
    let mut body = chat();
    body["stream_options"] = json!({"include_usage": true});
    let streamed = stream(server.address, "/v1/chat/completions", &body);
    insta::assert_snapshot!("chat_stream", lines(&streamed.body));
    assert!(streamed.body.ends_with("data: [DONE]\n\n"));
    let prompt = &server.engine.record.lock().unwrap()[0].0;
    let text = server.tokenizer.decode(prompt, false).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi<|stop|>\n<|im_start|>assistant\n");
}

#[test]
fn completions() {
    let server = server();
    let body = json!({"prompt": "Once", "max_tokens": 40, "logprobs": 0});
    insta::assert_snapshot!("completions", shown(&post(server.address, "/v1/completions", &body).json()));
    let streamed = stream(server.address, "/v1/completions", &json!({"prompt": [49, 50], "max_tokens": 40}));
    insta::assert_snapshot!("completions_stream", lines(&streamed.body));
    // As in OpenAI's API.
    let default = post(server.address, "/v1/completions", &json!({"prompt": "Once"})).json();
    let (prompt, cached) =
        (&default["usage"]["prompt_tokens"], &default["usage"]["prompt_tokens_details"]["cached_tokens"]);
    assert_eq!(
        cached.as_u64().unwrap() + 1,
        prompt.as_u64().unwrap(),
        "all but the last token were computed before"
    );
    assert!(default["usage"]["completion_tokens"].as_u64().unwrap() <= 16, "{default}");
    let record = server.engine.record.lock().unwrap();
    assert_eq!(record[0].0, server.tokenizer.encode("Once", true).unwrap());
    assert_eq!(record[1].0, [49, 50]);
}

#[test]
fn messages() {
    let server = server();
    let body = json!({
        "model": "any", "max_tokens": 4000, "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    });
    insta::assert_snapshot!("messages", shown(&post(server.address, "/v1/messages", &body).json()));
    insta::assert_snapshot!("messages_stream", lines(&stream(server.address, "/v1/messages", &body).body));
    let mut counted = body.clone();
    counted.as_object_mut().unwrap().remove("max_tokens");
    let count = post(server.address, "/v1/messages/count_tokens", &counted).json();
    let prompt = server.engine.record.lock().unwrap()[0].0.clone();
    assert_eq!(count, json!({"input_tokens": prompt.len()}));
    let text = server.tokenizer.decode(&prompt, false).unwrap();
    assert!(text.starts_with("<|im_start|>system\nBe brief.<|stop|>\n<|im_start|>user\nHi"), "{text}");
}

#[test]
fn responses() {
    let server = server();
    let body = json!({"model": "any", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 4000});
    insta::assert_snapshot!("responses", shown(&post(server.address, "/v1/responses", &body).json()));
    insta::assert_snapshot!("responses_stream", lines(&stream(server.address, "/v1/responses", &body).body));
}

#[test]
fn models_and_health() {
    let server = server();
    insta::assert_snapshot!("models", shown(&get(server.address, "/v1/models").json()));
    assert_eq!(get(server.address, "/v1/models/any").json()["id"], "scripted");
    let health = get(server.address, "/health");
    assert_eq!((health.status, health.body.as_str()), (200, r#"{"status":"ok"}"#));
}

#[test]
fn streams_say_the_same_as_complete_answers() {
    for is_silent in [false, true] {
        let server =
            Setup { is_silent, ..Setup::saying("<think>\nOne, two.\n</think>\n\nThree 🙂.") }.start();
        let whole = post(server.address, "/v1/chat/completions", &chat()).json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "One, two.");
        assert_eq!(message["content"], "Three 🙂.");
        assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 3);
        let events = stream(server.address, "/v1/chat/completions", &chat()).events();
        for field in ["reasoning_content", "content"] {
            let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str());
            assert_eq!(deltas.collect::<String>(), message[field].as_str().unwrap());
        }
        let body = json!({"max_tokens": 4000, "messages": [{"role": "user", "content": "Hi"}]});
        let whole = post(server.address, "/v1/messages", &body).json();
        assert_eq!(whole["content"][0]["thinking"], "One, two.");
        assert_eq!(whole["content"][1]["text"], "Three 🙂.");
        let whole = post(server.address, "/v1/responses", &json!({"input": "Hi"})).json();
        assert_eq!(whole["output"][0]["content"][0]["text"], "One, two.");
        assert_eq!(whole["output"][1]["content"][0]["text"], "Three 🙂.");
        let done = stream(server.address, "/v1/responses", &json!({"input": "Hi"})).events();
        let last = &done.last().unwrap()["response"]["output"];
        for place in 0..2 {
            assert_eq!(last[place]["content"][0]["text"], whole["output"][place]["content"][0]["text"]);
        }
    }
}

#[test]
fn log_probabilities_are_those_of_the_engine() {
    let server = server();
    let mut body = chat();
    body["logprobs"] = true.into();
    body["top_logprobs"] = 0.into();
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    let tokens = server.engine.record.lock().unwrap()[0].1.clone();
    let expected: Vec<f64> = tokens.iter().map(|&token| f64::from(logprob(token))).collect();
    let of = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|token| token["logprob"].as_f64().unwrap()).collect()
    };
    assert_eq!(of(&whole["choices"][0]["logprobs"]["content"]), expected);
    let events = stream(server.address, "/v1/chat/completions", &body).events();
    let streamed = events.iter().map(|event| &event["choices"][0]["logprobs"]["content"]);
    let streamed: Vec<f64> = streamed.filter(|list| list.is_array()).flat_map(of).collect();
    assert_eq!(streamed, expected);
}

#[test]
fn a_lost_completion_continues_where_it_was_lost() {
    let server = Setup { to_lose: 2, ..Setup::saying(TEXT) }.start();
    let answer = stream(server.address, "/v1/chat/completions", &chat());
    let deltas = answer.events();
    let text: String = deltas.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, TEXT);
    // Losing all attempts is an error with a status.
    let server = Setup { to_lose: 3, is_silent: true, ..Setup::saying(TEXT) }.start();
    let answer = post(server.address, "/v1/chat/completions", &chat());
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.body);
}

//! Fields that cannot be honoured, and those that have no effect.

use serde_json::{Value, json};

use crate::client::{exchange, post, request};
use crate::script::Setup;

const CHAT: &str = "/v1/chat/completions";

fn with(base: &Value, field: &str, value: &Value) -> Value {
    let mut body = base.clone();
    body[field] = value.clone();
    body
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
}

fn completion() -> Value {
    json!({"model": "m", "prompt": "Hi"})
}

fn responses() -> Value {
    json!({"model": "m", "input": "Hi"})
}

fn messages() -> Value {
    json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]})
}

/// A path, a request that is answered, and fields with which it is not.
type Refused = (&'static str, Value, Vec<(&'static str, Value)>);

#[test]
fn what_cannot_be_honoured_is_named() {
    let server = Setup::saying("One").start();
    let refused: Vec<Refused> = vec![
        (
            CHAT,
            chat(),
            vec![
                ("n", json!(200)),
                ("logit_bias", json!({"5": 1})),
                ("presence_penalty", json!(0.5)),
                ("frequency_penalty", json!(-1)),
                ("top_logprobs", json!(3)),
                ("response_format", json!({"type": "json_object"})),
                ("store", json!(true)),
                ("tool_choice", json!("required")),
                ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
                ("reasoning_effort", json!("low")),
                ("functions", json!([])),
                ("temperature", json!("hot")),
                ("temperature", json!(-1)),
                ("temperature", json!(0.001)),
                ("top_p", json!(0)),
                ("min_p", json!(2)),
                ("seed", json!(0.5)),
                ("stop", json!([""])),
                ("stop", json!([1])),
                ("max_tokens", json!(0)),
                ("max_completion_tokens", json!(-3)),
                ("stream", json!("yes")),
                ("messages", json!([])),
                ("messages", json!("Hi")),
                ("surprise", json!(1)),
            ],
        ),
        (
            "/v1/completions",
            completion(),
            vec![
                ("echo", json!(true)),
                ("suffix", json!("end")),
                ("best_of", json!(2)),
                ("logprobs", json!(1)),
                ("prompt", json!(["a", "b"])),
                ("prompt", json!([1, -1])),
                ("prompt", json!("")),
                ("prompt", json!([])),
            ],
        ),
        (
            "/v1/responses",
            responses(),
            vec![
                ("previous_response_id", json!("resp_1")),
                ("background", json!(true)),
                ("store", json!(true)),
                ("truncation", json!("auto")),
                ("conversation", json!("c")),
                ("include", json!(["message.output_text.logprobs"])),
                ("max_output_tokens", json!(0)),
            ],
        ),
        (
            "/v1/messages",
            messages(),
            vec![("max_tokens", Value::Null), ("stop_sequences", json!([3])), ("mcp_servers", json!([{}]))],
        ),
    ];
    for (path, base, fields) in refused {
        assert_eq!(post(server.address, path, &base).status, 200, "{path}");
        for (field, value) in fields {
            let answer = post(server.address, path, &with(&base, field, &value));
            assert_eq!(answer.status, 400, "{path} {field} {value}: {}", answer.body);
            let error = answer.json()["error"].clone();
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&format!("`{field}`")), "{message}");
            if path != "/v1/messages" {
                assert_eq!(error["param"], field, "{message}");
            }
        }
    }
}

#[test]
fn places_within_a_request_are_named() {
    let server = Setup::saying("One").start();
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]);
    for (path, body, place) in [
        (
            CHAT,
            with(&chat(), "messages", &json!([{"role": "user", "content": image}])),
            "messages[0].content[1].type",
        ),
        (CHAT, with(&chat(), "messages", &json!([{"role": "user"}])), "messages[0].content"),
        (CHAT, with(&chat(), "messages", &json!([{"role": "bot", "content": ""}])), "messages[0].role"),
        (CHAT, with(&chat(), "messages", &json!([{"role": "user", "content": "", "x": 1}])), "messages[0].x"),
        (CHAT, with(&chat(), "tools", &json!([{"type": "code"}])), "tools[0].type"),
        (
            CHAT,
            with(&chat(), "tools", &json!([{"type": "function", "function": {}}])),
            "tools[0].function.name",
        ),
        ("/v1/responses", with(&responses(), "tools", &json!([{"type": "web_search"}])), "tools[0].type"),
        (
            "/v1/responses",
            with(&responses(), "text", &json!({"format": {"type": "json_schema"}})),
            "text.format",
        ),
        ("/v1/responses", with(&responses(), "reasoning", &json!({"effort": "low"})), "reasoning.effort"),
        ("/v1/messages", with(&messages(), "thinking", &json!({"type": "enabled"})), "thinking.type"),
        ("/v1/messages", with(&messages(), "tool_choice", &json!({"type": "any"})), "tool_choice.type"),
        (
            "/v1/messages",
            with(
                &messages(),
                "messages",
                &json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
            ),
            "messages",
        ),
    ] {
        let answer = post(server.address, path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("`{place}`")), "{message}");
    }
}

#[test]
fn fields_without_effect_are_accepted() {
    let server = Setup::saying("One").start();
    let mut body = chat();
    let fields = json!({
        "user": "u", "metadata": {"a": "b"}, "store": false, "n": 1, "presence_penalty": 0.0, "logit_bias": {},
        "response_format": {"type": "text"}, "seed": -1, "top_p": 1, "service_tier": "auto", "tool_choice": "auto",
        "parallel_tool_calls": true, "stop": null, "temperature": 0, "functions": null, "logprobs": false,
        "chat_template_kwargs": {"enable_thinking": false},
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = post(server.address, CHAT, &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let prompt = server.engine.record.lock().unwrap()[0].0.clone();
    assert!(server.tokenizer.decode(&prompt, false).unwrap().ends_with("<think>\n\n</think>\n\n"));
    let mut body = messages();
    body["thinking"] = json!({"type": "disabled"});
    body["metadata"] = json!({"user_id": "u"});
    assert_eq!(post(server.address, "/v1/messages", &body).status, 200);
}

#[test]
fn paths_and_methods_have_their_status() {
    let server = Setup::saying("One").start();
    for (method, path, status) in [
        ("GET", "/", 404),
        ("POST", "/v2/chat/completions", 404),
        ("GET", "/v1/models/", 404),
        ("GET", CHAT, 405),
        ("PUT", "/v1/messages", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("HEAD", "/health", 200),
    ] {
        let answer = exchange(server.address, &request(method, path, "", b"{}")).unwrap();
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
    for body in ["", "{", "[]", "null", "{\"messages\": [}", "\u{feff}{}", &("[".repeat(100_000))] {
        let answer = exchange(server.address, &request("POST", CHAT, "", body.as_bytes())).unwrap();
        assert_eq!(answer.status, 400, "{}", &body[..body.len().min(20)]);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
}

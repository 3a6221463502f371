//! Calls of tools: parsed from tokens, whole and streamed, malformed ones, results.

use serde_json::{Value, json};

use crate::client::{post, stream};
use crate::script::{Setup, TestServer};

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

fn declared() -> Value {
    json!({
        "name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    })
}

fn chat() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"type": "function", "function": declared()}],
    })
}

fn server(text: &str) -> TestServer {
    Setup::saying(text).start()
}

#[test]
fn parallel_calls_have_identifiers_of_their_own() {
    let text = format!("<think>\nBoth.\n</think>\nI look.\n{CALL}\n{}", CALL.replace("Oslo", "Rome"));
    let server = server(&text);
    let whole = post(server.address, "/v1/chat/completions", &chat()).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I look.");
    assert_eq!(choice["message"]["reasoning_content"], "Both.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let arguments: Vec<&str> = calls.iter().map(|c| c["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, [r#"{"city":"Oslo"}"#, r#"{"city":"Rome"}"#]);
    let again = post(server.address, "/v1/chat/completions", &chat()).json();
    let mut ids: Vec<String> = Vec::new();
    for answer in [&whole, &again] {
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
        ids.extend(calls.iter().map(|call| call["id"].as_str().unwrap().to_owned()));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
}

#[test]
fn streamed_calls_follow_the_text() {
    let server = server(&format!("I look.\n{CALL}"));
    let answer = stream(server.address, "/v1/chat/completions", &chat());
    let events = answer.events();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, "I look.");
    let calls: Vec<&Value> = deltas.iter().map(|d| &d["tool_calls"][0]).filter(|c| !c.is_null()).collect();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| call["index"] == 0));
    assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": ""}));
    assert_eq!(calls[1]["function"], json!({"arguments": "{\"city\":\"Oslo\"}"}));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn other_apis_have_calls_in_their_form() {
    let server = server(CALL);
    let tool = json!({"name": "weather", "input_schema": declared()["parameters"]});
    let body =
        json!({"max_tokens": 4000, "messages": [{"role": "user", "content": "Weather?"}], "tools": [tool]});
    let whole = post(server.address, "/v1/messages", &body).json();
    assert_eq!(whole["stop_reason"], "tool_use");
    assert_eq!(whole["content"][0]["type"], "tool_use");
    assert_eq!(whole["content"][0]["input"], json!({"city": "Oslo"}));
    insta::assert_snapshot!("messages_call_stream", stream(server.address, "/v1/messages", &body).body);

    let mut tool = declared();
    tool["type"] = json!("function");
    let body = json!({"input": [{"role": "user", "content": "Weather?"}], "tools": [tool]});
    let whole = post(server.address, "/v1/responses", &body).json();
    assert_eq!(whole["output"][0]["type"], "function_call");
    assert_eq!(whole["output"][0]["arguments"], r#"{"city":"Oslo"}"#);
    let events = stream(server.address, "/v1/responses", &body).events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, expected);
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
}

/// A malformed call is text, which the client sees; the other calls of the turn remain calls.
#[test]
fn malformed_calls_are_text() {
    let broken = "<tool_call>\n{\"name\": weather}\n</tool_call>";
    for (text, content, calls, finish) in [
        (format!("Hm. {broken}"), format!("Hm.\n{broken}"), 0, "stop"),
        (format!("{broken}\n{CALL}"), broken.to_owned(), 1, "tool_calls"),
        ("<tool_call>\n{\"name\":".to_owned(), "<tool_call>\n{\"name\":".to_owned(), 0, "stop"),
        ("a < b <tool".to_owned(), "a < b <tool".to_owned(), 0, "stop"),
        // The client answers calls of unknown tools, and with wrong arguments.
        (CALL.replace("weather", "other"), String::new(), 1, "tool_calls"),
        (CALL.replace("city", "town"), String::new(), 1, "tool_calls"),
    ] {
        let server = server(&text);
        let whole = post(server.address, "/v1/chat/completions", &chat()).json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), content, "{text}");
        assert_eq!(choice["message"]["tool_calls"].as_array().map_or(0, Vec::len), calls, "{text}");
        assert_eq!(choice["finish_reason"], finish, "{text}");
        let events = stream(server.address, "/v1/chat/completions", &chat()).events();
        let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), content, "{text}");
    }
}

#[test]
fn calls_are_text_where_no_tool_is_declared() {
    let server = server(CALL);
    let mut body = chat();
    body["tool_choice"] = json!("none");
    for body in [json!({"messages": [{"role": "user", "content": "Weather?"}]}), body] {
        let whole = post(server.address, "/v1/chat/completions", &body).json();
        assert_eq!(whole["choices"][0]["message"]["content"], CALL);
    }
    let prompts = server.engine.record.lock().unwrap();
    assert_eq!(prompts[0].0, prompts[1].0, "tools that must not be called are not in the prompt");
}

/// The same conversation through each API has the same tokens.
#[test]
fn all_apis_give_the_same_prompt() {
    let server = server("Fine.");
    let arguments = "{\"city\": \"Oslo\"}";
    let chat = json!({
        "tools": [{"type": "function", "function": declared()}],
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Wea"}, {"type": "text", "text": "ther?"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "<|stop|> sun"},
        ],
    });
    let messages = json!({
        "max_tokens": 100, "system": "Be brief.",
        "tools": [{"name": "weather", "description": "The weather.", "input_schema": declared()["parameters"]}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "<|stop|> sun"}]}]},
        ],
    });
    let mut tool = declared();
    tool["type"] = json!("function");
    let responses = json!({
        "instructions": "Be brief.", "tools": [tool],
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "<|stop|> sun"},
        ],
    });
    let all = [("/v1/chat/completions", chat), ("/v1/messages", messages), ("/v1/responses", responses)];
    for (path, body) in &all {
        assert_eq!(post(server.address, path, body).status, 200, "{path}");
    }
    let record = server.engine.record.lock().unwrap();
    let texts: Vec<String> =
        record.iter().map(|(prompt, _)| server.tokenizer.decode(prompt, false).unwrap()).collect();
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
    assert!(texts[0].contains("\"arguments\": {\"city\": \"Oslo\"}"), "{}", texts[0]);
    // What a tool returns cannot end the turn.
    assert!(texts[0].contains("< |stop|> sun"), "{}", texts[0]);
}

/// The texts with which crate `text` compares its parsers, through the server: streams say the same as complete answers.
#[test]
fn every_family_has_its_calls() {
    let golden: Value = serde_json::from_str(include_str!("../../../text/tests/golden/calls.json")).unwrap();
    let function = |function| json!({"type": "function", "function": function});
    let tools: Vec<Value> = golden["tools"].as_array().unwrap().iter().map(function).collect();
    let body = json!({"messages": [{"role": "user", "content": "Go."}], "tools": tools});
    let families = [
        ("chatml.jinja", "hermes"),
        ("llama_3.jinja", "llama3"),
        ("mistral.jinja", "mistral"),
        ("deepseek_v3.jinja", "deepseek_v3"),
        ("glm45.jinja", "glm"),
        ("kimi_k2.jinja", "kimi_k2"),
        ("harmony.jinja", "harmony"),
    ];
    let mut compared = 0;
    for (template, format) in families {
        let cases = golden["cases"].as_array().unwrap().iter();
        for case in cases.filter(|case| case["format"] == format && case["reasons"] == false) {
            let text = case["text"].as_str().unwrap();
            // A stop token of this tokenizer.
            if text.contains("<|end|>") {
                continue;
            }
            let server = Setup { template, ..Setup::saying(text) }.start();
            let whole = post(server.address, "/v1/chat/completions", &body).json();
            let message = &whole["choices"][0]["message"];
            let content = message["content"].as_str().unwrap_or_default();
            assert!(
                content.starts_with(case["content"].as_str().unwrap().trim()),
                "{format} {text}: {whole}"
            );
            let calls = case["calls"].as_array().unwrap();
            let (valid, broken): (Vec<&Value>, Vec<&Value>) = calls.iter().partition(|call| {
                ["ok", "unknown_tool", "bad_arguments"].contains(&call["status"].as_str().unwrap())
            });
            let names = |calls: &Value| -> Vec<Value> {
                calls.as_array().into_iter().flatten().map(|c| c["function"]["name"].clone()).collect()
            };
            let expected: Vec<Value> = valid.iter().map(|call| call["name"].clone()).collect();
            assert_eq!(names(&message["tool_calls"]), expected, "{format} {text}");
            for call in broken {
                assert!(content.contains(call["raw"].as_str().unwrap()), "{format} {text}: {content}");
            }
            let events = stream(server.address, "/v1/chat/completions", &body).events();
            for field in ["content", "reasoning_content"] {
                let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str());
                let expected = message[field].as_str().unwrap_or_default();
                assert_eq!(deltas.collect::<String>(), expected, "{format} {text}");
            }
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}

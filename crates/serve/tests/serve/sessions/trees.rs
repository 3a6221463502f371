//! Random agents: whatever they ask, each sampled token is trained once, and the segments are valid.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{chat_path, checked, message};
use crate::client::{exchange, request};
use crate::fuzz::Numbers;
use crate::script::{Setup, TestServer};

/// Agents of the test.
const AGENTS: u64 = 60;

/// A server whose answers vary: text, reasoning, calls, and answers that are equal.
fn server() -> TestServer {
    let number = AtomicU64::new(0);
    Setup::new(move |_| {
        let number = number.fetch_add(1, Ordering::SeqCst);
        match Numbers(number).next(5) {
            0 => "Same.".to_owned(),
            1 => format!("<think>\nHm {number}.\n</think>\n\nAnswer {number}"),
            2 => {
                format!("<tool_call>\n{{\"name\": \"f\",  \"arguments\": {{\"n\": {number}}}}}\n</tool_call>")
            }
            3 => "<tool_call>\n{\"name\": \"f\"".to_owned(),
            _ => format!("Answer {number}"),
        }
    })
    .start()
}

/// What a client may do to a message that it sends back.
fn echoed(mut message: Value, numbers: &mut Numbers) -> Value {
    let fields = message.as_object_mut().unwrap();
    if numbers.next(2) == 0 {
        fields.remove("reasoning_content");
    }
    fields.remove("refusal");
    match numbers.next(8) {
        0 => fields["content"] = json!("Edited"),
        1 => {
            let text = fields["content"].as_str().unwrap_or_default();
            fields["content"] = json!([{"type": "text", "text": text}]);
        }
        2 if fields["content"].is_null() => fields["content"] = json!(""),
        _ => {}
    }
    message
}

/// The messages after an answer.
fn followed(mut messages: Vec<Value>, answer: Value, numbers: &mut Numbers) -> Vec<Value> {
    let calls = answer["tool_calls"].as_array().cloned().unwrap_or_default();
    messages.push(echoed(answer, numbers));
    for call in calls {
        messages.push(
            json!({"role": "tool", "tool_call_id": call["id"], "content": format!("r{}", numbers.next(3))}),
        );
    }
    if messages.last().unwrap()["role"] == "assistant" || numbers.next(3) == 0 {
        messages.push(json!({"role": "user", "content": format!("q{}", numbers.next(3))}));
    }
    messages
}

#[test]
fn random_agents_are_trained_on_once() {
    let server = server();
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let mut segments = 0;
    for agent in 0..AGENTS {
        let mut numbers = Numbers(agent);
        server.engine.record.lock().unwrap().clear();
        let session = server.session();
        let mut known: Vec<Vec<Value>> = vec![vec![json!({"role": "user", "content": "q0"})]];
        for _ in 0..2 + numbers.next(12) {
            let messages = match numbers.next(6) {
                // A new conversation.
                0 => vec![
                    json!({"role": "system", "content": format!("s{}", numbers.next(2))}),
                    json!({"role": "user", "content": format!("q{}", numbers.next(2))}),
                ],
                1 | 2 => known[numbers.next(known.len())].clone(),
                _ => known.last().unwrap().clone(),
            };
            let mut body = json!({"messages": messages});
            if numbers.next(3) > 0 {
                body["tools"] = json!([tool]);
            }
            if numbers.next(8) == 0 {
                body["max_tokens"] = json!(1 + numbers.next(20));
            }
            body["stream"] = json!(numbers.next(4) == 0);
            let headers =
                numbers.one(&["", "x-stainless-retry-count: 0\r\n", "x-stainless-retry-count: 2\r\n"]);
            let text = request("POST", &chat_path(&session), headers, body.to_string().as_bytes());
            let answer = exchange(server.address, &text).unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
            if body["stream"] == false {
                known.push(followed(messages, message(&answer), &mut numbers));
            }
        }
        segments += checked(&server, session).segments.len();
    }
    // They do branch, and they do continue.
    let agents = usize::try_from(AGENTS).unwrap();
    assert!(segments > agents && segments < 8 * agents, "{segments}");
}

//! Random requests: every one has an answer with a right status, nothing panics, nothing is left over.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Answer, connect, exchange, get, read, request};
use crate::script::Setup;
use crate::sessions::ended;

/// Requests of the test; `RLOOM_TEST_FUZZ` is another number.
const REQUESTS: u64 = 2000;
/// Largest body.
const MAX_BODY: usize = 20_000;

/// A sequence of numbers (SplitMix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((number ^ (number >> 31)) % below as u64) as usize
    }

    pub(crate) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.next(of.len())].clone()
    }
}

/// A valid request; that of a session is to its path.
fn valid(session: Option<&str>, numbers: &mut Numbers) -> (String, Value) {
    let (path, body) = match session {
        Some(_) if numbers.next(4) == 0 => numbers.one(&[
            ("/reward", json!({"value": 0.5, "name": "format", "agent": "a"})),
            ("/reward", json!({"value": 1})),
            ("/finish", json!({"status": "finished", "message": "done"})),
        ]),
        _ => of_model(numbers),
    };
    (format!("{}{path}", session.unwrap_or_default()), body)
}

fn of_model(numbers: &mut Numbers) -> (&'static str, Value) {
    let tool = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let stream = numbers.next(2) == 0;
    numbers.one(&[
        (
            "/v1/chat/completions",
            json!({
                "model": "m", "stream": stream, "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "seed": 3,
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "assistant", "content": null, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": "r"},
                ],
                "tools": [{"type": "function", "function": tool}], "stream_options": {"include_usage": true},
                "logprobs": true, "n": 2,
            }),
        ),
        ("/v1/completions", json!({"prompt": "a", "stream": stream, "max_tokens": 4, "logprobs": 0})),
        (
            "/v1/responses",
            json!({
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "reasoning", "id": "r", "summary": [], "content": []},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "r"},
                ],
                "instructions": "i", "stream": stream, "max_output_tokens": 5,
                "tools": [{"type": "function", "name": "f", "parameters": {}}],
            }),
        ),
        (
            "/v1/messages",
            json!({
                "model": "m", "max_tokens": 5, "system": "s", "stream": stream, "stop_sequences": ["y"],
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
                ],
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            }),
        ),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": "user", "content": "a"}], "system": "s"})),
    ])
}

/// Replaces a value somewhere by one of another type.
fn mistyped(value: &mut Value, numbers: &mut Numbers) {
    let inner = match value {
        Value::Object(object) if !object.is_empty() && numbers.next(4) > 0 => {
            let place = numbers.next(object.len());
            object.values_mut().nth(place)
        }
        Value::Array(list) if !list.is_empty() && numbers.next(4) > 0 => {
            let place = numbers.next(list.len());
            list.get_mut(place)
        }
        _ => None,
    };
    if let Some(inner) = inner {
        return mistyped(inner, numbers);
    }
    let mut deep = json!({"type": "text"});
    for _ in 0..numbers.next(200) {
        deep = json!([deep]);
    }
    *value = numbers.one(&[
        Value::Null,
        json!(true),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}\u{10FFFF}<|stop|>"),
        json!([]),
        json!({}),
        json!({"type": "function"}),
        json!([null, 1, "a", {}]),
        deep,
    ]);
}

/// What a request may be answered with.
fn allowed(answer: Option<&Answer>, statuses: &[u16], what: &str) {
    let status = answer.map_or(0, |answer| answer.status);
    let body = answer.map_or("", |answer| answer.body.as_str());
    assert!(statuses.contains(&status), "{what}: {status} {body}");
    if let Some(answer) = answer.filter(|answer| answer.status >= 400 && !answer.body.is_empty()) {
        assert!(answer.json()["error"]["message"].is_string(), "{what}: {body}");
    }
}

/// Status of a session that a request has ended, or the one before.
const GONE: u16 = 410;

fn one(address: SocketAddr, session: Option<&str>, numbers: &mut Numbers) {
    let (path, mut body) = valid(session, numbers);
    let path = path.as_str();
    let retries = ["", "", "x-stainless-retry-count: 1\r\n", "x-stainless-retry-count: x\r\n"];
    let headers = numbers.one(&retries);
    let text = body.to_string().into_bytes();
    match numbers.next(100) {
        0..10 => {
            let answer = exchange(address, &request("POST", path, headers, &text));
            allowed(answer.as_ref(), &[200, GONE], path);
        }
        10..50 => {
            for _ in 0..=numbers.next(3) {
                mistyped(&mut body, numbers);
            }
            let text = body.to_string();
            let answer = exchange(address, &request("POST", path, headers, text.as_bytes()));
            allowed(answer.as_ref(), &[200, 400, GONE, 413], &text);
        }
        50..70 => {
            let mut text = text;
            for _ in 0..=numbers.next(8) {
                let place = numbers.next(text.len());
                text[place] = numbers.next(256) as u8;
            }
            let answer = exchange(address, &request("POST", path, "", &text));
            allowed(answer.as_ref(), &[200, 400, GONE], &String::from_utf8_lossy(&text));
        }
        70..76 => {
            let cut = numbers.next(text.len());
            let answer = exchange(address, &request("POST", path, "", &text[..cut]));
            // An empty body is a valid end.
            allowed(answer.as_ref(), &[400, GONE, if cut == 0 { 200 } else { 400 }], path);
        }
        76..80 => {
            let depth = numbers.next(MAX_BODY / 2);
            let deep = [vec![b'['; depth], vec![b']'; depth]].concat();
            let answer = exchange(address, &request("POST", path, "", &deep));
            allowed(answer.as_ref(), &[400, GONE, if depth == 0 { 200 } else { 400 }], "deep");
        }
        80..83 => {
            let huge = vec![b' '; MAX_BODY + 1 + numbers.next(MAX_BODY)];
            let answer = exchange(address, &request("POST", path, "", &huge));
            // The connection may be reset before the answer was read.
            allowed(answer.as_ref(), &[413, 0], "huge");
        }
        83..90 => disconnected(address, &request("POST", path, "", &text), numbers),
        90..94 => {
            let garbage: Vec<u8> = (0..numbers.next(300)).map(|_| numbers.next(256) as u8).collect();
            let answer = exchange(address, &[garbage.as_slice(), b"\r\n\r\n"].concat());
            allowed(answer.as_ref(), &[400, 404, 405, 431, 0], "garbage");
        }
        94..99 => {
            let method = numbers.one(&["GET", "PUT", "OPTIONS", "BREW", "POST"]);
            let path = numbers.one(&[
                "/",
                "/v1",
                "/v1/chat/completions/",
                "/v1/models/%00",
                "/../health",
                "/v1/messages",
                "/s",
                "/s/",
                "/s/0123456789abcdef0123456789abcdef/v1/messages",
                "/reward",
            ]);
            let path = format!("{}{path}", session.unwrap_or_default());
            let answer = exchange(address, &request(method, &path, "", b"{}"));
            allowed(answer.as_ref(), &[200, 400, 404, 405, GONE], &path);
        }
        _ => {
            // A body that never arrives.
            let whole = request("POST", path, "", &text);
            let mut connection = connect(address);
            connection.write_all(&whole[..whole.len() - 1 - numbers.next(text.len())]).unwrap();
            allowed(read(&mut connection).as_ref(), &[408, GONE], "slow");
        }
    }
}

/// A client that goes away: in the middle of its request, after it, or after the first bytes of the answer.
fn disconnected(address: SocketAddr, whole: &[u8], numbers: &mut Numbers) {
    let mut connection = connect(address);
    match numbers.next(4) {
        0 => connection.write_all(&whole[..numbers.next(whole.len())]).unwrap(),
        1 => connection.write_all(whole).unwrap(),
        2 => {
            connection.write_all(whole).unwrap();
            let mut first = [0; 16];
            let _ = connection.read(&mut first);
        }
        _ => {
            let cut = numbers.next(whole.len());
            connection.write_all(&whole[..cut]).unwrap();
            connection.shutdown(Shutdown::Write).unwrap();
            allowed(read(&mut connection).as_ref(), &[200, 400, GONE, 0], "half closed");
        }
    }
}

#[test]
fn random_requests_have_a_right_answer() {
    let requests = std::env::var("RLOOM_TEST_FUZZ").map_or(REQUESTS, |number| number.parse().unwrap());
    let mut setup = Setup::saying("One <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    setup.settings.max_body = MAX_BODY;
    setup.settings.body_timeout = Duration::from_millis(100);
    setup.sessions.max_calls = 40;
    let server = setup.start();
    let mut numbers = Numbers(19);
    let mut session = server.session();
    let mut sessions = 1;
    for _ in 0..requests {
        let path = session.path();
        one(server.address, Some(path.as_str()).filter(|_| numbers.next(2) == 0), &mut numbers);
        if get(server.address, &path).status == GONE {
            let end = ended(&mut session);
            end.segments.iter().for_each(|segment| segment.validate().unwrap());
            session = server.session();
            sessions += 1;
        }
    }
    assert!(sessions > 1 || requests < 1000);
    assert_eq!(server.sessions.count(), 1);
    drop(session);
    server.idle();
    assert_eq!(get(server.address, "/health").status, 200);
    // Every place is free again, and every connection ends by itself.
    assert_eq!(server.drain(), 0);
}

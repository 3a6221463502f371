//! Limits of sessions, and settings that they override.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rloom_core::{StopReason, Trajectory};
use rloom_engine::SamplingSettings;
use rloom_serve::{SessionLimit, SessionStatus};
use serde_json::json;

use super::{chat, chat_path, check, checked, ended, message};
use crate::client::{connect, post, request, stream};
use crate::script::{CONTEXT, Setup, TestServer};

#[test]
fn times_are_limited() {
    for limit in [SessionLimit::Idle, SessionLimit::Total] {
        let mut setup = Setup::saying("One");
        match limit {
            SessionLimit::Idle => setup.sessions.idle = Duration::from_millis(20),
            _ => setup.sessions.total = Duration::from_millis(20),
        }
        let server = setup.start();
        let mut session = server.session();
        assert_eq!(ended(&mut session).status, SessionStatus::Expired { limit });
        let answer = post(server.address, &chat_path(&session), &json!({"messages": []}));
        assert_eq!((answer.status, answer.header("x-should-retry")), (400, None));
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let answer = post(server.address, &chat_path(&session), &body);
        assert_eq!((answer.status, answer.header("x-should-retry")), (410, Some("false")));
    }
}

/// A session is not idle while it waits for the engine.
#[test]
fn calls_in_flight_are_no_idleness() {
    let mut setup = Setup { tokens: Some(0), ..Setup::saying("One") };
    setup.sessions.idle = Duration::from_millis(20);
    setup.sessions.total = Duration::from_millis(200);
    let server = setup.start();
    let mut session = server.session();
    let mut connection = connect(server.address);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string();
    connection.write_all(&request("POST", &chat_path(&session), "", body.as_bytes())).unwrap();
    TestServer::until("the start", || server.engine.live.load(Ordering::SeqCst) == 1);
    let end = ended(&mut session);
    assert_eq!(end.status, SessionStatus::Expired { limit: SessionLimit::Total });
    // The call in flight is cancelled, and its client is told.
    let answer = crate::client::read(&mut connection).unwrap();
    assert_eq!((answer.status, answer.header("x-should-retry")), (410, Some("false")));
    assert_eq!((end.calls, end.segments.len()), (0, 0));
    server.idle();
}

#[test]
fn calls_and_tokens_are_limited() {
    for limit in [SessionLimit::Calls, SessionLimit::Tokens] {
        let mut setup = Setup::saying("One two");
        match limit {
            SessionLimit::Calls => setup.sessions.max_calls = 2,
            _ => setup.sessions.max_tokens = 10,
        }
        let server = setup.start();
        let mut session = server.session();
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let statuses: Vec<u16> =
            (0..4).map(|_| post(server.address, &chat_path(&session), &body).status).collect();
        assert_eq!(statuses, [200, 200, 410, 410], "{limit:?}");
        let end = ended(&mut session);
        assert_eq!(end.status, SessionStatus::Expired { limit });
        check(&server, &end.segments);
        if limit == SessionLimit::Tokens {
            assert_eq!(end.segments.iter().map(Trajectory::policy_tokens).sum::<usize>(), 10);
        }
    }
}

#[test]
fn calls_at_the_same_time_share_the_tokens_that_are_left() {
    let mut setup = Setup { tokens: Some(0), ..Setup::saying("One two three four five six") };
    setup.sessions.max_tokens = 10;
    let server = setup.start();
    let mut session = server.session();
    let body = |ask: &str| json!({"messages": [{"role": "user", "content": ask}], "max_tokens": 6});
    let mut waiting = Vec::new();
    for ask in ["a", "b"] {
        let mut connection = connect(server.address);
        let text = body(ask).to_string();
        connection.write_all(&request("POST", &chat_path(&session), "", text.as_bytes())).unwrap();
        waiting.push(connection);
        TestServer::until("the start", || server.engine.live.load(Ordering::SeqCst) == waiting.len());
    }
    assert_eq!(post(server.address, &chat_path(&session), &body("c")).status, 429);
    // Another session has its own.
    let other = server.session();
    // A call that is cancelled gives back its share.
    drop(waiting.pop());
    TestServer::until("the end", || server.engine.live.load(Ordering::SeqCst) == 1);
    server.engine.gate.add_permits(1000);
    assert_eq!(crate::client::read(&mut waiting[0]).unwrap().status, 200);
    assert_eq!(post(server.address, &chat_path(&other), &body("c")).status, 200);
    let answer = post(server.address, &chat_path(&session), &body("c"));
    assert_eq!(answer.json()["usage"]["completion_tokens"], 4);
    assert_eq!(post(server.address, &chat_path(&session), &body("d")).status, 410);
    let end = ended(&mut session);
    assert_eq!(end.status, SessionStatus::Expired { limit: SessionLimit::Tokens });
    assert_eq!(end.segments.iter().map(Trajectory::policy_tokens).sum::<usize>(), 10);
}

/// A prompt without room is refused, and the segment that it would have continued is truncated.
#[test]
fn long_prompts_truncate_their_segment() {
    let server = Setup::saying("One").start();
    let session = server.session();
    let ask = json!({"role": "user", "content": "Hi"});
    let answer = message(&chat(&server, &session, &json!([ask])));
    let long = json!({"messages": [ask, answer, {"role": "user", "content": "x".repeat(CONTEXT)}]});
    let refused = post(server.address, &chat_path(&session), &long);
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    let end = checked(&server, session);
    assert_eq!(end.segments.iter().map(|segment| segment.stop).collect::<Vec<_>>(), [StopReason::Length]);
}

/// The temperature is that of the session, and the answer says so.
#[test]
fn the_temperature_is_overridden() {
    let server = Setup::saying("One").start();
    let sampling = SamplingSettings { temperature: 0.5, max_new_tokens: 100, ..SamplingSettings::default() };
    let session = server.session_with(sampling);
    let noted = json!({"temperature": 0.5});
    for (path, body) in [
        ("chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.9})),
        ("completions", json!({"prompt": "Hi", "temperature": 0})),
        ("responses", json!({"input": "Hi", "temperature": 1})),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "temperature": 1}),
        ),
    ] {
        let path = format!("{}/v1/{path}", session.path());
        let whole = post(server.address, &path, &body);
        assert_eq!((whole.status, whole.header("x-rloom-temperature")), (200, Some("0.5")), "{}", whole.body);
        assert_eq!(whole.json()["rloom"], noted, "{path}");
        let streamed = stream(server.address, &path, &body);
        assert!(streamed.body.contains(&format!("\"rloom\":{noted}")), "{}", streamed.body);
        let mut without = body.clone();
        without.as_object_mut().unwrap().remove("temperature");
        assert!(post(server.address, &path, &without).json()["rloom"].is_null());
    }
    let end = checked(&server, session);
    let spans = end.segments.iter().flat_map(|segment| &segment.spans);
    let temperatures: Vec<f32> =
        spans.filter(|span| span.author == rloom_core::Author::Policy).map(|span| span.temperature).collect();
    assert!(temperatures.iter().all(|temperature| *temperature == 0.5), "{temperatures:?}");
}

/// What would make the sampling policy another than the one that is trained is refused.
#[test]
fn other_sampling_settings_are_refused() {
    let server = Setup::saying("One").start();
    let session = server.session();
    let path = chat_path(&session);
    for (field, value, status) in [
        ("top_p", json!(0.9), 400),
        ("top_p", json!(1), 200),
        ("top_k", json!(5), 400),
        ("top_k", json!(0), 200),
        ("min_p", json!(0.1), 400),
        ("min_p", json!(0.0), 200),
        ("logit_bias", json!({"5": 1}), 400),
        ("presence_penalty", json!(0.5), 400),
        ("frequency_penalty", json!(0.5), 400),
        ("repetition_penalty", json!(1.1), 400),
        ("seed", json!(5), 200),
        ("stop", json!(["x"]), 200),
        ("response_format", json!({"type": "json_object"}), 400),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body[field] = value;
        let answer = post(server.address, &path, &body);
        assert_eq!(answer.status, status, "{field}: {}", answer.body);
        if status == 400 {
            assert_eq!(answer.json()["error"]["param"], field);
        }
    }
    checked(&server, session);
}

/// While weights are updated, requests are held: streams have comments, other answers just come later.
#[test]
fn updates_hold_requests() {
    let mut setup = Setup { tokens: Some(0), ..Setup::saying("One") };
    setup.settings.keep_alive = Duration::from_millis(5);
    let server = setup.start();
    let session = server.session();
    let send = |stream: bool| {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": stream}).to_string();
        let mut connection = connect(server.address);
        connection.write_all(&request("POST", &chat_path(&session), "", body.as_bytes())).unwrap();
        connection
    };
    let (mut whole, mut streamed) = (send(false), send(true));
    let (mut seen, mut buffer) = (String::new(), [0; 512]);
    while seen.matches(": keep-alive").count() < 3 {
        let length = streamed.read(&mut buffer).unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    server.engine.gate.close();
    streamed.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("[DONE]"), "{seen}");
    assert_eq!(crate::client::read(&mut whole).unwrap().status, 200);
    assert_eq!(checked(&server, session).calls, 2);
}

//! Tokens of sessions.

use rloom_serve::{ApiKey, ServeError, SessionStatus};
use serde_json::json;

use super::{chat_path, ended};
use crate::client::{exchange, get, post, request};
use crate::script::Setup;

#[test]
fn the_token_is_the_key() {
    let mut setup = Setup::saying("One");
    setup.key = Some(ApiKey::new("key").unwrap());
    let server = setup.start();
    let session = server.session();
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(session.token().len(), 32);
    assert_eq!(post(server.address, "/v1/chat/completions", &body).status, 401);
    // From another host, too: only its holder knows the token.
    let text =
        request("POST", &chat_path(&session), "authorization: Bearer x\r\n", body.to_string().as_bytes());
    let text = String::from_utf8(text).unwrap().replace("host: localhost", "host: trainer:8000");
    assert_eq!(exchange(server.address, text.as_bytes()).unwrap().status, 200);
    let token = session.token();
    let mut wrong = vec![token[1..].to_owned(), format!("{token}0"), String::new(), "%00".to_owned()];
    wrong.push(token.to_uppercase().replace(|c: char| c.is_ascii_digit(), "0"));
    for wrong in wrong {
        let answer = get(server.address, &format!("/s/{wrong}"));
        assert_eq!(answer.status, 404, "{wrong}");
    }
    for path in ["/health", "/v2", "/reward/x", "//v1/models"] {
        assert_eq!(get(server.address, &format!("{}{path}", session.path())).status, 404, "{path}");
    }
    assert_eq!(get(server.address, &format!("{}/reward", session.path())).status, 405);
    assert_eq!(
        get(server.address, &format!("{}/v1/models", session.path())).json()["data"][0]["id"],
        "scripted"
    );
    let counted = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let path = format!("{}/v1/messages/count_tokens", session.path());
    assert!(post(server.address, &path, &counted).json()["input_tokens"].as_u64() > Some(5));
    let log = format!("{:?}", server.exchanges.lock().unwrap());
    assert!(log.contains("POST /s/TOKEN/v1/chat/completions"), "{log}");
    let debug = format!("{session:?} {:?}", server.sessions);
    assert!(!log.contains(session.token()) && !debug.contains(session.token()), "{log} {debug}");
}

#[test]
fn ended_sessions_are_gone() {
    let server = Setup::saying("One").start();
    let session = server.session();
    let path = session.path();
    let body = json!({"value": 1});
    assert_eq!(post(server.address, &format!("{path}/reward"), &body).status, 200);
    assert_eq!(post(server.address, &format!("{path}/finish"), &json!({})).status, 200);
    for open in [Some(session), None] {
        for (method, rest, body) in [
            ("POST", "/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "Hi"}]}"#),
            ("POST", "/v1/messages", r#"{"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}"#),
            ("POST", "/reward", r#"{"value": 1}"#),
            ("POST", "/finish", "{}"),
            ("GET", "", ""),
        ] {
            let answer =
                exchange(server.address, &request(method, &format!("{path}{rest}"), "", body.as_bytes()))
                    .unwrap();
            assert_eq!((answer.status, answer.header("x-should-retry")), (410, Some("false")), "{rest}");
            assert!(!answer.body.contains(&path), "{}", answer.body);
        }
        drop(open);
    }
    assert_eq!(server.sessions.count(), 0);
}

#[test]
fn sessions_are_bounded() {
    let mut setup = Setup::saying("One");
    setup.sessions.max_sessions = 2;
    let server = setup.start();
    let mut open = [server.session(), server.session()];
    assert_ne!(open[0].token(), open[1].token());
    let spec = rloom_serve::SessionSpec {
        sampler: server.engine.clone(),
        sampling: rloom_engine::SamplingSettings::default(),
        random: rloom_core::RandomKey::new(0, 0, rloom_core::Purpose::Rollout, 0),
        key: rloom_core::SampleKey::default(),
        policy: rloom_core::PolicyId::MAIN,
        group: None,
        priority: 0,
    };
    let error = server.sessions.open(spec.clone()).unwrap_err();
    assert!(matches!(error, ServeError::TooManySessions { limit: 2 }), "{error}");
    open[0].close(SessionStatus::Failed { message: "the program has crashed".to_owned() });
    let end = ended(&mut open[0]);
    assert_eq!((end.calls, end.segments.len()), (0, 0));
    assert_eq!(end.status, SessionStatus::Failed { message: "the program has crashed".to_owned() });
    drop(open);
    assert!(server.sessions.open(spec).is_ok());
}

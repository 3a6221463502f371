//! Clients that repeat requests, or disconnect.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use rloom_serve::OpenSession;
use serde_json::{Value, json};

use super::{chat_path, checked};
use crate::client::{Answer, connect, exchange, read, request};
use crate::script::{Setup, TestServer};

const RETRY: &str = "x-stainless-retry-count: 1\r\n";
const FIRST: &str = "x-stainless-retry-count: 0\r\n";

fn body(stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": "Hi"}], "stream": stream})
}

fn bytes(session: &OpenSession, headers: &str, body: &Value) -> Vec<u8> {
    request("POST", &chat_path(session), headers, body.to_string().as_bytes())
}

fn send(server: &TestServer, session: &OpenSession, headers: &str, body: &Value) -> Answer {
    exchange(server.address, &bytes(session, headers, body)).unwrap()
}

/// A server whose answers are numbered; at most `tokens` are sampled before its gate is closed.
fn counting(tokens: Option<usize>) -> TestServer {
    let number = AtomicUsize::new(0);
    let setup = Setup::new(move |_| format!("Answer {}", number.fetch_add(1, Ordering::SeqCst)));
    Setup { tokens, ..setup }.start()
}

fn live(server: &TestServer) -> usize {
    server.engine.live.load(Ordering::SeqCst)
}

#[test]
fn a_repeated_request_has_the_same_answer() {
    for stream in [false, true] {
        let server = counting(None);
        let session = server.session();
        let first = send(&server, &session, FIRST, &body(stream));
        let again = send(&server, &session, RETRY, &body(stream));
        assert_eq!((first.status, again.status), (200, 200));
        assert_eq!(first.body, again.body);
        // Without the header it is another sample.
        assert_ne!(send(&server, &session, FIRST, &body(stream)).body, first.body);
        // A repetition of a request that never arrived is the first.
        let other = json!({"messages": [{"role": "user", "content": "Other"}]});
        assert_eq!(send(&server, &session, RETRY, &other).status, 200);
        assert_eq!(checked(&server, session).segments.len(), 3);
    }
}

#[test]
fn a_repeated_request_joins_the_one_in_flight() {
    for stream in [false, true] {
        let server = counting(Some(2));
        let session = server.session();
        let mut first = connect(server.address);
        first.write_all(&bytes(&session, FIRST, &body(stream))).unwrap();
        TestServer::until("the start", || live(&server) == 1);
        let mut again = connect(server.address);
        again.write_all(&bytes(&session, RETRY, &body(stream))).unwrap();
        let mut begun = Vec::new();
        while stream && !begun.ends_with(b"\"A\"") {
            let mut byte = [0];
            again.read_exact(&mut byte).unwrap();
            begun.push(byte[0]);
        }
        server.engine.gate.close();
        let first = read(&mut first).unwrap().body;
        assert!(first.contains(if stream { "[DONE]" } else { "Answer 0" }), "{first}");
        if stream {
            again.read_to_end(&mut begun).unwrap();
            let id = first.split('"').nth(3).unwrap();
            let again = String::from_utf8(begun).unwrap();
            assert!(again.contains(id) && again.contains("[DONE]"), "{again}");
        } else {
            assert_eq!(read(&mut again).unwrap().body, first);
        }
        let end = checked(&server, session);
        assert_eq!((end.calls, end.segments.len()), (1, 1));
        assert_eq!(server.engine.cancelled.load(Ordering::SeqCst), 0);
    }
}

/// A client that is gone before the answer has a byte leaves nothing behind; the repetition has the same random stream.
#[test]
fn a_lost_request_is_dropped() {
    for (stream, tokens) in [(false, 0), (false, 2), (true, 0)] {
        let server = counting(Some(tokens));
        let session = server.session();
        let mut connection = connect(server.address);
        connection.write_all(&bytes(&session, FIRST, &body(stream))).unwrap();
        TestServer::until("the start", || live(&server) == 1);
        drop(connection);
        TestServer::until("the cancellation", || server.engine.cancelled.load(Ordering::SeqCst) == 1);
        server.engine.gate.close();
        assert_eq!(send(&server, &session, RETRY, &body(stream)).status, 200);
        let end = checked(&server, session);
        assert_eq!((end.calls, end.segments.len()), (1, 1));
        let keys = server.engine.keys.lock().unwrap();
        assert_eq!(keys[0], keys[1]);
    }
}

/// A client that has received a part of an answer may have acted on it.
#[test]
fn an_answer_that_has_begun_is_kept() {
    let server = counting(Some(2));
    let session = server.session();
    let mut connection = connect(server.address);
    connection.write_all(&bytes(&session, FIRST, &body(true))).unwrap();
    let (mut seen, mut buffer) = (String::new(), [0; 256]);
    while !seen.contains("\"Answ") && !seen.contains("\"A\"") {
        let length = connection.read(&mut buffer).unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    drop(connection);
    TestServer::until("the log", || !server.exchanges.lock().unwrap().is_empty());
    server.engine.gate.close();
    TestServer::until("the completion", || session.calls() == 1);
    let again = send(&server, &session, RETRY, &body(true));
    assert!(again.body.contains("[DONE]"), "{}", again.body);
    let end = checked(&server, session);
    assert_eq!((end.calls, server.engine.cancelled.load(Ordering::SeqCst)), (1, 0));
}

/// A worker that is lost: what no client has seen is sampled again, what one has seen is an error, and never a turn.
#[test]
fn lost_workers_leave_whole_turns() {
    for stream in [false, true] {
        let mut setup = Setup::saying("One two three four");
        setup.to_lose = 1;
        let server = setup.start();
        let session = server.session();
        let answer = send(&server, &session, FIRST, &body(stream));
        if stream {
            assert!(answer.body.contains("replica 0 was lost") || answer.status == 503, "{}", answer.body);
            assert_eq!(send(&server, &session, RETRY, &body(stream)).status, 200);
        } else {
            assert_eq!(answer.status, 200);
        }
        let end = checked(&server, session);
        assert_eq!((end.calls, end.segments.len()), (1, 1));
    }
}

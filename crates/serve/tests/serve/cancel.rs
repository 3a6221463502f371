//! Clients that disconnect, and servers that stop.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::client::{connect, exchange, get, post, read, request};
use crate::script::{Setup, TestServer};

fn body(stream: bool) -> Vec<u8> {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": stream});
    request("POST", "/v1/chat/completions", "", body.to_string().as_bytes())
}

/// A server whose engine waits after `tokens` tokens.
fn waiting(tokens: usize) -> TestServer {
    Setup { tokens: Some(tokens), ..Setup::saying("One two three four five six") }.start()
}

fn live(server: &TestServer) -> usize {
    server.engine.live.load(Ordering::SeqCst)
}

#[test]
fn a_client_that_disconnects_cancels_its_completion() {
    for is_stream in [false, true] {
        for tokens in [0, 6] {
            let server = waiting(tokens);
            let mut connection = connect(server.address);
            connection.write_all(&body(is_stream)).unwrap();
            TestServer::until("the start", || live(&server) == 1);
            if is_stream && tokens > 0 {
                let mut some = [0; 64];
                assert!(connection.read(&mut some).unwrap() > 0);
            }
            drop(connection);
            server.idle();
            assert_eq!(server.engine.cancelled.load(Ordering::SeqCst), 1);
            TestServer::until("the log", || !server.exchanges.lock().unwrap().is_empty());
            assert_eq!(server.exchanges.lock().unwrap()[0].outcome, "client disconnected");
            assert_eq!(server.drain(), 0);
        }
    }
}

/// A client that ends its side of the connection is gone: there is no telling it from one that died.
#[test]
fn half_closed_connections_cancel() {
    let server = waiting(0);
    let mut connection = connect(server.address);
    connection.write_all(&body(false)).unwrap();
    TestServer::until("the start", || live(&server) == 1);
    connection.shutdown(Shutdown::Write).unwrap();
    server.idle();
    assert!(read(&mut connection).is_none());
}

#[test]
fn requests_in_flight_finish_when_the_server_stops() {
    for is_stream in [false, true] {
        let server = waiting(2);
        let mut connection = connect(server.address);
        connection.write_all(&body(is_stream)).unwrap();
        TestServer::until("the start", || live(&server) == 1);
        server.stopper.drain();
        let engine = std::sync::Arc::clone(&server.engine);
        TestServer::until("the end of listening", || std::net::TcpStream::connect(server.address).is_err());
        engine.gate.close();
        let answer = read(&mut connection).unwrap();
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains(if is_stream { "[DONE]" } else { "six" }), "{}", answer.body);
        assert_eq!(server.drain(), 0);
    }
}

#[test]
fn requests_that_do_not_finish_are_cancelled() {
    let mut setup = Setup { tokens: Some(2), ..Setup::saying("One two three four five six") };
    setup.settings.grace = std::time::Duration::from_millis(50);
    let server = setup.start();
    let mut connection = connect(server.address);
    connection.write_all(&body(true)).unwrap();
    TestServer::until("the start", || live(&server) == 1);
    assert_eq!(server.drain(), 1);
    // The stream ends without its last event.
    assert!(!read(&mut connection).unwrap().body.contains("[DONE]"));
}

#[test]
fn a_second_signal_cancels() {
    let server = waiting(0);
    let mut connection = connect(server.address);
    connection.write_all(&body(false)).unwrap();
    TestServer::until("the start", || live(&server) == 1);
    server.stopper.drain();
    server.stopper.stop();
    assert_eq!(server.drain(), 1);
    assert!(read(&mut connection).is_none());
}

/// A stream without tokens has comments, which keep the connection open.
#[test]
fn streams_are_kept_alive() {
    let mut setup = Setup { tokens: Some(0), ..Setup::saying("One") };
    setup.settings.keep_alive = std::time::Duration::from_millis(5);
    let server = setup.start();
    let mut connection = connect(server.address);
    connection.write_all(&body(true)).unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 512];
    while seen.matches(": keep-alive").count() < 2 {
        let length = connection.read(&mut buffer).unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    server.engine.gate.close();
    connection.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("[DONE]"), "{seen}");
}

#[test]
fn connections_serve_one_request_after_the_other() {
    let server = Setup::saying("One").start();
    let mut connection = connect(server.address);
    let text = String::from_utf8(body(false)).unwrap();
    let kept = text.replace("connection: close\r\n", "");
    connection.write_all((kept.clone() + &kept + &text).as_bytes()).unwrap();
    let mut answers = String::new();
    connection.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert_eq!(get(server.address, "/health").status, 200);
    assert_eq!(exchange(server.address, &body(true)).unwrap().status, 200);
    assert_eq!(post(server.address, "/v1/completions", &json!({"prompt": "a"})).status, 200);
}

//! Keys and limits.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rloom_serve::ApiKey;
use serde_json::json;

use crate::client::{connect, exchange, get, post, read, request};
use crate::script::{Setup, TestServer};

const CHAT: &str = "/v1/chat/completions";

fn body() -> Vec<u8> {
    json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string().into_bytes()
}

#[test]
fn clients_need_the_key() {
    let mut setup = Setup::saying("One");
    setup.key = Some(ApiKey::new("s3cret").unwrap());
    let server = setup.start();
    for (header, status) in [
        ("", 401),
        ("authorization: Bearer wrong\r\n", 401),
        ("authorization: s3cret\r\n", 401),
        ("x-api-key: s3cre\r\n", 401),
        ("authorization: Bearer s3cret\r\n", 200),
        ("Authorization: bearer s3cret\r\n", 200),
        ("x-api-key: s3cret\r\n", 200),
        ("authorization: Bearer wrong\r\nx-api-key: s3cret\r\n", 200),
    ] {
        let answer = exchange(server.address, &request("POST", CHAT, header, &body())).unwrap();
        assert_eq!(answer.status, status, "{header}");
        let models = exchange(server.address, &request("GET", "/v1/models", header, b"")).unwrap();
        assert_eq!(models.status, status, "{header}");
        assert!(!answer.body.contains("s3cret") && !format!("{answer:?}").contains("s3cret"));
    }
    assert_eq!(get(server.address, "/health").status, 200);
    let answer = exchange(server.address, &request("POST", "/v1/messages", "", &body())).unwrap();
    assert_eq!(answer.json()["error"]["type"], "authentication_error");
    let answer = exchange(server.address, &request("POST", CHAT, "", &body())).unwrap();
    assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    let log = format!("{:?}", server.exchanges.lock().unwrap());
    assert!(!log.contains("s3cret"), "{log}");
}

/// Without a key, the pages of a browser are kept out, whatever they claim.
#[test]
fn web_pages_need_a_key() {
    let server = Setup::saying("One").start();
    let pages = ["origin: https://evil.example\r\n", "origin: null\r\n"];
    for header in pages {
        let answer = exchange(server.address, &request("POST", CHAT, header, &body())).unwrap();
        assert_eq!(answer.status, 403, "{header}");
    }
    let rebound = String::from_utf8(request("POST", CHAT, "", &body())).unwrap();
    let rebound = rebound.replace("host: localhost", "host: evil.example");
    assert_eq!(exchange(server.address, rebound.as_bytes()).unwrap().status, 403);
    let mut setup = Setup::saying("One");
    setup.key = Some(ApiKey::new("k").unwrap());
    let server = setup.start();
    let header = [pages[0], "x-api-key: k\r\n"].concat();
    assert_eq!(exchange(server.address, &request("POST", CHAT, &header, &body())).unwrap().status, 200);
}

#[test]
fn requests_over_the_limit_are_refused() {
    let mut setup = Setup { tokens: Some(0), ..Setup::saying("One") };
    setup.settings.max_requests = 2;
    let server = setup.start();
    let mut waiting: Vec<_> = (0..2)
        .map(|_| {
            let mut connection = connect(server.address);
            connection.write_all(&request("POST", CHAT, "", &body())).unwrap();
            connection
        })
        .collect();
    TestServer::until("the start", || server.engine.live.load(Ordering::SeqCst) == 2);
    let refused = exchange(server.address, &request("POST", CHAT, "", &body())).unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(get(server.address, "/health").status, 200);
    server.engine.gate.close();
    for connection in &mut waiting {
        assert_eq!(read(connection).unwrap().status, 200);
    }
    assert_eq!(post(server.address, CHAT, &serde_json::from_slice(&body()).unwrap()).status, 200);
}

#[test]
fn bodies_are_bounded() {
    let mut setup = Setup::saying("One");
    setup.settings.max_body = 1000;
    setup.settings.body_timeout = Duration::from_millis(50);
    let server = setup.start();
    let huge = json!({"messages": [{"role": "user", "content": "x".repeat(2000)}]}).to_string();
    let answer = exchange(server.address, &request("POST", "/v1/messages", "", huge.as_bytes())).unwrap();
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (413, Some("request_too_large")));
    // Without a length.
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunk = format!("{:x}\r\n{huge}\r\n0\r\n\r\n", huge.len());
    assert_eq!(exchange(server.address, (head + &chunk).as_bytes()).unwrap().status, 413);
    // A body that does not arrive.
    let mut connection = connect(server.address);
    let whole = request("POST", CHAT, "", &body());
    connection.write_all(&whole[..whole.len() - 5]).unwrap();
    assert_eq!(read(&mut connection).unwrap().status, 408);
    // A compressed body.
    let zipped = request("POST", CHAT, "content-encoding: gzip\r\n", b"\x1f\x8b");
    assert_eq!(exchange(server.address, &zipped).unwrap().status, 415);
    assert_eq!(server.drain(), 0);
}

#[test]
fn heads_and_idle_connections_are_bounded() {
    let mut setup = Setup::saying("One");
    setup.settings.header_timeout = Duration::from_millis(50);
    setup.settings.max_connections = 3;
    let server = setup.start();
    let mut open: Vec<_> = (0..3).map(|_| connect(server.address)).collect();
    for (connection, sent) in open.iter_mut().zip(["", "POST /v1", "GET /health HTTP/1.1\r\nhost:"]) {
        connection.write_all(sent.as_bytes()).unwrap();
    }
    // Waits for one of the three to be closed.
    assert_eq!(get(server.address, "/health").status, 200);
    for connection in &mut open {
        assert_ne!(read(connection).map(|answer| answer.status), Some(200));
    }
    let long = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    assert_ne!(exchange(server.address, long.as_bytes()).map(|answer| answer.status), Some(200));
    assert_eq!(get(server.address, "/health").status, 200);
}

/// The connection of a client that does not read is closed.
#[test]
fn clients_have_to_read() {
    let mut setup = Setup::saying("One");
    setup.settings.write_timeout = Duration::from_millis(50);
    let server = setup.start();
    let mut connection = connect(server.address);
    // Answers repeat the metadata of their request.
    let body = json!({"input": "Hi", "metadata": {"a": "x".repeat(1_000_000)}}).to_string();
    let text = String::from_utf8(request("POST", "/v1/responses", "", body.as_bytes())).unwrap();
    let text = text.replace("connection: close\r\n", "");
    connection.set_write_timeout(Some(Duration::from_mins(2))).unwrap();
    let end = (0..1000).find_map(|_| connection.write_all(text.as_bytes()).err()).unwrap();
    assert_ne!(end.kind(), std::io::ErrorKind::WouldBlock, "the server waits for this client");
    assert_eq!(server.drain(), 0);
}

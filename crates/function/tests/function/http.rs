use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rloom_core::FailureKind;
use rloom_function::{FunctionError, HttpFunction, Judge, Malformed};

use crate::support::{LONG, judge_one};

/// Serves the answers in turn, one connection each, and passes on the bodies of the requests.
fn server(answers: &'static [&'static str]) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/score", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut input = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                input.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            input.read_exact(&mut body).unwrap();
            let _ = sender.send(String::from_utf8(body).unwrap());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, bodies)
}

fn judge(url: &str, timeout: Duration) -> Judge {
    HttpFunction { url: url.to_owned(), workers: 2, group: false, observations: false, solved_at: None }
        .judge(timeout)
}

const RIGHT: &str =
    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 20\r\n\r\n{\"verdicts\": [0.25]}";
const BUSY: &str =
    "HTTP/1.1 503 Busy\r\nconnection: close\r\nretry-after: 3\r\ncontent-length: 4\r\n\r\nbusy";

#[test]
fn requests_are_posted_once() {
    let (url, bodies) = server(&[BUSY, RIGHT]);
    let judge = judge(&url, LONG);
    let busy = judge_one(&judge, "x").unwrap_err();
    assert!(matches!(busy, FunctionError::Status { status: 503, .. }), "{busy}");
    assert!(busy.is_retryable() && busy.kind() == FailureKind::Infrastructure, "{busy}");
    assert_eq!(busy.retry_after(), Duration::from_secs(3));
    assert_eq!(judge_one(&judge, "x"), Ok(Some(0.25)));
    let bodies: Vec<String> = bodies.iter().collect();
    assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]));
    let body: serde_json::Value = serde_json::from_str(&bodies[0]).unwrap();
    assert_eq!((&body["v"], &body["judge"]["samples"][0]["answer"]), (&1.into(), &"2".into()));
}

#[test]
fn answers_other_than_verdicts_are_errors() {
    let error = |answers| judge_one(&judge(&server(answers).0, LONG), "x").unwrap_err();
    let refused = error(&["HTTP/1.1 404 No\r\nconnection: close\r\ncontent-length: 4\r\n\r\nnone"]);
    assert!(
        matches!(&refused, FunctionError::Status { status: 404, body, .. } if body == "none"),
        "{refused}"
    );
    let moved = error(&[
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    ]);
    assert!(matches!(moved, FunctionError::Status { status: 302, .. }), "{moved}");
    let html = error(&["HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\n<ht>"]);
    assert!(
        matches!(&html, FunctionError::Malformed { problem: Malformed::NotAnAnswer { .. }, .. }),
        "{html}"
    );
    let raised = error(&[
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 29\r\n\r\n{\"error\": {\"message\": \"oops\"}}",
    ]);
    assert!(matches!(&raised, FunctionError::Malformed { .. } | FunctionError::Raised { .. }), "{raised}");
}

#[test]
fn servers_that_are_silent_or_absent_are_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let silent = judge_one(&judge(&url, Duration::from_secs(1)), "x").unwrap_err();
    assert!(matches!(silent, FunctionError::TimedOut { .. }), "{silent}");
    drop(listener);
    let absent = judge_one(&judge(&url, LONG), "x").unwrap_err();
    assert!(matches!(absent, FunctionError::Unreachable { .. }), "{absent}");
}

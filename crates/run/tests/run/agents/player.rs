//! Agents that runs of the tests start: this test program with the name of one of the tests below.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// The command of an agent of this module. The path is that of this program in a child, too.
macro_rules! command {
    ($name:literal) => {
        concat!(
            "command=['/proc/self/exe','--exact','agents::player::",
            $name,
            "','--ignored','--nocapture']"
        )
    };
}
pub(super) use command;

/// Posts JSON; returns status and answer.
pub(super) fn post(url: &str, key: &str, body: &Value) -> (u16, Value) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let mut stream = TcpStream::connect(host).unwrap();
    let body = body.to_string();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

/// What the policy answers to a conversation.
pub(super) fn ask(base_url: &str, messages: &[Value]) -> String {
    let (status, answer) =
        post(&format!("{base_url}/chat/completions"), "", &json!({"model": "any", "messages": messages}));
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// Two turns of a conversation. Returns a number that depends on both answers.
pub(super) fn converse(base_url: &str, task: &Value) -> f64 {
    converse_after(base_url, task, || ())
}

/// As [`converse`], with something to do between the turns.
fn converse_after(base_url: &str, task: &Value, between: impl FnOnce()) -> f64 {
    let mut messages = vec![json!({"role": "user", "content": task["prompt"]})];
    let first = ask(base_url, &messages);
    between();
    messages.push(json!({"role": "assistant", "content": first}));
    messages.push(json!({"role": "user", "content": "="}));
    let second = ask(base_url, &messages);
    let digits = first.bytes().chain(second.bytes()).map(u32::from).sum::<u32>();
    f64::from(digits % 5) / 4.0
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn task() -> Value {
    serde_json::from_str(&variable("RLOOM_TASK")).unwrap()
}

#[test]
#[ignore = "an agent of the other tests"]
fn rewarded() {
    println!("the agent begins");
    let value = converse(&variable("OPENAI_BASE_URL"), &task());
    let (status, _) = post(&variable("RLOOM_REWARD_URL"), "", &json!({"value": value}));
    assert_eq!(status, 200);
}

/// With a task of the first batch, waits between its turns until all agents of the second batch have had their first ones;
/// those wait until the first step is trained.
#[test]
#[ignore = "an agent of the other tests"]
fn patient() {
    let task = task();
    let wait = |holds: &dyn Fn() -> bool| {
        while !holds() {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let value =
        converse_after(&variable("OPENAI_BASE_URL"), &task, || match task["index"].as_u64().unwrap() {
            0..3 => wait(&|| std::fs::read_dir("asked").is_ok_and(|entries| entries.count() >= 6)),
            3..6 => {
                std::fs::create_dir_all(format!("asked/{}", std::process::id())).unwrap();
                wait(&|| Path::new("tiny/rollouts/rl-step-000001.jsonl.zst").exists());
            }
            _ => {}
        });
    let (status, _) = post(&variable("RLOOM_REWARD_URL"), "", &json!({"value": value}));
    assert_eq!(status, 200);
}

#[test]
#[ignore = "an agent of the other tests"]
fn silent() {
    converse(&variable("OPENAI_BASE_URL"), &task());
}

#[test]
#[ignore = "an agent of the other tests"]
#[expect(clippy::exit, reason = "a panic would write more lines than an error quotes")]
fn broken() {
    converse(&variable("OPENAI_BASE_URL"), &task());
    println!("the agent is broken, with key {}", variable("OPENAI_API_KEY"));
    std::process::exit(3);
}

/// Leaves a process in its group and waits. The number of the process is in a file of the working folder.
#[test]
#[ignore = "an agent of the other tests"]
#[expect(clippy::zombie_processes, reason = "it is the run that kills the process")]
fn hanging() {
    let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    std::fs::write("started", child.id().to_string()).unwrap();
    std::thread::sleep(Duration::from_secs(1000));
}

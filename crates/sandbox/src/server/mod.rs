//! Programs on a server that runs code over HTTP, with the interface of SandboxFusion (`POST /run_code`).
//!
//! The server runs a Python program of this crate (`runner.py`), which runs the program of an [`Execution`] and writes how it
//! ended to a file that the server returns. That file bears a nonce: an answer without it is a failure of the server, and never
//! of the program.

mod answer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;

use crate::nonce::nonce;
use crate::{Ending, Execution, Outcome, SandboxError};

/// Runs one program on the server.
const RUNNER: &str = include_str!("runner.py");
/// File of the order.
const ORDER: &str = "rloom-order.json";
/// Time for the start of the runner and for cleaning up, in addition to that of the program.
const GRACE: Duration = Duration::from_secs(20);
/// Longest body of an answer in bytes.
const LONGEST_BODY: u64 = 256 << 20;

/// A server that runs programs.
#[derive(Debug, Clone)]
pub struct Server {
    agent: Agent,
    url: String,
}

impl Server {
    /// A server at an address such as `http://127.0.0.1:8080/run_code`.
    pub fn new(url: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("rloom/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: Agent::new_with_config(config), url: url.to_owned() }
    }

    /// The address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs a short program.
    pub fn check(&self, deadline: Instant) -> Result<(), SandboxError> {
        let command = ["sh", "-c", "exit 7"].map(str::to_owned).to_vec();
        let outcome = self.run(&Execution { command, ..Execution::default() }, deadline)?;
        match outcome.ending {
            Ending::Exited(7) => Ok(()),
            ending => Err(self.failed(format!("a test program ended with {ending:?}"), false)),
        }
    }

    /// Runs a program to its end.
    pub(crate) fn run(&self, execution: &Execution, deadline: Instant) -> Result<Outcome, SandboxError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let nonce = nonce(self.url.as_bytes(), count);
        let report = format!("rloom-report-{count}.json");
        let seconds = execution.limits.wall + GRACE / 2;
        let request = json!({
            "language": "python",
            "code": RUNNER,
            "compile_timeout": seconds.as_secs_f64(),
            "run_timeout": seconds.as_secs_f64(),
            "files": { ORDER: STANDARD.encode(order(execution, &nonce, &report).to_string()) },
            "fetch_files": [report],
        });
        let started = Instant::now();
        let timeout = deadline.saturating_duration_since(started).min(execution.limits.wall + GRACE);
        let body = self.post(&request, timeout)?;
        let answer = answer::read(&body, &report, &nonce).map_err(|problem| self.failed(problem, true))?;
        answer.map_err(|reason| SandboxError::NotStarted {
            program: execution.command.first().cloned().unwrap_or_default(),
            reason,
        })
    }

    /// Posts a request and returns the body of the answer.
    fn post(&self, request: &Value, timeout: Duration) -> Result<Vec<u8>, SandboxError> {
        if timeout.is_zero() {
            return Err(SandboxError::TimedOut { timeout });
        }
        let failed = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => SandboxError::TimedOut { timeout },
            error => self.failed(error.to_string(), true),
        };
        let post = self.agent.post(&self.url).header("content-type", "application/json");
        let post = post.config().timeout_global(Some(timeout)).build();
        let mut response = post.send(request.to_string()).map_err(failed)?;
        let body = response.body_mut().with_config().limit(LONGEST_BODY).read_to_vec().map_err(failed)?;
        match response.status().as_u16() {
            200 => Ok(body),
            status => {
                let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
                let problem = format!("status {status}: {}", text.trim());
                Err(self.failed(problem, status == 429 || status >= 500))
            }
        }
    }

    fn failed(&self, problem: String, may_pass: bool) -> SandboxError {
        SandboxError::Server { url: self.url.clone(), problem, may_pass }
    }
}

/// What the runner does.
fn order(execution: &Execution, nonce: &str, report: &str) -> Value {
    let Execution { command, environment, files, stdin, outputs, reports, limits, .. } = execution;
    let files: Vec<Value> = files
        .iter()
        .map(|file| {
            json!({
                "name": file.name,
                "content": STANDARD.encode(&file.content),
                "is_executable": file.is_executable,
            })
        })
        .collect();
    let environment: &BTreeMap<String, String> = environment;
    json!({
        "nonce": nonce,
        "report": report,
        "command": command,
        "environment": environment,
        "files": files,
        "stdin": STANDARD.encode(stdin),
        "outputs": outputs,
        "reports": reports,
        "wall": limits.wall.as_secs_f64(),
        "cpu": limits.cpu.as_secs_f64(),
        "memory": limits.memory,
        "disk": limits.disk,
        "output": limits.output,
    })
}

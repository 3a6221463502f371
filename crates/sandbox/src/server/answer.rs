//! Answers of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::{Ending, InputFile, Outcome};

/// The answer to `/run_code`.
#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    message: String,
    run_result: Option<RunResult>,
    #[serde(default)]
    files: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RunResult {
    status: String,
    return_code: Option<i64>,
    #[serde(default)]
    stderr: Option<String>,
}

/// What the runner reports.
#[derive(Deserialize)]
struct Report {
    nonce: String,
    not_started: Option<String>,
    ended: Option<Ended>,
    #[serde(default)]
    outputs: Vec<Output>,
    #[serde(default)]
    wall: f64,
    #[serde(default)]
    cpu: f64,
}

#[derive(Deserialize)]
struct Ended {
    ending: Ending,
    stdout: String,
    stderr: String,
    report: String,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    content: String,
}

/// Reads an answer: the outcome, or the reason why the program was not started. The error says how the server failed.
pub(super) fn read(body: &[u8], file: &str, nonce: &str) -> Result<Result<Outcome, String>, String> {
    let answer: Answer =
        serde_json::from_slice(body).map_err(|error| format!("malformed answer: {error}"))?;
    if answer.status == "SandboxError" {
        return Err(format!("SandboxError: {}", excerpt(&answer.message)));
    }
    let Some(content) = answer.files.get(file) else {
        let run = answer.run_result.as_ref();
        let stderr = run.and_then(|run| run.stderr.as_deref()).map(excerpt).unwrap_or_default();
        let run = run.map(|run| format!("{}, return code {:?}", run.status, run.return_code));
        return Err(format!(
            "no report ({}, {}) {stderr}",
            answer.status,
            run.unwrap_or("not run".to_owned())
        ));
    };
    let report = decode(content)?;
    let report: Report =
        serde_json::from_slice(&report).map_err(|error| format!("malformed report: {error}"))?;
    if report.nonce != nonce {
        return Err("the report belongs to another request".to_owned());
    }
    if let Some(reason) = report.not_started {
        return Ok(Err(reason));
    }
    let ended = report.ended.ok_or("a report without an end")?;
    let seconds = |value: f64| Duration::try_from_secs_f64(value).map_err(|error| error.to_string());
    let mut outputs = Vec::new();
    for Output { name, content } in report.outputs {
        outputs.push(InputFile { name, content: decode(&content)?, is_executable: true });
    }
    Ok(Ok(Outcome {
        ending: ended.ending,
        stdout: decode(&ended.stdout)?,
        stderr: decode(&ended.stderr)?,
        report: decode(&ended.report)?,
        outputs,
        wall: seconds(report.wall)?,
        cpu: seconds(report.cpu)?,
    }))
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("malformed report: {error}"))
}

fn excerpt(text: &str) -> String {
    text.trim().chars().take(300).collect()
}

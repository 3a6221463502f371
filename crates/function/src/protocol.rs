//! Messages of the protocol: one JSON object a line, answers in the order of the requests.

use rloom_core::FailureKind;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::excerpt;
use crate::method::LossBody;
use crate::{FunctionError, Malformed, Role};

/// Version of the protocol.
const VERSION: u32 = 1;

/// Line of a request: `{"id":7,"judge":{…}}`.
pub(crate) fn request(id: u64, operation: &str, body: &Value) -> String {
    format!("{{\"id\":{id},\"{operation}\":{body}}}\n")
}

/// Body of the first request.
pub(crate) fn hello(function: &str, role: Role) -> Value {
    let other = |role| json!({ "v": VERSION, "role": role, "function": function });
    match role {
        Role::Reward { group } => {
            json!({ "v": VERSION, "role": "reward", "function": function, "group": group })
        }
        Role::Environment => other("environment"),
        Role::Advantage => other("advantage"),
        Role::Filter => other("filter"),
        Role::Loss => other("loss"),
        Role::Tools => other("tools"),
    }
}

/// An answer; the fields depend on the request.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Reply {
    /// Number of the request.
    pub(crate) id: Option<u64>,
    /// Answer to `hello`.
    pub(crate) ready: Option<Ready>,
    /// Answer to `judge`.
    pub(crate) verdicts: Option<Vec<Value>>,
    /// Numbers that the function reported.
    #[serde(default)]
    pub(crate) metrics: Map<String, Value>,
    /// Answer to `begin` and `act` while the episode continues.
    pub(crate) ask: Option<Value>,
    /// Answer to `act` at the end of the episode.
    pub(crate) done: Option<Value>,
    /// Answer to `act`.
    pub(crate) step_reward: Option<f64>,
    /// Answer to `compute` of advantages.
    pub(crate) advantages: Option<Vec<Vec<f64>>>,
    /// Answer to `compute` of a filter.
    pub(crate) keep: Option<bool>,
    /// Answer to `compute` of a loss.
    pub(crate) loss: Option<LossBody>,
    /// Answer to `describe`: the declarations of tools.
    pub(crate) tools: Option<Vec<Value>>,
    /// Answer to `call` of a tool.
    pub(crate) result: Option<ToolResult>,
    /// Answer of any request that failed.
    pub(crate) error: Option<ErrorBody>,
}

/// Result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ToolResult {
    /// The result, or the error.
    pub text: String,
    /// The tool failed: its text says why.
    #[serde(default)]
    pub is_error: bool,
}

/// Properties of a loaded function.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Version of the protocol.
    pub(crate) v: u32,
}

impl Ready {
    pub(crate) fn is_supported(&self) -> bool {
        self.v == VERSION
    }
}

/// A failure that a worker reports.
#[derive(Debug, Deserialize)]
pub(crate) struct ErrorBody {
    /// `infrastructure` or `task`; all else is a failure of the function.
    #[serde(default)]
    kind: Option<String>,
    pub(crate) message: String,
}

impl ErrorBody {
    /// The error of a call.
    pub(crate) fn raised(self, function: String) -> FunctionError {
        let named = |kind: &FailureKind| Some(kind.name()) == self.kind.as_deref();
        let kind = FailureKind::ALL.into_iter().find(named).unwrap_or(FailureKind::Component);
        FunctionError::Raised { function, kind, message: self.message }
    }
}

/// Reads the answer to request `id`.
pub(crate) fn read_reply(line: &[u8], id: u64) -> Result<Reply, Malformed> {
    let reply = read_body(line)?;
    let found = reply.id.unwrap_or_default();
    if found == id { Ok(reply) } else { Err(Malformed::WrongRequest { expected: id, found }) }
}

/// Reads an answer without a number, as in the body of an HTTP response.
pub(crate) fn read_body(text: &[u8]) -> Result<Reply, Malformed> {
    serde_json::from_slice(text).map_err(|error| Malformed::NotAnAnswer {
        reason: error.to_string(),
        line: excerpt(&String::from_utf8_lossy(text)),
    })
}

//! JSON-RPC messages of the protocol.

use serde::Deserialize;
use serde_json::{Value, json};

/// Version of the protocol that this client asks for; servers answer with theirs.
pub(super) const VERSION: &str = "2025-06-18";

/// A message of the server.
#[derive(Debug, Deserialize)]
pub(super) struct Incoming {
    pub(super) id: Option<Value>,
    pub(super) method: Option<String>,
    pub(super) result: Option<Value>,
    pub(super) error: Option<RpcError>,
}

/// An error of JSON-RPC.
#[derive(Debug, Deserialize)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
}

/// Content of a result of `tools/call`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallResult {
    #[serde(default)]
    content: Vec<Value>,
    #[serde(default)]
    pub(super) is_error: bool,
    structured_content: Option<Value>,
}

impl CallResult {
    /// The text of all parts; parts that are no text are named.
    pub(super) fn text(&self) -> String {
        let part = |part: &Value| {
            let text = part.get("text").or_else(|| part.get("resource")?.get("text")).and_then(Value::as_str);
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("part");
            text.map_or_else(|| format!("[{kind}]"), str::to_owned)
        };
        match (&self.structured_content, self.content.is_empty()) {
            (Some(structured), true) => structured.to_string(),
            _ => self.content.iter().map(part).collect::<Vec<_>>().join("\n"),
        }
    }
}

pub(super) fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

pub(super) fn notification(method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "method": method })
}

/// Answer to a request of the server: this client offers nothing but `ping`.
pub(super) fn answer(id: &Value, method: &str) -> Value {
    match method {
        "ping" => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
        _ => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "not supported" } }),
    }
}

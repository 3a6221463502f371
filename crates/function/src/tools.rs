//! Tools written in Python.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::protocol::ToolResult;
use crate::settings::python_peer;
use crate::{FunctionError, Limits, Malformed, Pool, Role};

/// The tools of a Python function, or of a list of functions, in processes of their own.
#[derive(Debug)]
pub struct ToolFunctions(Pool);

impl ToolFunctions {
    /// Tools of `function`, `file.py:name`; no process starts yet. `timeout` limits each call.
    pub fn new(
        function: &str,
        python: &str,
        workers: usize,
        timeout: Duration,
    ) -> Result<Self, FunctionError> {
        let peer = python_peer(function, python, Role::Tools)?;
        Ok(Self(Pool::new(peer, Limits { workers, timeout, recycle: None, memory: None })))
    }

    /// The declarations, from signatures and docstrings, as chat templates receive them in `function`.
    pub fn describe(&self) -> Result<Vec<Value>, FunctionError> {
        let reply = self.0.call("describe", Value::Null)?;
        reply.tools.ok_or_else(|| self.missing("tools"))
    }

    /// Calls a tool. An exception is a result that says so.
    pub fn call(&self, tool: &str, arguments: &Map<String, Value>) -> Result<ToolResult, FunctionError> {
        let reply = self.0.call_once("call", json!({ "tool": tool, "arguments": arguments }))?;
        reply.result.ok_or_else(|| self.missing("result"))
    }

    fn missing(&self, expected: &'static str) -> FunctionError {
        let problem = Malformed::Missing { expected };
        FunctionError::Malformed { function: self.0.name().to_owned(), problem, stderr: String::new() }
    }
}

use std::time::Instant;

use rloom_function::{FunctionError, LineProcess};
use serde_json::Value;

use super::connection::{Failure, Transport};
use super::message::{self, Incoming};
use crate::ToolError;

/// Longest message of a server in bytes.
const LONGEST_LINE: usize = 16 << 20;

/// A server in a process of its own, with one message a line. Dropping it kills its process group.
#[derive(Debug)]
pub(super) struct StdioServer {
    name: String,
    process: LineProcess,
}

impl StdioServer {
    pub(super) fn start(command: &[String]) -> Result<Self, ToolError> {
        let process = LineProcess::start(command, LONGEST_LINE)?;
        Ok(Self { name: format!("`{}`", command.join(" ")), process })
    }
}

impl Transport for StdioServer {
    fn name(&self) -> &str {
        &self.name
    }

    fn request(&mut self, id: u64, request: &Value, deadline: Instant) -> Result<Incoming, Failure> {
        self.process.send(&request.to_string());
        // A server that writes other messages without end is stopped by the deadline.
        while Instant::now() < deadline {
            let line = self.process.receive(deadline).map_err(|error| match error {
                FunctionError::TimedOut { .. } => Failure::TimedOut,
                error => Failure::Broken(error.into()),
            })?;
            // Some servers write what is no message to stdout, such as a greeting.
            let Ok(incoming) = serde_json::from_slice::<Incoming>(&line) else { continue };
            match (&incoming.id, &incoming.method) {
                (Some(own), Some(method)) => self.process.send(&message::answer(own, method).to_string()),
                (Some(found), None) if found.as_u64() == Some(id) => return Ok(incoming),
                // Notifications, and answers to requests that are no longer awaited.
                _ => {}
            }
        }
        Err(Failure::TimedOut)
    }

    fn notify(&mut self, message: &Value, _: Instant) -> Result<(), Failure> {
        self.process.send(&message.to_string());
        Ok(())
    }
}

use std::fmt::Debug;
use std::time::{Duration, Instant};

use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value, json};

use super::message::{self, CallResult, Incoming, RpcError};
use crate::{Output, ToolError};

/// JSON-RPC code of invalid parameters.
const INVALID_PARAMS: i64 = -32602;
/// Most pages of a list of tools.
const PAGES: usize = 100;

/// A request that has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server was late.
    TimedOut,
    /// The server failed.
    Broken(ToolError),
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self::Broken(error)
    }
}

/// A way to exchange messages with a server.
pub(super) trait Transport: Debug + Send {
    /// The server in messages.
    fn name(&self) -> &str;

    /// Sends a request and waits for the answer with its number.
    fn request(&mut self, id: u64, request: &Value, deadline: Instant) -> Result<Incoming, Failure>;

    /// Sends a message that has no answer.
    fn notify(&mut self, message: &Value, deadline: Instant) -> Result<(), Failure>;
}

/// A connection to a server that knows this client.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Box<dyn Transport>,
    requests: u64,
}

impl Connection {
    /// Introduces this client.
    pub(super) fn open(transport: Box<dyn Transport>, timeout: Duration) -> Result<Self, ToolError> {
        let mut connection = Self { transport, requests: 0 };
        let params = json!({
            "protocolVersion": message::VERSION,
            "capabilities": {},
            "clientInfo": { "name": "rloom", "version": env!("CARGO_PKG_VERSION") },
        });
        connection.ask("initialize", &params, timeout)?;
        let initialized = message::notification("notifications/initialized");
        let sent = connection.transport.notify(&initialized, Instant::now() + timeout);
        sent.map_err(|failure| connection.start_error(failure, timeout))?;
        Ok(connection)
    }

    /// All tools of the server.
    pub(super) fn tools(&mut self, timeout: Duration) -> Result<Vec<ToolDeclaration>, ToolError> {
        let (mut tools, mut params) = (Vec::new(), json!({}));
        for _ in 0..PAGES {
            let page = self.ask("tools/list", &params, timeout)?;
            for tool in page.get("tools").and_then(Value::as_array).into_iter().flatten() {
                tools.push(self.declaration(tool)?);
            }
            match page.get("nextCursor").filter(|cursor| !cursor.is_null()) {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return Ok(tools),
            }
        }
        Err(self.error(format!("has more than {PAGES} pages of tools")))
    }

    fn declaration(&self, tool: &Value) -> Result<ToolDeclaration, ToolError> {
        let declared = json!({
            "name": tool.get("name"),
            "description": tool.get("description").and_then(Value::as_str).unwrap_or_default(),
            "parameters": tool.get("inputSchema").cloned().unwrap_or_else(|| json!({ "type": "object" })),
        });
        serde_json::from_value(declared).map_err(|error| ToolError::Declaration {
            origin: self.transport.name().to_owned(),
            reason: error.to_string(),
        })
    }

    /// Calls a tool. Errors that the server reports are outputs.
    pub(super) fn call(
        &mut self,
        tool: &str,
        arguments: &Map<String, Value>,
        timeout: Duration,
    ) -> Result<Output, Failure> {
        let params = json!({ "name": tool, "arguments": arguments });
        match self.exchange("tools/call", &params, timeout)? {
            Ok(result) => {
                let result: CallResult = serde_json::from_value(result)
                    .map_err(|error| self.error(format!("answered nonsense to `tools/call`: {error}")))?;
                Ok(Output { text: result.text(), is_error: result.is_error })
            }
            Err(RpcError { code: INVALID_PARAMS, message }) => Ok(Output::error(message)),
            Err(error) => Err(self.refused("tools/call", &error).into()),
        }
    }

    /// A request at the start, whose failures are errors.
    fn ask(&mut self, method: &str, params: &Value, timeout: Duration) -> Result<Value, ToolError> {
        let answer = self.exchange(method, params, timeout);
        match answer.map_err(|failure| self.start_error(failure, timeout))? {
            Ok(result) => Ok(result),
            Err(error) => Err(self.refused(method, &error)),
        }
    }

    fn exchange(
        &mut self,
        method: &str,
        params: &Value,
        timeout: Duration,
    ) -> Result<Result<Value, RpcError>, Failure> {
        self.requests += 1;
        let request = message::request(self.requests, method, params);
        let answer = self.transport.request(self.requests, &request, Instant::now() + timeout)?;
        match (answer.result, answer.error) {
            (_, Some(error)) => Ok(Err(error)),
            (Some(result), None) => Ok(Ok(result)),
            (None, None) => Err(self.error(format!("answered `{method}` without a result")).into()),
        }
    }

    fn refused(&self, method: &str, RpcError { code, message }: &RpcError) -> ToolError {
        self.error(format!("refused `{method}`: {message} ({code})"))
    }

    fn start_error(&self, failure: Failure, timeout: Duration) -> ToolError {
        match failure {
            Failure::Broken(error) => error,
            Failure::TimedOut => self.error(format!("was not ready within {} s", timeout.as_secs_f64())),
        }
    }

    pub(super) fn error(&self, problem: String) -> ToolError {
        ToolError::Mcp { server: self.transport.name().to_owned(), problem }
    }
}

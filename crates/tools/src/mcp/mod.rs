//! MCP servers, over stdin and stdout or HTTP.

mod connection;
mod http;
mod message;
mod stdio;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value};

use crate::source::timed_out;
use crate::{McpTool, Output, Source, ToolError};
use connection::{Connection, Failure};
use http::HttpServer;
use stdio::StdioServer;

/// Shortest time that a server has to start: imports of large libraries take long.
const START: Duration = Duration::from_mins(1);

/// How a server is reached.
#[derive(Debug, Clone)]
enum Address {
    Command(Vec<String>),
    Url(String),
}

impl Address {
    /// Connects and introduces this client.
    fn connect(&self, timeout: Duration) -> Result<Connection, ToolError> {
        let timeout = timeout.max(START);
        match self {
            Self::Command(command) => Connection::open(Box::new(StdioServer::start(command)?), timeout),
            Self::Url(url) => Connection::open(Box::new(HttpServer::new(url)), timeout),
        }
    }
}

/// Connections to one server, which all episodes share.
#[derive(Debug)]
pub(crate) struct McpServers {
    address: Address,
    tools: Vec<ToolDeclaration>,
    is_per_episode: bool,
    state: Mutex<Connections>,
    freed: Condvar,
}

#[derive(Debug)]
struct Connections {
    idle: Vec<Connection>,
    /// Connections that may still be opened or are in use.
    free: usize,
}

impl McpServers {
    pub(crate) fn new(settings: &McpTool, timeout: Duration) -> Result<Self, ToolError> {
        let address = match &settings.url {
            Some(url) => Address::Url(url.clone()),
            None => Address::Command(settings.command.clone()),
        };
        let mut connection = address.connect(timeout)?;
        let mut tools = connection.tools(timeout.max(START))?;
        if let Some(names) = &settings.tools {
            if let Some(missing) = names.iter().find(|name| !tools.iter().any(|tool| tool.name == **name)) {
                let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
                let problem = format!("has no tool `{missing}`; it has {}", known.join(", "));
                return Err(connection.error(problem));
            }
            tools.retain(|tool| names.contains(&tool.name));
        }
        let is_per_episode = settings.per_episode;
        let idle = if is_per_episode { Vec::new() } else { vec![connection] };
        let free = settings.workers.max(1) as usize;
        let state = Mutex::new(Connections { idle, free });
        Ok(Self { address, tools, is_per_episode, state, freed: Condvar::new() })
    }

    /// Takes a place; waits for one. Each place has at most one connection.
    fn take(&self) -> Option<Connection> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state =
            self.freed.wait_while(state, |state| state.free == 0).unwrap_or_else(PoisonError::into_inner);
        state.free -= 1;
        state.idle.pop()
    }

    /// Returns a place, with its connection if that can be used again.
    fn give_back(&self, connection: Option<Connection>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free += 1;
        state.idle.extend(connection);
        drop(state);
        self.freed.notify_one();
    }
}

impl Source for McpServers {
    fn tools(&self) -> &[ToolDeclaration] {
        &self.tools
    }

    fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        timeout: Duration,
    ) -> Result<Output, ToolError> {
        let connection = self.take().map_or_else(|| self.address.connect(timeout), Ok);
        let (result, connection) = match connection {
            Ok(mut connection) => match connection.call(tool, arguments, timeout) {
                Ok(output) => (Ok(output), Some(connection)),
                // A server that is late has no place in the protocol any more.
                Err(Failure::TimedOut) => (Ok(timed_out(timeout)), None),
                Err(Failure::Broken(error)) => (Err(error), None),
            },
            Err(error) => (Err(error), None),
        };
        self.give_back(connection);
        result
    }

    fn episode(&self) -> Option<Arc<dyn Source>> {
        self.is_per_episode.then(|| {
            Arc::new(OwnServer {
                address: self.address.clone(),
                tools: self.tools.clone(),
                state: Mutex::new(Own::NotStarted),
            }) as Arc<dyn Source>
        })
    }
}

/// A server with the state of one episode.
#[derive(Debug)]
struct OwnServer {
    address: Address,
    tools: Vec<ToolDeclaration>,
    state: Mutex<Own>,
}

#[derive(Debug)]
enum Own {
    NotStarted,
    Running(Connection),
    /// Its state is lost after a call that took too long.
    Ended,
}

impl Source for OwnServer {
    fn tools(&self) -> &[ToolDeclaration] {
        &self.tools
    }

    /// Calls of one episode are made one after another: their order is part of the state.
    fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        timeout: Duration,
    ) -> Result<Output, ToolError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, Own::NotStarted) {
            *state = Own::Running(self.address.connect(timeout)?);
        }
        let Own::Running(connection) = &mut *state else {
            return Ok(Output::error("the server was ended, because an earlier call took too long"));
        };
        match connection.call(tool, arguments, timeout) {
            Ok(output) => Ok(output),
            Err(Failure::TimedOut) => {
                *state = Own::Ended;
                Ok(timed_out(timeout))
            }
            Err(Failure::Broken(error)) => Err(error),
        }
    }
}

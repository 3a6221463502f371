use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value};

use crate::{Output, Source, ToolError, ToolSettings};

/// A call that runs.
pub type PendingCall = Pin<Box<dyn Future<Output = Result<Output, ToolError>> + Send>>;

/// The tools of all sources. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Toolbox {
    sources: Arc<[Arc<dyn Source>]>,
    tools: Arc<[ToolDeclaration]>,
    /// Source of each tool.
    source_of: Arc<[usize]>,
    timeout: Duration,
    running: Arc<Mutex<Running>>,
}

/// Calls that run.
#[derive(Debug, Default)]
struct Running {
    calls: BTreeMap<u64, (String, Instant)>,
    next: u64,
}

impl Toolbox {
    /// Creates the sources: reads their files, starts their processes. `timeout` limits each call.
    pub fn new(settings: &[ToolSettings], timeout: Duration) -> Result<Self, ToolError> {
        let sources = settings.iter().map(|tool| tool.source(timeout)).collect::<Result<Vec<_>, _>>()?;
        Self::of_sources(sources, timeout)
    }

    /// The tools of the given sources.
    pub fn of_sources(sources: Vec<Arc<dyn Source>>, timeout: Duration) -> Result<Self, ToolError> {
        let (mut tools, mut source_of): (Vec<ToolDeclaration>, Vec<usize>) = (Vec::new(), Vec::new());
        for (place, source) in sources.iter().enumerate() {
            for tool in source.tools() {
                if tools.iter().any(|other| other.name == tool.name) {
                    return Err(ToolError::Twice { name: tool.name.clone() });
                }
                tools.push(tool.clone());
                source_of.push(place);
            }
        }
        Ok(Self {
            sources: sources.into(),
            tools: tools.into(),
            source_of: source_of.into(),
            timeout,
            running: Arc::default(),
        })
    }

    /// The tools.
    pub fn tools(&self) -> &[ToolDeclaration] {
        &self.tools
    }

    /// The call that runs longest.
    pub fn longest(&self) -> Option<(String, Duration)> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = running.calls.values().min_by_key(|(_, start)| *start);
        oldest.map(|(tool, start)| (tool.clone(), start.elapsed()))
    }

    /// The tools for one episode. Processes of its own start with its first call of them.
    pub fn open(&self) -> Toolset {
        Toolset { toolbox: self.clone(), own: self.sources.iter().map(|source| source.episode()).collect() }
    }

    fn begin(&self, tool: &str) -> Call {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let number = running.next;
        running.next += 1;
        running.calls.insert(number, (tool.to_owned(), Instant::now()));
        Call { running: Arc::clone(&self.running), number }
    }
}

/// A call that runs, until it is dropped.
struct Call {
    running: Arc<Mutex<Running>>,
    number: u64,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).calls.remove(&self.number);
    }
}

/// The tools of one episode. Dropping it ends its processes.
#[derive(Debug)]
pub struct Toolset {
    toolbox: Toolbox,
    /// Sources with state of this episode.
    own: Vec<Option<Arc<dyn Source>>>,
}

impl Toolset {
    /// Starts a call of a tool, on a thread of its own. A dropped call runs until its timeout; its result is discarded.
    pub fn call(&self, tool: &str, arguments: Map<String, Value>) -> PendingCall {
        let Some(place) = self.toolbox.tools.iter().position(|known| known.name == tool) else {
            let unknown = Output::error(format!("there is no tool `{tool}`"));
            return Box::pin(std::future::ready(Ok(unknown)));
        };
        let origin = self.toolbox.source_of[place];
        let source = Arc::clone(self.own[origin].as_ref().unwrap_or(&self.toolbox.sources[origin]));
        let (name, timeout, call) = (tool.to_owned(), self.toolbox.timeout, self.toolbox.begin(tool));
        let running = tokio::task::spawn_blocking(move || {
            let _call = call;
            source.call(&name, &arguments, timeout)
        });
        let tool = tool.to_owned();
        Box::pin(async move {
            let panicked =
                |error: tokio::task::JoinError| ToolError::Panicked { tool, message: error.to_string() };
            running.await.unwrap_or_else(|error| Err(panicked(error)))
        })
    }
}

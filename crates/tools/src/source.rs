use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use rloom_text::calls::ToolDeclaration;
use serde_json::{Map, Value};

use crate::{Output, ToolError};

/// Tools of one origin.
pub trait Source: Debug + Send + Sync {
    /// The tools.
    fn tools(&self) -> &[ToolDeclaration];

    /// Calls a tool and waits for its result, which takes at most `timeout` once the tool runs. A call that takes longer is a
    /// result that says so.
    fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        timeout: Duration,
    ) -> Result<Output, ToolError>;

    /// The same tools with state of their own, for sources that keep state for each episode.
    fn episode(&self) -> Option<Arc<dyn Source>> {
        None
    }
}

/// The result of a call that took too long.
pub(crate) fn timed_out(timeout: Duration) -> Output {
    Output::error(format!("the call took longer than {} s", timeout.as_secs_f64()))
}

/// A text argument; empty if it is missing, which a check against the schema has excluded.
pub(crate) fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> &'a str {
    arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}

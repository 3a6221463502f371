//! Calls from tests.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rloom_tools::{Output, ToolError, ToolSettings, Toolbox, Toolset};
use serde_json::Value;

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(future)
}

pub(crate) fn settings(table: Value) -> ToolSettings {
    serde_json::from_value(table).unwrap()
}

pub(crate) fn toolbox(table: Value, timeout: Duration) -> Result<Toolbox, ToolError> {
    Toolbox::new(&[settings(table)], timeout)
}

/// Long enough for a busy machine.
pub(crate) const LONG: Duration = Duration::from_mins(2);
/// The timeout of calls that hang.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

pub(crate) fn call(tools: &Toolset, name: &str, arguments: &Value) -> Result<Output, ToolError> {
    block_on(async { tools.call(name, arguments.as_object().cloned().unwrap()).await })
}

/// Writes a file of Python into a folder.
pub(crate) fn python(folder: &Path, name: &str, source: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, source).unwrap();
    path
}

//! Tools that a policy calls.
//!
//! A [`Toolbox`] has the tools of all configured [`Source`]s: a calculator, programs in the sandbox, search in a corpus, Python
//! functions and MCP servers. An episode calls them through a [`Toolset`], which has the processes of its own where a source
//! keeps state for each episode.
//!
//! A call that goes wrong because of its arguments is an [`Output`] that says so. A [`ToolError`] is a failure of the machine:
//! it says nothing about the policy.

mod calculator;
mod error;
mod fraction;
mod functions;
mod mcp;
mod output;
mod places;
mod programs;
mod search;
mod settings;
mod source;
mod toolbox;

pub use error::ToolError;
pub use output::Output;
pub use settings::{CalculatorTool, FunctionTool, McpTool, ProgramTool, SearchTool, SqlTool, ToolSettings};
pub use source::Source;
pub use toolbox::{PendingCall, Toolbox, Toolset};

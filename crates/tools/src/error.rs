use std::path::PathBuf;

use rloom_function::FunctionError;
use rloom_sandbox::SandboxError;

/// Tools that cannot be used, or a call that the machine failed.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum ToolError {
    /// Two tools with one name.
    #[error("two tools have the name `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
    /// No sandbox.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Sandbox(#[from] SandboxError),
    /// A function or a server that failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Function(#[from] FunctionError),
    /// A corpus or a database that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line of a corpus that is no document.
    #[error("{}, line {line}: {reason}; a document is a JSON object with `text`, and `title` if it has one", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A server that does not speak the protocol.
    #[error("the MCP server {server} {problem}")]
    Mcp {
        /// Its command or address.
        server: String,
        /// What it did.
        problem: String,
    },
    /// A declaration that cannot be read.
    #[error("{origin} declares a tool that cannot be read: {reason}")]
    Declaration {
        /// The function or server.
        origin: String,
        /// The error.
        reason: String,
    },
    /// A call whose thread panicked.
    #[error("tool `{tool}` panicked: {message}")]
    Panicked {
        /// The tool.
        tool: String,
        /// The message.
        message: String,
    },
}

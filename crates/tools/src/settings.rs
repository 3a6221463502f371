use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{SettingError, SettingProblem, ValueRange};
use rloom_sandbox::{Choice, Limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calculator::Calculator;
use crate::functions::Functions;
use crate::mcp::McpServers;
use crate::programs::{Programs, Sql};
use crate::search::Corpus;
use crate::{Source, ToolError};

/// One source of tools: a table with `kind` and the keys of that kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToolSettings {
    /// Exact arithmetic.
    Calculator(CalculatorTool),
    /// Python programs in the sandbox.
    Python(ProgramTool),
    /// SQL queries in the sandbox.
    Sql(SqlTool),
    /// Search in a corpus by BM25.
    Search(SearchTool),
    /// Python functions with type hints.
    Function(FunctionTool),
    /// The tools of an MCP server.
    Mcp(McpTool),
}

/// Exact arithmetic: `+`, `-`, `*`, `/`, `**`, `%` and parentheses on whole and decimal numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CalculatorTool {
    /// Name of the tool.
    pub name: String,
}

/// Python programs in the sandbox. Each call is a program of its own, whose result is what it prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProgramTool {
    /// Name of the tool.
    pub name: String,
    /// Protection of the machine from the programs.
    pub sandbox: Choice,
    /// Folders that programs can read in addition to those of the system, such as that of an interpreter.
    pub readable: Vec<PathBuf>,
    /// Memory of a program and its processes, in MiB.
    pub memory_mib: u64,
}

/// SQL queries by SQLite in the sandbox, on a database that each call finds as the file makes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlTool {
    /// Name of the tool.
    #[serde(default = "sql_name")]
    pub name: String,
    /// File with the statements that make the database.
    pub database: PathBuf,
    /// Protection of the machine from the queries.
    #[serde(default)]
    pub sandbox: Choice,
    /// Memory of a query, in MiB.
    #[serde(default = "program_memory")]
    pub memory_mib: u64,
}

/// Search in a corpus by BM25. A document is a line of JSON with `text`, and `title` if it has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchTool {
    /// Name of the tool.
    #[serde(default = "search_name")]
    pub name: String,
    /// The corpus.
    pub corpus: PathBuf,
    /// Number of documents in a result, from 1 to 100.
    #[serde(default = "top_k")]
    pub top_k: u32,
}

/// Python functions with type hints. Names, descriptions and parameters come from signatures and docstrings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionTool {
    /// A function, or a list of functions: `file.py:name`, or `caller:name` for one given to `rloom.train` in Python.
    pub function: String,
    /// Number of processes, from 1 to 1024.
    #[serde(default = "workers")]
    pub workers: u32,
    /// The interpreter.
    #[serde(default = "python")]
    pub python: String,
}

/// The tools of an MCP server: a program that speaks the protocol over stdin and stdout, or an address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct McpTool {
    /// The program and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The address of a server on the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Names of the tools to offer. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Every episode has a server process or session of its own, for servers that keep state.
    pub per_episode: bool,
    /// Number of server processes or sessions that all episodes share, from 1 to 1024.
    pub workers: u32,
}

impl Default for CalculatorTool {
    fn default() -> Self {
        Self { name: "calculator".to_owned() }
    }
}

impl Default for ProgramTool {
    fn default() -> Self {
        Self {
            name: "python".to_owned(),
            sandbox: Choice::Auto,
            readable: Vec::new(),
            memory_mib: program_memory(),
        }
    }
}

impl Default for McpTool {
    fn default() -> Self {
        Self { command: Vec::new(), url: None, tools: None, per_episode: false, workers: workers() }
    }
}

fn sql_name() -> String {
    "sql".to_owned()
}

fn search_name() -> String {
    "search".to_owned()
}

fn program_memory() -> u64 {
    1024
}

fn top_k() -> u32 {
    3
}

fn workers() -> u32 {
    2
}

fn python() -> String {
    "python3".to_owned()
}

impl ToolSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        let check_workers = |workers: u32| ValueRange::between(1.0, 1024.0).check("workers", workers.into());
        let check_memory = |mib: u64| ValueRange::between(64.0, 1_048_576.0).check("memory_mib", mib as f64);
        match self {
            Self::Calculator(tool) => check_name(&tool.name),
            Self::Python(tool) => check_name(&tool.name).and_then(|()| check_memory(tool.memory_mib)),
            Self::Sql(tool) => check_name(&tool.name).and_then(|()| check_memory(tool.memory_mib)),
            Self::Search(tool) => {
                check_name(&tool.name)?;
                ValueRange::between(1.0, 100.0).check("top_k", tool.top_k.into())
            }
            Self::Function(tool) => check_workers(tool.workers),
            Self::Mcp(tool) => {
                if tool.command.is_empty() == tool.url.is_none() {
                    let expected = "either `command` or `url`";
                    let value = if tool.url.is_some() { "both" } else { "nothing" };
                    return Err(SettingProblem::Invalid { value: value.to_owned(), expected }.at("command"));
                }
                check_workers(tool.workers)
            }
        }
    }

    /// Makes paths absolute, so that they do not depend on the working directory.
    pub fn make_absolute(&mut self) {
        match self {
            Self::Calculator(_) => {}
            Self::Python(tool) => tool.readable.iter_mut().for_each(absolute),
            Self::Sql(tool) => absolute(&mut tool.database),
            Self::Search(tool) => absolute(&mut tool.corpus),
            Self::Function(tool) => tool.function = rloom_function::absolute_function(&tool.function),
            Self::Mcp(tool) => {
                let words =
                    tool.command.iter_mut().filter(|word| word.contains('/') && Path::new(word).exists());
                for word in words {
                    let mut path = PathBuf::from(&*word);
                    absolute(&mut path);
                    *word = path.display().to_string();
                }
            }
        }
    }

    /// The Python function, if it is one.
    pub fn python_function(&self) -> Option<&str> {
        match self {
            Self::Function(tool) => Some(&tool.function),
            _ => None,
        }
    }

    /// True if the source keeps state for each episode.
    pub fn has_state(&self) -> bool {
        matches!(self, Self::Mcp(tool) if tool.per_episode)
    }

    /// Creates the source: reads its files, starts its processes. `timeout` limits each call.
    pub fn source(&self, timeout: Duration) -> Result<Arc<dyn Source>, ToolError> {
        let limits =
            |mib: u64| Limits { cpu: timeout, wall: timeout, memory: mib << 20, ..Limits::default() };
        Ok(match self {
            Self::Calculator(tool) => Arc::new(Calculator::new(&tool.name)),
            Self::Python(tool) => Arc::new(Programs::new(
                &tool.name,
                tool.sandbox,
                limits(tool.memory_mib),
                tool.readable.clone(),
            )?),
            Self::Sql(tool) => {
                Arc::new(Sql::new(&tool.name, &tool.database, tool.sandbox, limits(tool.memory_mib))?)
            }
            Self::Search(tool) => Arc::new(Corpus::read(&tool.name, &tool.corpus, tool.top_k as usize)?),
            Self::Function(tool) => {
                Arc::new(Functions::new(&tool.function, &tool.python, tool.workers as usize, timeout)?)
            }
            Self::Mcp(tool) => Arc::new(McpServers::new(tool, timeout)?),
        })
    }
}

fn absolute(path: &mut PathBuf) {
    if let Ok(found) = std::path::absolute(&*path) {
        *path = found;
    }
}

fn check_name(name: &str) -> Result<(), SettingError> {
    let is_name = !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if is_name {
        return Ok(());
    }
    let expected = "up to 64 letters, digits, `_` and `-`";
    Err(SettingProblem::Invalid { value: format!("{name:?}"), expected }.at("name"))
}

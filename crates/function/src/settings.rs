//! Settings of functions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rloom_core::{EarlierReasoning, History, SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::HttpClient;
use crate::{CALLER_VARIABLE, FunctionError, Judge, Limits, Peer, Pool, Role, absolute_function};

/// Most processes of a function.
const MAX_WORKERS: f64 = 1024.0;
/// Prefix of functions that the process which started the run serves.
pub(crate) const CALLER: &str = "caller:";

/// A Python function that judges completions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PythonFunction {
    /// The function: `file.py:name`, or `caller:name` for a function given to `rloom.train` in Python.
    pub function: String,
    /// Number of processes, from 1 to 1024.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// The interpreter.
    #[serde(default = "default_python")]
    pub python: String,
    /// One call judges all completions of a group.
    #[serde(default)]
    pub group: bool,
    /// The completion is the whole episode after the prompt: what the policy wrote and what the environment answered. Otherwise it is
    /// what the policy wrote, since text of the environment must not earn a reward.
    #[serde(default)]
    pub observations: bool,
    /// Calls after which a process is replaced; 0: never.
    #[serde(default)]
    pub recycle_calls: u64,
    /// Memory in MiB above which a process is replaced after a call; 0: no limit.
    #[serde(default)]
    pub memory_mib: u64,
    /// The reward from which on the task counts as solved, which makes the component a verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved_at: Option<f64>,
}

/// A program that judges completions. It reads requests from stdin and writes answers to stdout, one JSON object a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandFunction {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Number of processes, from 1 to 1024.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// One call judges all completions of a group.
    #[serde(default)]
    pub group: bool,
    /// The completion is the whole episode after the prompt: what the policy wrote and what the environment answered. Otherwise it is
    /// what the policy wrote, since text of the environment must not earn a reward.
    #[serde(default)]
    pub observations: bool,
    /// Calls after which a process is replaced; 0: never.
    #[serde(default)]
    pub recycle_calls: u64,
    /// Memory in MiB above which a process is replaced after a call; 0: no limit.
    #[serde(default)]
    pub memory_mib: u64,
    /// The reward from which on the task counts as solved, which makes the component a verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved_at: Option<f64>,
}

/// A server that judges completions: requests are posted as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpFunction {
    /// Address that requests are posted to.
    pub url: String,
    /// Number of requests at a time, from 1 to 1024.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// One request judges all completions of a group.
    #[serde(default)]
    pub group: bool,
    /// The completion is the whole episode after the prompt: what the policy wrote and what the environment answered. Otherwise it is
    /// what the policy wrote, since text of the environment must not earn a reward.
    #[serde(default)]
    pub observations: bool,
    /// The reward from which on the task counts as solved, which makes the component a verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved_at: Option<f64>,
}

/// A Python class or generator function that plays episodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PythonEnvironment {
    /// The class or generator function: `file.py:name`, or `caller:name` for one given to `rloom.train` in Python.
    pub function: String,
    /// Number of processes, from 1 to 1024. Each plays any number of episodes in turn.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// The interpreter.
    #[serde(default = "default_python")]
    pub python: String,
    /// Maximum number of turns of an episode, from 1 to 1000.
    #[serde(default = "default_turns")]
    pub max_turns: u32,
    /// Turns have rewards: an episode's reward is their sum, in the component `environment`.
    #[serde(default = "default_true")]
    pub rewards_turns: bool,
    /// All characters of the observations that tasks do not have, for models with a character tokenizer.
    #[serde(default)]
    pub alphabet: String,
    /// Calls after which a process is replaced, once its episodes are over; 0: never.
    #[serde(default)]
    pub recycle_calls: u64,
    /// Memory in MiB above which a process is replaced, once its episodes are over; 0: no limit.
    #[serde(default)]
    pub memory_mib: u64,
    /// What the policy sees of earlier turns: `"full"`, all of them, or a table with `window` or `summary`. Default: `"full"`.
    #[serde(default, skip_serializing_if = "History::is_full")]
    pub history: History,
    /// What becomes of the reasoning of earlier turns that the chat template drops. Default: `"keep"`.
    #[serde(default, skip_serializing_if = "EarlierReasoning::is_kept")]
    pub earlier_reasoning: EarlierReasoning,
}

fn default_workers() -> u32 {
    2
}

fn default_python() -> String {
    "python3".to_owned()
}

fn default_turns() -> u32 {
    10
}

fn default_true() -> bool {
    true
}

fn limits(workers: u32, recycle_calls: u64, memory_mib: u64, timeout: Duration) -> Limits {
    Limits {
        workers: workers as usize,
        timeout,
        recycle: (recycle_calls > 0).then_some(recycle_calls),
        memory: (memory_mib > 0).then_some(memory_mib << 20),
    }
}

fn check_workers(workers: u32) -> Result<(), SettingError> {
    ValueRange::between(1.0, MAX_WORKERS).check("workers", workers.into())
}

/// File and name of a Python function; `None` for a caller's.
fn file_and_name(function: &str) -> Result<Option<(&Path, &str)>, SettingError> {
    let invalid = || {
        let expected = "`file.py:name` or `caller:name`";
        SettingProblem::Invalid { value: format!("{function:?}"), expected }.at("function")
    };
    let (place, name) = function.rsplit_once(':').ok_or_else(invalid)?;
    let is_name = !name.is_empty() && name.split('.').all(|part| !part.is_empty());
    match place {
        _ if !is_name => Err(invalid()),
        "caller" => Ok(None),
        file if Path::new(file).extension().is_some_and(|extension| extension == "py") => {
            Ok(Some((Path::new(file), name)))
        }
        _ => Err(invalid()),
    }
}

/// Makes the path of a function's file absolute.
fn make_absolute(function: &mut String) {
    *function = absolute_function(function);
}

/// The worker of a Python function.
pub(crate) fn python_peer(function: &str, python: &str, role: Role) -> Result<Peer, FunctionError> {
    let Some(name) = function.strip_prefix(CALLER) else { return Ok(Peer::python(function, python, role)) };
    let socket = std::env::var_os(CALLER_VARIABLE).ok_or_else(|| FunctionError::Connect {
        function: format!("the function `{name}`"),
        reason: format!("{CALLER_VARIABLE} is not set"),
    })?;
    Ok(Peer::socket(name, PathBuf::from(socket), role))
}

impl PythonFunction {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        check_workers(self.workers)?;
        file_and_name(&self.function).map(drop)
    }

    /// Makes the path of the file absolute, so that it does not depend on the working directory.
    pub fn make_absolute(&mut self) {
        make_absolute(&mut self.function);
    }

    /// Number of processes; `None` for a function of the caller's process.
    pub fn processes(&self) -> Option<usize> {
        (!self.function.starts_with(CALLER)).then_some(self.workers as usize)
    }

    /// Creates the judge; no process starts yet.
    pub fn judge(&self, timeout: Duration) -> Result<Judge, FunctionError> {
        let peer = python_peer(&self.function, &self.python, Role::Reward { group: self.group })?;
        let limits = limits(self.workers, self.recycle_calls, self.memory_mib, timeout);
        Ok(Pool::new(peer, limits).into())
    }
}

impl CommandFunction {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        if self.command.is_empty() {
            return Err(SettingProblem::Empty.at("command"));
        }
        check_workers(self.workers)
    }

    /// Makes the path of the program absolute, unless it is a name that is searched for.
    pub fn make_absolute(&mut self) {
        let Some(program) = self.command.first_mut().filter(|program| program.contains('/')) else { return };
        if let Ok(absolute) = std::path::absolute(&*program) {
            *program = absolute.display().to_string();
        }
    }

    /// Creates the judge; no process starts yet.
    pub fn judge(&self, timeout: Duration) -> Judge {
        let peer = Peer::command(&self.command, Role::Reward { group: self.group });
        Pool::new(peer, limits(self.workers, self.recycle_calls, self.memory_mib, timeout)).into()
    }
}

impl HttpFunction {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        if !self.url.starts_with("http://") && !self.url.starts_with("https://") {
            let expected = "an address that begins with http:// or https://";
            return Err(SettingProblem::Invalid { value: format!("{:?}", self.url), expected }.at("url"));
        }
        check_workers(self.workers)
    }

    /// Creates the judge.
    pub fn judge(&self, timeout: Duration) -> Judge {
        HttpClient::new(&self.url, self.workers as usize, timeout).into()
    }
}

impl PythonEnvironment {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        check_workers(self.workers)?;
        ValueRange::between(1.0, 1000.0).check("max_turns", self.max_turns.into())?;
        file_and_name(&self.function).map(drop)
    }

    /// Makes the path of the file absolute, so that it does not depend on the working directory.
    pub fn make_absolute(&mut self) {
        make_absolute(&mut self.function);
    }

    /// Number of processes; `None` for a class or function of the caller's process.
    pub fn processes(&self) -> Option<usize> {
        (!self.function.starts_with(CALLER)).then_some(self.workers as usize)
    }

    /// Creates the pool of processes; none starts yet.
    pub fn pool(&self, timeout: Duration) -> Result<Pool, FunctionError> {
        let peer = python_peer(&self.function, &self.python, Role::Environment)?;
        Ok(Pool::new(peer, limits(self.workers, self.recycle_calls, self.memory_mib, timeout)))
    }
}

//! Episodes of agents that run outside of this program. Crate `agents` runs them; here are their settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rloom_core::{Program, RandomKey, SettingError, SettingProblem, Task, ValueRange};
use rloom_function::Host;
use rloom_sandbox::Sandbox;
use rloom_text::Tokenizer;
use rloom_text::calls::CallFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent_sandbox::AgentSandbox;
use crate::keys::keys;
use crate::settings::Kind;
use crate::{BoxFuture, EnvError, Environment, EnvironmentUnusable, SingleTurn, Start};

/// An agent program that calls the policy over HTTP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentEnvironment {
    /// The agent's program and its arguments. It is started for each episode, with the address of the policy and the task in
    /// environment variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Agents lease episodes over HTTP instead of being started.
    #[serde(skip_serializing_if = "is_false")]
    pub lease: bool,
    /// Working folder of `command`. Default: that in which the run was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Starts `command` in a sandbox, in a working folder of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<AgentSandbox>,
    /// Port on this machine for agents that lease; 0 takes one that is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Maximum time of an episode in seconds, from 1 to 604800 (a week).
    pub timeout_seconds: f64,
    /// A lease without a call of the policy for this time ends, in seconds, and its episode is leased again. Default: 120.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
    /// Times that an episode is attempted until its group fails, from 1 to 100.
    pub attempts: u32,
    /// Maximum number of calls of the policy in an episode, from 1 to 10000.
    pub max_calls: u32,
    /// Maximum number of tokens that the policy samples in an episode. Default: no limit but those of its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Number of agents at a time, from 1 to 10000.
    pub concurrency: u32,
    /// Keeps the reference answer from the agent.
    #[serde(skip_serializing_if = "is_false")]
    pub hide_answer: bool,
    /// Logs of agents to keep: as many of those that failed, and as many of others, the most recent ones. Default: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_logs: Option<u32>,
    /// Format of the policy's calls of tools. Default: that of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<CallFormat>,
    /// All characters of the agent's messages that tasks do not have, for models with a character tokenizer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub alphabet: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

keys!(AgentEnvironment {
    command: Vec<String>,
    lease: bool,
    cwd: Option<PathBuf>,
    sandbox: Option<AgentSandbox>,
    port: Option<u16>,
    timeout_seconds: f64,
    lease_seconds: Option<f64>,
    attempts: u32,
    max_calls: u32,
    max_tokens: Option<u64>,
    concurrency: u32,
    hide_answer: bool,
    keep_logs: Option<u32>,
    format: Option<CallFormat>,
    alphabet: String,
});

impl Default for AgentEnvironment {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            lease: false,
            cwd: None,
            sandbox: None,
            port: None,
            timeout_seconds: 600.0,
            lease_seconds: None,
            attempts: 2,
            max_calls: 64,
            max_tokens: None,
            concurrency: 32,
            hide_answer: false,
            keep_logs: None,
            format: None,
            alphabet: String::new(),
        }
    }
}

impl AgentEnvironment {
    /// Name in a configuration.
    pub const NAME: &'static str = "agent";

    /// Maximum time of an episode.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }

    /// Time without a call after which a lease ends.
    pub fn lease_time(&self) -> Duration {
        Duration::from_secs_f64(self.lease_seconds.unwrap_or(120.0))
    }

    /// Number of logs to keep of each kind.
    pub fn kept_logs(&self) -> usize {
        self.keep_logs.unwrap_or(20) as usize
    }

    /// Checks that keys have an effect.
    fn validate_mode(&self) -> Result<(), SettingError> {
        match (self.command.is_empty(), self.lease) {
            (true, false) => return Err(SettingProblem::Empty.at("command")),
            (false, true) => return Err(SettingProblem::Conflict { other: "lease" }.at("command")),
            _ => {}
        }
        let of_leases = [("port", self.port.is_some()), ("lease_seconds", self.lease_seconds.is_some())];
        if let Some((key, _)) = of_leases.iter().find(|(_, is_set)| *is_set && !self.lease) {
            return Err(SettingProblem::Unused { other: "lease", value: "true" }.at(key));
        }
        if self.sandbox.is_some() && self.cwd.is_some() {
            return Err(SettingProblem::Conflict { other: "sandbox" }.at("cwd"));
        }
        let of_commands = [
            ("cwd", self.cwd.is_some()),
            ("keep_logs", self.keep_logs.is_some()),
            ("sandbox", self.sandbox.is_some()),
        ];
        if let Some((key, _)) = of_commands.iter().find(|(_, is_set)| *is_set && self.lease) {
            return Err(SettingProblem::Conflict { other: "lease" }.at(key));
        }
        Ok(())
    }
}

impl Kind for AgentEnvironment {
    fn validate(&self) -> Result<(), SettingError> {
        self.validate_mode()?;
        self.sandbox.as_ref().map_or(Ok(()), AgentSandbox::validate)?;
        ValueRange::between(1.0, 604_800.0).check("timeout_seconds", self.timeout_seconds)?;
        ValueRange::between(1.0, 604_800.0).check("lease_seconds", self.lease_seconds.unwrap_or(1.0))?;
        ValueRange::between(1.0, 100.0).check("attempts", self.attempts.into())?;
        ValueRange::between(1.0, 10_000.0).check("max_calls", self.max_calls.into())?;
        ValueRange::at_least(1.0).check("max_tokens", self.max_tokens.unwrap_or(1) as f64)?;
        ValueRange::between(1.0, 10_000.0).check("concurrency", self.concurrency.into())?;
        ValueRange::between(0.0, 10_000.0).check("keep_logs", self.keep_logs.unwrap_or(0).into())
    }

    fn max_turns(&self) -> usize {
        self.max_calls as usize
    }

    fn reads_answer(&self) -> bool {
        false
    }

    fn is_game(&self) -> bool {
        false
    }

    fn alphabet(&self) -> String {
        self.alphabet.clone()
    }

    fn make_absolute(&mut self) {
        if let Some(sandbox) = &mut self.sandbox {
            return sandbox.make_absolute();
        }
        if self.lease {
            return;
        }
        let folder = self.cwd.as_deref().unwrap_or(Path::new("."));
        if let Ok(folder) = folder.canonicalize() {
            self.cwd = Some(folder);
        }
    }

    fn check(&self, _: Option<Arc<dyn Host>>) -> Result<(), EnvironmentUnusable> {
        if let Some(sandbox) = &self.sandbox {
            if let Some(file) = sandbox.missing_file() {
                return Err(EnvironmentUnusable::AgentFile { file: file.to_owned() });
            }
            return Ok(Sandbox::detect(&Program::current(), sandbox.tier).map(drop)?);
        }
        match self.command.first() {
            Some(program) if !is_program(program, self.cwd.as_deref()) => {
                Err(EnvironmentUnusable::Agent { program: program.clone() })
            }
            _ => Ok(()),
        }
    }

    fn environment(
        &self,
        _: Duration,
        _: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Ok(Arc::new(Agent))
    }
}

/// True if there is a file for a program, which is searched for in the folders of programs unless it contains `/`.
fn is_program(program: &str, cwd: Option<&Path>) -> bool {
    if program.contains('/') {
        return cwd.unwrap_or(Path::new(".")).join(program).is_file();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// The environment of an agent's tasks without the agent: demonstrations are single completions of the prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Agent;

impl Environment for Agent {
    fn name(&self) -> &'static str {
        AgentEnvironment::NAME
    }

    fn start<'a>(
        &'a self,
        task: &'a Task,
        tokenizer: &'a Tokenizer,
        random: RandomKey,
    ) -> BoxFuture<'a, Result<Start, EnvError>> {
        SingleTurn.start(task, tokenizer, random)
    }
}

#[cfg(test)]
mod tests {
    use crate::EnvironmentSettings;

    fn problem(json: &str) -> Option<String> {
        let settings: EnvironmentSettings = serde_json::from_str(json).unwrap_or_default();
        settings.validate().err().map(|error| error.to_string())
    }

    #[test]
    fn the_program_is_searched_for_before_a_run() {
        let check = |json: &str| {
            let settings: EnvironmentSettings = serde_json::from_str(json).unwrap_or_default();
            settings.check(None).err().map(|error| error.to_string())
        };
        assert_eq!(check(r#"{"kind": "agent", "command": ["sh"]}"#), None);
        assert_eq!(check(r#"{"kind": "agent", "command": ["./sh"], "cwd": "/bin"}"#), None);
        assert_eq!(check(r#"{"kind": "agent", "lease": true}"#), None);
        let message = check(r#"{"kind": "agent", "command": ["sh"], "sandbox": {"files": ["no-such.py"]}}"#);
        assert_eq!(message.unwrap_or_default(), "`environment`: there is no file no-such.py");
        let message = check(r#"{"kind": "agent", "command": ["no-such-agent"]}"#).unwrap_or_default();
        assert_eq!(message, "`environment`: there is no program `no-such-agent`");
    }

    #[test]
    fn an_agent_is_started_or_leases() {
        assert_eq!(problem(r#"{"kind": "agent", "command": ["true"], "keep_logs": 3}"#), None);
        assert_eq!(problem(r#"{"kind": "agent", "lease": true, "port": 0, "lease_seconds": 5}"#), None);
        for (json, key) in [
            (r#"{"kind": "agent"}"#, "command"),
            (r#"{"kind": "agent", "command": ["true"], "lease": true}"#, "command"),
            (r#"{"kind": "agent", "command": ["true"], "port": 1}"#, "port"),
            (r#"{"kind": "agent", "command": ["true"], "lease_seconds": 5}"#, "lease_seconds"),
            (r#"{"kind": "agent", "lease": true, "keep_logs": 1}"#, "keep_logs"),
            (r#"{"kind": "agent", "lease": true, "cwd": "."}"#, "cwd"),
            (r#"{"kind": "agent", "lease": true, "sandbox": {}}"#, "sandbox"),
            (r#"{"kind": "agent", "command": ["true"], "cwd": ".", "sandbox": {}}"#, "cwd"),
            (r#"{"kind": "agent", "command": ["true"], "sandbox": {"memory_mib": 1}}"#, "sandbox.memory_mib"),
            (
                r#"{"kind": "agent", "command": ["true"], "sandbox": {"files": ["a/x", "b/x"]}}"#,
                "sandbox.files",
            ),
            (r#"{"kind": "agent", "command": ["true"], "sandbox": {"files": [".."]}}"#, "sandbox.files"),
            (r#"{"kind": "agent", "command": ["true"], "attempts": 0}"#, "attempts"),
            (r#"{"kind": "agent", "command": ["true"], "max_tokens": 0}"#, "max_tokens"),
        ] {
            let message = problem(json).unwrap_or_default();
            assert!(message.starts_with(&format!("`{key}`")), "{json}: {message}");
        }
    }
}

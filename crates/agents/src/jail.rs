//! The sandbox of started agents.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rloom_core::Program;
use rloom_env::AgentSandbox;
use rloom_sandbox::{Execution, InputFile, Limits, Sandbox, Service};

use crate::AgentError;

/// A sandbox in which agents reach the server.
#[derive(Debug, Clone)]
pub(crate) struct Jail {
    pub(crate) sandbox: Sandbox,
    service: Service,
    settings: AgentSandbox,
}

impl Jail {
    /// Finds the best tier of this machine. `service` is the server, which does not have to serve yet.
    pub(crate) fn new(settings: &AgentSandbox, service: Service) -> Result<Self, AgentError> {
        let sandbox = Sandbox::detect_with(&Program::current(), settings.tier, &service)?;
        Ok(Self { sandbox, service, settings: settings.clone() })
    }

    /// An agent to run, whose files are read now. `time` is a limit later than that of its session.
    pub(crate) fn execution(
        &self,
        command: &[String],
        environment: &BTreeMap<&'static str, String>,
        time: Duration,
    ) -> Result<Execution, AgentError> {
        let files = self.settings.files.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
        Ok(Execution {
            command: command.to_vec(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            files,
            readable: self.settings.readable.clone(),
            limits: Limits { cpu: time, wall: time, ..self.settings.limits() },
            service: Some(self.service.clone()),
            passes_output: true,
            ..Execution::default()
        })
    }
}

fn read(path: &Path) -> Result<InputFile, AgentError> {
    use std::os::unix::fs::PermissionsExt as _;

    let failed =
        |error: std::io::Error| AgentError::File { path: path.to_owned(), message: error.to_string() };
    let content = fs::read(path).map_err(failed)?;
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(InputFile { is_executable: mode & 0o100 != 0, ..InputFile::new(name, content) })
}

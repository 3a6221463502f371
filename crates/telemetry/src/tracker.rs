//! Experiment trackers. Python follows the event stream of a run and passes it to a tracker's own package.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::TelemetryError;

/// An experiment tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tracker {
    /// Weights & Biases; `WANDB_MODE=offline` keeps everything on this machine.
    Wandb,
    /// MLflow; `MLFLOW_TRACKING_URI` names its server or folder.
    Mlflow,
    /// Trackio, which stores its data on this machine.
    Trackio,
}

impl Tracker {
    /// All trackers.
    pub const ALL: [Self; 3] = [Self::Wandb, Self::Mlflow, Self::Trackio];

    /// Returns the name in settings, which is that of the Python package.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Trackio => "trackio",
        }
    }

    /// Returns the command that follows the run in `directory` until it ends. `python` is the interpreter of an
    /// environment that has the packages of RLoom and of the tracker.
    pub fn command(self, python: &str, directory: &Path) -> Command {
        let mut command = Command::new(python);
        command.args(["-m", "rloom.track"]).arg(directory).args(["--to", self.name()]);
        command
    }

    /// Starts the command in the background. Its messages go to `tracking/NAME.log` in the run directory, and Ctrl-C does
    /// not reach it: it follows the run to its end.
    pub fn start(self, python: &str, directory: &Path) -> Result<Child, TelemetryError> {
        use std::os::unix::process::CommandExt;

        let folder = directory.join("tracking");
        std::fs::create_dir_all(&folder).map_err(|source| TelemetryError::io("create", &folder, source))?;
        let path = folder.join(format!("{}.log", self.name()));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|source| TelemetryError::io("open", &path, source))?;
        let again = log.try_clone().map_err(|source| TelemetryError::io("open", &path, source))?;
        self.command(python, directory)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(again)
            .process_group(0)
            .spawn()
            .map_err(|source| TelemetryError::Tracker { tracker: self, python: python.to_owned(), source })
    }
}

impl fmt::Display for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program in the place of the interpreter that prints its arguments.
    fn echo(folder: &Path) -> String {
        let path = folder.join("python");
        std::fs::write(&path, "#!/bin/sh\necho \"$@\"\necho failed >&2\nexit 3\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_tracker_in_the_background_writes_its_messages_to_a_log() {
        let directory = tempfile::tempdir().unwrap();
        let python = echo(directory.path());
        for _ in 0..2 {
            let mut child = Tracker::Mlflow.start(&python, directory.path()).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(3));
        }
        let log = std::fs::read_to_string(directory.path().join("tracking/mlflow.log")).unwrap();
        let once = format!("-m rloom.track {} --to mlflow\nfailed\n", directory.path().display());
        assert_eq!(log, once.repeat(2));
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = Tracker::Wandb.start("no-such-python", directory.path()).unwrap_err();
        assert!(
            error.to_string().starts_with("could not start the tracker wandb with no-such-python: "),
            "{error}"
        );
    }

    #[test]
    fn names_are_those_of_settings() {
        for tracker in Tracker::ALL {
            assert_eq!(serde_json::to_value(tracker).unwrap(), tracker.name());
        }
    }
}

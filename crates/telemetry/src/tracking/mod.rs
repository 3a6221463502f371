//! Tracking of a run: a process follows its event stream and passes it to a tracker's own Python package.

mod added_lines;
mod error;
mod following;
mod process;
mod state;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::{TelemetryError, Tracker};
pub use error::TrackingError;
pub use following::{Follow, follow};

/// Interpreter unless another one is named.
pub const DEFAULT_PYTHON: &str = "python3";
/// Project unless another one is named.
pub const DEFAULT_PROJECT: &str = "rloom";

/// Length of the end of a log that is searched for its last line, in bytes.
const TAIL: usize = 4096;

/// A tracker that follows a run. In settings: its name, or a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tracking {
    /// The tracker.
    pub kind: Tracker,
    /// Python interpreter of an environment that has the tracker's package.
    pub python: String,
    /// Project of the tracker; of MLflow, the experiment.
    pub project: String,
}

/// A tracker as a table.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Table {
    /// The tracker.
    kind: Tracker,
    /// Python interpreter of an environment that has the tracker's package.
    #[serde(default = "default_python")]
    python: String,
    /// Project of the tracker; of MLflow, the experiment.
    #[serde(default = "default_project")]
    project: String,
}

fn default_python() -> String {
    DEFAULT_PYTHON.to_owned()
}

fn default_project() -> String {
    DEFAULT_PROJECT.to_owned()
}

impl<'de> Deserialize<'de> for Tracking {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = Tracking;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a tracker, or a table with its `kind`")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Tracking, E> {
                Tracker::deserialize(name.into_deserializer()).map(Tracking::new)
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Tracking, M::Error> {
                let Table { kind, python, project } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Tracking { kind, python, project })
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

impl JsonSchema for Tracking {
    fn schema_name() -> Cow<'static, str> {
        "Tracking".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (name, table) = (generator.subschema_for::<Tracker>(), generator.subschema_for::<Table>());
        json_schema!({ "anyOf": [name, table] })
    }
}

impl Tracking {
    /// A tracker with the default interpreter and project.
    pub fn new(kind: Tracker) -> Self {
        Self { kind, python: default_python(), project: default_project() }
    }

    /// Starts `program track` in the background for the run in `directory`. Its messages go to `tracking/NAME.log` there,
    /// and Ctrl-C does not reach it: it follows the run to its end.
    pub(crate) fn start(&self, program: &Path, directory: &Path) -> Result<TrackerProcess, TelemetryError> {
        let folder = directory.join("tracking");
        std::fs::create_dir_all(&folder).map_err(|source| TelemetryError::io("create", &folder, source))?;
        let path = folder.join(format!("{}.log", self.kind));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|source| TelemetryError::io("open", &path, source))?;
        // Earlier attempts have written before it.
        let start = log.metadata().map_or(0, |log| log.len());
        let again = log.try_clone().map_err(|source| TelemetryError::io("open", &path, source))?;
        let mut command = Command::new(program);
        command.arg0("rloom").arg("track").arg(directory).args(["--to", self.kind.name()]);
        // The tracker of an earlier attempt may still be passing on its end.
        command.args(["--project", &self.project, "--python", &self.python, "--wait"]);
        let child = command.stdin(Stdio::null()).stdout(log).stderr(again).process_group(0).spawn();
        let child = child.map_err(|source| TelemetryError::io("start", program, source))?;
        Ok(TrackerProcess { tracker: self.kind, child, log: path, start: start as usize })
    }
}

/// A process that passes a run to a tracker.
#[derive(Debug)]
pub(crate) struct TrackerProcess {
    tracker: Tracker,
    child: Child,
    log: PathBuf,
    /// Length of the log at its start, in bytes.
    start: usize,
}

impl TrackerProcess {
    /// The end of the process, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The message for a process that has ended with `status`.
    pub(crate) fn failure(&self, status: ExitStatus) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let own = log.get(self.start..).unwrap_or_default();
        let tail = String::from_utf8_lossy(&own[own.len().saturating_sub(TAIL)..]).into_owned();
        // An error comes before its hints.
        let error = tail.lines().rev().find(|line| line.starts_with("error: "));
        let last = error.or_else(|| tail.lines().rev().find(|line| !line.trim().is_empty()));
        let last = last.unwrap_or("it printed nothing");
        let (tracker, log) = (self.tracker, self.log.display());
        format!(
            "{tracker} no longer receives this run ({status}): {last}. Its messages are in {log}; `rloom track` continues"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Tracking, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn a_name_or_a_table() {
        let mlflow = Tracking::new(Tracker::Mlflow);
        assert_eq!((mlflow.python.as_str(), mlflow.project.as_str()), ("python3", "rloom"));
        assert_eq!(parse("\"mlflow\"").unwrap(), mlflow);
        let sums = parse(r#"{ "kind": "mlflow", "project": "sums" }"#).unwrap();
        assert_eq!(sums, Tracking { project: "sums".to_owned(), ..mlflow });
        assert_eq!(parse(&serde_json::to_string(&sums).unwrap()).unwrap(), sums);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, message) in [
            ("\"comet\"", "unknown variant `comet`, expected one of `wandb`, `mlflow`, `trackio`"),
            (r#"{ "project": "sums" }"#, "missing field `kind`"),
            (r#"{ "kind": "wandb", "entity": "me" }"#, "unknown field `entity`"),
            ("3", "expected the name of a tracker, or a table with its `kind`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}

//! `rloom track`: becomes the Python process that passes a run to an experiment tracker.

use std::os::unix::process::CommandExt;

use rloom_telemetry::{TelemetryError, Tracking};

use super::train::find_run;
use crate::arguments::Track;
use crate::failure::Failure;

pub(crate) fn run(arguments: &Track) -> Result<(), Failure> {
    let directory = find_run(&arguments.run)?;
    let (kind, python, project) = (arguments.to.into(), arguments.python.clone(), arguments.project.clone());
    let tracking = Tracking { kind, python, project };
    let mut command = tracking.command(&directory);
    if arguments.no_follow {
        command.arg("--no-follow");
    }
    // Returns only if the interpreter could not be started.
    let source = command.exec();
    Err(Failure::failed(TelemetryError::Tracker { tracker: kind, python: tracking.python, source }))
}

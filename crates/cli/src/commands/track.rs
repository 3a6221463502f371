//! `rloom track`: passes a run to an experiment tracker.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rloom_telemetry::{Follow, Tracking, TrackingError, follow};

use super::export::config;
use super::train::find_run;
use crate::arguments::Track;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::set_on_signals;

/// Niceness of the process: training has priority.
const NICENESS: i32 = 5;

pub(crate) fn run(arguments: &Track, output: Output) -> Result<(), Failure> {
    let directory = find_run(&arguments.run)?;
    let (kind, python, project) = (arguments.to.into(), arguments.python.clone(), arguments.project.clone());
    let stop = Arc::new(AtomicBool::new(false));
    set_on_signals(&stop)?;
    let _ = rustix::process::nice(NICENESS);
    let options = Follow {
        config: &config(&directory)?,
        until_the_end: !arguments.no_follow,
        waits: arguments.wait,
        stop: &stop,
    };
    let tracking = Tracking { kind, python, project };
    let warn = |message: &str| output.warn(message);
    follow(&tracking, &directory, &options, &warn).map_err(|error| match error {
        TrackingError::Interrupted => Failure::Interrupted,
        error => Failure::failed(error),
    })
}

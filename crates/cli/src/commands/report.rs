//! `rloom report`: writes the report of a run, also of one that was killed or is running.

use rloom_telemetry::{RunState, report};
use serde_json::json;

use super::train::find_run;
use crate::arguments::Report;
use crate::failure::Failure;
use crate::output::{CYAN, Output, YELLOW};
use crate::progress::numbers::bytes;

pub(crate) fn run(arguments: &Report, output: Output) -> Result<(), Failure> {
    let directory = find_run(&arguments.run)?;
    let path = arguments.output.clone().unwrap_or_else(|| directory.join("report.html"));
    let written = report::write_to(&directory, &path).map_err(Failure::failed)?;
    if output.json {
        return output.json(&json!({"report": path, "written": written}));
    }
    for sentence in written.skipped.sentences() {
        output.info(&format!("{}: {sentence}", output.paint(YELLOW, "warning")));
    }
    let state = match written.state {
        RunState::Finished => "the run is finished",
        RunState::Interrupted => "the run is interrupted",
        RunState::Failed(_) => "the run failed",
        RunState::Running => "the run is in progress",
        RunState::Killed => "the run was killed",
    };
    let output = output.on_stdout();
    let shown = output.paint(CYAN, &path.display().to_string());
    output.data(&format!("{shown} ({}; {state})", bytes(written.bytes)))
}

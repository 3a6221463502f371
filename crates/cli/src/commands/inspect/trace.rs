//! `rloom inspect RUN --trace FILE`: writes a timeline for Perfetto.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rloom_telemetry::{Event, EventFile, EventLine, trace};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{CYAN, Output};
use crate::progress::numbers::thousands;

/// Largest number of lines in a trace: viewers hold all of it in memory.
const LINES: u64 = 400_000;

pub(super) fn run(events: &EventFile, path: &Path, output: Output) -> Result<(), Failure> {
    let (mut lines, mut position) = (Vec::new(), 0);
    let left_out = events.lines().saturating_sub(LINES);
    let add = |line: EventLine, _| {
        let is_start = matches!(line.event, Event::RunStarted { .. } | Event::StageStarted { .. });
        let is_text = matches!(line.event, Event::Sample(_) | Event::EvaluationSample(_));
        if (position >= left_out || is_start) && !is_text {
            lines.push(line);
        }
        position += 1;
    };
    events.each(add).map_err(Failure::failed)?;
    if !lines.iter().any(|line| matches!(line.event, Event::Activity { .. })) {
        return Err(Failure::failed_text("the run has no activity events").hint(
            "it may not have completed a rollout yet, or it was started by an older version of rloom",
        ));
    }
    let failed = |error: std::io::Error| {
        Failure::failed_text(format_args!("cannot write {}: {error}", path.display()))
    };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    let count = trace::write(&lines, &mut out).map_err(failed)?;
    out.flush().map_err(failed)?;
    if output.json {
        return output.json(&json!({"trace": path, "events": count, "lines_left_out": left_out}));
    }
    let output = output.on_stdout();
    let shown = output.paint(CYAN, &path.display().to_string());
    output.data(&format!("wrote {} events to {shown}", thousands(count as u64)))?;
    if left_out > 0 {
        let (left_out, shown) = (thousands(left_out), thousands(LINES));
        output.info(&format!(
            "the first {left_out} lines of events.jsonl are left out: a trace has at most {shown}"
        ));
    }
    output.info("open it at https://ui.perfetto.dev or chrome://tracing");
    Ok(())
}

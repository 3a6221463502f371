//! `rloom inspect RUN --trace FILE`: writes a timeline for Perfetto.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rloom_telemetry::{Event, EventLine, trace};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{CYAN, Output};
use crate::progress::numbers::thousands;

pub(super) fn run(lines: &[EventLine], path: &Path, output: Output) -> Result<(), Failure> {
    if !lines.iter().any(|line| matches!(line.event, Event::Activity { .. })) {
        return Err(Failure::failed(
            "the run has no activity events\n\
             hint: it may not have completed a rollout yet, or it was started by an older version of rloom",
        ));
    }
    let failed = |error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    let events = trace::write(lines, &mut out).map_err(failed)?;
    out.flush().map_err(failed)?;
    if output.json {
        return output.json(&json!({"trace": path, "events": events}));
    }
    let output = output.on_stdout();
    let shown = output.paint(CYAN, &path.display().to_string());
    output.data(&format!("wrote {} events to {shown}", thousands(events as u64)))?;
    output.info("open it at https://ui.perfetto.dev or chrome://tracing");
    Ok(())
}

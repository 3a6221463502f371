//! `report.html`: a self-contained report, generated from the event stream.
//!
//! The stream is read line by line, and page and memory are bounded: series are reduced to a number of points that keeps
//! their extremes, and completions and activities to a selection. The page states each reduction.

mod charts;
mod completions;
mod intervals;
mod page;
mod series;
mod sweep;
mod timeline;
mod windows;

use std::path::Path;

use rloom_store::disk::write_atomically;
use serde::Serialize;

use crate::event_file::{EventFile, SkippedLines};
use crate::{RunState, TelemetryError};
use page::{Page, PageBuilder};

const TEMPLATE: &str = include_str!("template.html");
const TIMELINE_SCRIPT: &str = include_str!("timeline.js");

/// A written report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Written {
    /// Size of the page in bytes.
    pub bytes: u64,
    /// State of the run.
    pub state: RunState,
    /// Lines of the event stream that were left out.
    pub skipped: SkippedLines,
}

/// Writes `report.html` for the run in `directory`, also for one that was killed or is running.
pub fn write(directory: &Path) -> Result<Written, TelemetryError> {
    write_to(directory, &directory.join("report.html"))
}

/// Writes the report of the run in `directory` to a file.
pub fn write_to(directory: &Path, report: &Path) -> Result<Written, TelemetryError> {
    let path = directory.join("config.toml");
    let config =
        std::fs::read_to_string(&path).map_err(|source| TelemetryError::io("read", &path, source))?;
    let events = EventFile::open(&directory.join("events.jsonl"))?;
    let mut page = PageBuilder::new(&events);
    let skipped = events.each(|line, survives| page.add(&line, survives))?;
    let state = page.state(directory);
    let html = render(&page.finish(&state, skipped, config))
        .map_err(|e| TelemetryError::io("encode", report, std::io::Error::other(e)))?;
    write_atomically("report", report, html.as_bytes())?;
    Ok(Written { bytes: html.len() as u64, state, skipped })
}

fn render(page: &Page) -> Result<String, serde_json::Error> {
    // Escapes `<`, so that no text of a completion can close the script element.
    let data = serde_json::to_string(page)?.replace('<', "\\u003c");
    Ok(TEMPLATE.replacen("@TIMELINE@", TIMELINE_SCRIPT, 1).replacen("@DATA@", &data, 1))
}

#[cfg(test)]
mod tests;

//! Traces for Perfetto and Chrome, in the JSON of the Trace Event Format.
//!
//! Each attempt is a process; attempts are concatenated. A process has the threads
//!
//! ```text
//! stages           the stages
//! rollout, train   the work of a lane
//! … waits          the waits of a lane, which may overlap with its work
//! ```
//!
//! with complete events (`X`). The format requires complete events of a thread to be nested, so overlapping ones go to
//! additional threads (`train 2`). Groups overlap and are async pairs (`b`, `e`) with unique ids. Groups in flight,
//! staleness and queues are counters (`C`); checkpoints and groups that were not trained are instants (`i`).
//! Times are microseconds since the start of the first attempt, in ascending order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use rloom_core::metric;
use serde::Serialize;
use serde_json::{Value, json};

use crate::event::{Activity, Event, EventLine, Lane, Metrics};

/// An event of the format. Fields that its phase does not use are omitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct TraceEvent {
    name: Cow<'static, str>,
    ph: &'static str,
    cat: &'static str,
    ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Scope of an instant: `p` for process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

/// Writes the trace of a run, one event per line. Returns the number of events.
pub fn write(lines: &[EventLine], out: &mut dyn Write) -> std::io::Result<usize> {
    let events = events(lines);
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    for (i, event) in events.iter().enumerate() {
        out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, event)?;
    }
    out.write_all(b"\n]}\n")?;
    Ok(events.len())
}

fn events(lines: &[EventLine]) -> Vec<TraceEvent> {
    let (mut events, mut metadata) = (Vec::new(), Vec::new());
    let mut offset = 0;
    for attempt_lines in lines.chunk_by(|a, b| a.attempt == b.attempt) {
        let mut attempt = Attempt { pid: attempt_lines[0].attempt, offset, events: Vec::new(), last: offset };
        attempt.add(attempt_lines);
        metadata.append(&mut attempt.metadata(attempt_lines));
        events.append(&mut attempt.events);
        offset = attempt.last;
    }
    // By start; an enclosing event precedes those inside it.
    events.sort_by_key(|event| (event.ts, std::cmp::Reverse(event.dur.unwrap_or(0))));
    metadata.append(&mut events);
    metadata
}

/// Rows of threads, in display order. The flag of a lane's row is true for waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Stages,
    Lane(Lane, bool),
}

impl Row {
    const ALL: [Self; 5] = [
        Self::Stages,
        Self::Lane(Lane::Rollout, false),
        Self::Lane(Lane::Rollout, true),
        Self::Lane(Lane::Train, false),
        Self::Lane(Lane::Train, true),
    ];

    fn name(self) -> String {
        match self {
            Self::Stages => "stages".to_owned(),
            Self::Lane(lane, false) => lane.name().to_owned(),
            Self::Lane(lane, true) => format!("{} waits", lane.name()),
        }
    }

    /// The first thread of the row. Threads for overlapping events follow.
    fn tid(self) -> u32 {
        Self::ALL.iter().position(|&row| row == self).unwrap_or_default() as u32 * 100 + 1
    }
}

/// A complete event before it is assigned a thread.
#[derive(Debug)]
struct Complete {
    row: Row,
    name: Cow<'static, str>,
    start: u64,
    end: u64,
    args: Value,
}

#[derive(Debug)]
struct Attempt {
    pid: u32,
    /// Duration of the earlier attempts in microseconds.
    offset: u64,
    events: Vec<TraceEvent>,
    /// Latest time of any event.
    last: u64,
}

impl Attempt {
    /// Converts seconds of the attempt to microseconds of the trace.
    fn at(&mut self, seconds: f64) -> u64 {
        let at = self.offset + (seconds.max(0.0) * 1e6).round() as u64;
        self.last = self.last.max(at);
        at
    }

    fn push(&mut self, ph: &'static str, cat: &'static str, name: Cow<'static, str>, ts: u64, args: Value) {
        let instant = (ph == "i").then_some("p");
        let pid = self.pid;
        self.events.push(TraceEvent {
            name,
            ph,
            cat,
            ts,
            dur: None,
            pid,
            tid: 0,
            id: None,
            s: instant,
            args,
        });
    }

    fn add(&mut self, lines: &[EventLine]) {
        let mut spans = Vec::new();
        let mut in_flight: Vec<(u64, i64)> = Vec::new();
        let mut runs_of: BTreeMap<(&str, u64), u32> = BTreeMap::new();
        for line in lines {
            let now = self.at(line.elapsed);
            match &line.event {
                Event::Activity { activity: Activity::Group, start, end, version, ticket, .. } => {
                    let (start, end) = (self.at(*start), self.at(end.max(*start)));
                    let ticket = ticket.unwrap_or_default();
                    // A deferred group is restarted under the same ticket.
                    let run = runs_of.entry((&line.stage, ticket)).and_modify(|run| *run += 1).or_insert(1);
                    let id = format!("{}/{}/{ticket}/{run}", self.pid, line.stage);
                    let args = json!({"stage": line.stage, "ticket": ticket, "version": version});
                    self.push("b", "group", "group".into(), start, args);
                    self.set_id(&id);
                    self.push("e", "group", "group".into(), end, Value::Null);
                    self.set_id(&id);
                    in_flight.extend([(start, 1), (end, -1)]);
                }
                Event::Activity { lane, activity, start, end, version, .. } => {
                    let (start, end) = (self.at(*start), self.at(end.max(*start)));
                    let row = Row::Lane(*lane, activity.is_wait());
                    let args = json!({"stage": line.stage, "version": version});
                    spans.push(Complete { row, name: activity.name().into(), start, end, args });
                }
                Event::StageStarted { outline, from_step } => {
                    let name = format!("{} ({})", outline.name, outline.method).into();
                    let args = json!({"from_step": from_step, "steps": outline.steps});
                    spans.push(Complete { row: Row::Stages, name, start: now, end: now, args });
                }
                Event::Step { metrics } => self.counters(now, metrics),
                Event::Evaluation { metrics, .. } => {
                    let args = json!({"step": line.step, "metrics": metrics});
                    self.push("i", "evaluation", "evaluation".into(), now, args);
                }
                Event::Validation { metrics, .. } => {
                    let args = json!({"step": line.step, "metrics": metrics});
                    self.push("i", "validation", "validation".into(), now, args);
                }
                Event::Checkpoint { path, bytes } => {
                    let args = json!({"path": path, "bytes": bytes});
                    self.push("i", "checkpoint", "checkpoint".into(), now, args);
                }
                Event::GroupEnded { ticket, end, reason } => {
                    let args = json!({"stage": line.stage, "ticket": ticket, "reason": reason});
                    self.push("i", "group", format!("group {}", end.name()).into(), now, args);
                }
                Event::Warning { message } => {
                    self.push("i", "warning", "warning".into(), now, json!({"message": message}));
                }
                _ => {}
            }
            if let (false, Some(stage)) =
                (line.stage.is_empty(), spans.iter_mut().rfind(|span| span.row == Row::Stages))
            {
                stage.end = stage.end.max(self.last);
            }
        }
        self.groups_in_flight(in_flight);
        self.complete(spans);
    }

    /// Sets the id of the event pushed last.
    fn set_id(&mut self, id: &str) {
        if let Some(event) = self.events.last_mut() {
            event.id = Some(id.to_owned());
        }
    }

    fn counters(&mut self, now: u64, metrics: &Metrics) {
        let sets: [(&'static str, [(&str, &str); 2]); 2] = [
            ("staleness", [("mean", metric::STALENESS_MEAN), ("largest", metric::STALENESS_MAX)]),
            ("queues", [("ready", metric::QUEUE_READY), ("running", metric::QUEUE_RUNNING)]),
        ];
        for (name, series) in sets {
            let values: serde_json::Map<String, Value> = series
                .iter()
                .filter_map(|(label, metric)| Some(((*label).to_owned(), json!(metrics.get(*metric)?))))
                .collect();
            if !values.is_empty() {
                self.push("C", "counter", name.into(), now, Value::Object(values));
            }
        }
    }

    fn groups_in_flight(&mut self, mut changes: Vec<(u64, i64)>) {
        changes.sort_unstable();
        let mut running = 0;
        for simultaneous in changes.chunk_by(|a, b| a.0 == b.0) {
            running += simultaneous.iter().map(|(_, change)| change).sum::<i64>();
            let args = json!({"groups": running});
            self.push("C", "counter", "groups in flight".into(), simultaneous[0].0, args);
        }
    }

    /// Assigns each span to the first free thread of its row.
    fn complete(&mut self, mut spans: Vec<Complete>) {
        spans.sort_by_key(|span| (span.row, span.start, span.end));
        for row in spans.chunk_by_mut(|a, b| a.row == b.row) {
            let mut free_from: Vec<u64> = Vec::new();
            for span in row {
                let thread = free_from.iter().position(|&free| free <= span.start).unwrap_or_else(|| {
                    free_from.push(0);
                    free_from.len() - 1
                });
                free_from[thread] = span.end;
                let args = span.args.take();
                self.push("X", "lane", std::mem::take(&mut span.name), span.start, args);
                if let Some(event) = self.events.last_mut() {
                    event.tid = span.row.tid() + thread as u32;
                    event.dur = Some(span.end - span.start);
                }
            }
        }
    }

    /// Metadata events: names and display order of the process and its threads.
    fn metadata(&self, lines: &[EventLine]) -> Vec<TraceEvent> {
        let event = |name: &'static str, tid: u32, args: Value| TraceEvent {
            name: name.into(),
            ph: "M",
            cat: "__metadata",
            ts: 0,
            dur: None,
            pid: self.pid,
            tid,
            id: None,
            s: None,
            args,
        };
        let run = lines.iter().find_map(|line| match &line.event {
            Event::RunStarted { name, .. } => Some(name.as_str()),
            _ => None,
        });
        let title = format!("{} attempt {}", run.unwrap_or("run"), self.pid);
        let mut metadata = vec![
            event("process_name", 0, json!({"name": title})),
            event("process_sort_index", 0, json!({"sort_index": self.pid})),
        ];
        let mut threads: Vec<u32> = self.events.iter().filter(|e| e.ph == "X").map(|e| e.tid).collect();
        threads.sort_unstable();
        threads.dedup();
        for tid in threads {
            let row = Row::ALL[(tid / 100) as usize];
            let name = match tid - row.tid() {
                0 => row.name(),
                more => format!("{} {}", row.name(), more + 1),
            };
            metadata.push(event("thread_name", tid, json!({"name": name})));
            metadata.push(event("thread_sort_index", tid, json!({"sort_index": tid})));
        }
        metadata
    }
}

#[cfg(test)]
mod tests;

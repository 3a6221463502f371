//! Reading of an event file line by line, also of a damaged one and while a run appends to it.
//!
//! A first pass over the file reads only the keys of its lines and finds out which lines survive and how long each stage
//! took. Further passes read up to the same length, so that all passes see the same lines. No pass holds the lines.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::TelemetryError;
use crate::event::EventLine;
use crate::extent::StageExtent;
use crate::survivors::{LineKey, LineKind, Survivors};

/// Longer lines are damaged: a crash can leave a range of zeros.
pub(crate) const LONGEST_LINE: u64 = 1 << 26;

/// Lines of an event file that were left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SkippedLines {
    /// Torn or damaged lines.
    pub unreadable: u64,
    /// Valid lines with events that this version does not know.
    pub unknown: u64,
    /// True if the last line is incomplete: it is being written, or the process was killed.
    pub is_last_incomplete: bool,
}

impl SkippedLines {
    /// Returns a sentence about each kind of lines that were left out.
    pub fn sentences(&self) -> Vec<String> {
        let lines = |count: u64| if count == 1 { "1 line".to_owned() } else { format!("{count} lines") };
        let damaged = (self.unreadable > 0).then(|| {
            format!("{} of events.jsonl could not be read and are left out", lines(self.unreadable))
        });
        let unknown = (self.unknown > 0).then(|| {
            format!("{} of events.jsonl have events of another version and are left out", lines(self.unknown))
        });
        let incomplete =
            self.is_last_incomplete.then(|| "the last line of events.jsonl is incomplete".to_owned());
        [damaged, unknown, incomplete].into_iter().flatten().collect()
    }
}

/// An event file, read line by line.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    length: u64,
    lines: u64,
    survivors: Survivors,
    stages: Vec<StageExtent>,
}

impl EventFile {
    /// Opens the event file of a run. Lines that are appended later are ignored.
    pub fn open(path: &Path) -> Result<Self, TelemetryError> {
        let (mut survivors, mut stages, mut lines) = (Survivors::default(), Vec::new(), 0);
        let length = each_line(path, u64::MAX, |position, text| {
            let Ok(header) = serde_json::from_slice::<Header<'_>>(text) else { return };
            lines += 1;
            survivors.add(position, &header.key());
            StageExtent::add(&mut stages, &header.key(), header.elapsed);
        })?;
        survivors.complete();
        Ok(Self { path: path.to_owned(), length, lines, survivors, stages })
    }

    /// Number of readable lines, including those of unknown events.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Time and steps of each stage, in the order in which the stages started.
    pub(crate) fn stages(&self) -> &[StageExtent] {
        &self.stages
    }

    /// Passes each line in order, with true if no later attempt superseded it. Returns the number of lines left out.
    pub fn each(&self, mut take: impl FnMut(EventLine, bool)) -> Result<SkippedLines, TelemetryError> {
        let mut skipped = SkippedLines::default();
        each_line(&self.path, self.length, |position, text| {
            if let Ok(line) = serde_json::from_slice::<EventLine>(text) {
                let survives = self.survivors.contains(position, &LineKey::from(&line));
                take(line, survives);
            } else if text.ends_with(b"\n") {
                let is_unknown =
                    std::str::from_utf8(text).is_ok() && serde_json::from_slice::<Header<'_>>(text).is_ok();
                *(if is_unknown { &mut skipped.unknown } else { &mut skipped.unreadable }) += 1;
            } else {
                skipped.is_last_incomplete = true;
            }
        })?;
        Ok(skipped)
    }

    /// Returns what `select` keeps of the surviving lines.
    pub fn select<T>(
        &self,
        mut select: impl FnMut(EventLine) -> Option<T>,
    ) -> Result<Vec<T>, TelemetryError> {
        let mut selected = Vec::new();
        self.each(|line, survives| {
            if survives {
                selected.extend(select(line));
            }
        })?;
        Ok(selected)
    }

    /// Number of entries that the first pass has left in memory.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.survivors.entries() + self.stages.iter().map(|stage| stage.attempts.len() + 1).sum::<usize>()
    }
}

/// Reads all lines of an event stream. Leaves out damaged lines and unknown events of other versions. For files of long
/// runs, [`EventFile`] needs less memory.
pub fn read_events(path: &Path) -> Result<Vec<EventLine>, TelemetryError> {
    let mut lines = Vec::new();
    each_line(path, u64::MAX, |_, text| lines.extend(serde_json::from_slice::<EventLine>(text)))?;
    Ok(lines)
}

/// Returns the last attempt that wrote to the stream; 0 if there is none.
pub(crate) fn last_attempt(path: &Path) -> u32 {
    const TAIL: u64 = 1 << 20;
    let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    // Attempts only increase, so the last readable line is sufficient. Earlier ones matter only if the end is damaged.
    match last_attempt_after(path, length.saturating_sub(TAIL)) {
        0 => last_attempt_after(path, 0),
        attempt => attempt,
    }
}

fn last_attempt_after(path: &Path, start: u64) -> u32 {
    let mut last = 0;
    // Lines before a read error are sufficient.
    let _ = each_line_from(path, start, u64::MAX, |_, text| {
        if let Ok(header) = serde_json::from_slice::<Header<'_>>(text) {
            last = last.max(header.attempt);
        }
    });
    last
}

/// Passes the position and the bytes of each line that is not empty, up to `length` bytes. Returns the number of bytes.
fn each_line(path: &Path, length: u64, take: impl FnMut(u64, &[u8])) -> Result<u64, TelemetryError> {
    each_line_from(path, 0, length, take)
}

fn each_line_from(
    path: &Path,
    start: u64,
    length: u64,
    mut take: impl FnMut(u64, &[u8]),
) -> Result<u64, TelemetryError> {
    let read = |source| TelemetryError::io("read", path, source);
    let mut file = File::open(path).map_err(|source| TelemetryError::io("open", path, source))?;
    file.seek(SeekFrom::Start(start)).map_err(read)?;
    let mut reader = BufReader::with_capacity(1 << 16, file.take(length));
    let (mut position, mut text) = (start, Vec::new());
    loop {
        text.clear();
        let mut bytes = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text).map_err(read)? as u64;
        if bytes == 0 {
            return Ok(position);
        }
        if bytes == LONGEST_LINE && !text.ends_with(b"\n") {
            text = b"too long\n".to_vec();
            bytes += reader.skip_until(b'\n').map_err(read)? as u64;
        }
        if !text.trim_ascii().is_empty() {
            take(position, &text);
        }
        position += bytes;
    }
}

/// The parts of a line that the first pass needs. Borrows from the line.
#[derive(Deserialize)]
struct Header<'a> {
    attempt: u32,
    elapsed: f64,
    #[serde(borrow)]
    stage: Cow<'a, str>,
    step: u64,
    global_step: u64,
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow, default)]
    activity: Option<Cow<'a, str>>,
    #[serde(default)]
    ticket: Number,
    #[serde(default)]
    version: Number,
    #[serde(default)]
    from_step: Number,
}

impl Header<'_> {
    fn key(&self) -> LineKey<'_> {
        let kind = match (&*self.event, self.activity.as_deref()) {
            ("stage_started", _) => {
                LineKind::StageStarted { from_step: self.from_step.0.unwrap_or_default() }
            }
            ("step", _) => LineKind::Step,
            ("sample", _) => LineKind::Sample,
            ("evaluation", _) => LineKind::Evaluation,
            ("evaluation_sample", _) => LineKind::EvaluationSample,
            ("validation", _) => LineKind::Validation,
            ("activity", Some("group")) => LineKind::Group { ticket: self.ticket.0 },
            ("activity", Some(activity)) => LineKind::Activity {
                version: self.version.0.unwrap_or_default(),
                is_batch: activity == "train",
            },
            ("group_ended", _) => LineKind::End { ticket: self.ticket.0.unwrap_or_default() },
            _ => LineKind::Other,
        };
        let Self { attempt, step, global_step, .. } = *self;
        LineKey { attempt, stage: &self.stage, step, global_step, kind }
    }
}

/// A whole number, or `None` for any other value: fields of different events share names.
#[derive(Debug, Clone, Copy, Default)]
struct Number(Option<u64>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number(Some(value)))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_str<E>(self, _: &str) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Number, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

#[cfg(test)]
mod tests;

//! Short parts of a stage in which every activity is shown.

use serde::Serialize;

use super::intervals::Interval;
use super::timeline::{Span, milli};

/// Steps per window.
const WINDOW_STEPS: f64 = 8.0;
/// Largest number of activities in a window; windows with more are shortened.
pub(super) const WINDOW_ACTIVITIES: usize = 600;
/// Largest number of activities held before the windows are shortened.
const HELD: usize = 16 * WINDOW_ACTIVITIES;
/// Smallest part of the stage that a window shows.
const SHORTEST: f64 = 1e-9;

/// A part of the stage in which every activity is shown.
#[derive(Debug, Serialize)]
pub(super) struct Window {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) spans: Vec<Span>,
    /// Number of groups in flight, as (time, number) at each change.
    pub(super) groups: Vec<(f64, u32)>,
}

impl Window {
    fn activities(&self) -> usize {
        self.spans.len() + self.groups.len() / 2
    }
}

/// Windows at the beginning, in the middle and at the end; a single one for a short stage. Holds the activities in them.
#[derive(Debug)]
pub(super) struct Windows {
    seconds: f64,
    length: f64,
    spans: Vec<Span>,
    groups: Vec<Interval>,
}

impl Windows {
    pub(super) fn new(seconds: f64, steps: u64) -> Self {
        let mut length = (seconds / steps.max(1) as f64 * WINDOW_STEPS).min(seconds);
        if length * 2.0 >= seconds {
            length = seconds;
        }
        Self { seconds, length, spans: Vec::new(), groups: Vec::new() }
    }

    pub(super) fn add(&mut self, span: &Span) {
        if self.shows(span.start, span.end) {
            self.spans.push(span.clone());
            self.shorten_above(HELD);
        }
    }

    pub(super) fn add_group(&mut self, group: Interval) {
        if self.shows(group.0, group.1) {
            self.groups.push(group);
            self.shorten_above(HELD);
        }
    }

    fn starts(&self) -> impl Iterator<Item = f64> {
        let (length, rest) = (self.length, self.seconds - self.length);
        let count = if rest > 0.0 { 3 } else { 1 };
        [0.0, rest / 2.0, rest].into_iter().take(count).filter(move |_| length.is_finite())
    }

    fn shows(&self, from: f64, to: f64) -> bool {
        self.starts().any(|start| from < start + self.length && to > start)
    }

    /// Shortens the windows until they hold at most `limit` activities. Shorter windows are parts of longer ones.
    fn shorten_above(&mut self, limit: usize) {
        while self.spans.len() + self.groups.len() > limit && self.shorten() {}
    }

    /// Halves the windows; false if they are the shortest.
    fn shorten(&mut self) -> bool {
        if self.length < self.seconds * SHORTEST {
            self.spans.truncate(WINDOW_ACTIVITIES);
            self.groups.truncate(WINDOW_ACTIVITIES);
            return false;
        }
        self.length /= 2.0;
        let (mut spans, mut groups) = (std::mem::take(&mut self.spans), std::mem::take(&mut self.groups));
        spans.retain(|span| self.shows(span.start, span.end));
        groups.retain(|group| self.shows(group.0, group.1));
        (self.spans, self.groups) = (spans, groups);
        true
    }

    /// Returns the windows and the number of activities in them.
    pub(super) fn finish(mut self) -> (Vec<Window>, u64) {
        loop {
            let windows: Vec<Window> = self.starts().map(|start| self.window(start)).collect();
            if windows.iter().all(|window| window.activities() <= WINDOW_ACTIVITIES) || !self.shorten() {
                let shown = self.spans.len() + self.groups.len();
                return (windows, shown as u64);
            }
        }
    }

    fn window(&self, start: f64) -> Window {
        let end = start + self.length;
        let inside = |from: f64, to: f64| from < end && to > start;
        let spans = self.spans.iter().filter(|s| inside(s.start, s.end)).map(|s| Span {
            start: milli(s.start.max(start)),
            end: milli(s.end.min(end)),
            ..s.clone()
        });
        let mut changes: Vec<(f64, i32)> = Vec::new();
        for &(from, to) in self.groups.iter().filter(|g| inside(g.0, g.1)) {
            changes.push((from.max(start), 1));
            if to < end {
                changes.push((to, -1));
            }
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut running, mut groups) = (0i32, Vec::new());
        for (at, change) in changes {
            running += change;
            let point = (milli(at), running.max(0).unsigned_abs());
            // Simultaneous changes are merged.
            match groups.last_mut() {
                Some(last @ &mut (before, _)) if before == point.0 => *last = point,
                _ => groups.push(point),
            }
        }
        Window { start: milli(start), end: milli(end), spans: spans.collect(), groups }
    }

    /// Number of activities held in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.spans.len() + self.groups.len()
    }
}

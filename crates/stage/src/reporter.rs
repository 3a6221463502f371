//! Events of a stage.

use std::time::Instant;

use rloom_core::PolicyVersion;
use rloom_telemetry::{Activity, Event, EventStream, GroupEnd, Lane};

/// Shorter intervals are not reported, except those of groups, which are their lineage (seconds).
const SHORTEST_INTERVAL: f64 = 1e-4;

/// Emits the events of one stage.
pub(crate) struct Reporter<'a, 's> {
    events: &'a mut EventStream<'s>,
    stage: String,
    /// Steps of the stages before.
    base: u64,
    /// True if the stage samples: otherwise its rollout lane is not reported.
    samples: bool,
}

impl<'a, 's> Reporter<'a, 's> {
    /// Creates a reporter of the stage called `stage`, which follows `base` steps of earlier stages.
    pub(crate) fn new(events: &'a mut EventStream<'s>, stage: &str, base: u64, samples: bool) -> Self {
        Self { events, stage: stage.to_owned(), base, samples }
    }

    /// Sets the step that the next events carry.
    pub(crate) fn set_step(&mut self, version: PolicyVersion) {
        self.events.set_position(&self.stage, self.base, version.0);
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.events.emit(event);
    }

    pub(crate) fn warn(&mut self, message: impl Into<String>) {
        self.events.warn(message);
    }

    /// Reports that a group ended without being trained on.
    pub(crate) fn group_ended(&mut self, ticket: u64, end: GroupEnd, reason: Option<String>) {
        self.emit(Event::GroupEnded { ticket, end, reason });
    }

    /// Reports an interval of a lane.
    pub(crate) fn activity(
        &mut self,
        lane: Lane,
        activity: Activity,
        (start, end): (Instant, Instant),
        version: u64,
        ticket: Option<u64>,
    ) {
        if lane == Lane::Rollout && !self.samples {
            return;
        }
        let (start, end) = (self.events.seconds_at(start), self.events.seconds_at(end));
        if end - start >= SHORTEST_INTERVAL || activity == Activity::Group {
            self.emit(Event::Activity { lane, activity, start, end, version, ticket });
        }
    }
}

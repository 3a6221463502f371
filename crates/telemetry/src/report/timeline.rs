//! Timeline of rollout and training, in a form whose size does not grow with the run.
//!
//! A run of a thousand steps has tens of thousands of activities. The page contains an overview of each stage as
//! fractions of equal time slices, and single activities only in a few short windows. Neither the page nor its
//! construction holds more than a bounded number of activities.

use std::collections::BTreeMap;

use serde::Serialize;

use super::intervals::Interval;
use super::sweep::Sweep;
use super::windows::{Window, Windows};
use crate::event::{Activity, Event, EventLine, Lane};
use crate::extent::StageExtent;

/// Smallest and largest number of time slices in the overview of a stage.
const SLICES: (u64, u64) = (20, 280);
/// Steps per slice. A slice averages over a few steps, so that it does not depend on where a step starts in it.
const SLICE_STEPS: u64 = 3;
/// Largest number of attempts marked on the axis.
const ATTEMPTS: usize = 100;

/// Timeline of a stage. Attempts are concatenated on one axis of seconds.
#[derive(Debug, Serialize)]
pub(super) struct StageTimeline {
    name: String,
    seconds: f64,
    /// Number of attempts.
    attempt_count: usize,
    /// Number and start of the latest attempts, without the first.
    attempts: Vec<(usize, f64)>,
    lanes: Vec<LaneTimes>,
    /// Time during which both lanes work, in seconds.
    overlap: f64,
    /// Duration of a slice in seconds.
    slice_seconds: f64,
    /// Percentage of each slice spent in each activity.
    overview: BTreeMap<Activity, Vec<u8>>,
    /// Mean number of groups in flight in each slice.
    groups: Vec<f64>,
    windows: Vec<Window>,
    /// Number of activities, and of those shown in the windows.
    activities: (u64, u64),
}

/// Time of a lane by use, in seconds.
#[derive(Debug, Serialize)]
struct LaneTimes {
    lane: Lane,
    working: f64,
    /// Waiting, without concurrent work.
    waiting: f64,
    /// Neither working nor waiting.
    idle: f64,
    activities: Vec<(Activity, f64)>,
}

/// An activity other than a group, on the axis of its stage.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Span {
    pub(super) lane: Lane,
    pub(super) activity: Activity,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) version: u64,
}

/// Builds the timelines of all stages.
#[derive(Debug)]
pub(super) struct Timelines(Vec<StageRecord>);

impl Timelines {
    pub(super) fn new(stages: &[StageExtent]) -> Self {
        Self(stages.iter().cloned().map(StageRecord::new).collect())
    }

    /// Adds a line, whether or not a later attempt superseded it: repeated work takes time as well.
    pub(super) fn add(&mut self, line: &EventLine) {
        if let Event::Activity { lane, activity, start, end, version, .. } = line.event
            && end >= start
            && let Some(stage) = self.0.iter_mut().find(|stage| stage.extent.name == line.stage)
        {
            stage.add(line.attempt, &Span { lane, activity, start, end, version });
        }
    }

    /// Returns the timelines of the stages that generate, in the order in which they ran. Stages that train on
    /// demonstrations use a single lane and have none.
    pub(super) fn finish(self) -> Vec<StageTimeline> {
        self.0.into_iter().filter_map(StageRecord::timeline).collect()
    }

    /// Number of activities held in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.0.iter().map(|stage| stage.sweep.held() + stage.windows.held()).sum()
    }
}

/// The activities of a stage.
#[derive(Debug)]
struct StageRecord {
    extent: StageExtent,
    slices: usize,
    slice_seconds: f64,
    sweep: Sweep,
    windows: Windows,
    /// Mean number of groups in flight in each slice; empty without groups.
    groups: Vec<f64>,
    activities: u64,
}

impl StageRecord {
    fn new(extent: StageExtent) -> Self {
        let slices = (extent.steps / SLICE_STEPS).clamp(SLICES.0, SLICES.1) as usize;
        let seconds = extent.seconds();
        let slice_seconds = seconds / slices as f64;
        Self {
            sweep: Sweep::new(slices, slice_seconds),
            windows: Windows::new(seconds, extent.steps),
            groups: Vec::new(),
            activities: 0,
            extent,
            slices,
            slice_seconds,
        }
    }

    fn add(&mut self, attempt: u32, span: &Span) {
        let on_axis = |seconds| self.extent.on_axis(attempt, seconds);
        let (Some(start), Some(end)) = (on_axis(span.start), on_axis(span.end)) else { return };
        self.activities += 1;
        if span.activity == Activity::Group {
            self.add_group((start, end));
        } else {
            let span = Span { start, end, ..span.clone() };
            self.windows.add(&span);
            self.sweep.add(&span);
        }
    }

    fn add_group(&mut self, group: Interval) {
        self.windows.add_group(group);
        self.groups.resize(self.slices, 0.0);
        for (i, part) in super::intervals::slices(group, self.slices, self.slice_seconds) {
            self.groups[i] += part;
        }
    }

    /// Returns the timeline; `None` if the stage does not generate.
    fn timeline(mut self) -> Option<StageTimeline> {
        self.sweep.finish();
        self.sweep.activities().find(|((lane, _), _)| *lane == Lane::Rollout)?;
        let seconds = self.extent.seconds();
        let (windows, shown) = self.windows.finish();
        let attempts = self.extent.attempts.iter().enumerate().skip(1);
        let left_out = self.extent.attempts.len().saturating_sub(ATTEMPTS + 1);
        Some(StageTimeline {
            seconds: milli(seconds),
            attempt_count: self.extent.attempts.len(),
            attempts: attempts.skip(left_out).map(|(i, range)| (i + 1, milli(range.axis_start))).collect(),
            lanes: Lane::ALL.map(|lane| Self::lane(&self.sweep, lane, seconds)).into(),
            overlap: milli(self.sweep.overlap()),
            slice_seconds: milli(self.slice_seconds),
            overview: self.sweep.activities().map(|((_, name), time)| (name, time.percentages())).collect(),
            groups: self.groups.into_iter().map(|groups| (groups * 100.0).round() / 100.0).collect(),
            windows,
            activities: (self.activities, shown),
            name: self.extent.name,
        })
    }

    fn lane(sweep: &Sweep, lane: Lane, seconds: f64) -> LaneTimes {
        let (working, waiting) = sweep.lane(lane);
        let own = sweep.activities().filter(|((of, _), _)| *of == lane);
        LaneTimes {
            lane,
            working: milli(working),
            waiting: milli(waiting),
            idle: milli((seconds - working - waiting).max(0.0)),
            activities: own.map(|((_, activity), time)| (activity, milli(time.total()))).collect(),
        }
    }
}

/// Rounds to milliseconds, to keep the page small.
pub(super) fn milli(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::windows::WINDOW_ACTIVITIES;
    use crate::survivors::LineKey;
    use crate::synthetic::{SyntheticRun, resumed, run};

    const RUN: SyntheticRun = SyntheticRun { max_staleness: 0, steps: 150, groups: 32, samples: 0 };

    fn stages(lines: &[EventLine]) -> Vec<StageTimeline> {
        let mut extents = Vec::new();
        for line in lines {
            StageExtent::add(&mut extents, &LineKey::from(line), line.elapsed);
        }
        let mut timelines = Timelines::new(&extents);
        for line in lines {
            timelines.add(line);
        }
        timelines.finish()
    }

    fn single(lines: &[EventLine]) -> StageTimeline {
        let mut stages = stages(lines);
        assert_eq!(stages.len(), 1);
        stages.remove(0)
    }

    #[test]
    fn lanes_alternate_at_staleness_0_and_overlap_above() {
        let alternating = single(&run(RUN));
        // Only loading of weights overlaps with the trainer.
        let (overlap, seconds) = (alternating.overlap, alternating.seconds);
        assert!(overlap < 0.02 * seconds, "{overlap} of {seconds}");
        let overlapping = single(&run(SyntheticRun { max_staleness: 2, ..RUN }));
        let (overlap, seconds) = (overlapping.overlap, overlapping.seconds);
        assert!(overlap > 0.5 * seconds, "{overlap} of {seconds}");
        assert!(overlapping.seconds < alternating.seconds);
        for stage in [&alternating, &overlapping] {
            for lane in &stage.lanes {
                let sum = lane.working + lane.waiting + lane.idle;
                assert!((sum - stage.seconds).abs() < 0.01, "{lane:?} of {}", stage.seconds);
            }
            let train = stage.lanes[1].activities.iter().find(|(a, _)| *a == Activity::Train).unwrap();
            assert!((train.1 - 150.0 * 1.1).abs() < 0.01, "{train:?}");
            assert!(stage.groups.iter().all(|&g| g <= 32.0) && stage.groups.iter().any(|&g| g > 10.0));
        }
    }

    #[test]
    fn attempts_are_concatenated_and_repeated_work_counts() {
        let short = SyntheticRun { steps: 60, ..RUN };
        let (whole, resumed) = (single(&run(short)), single(&resumed(short)));
        assert_eq!((whole.attempts.len(), resumed.attempts.len()), (0, 1));
        assert!(resumed.seconds > whole.seconds);
        let train = |stage: &StageTimeline| stage.lanes[1].activities.iter().map(|a| a.1).sum::<f64>();
        assert!(train(&resumed) > train(&whole) + 4.0, "{} and {}", train(&resumed), train(&whole));
    }

    #[test]
    fn the_size_does_not_grow_with_the_run() {
        let size = |steps| {
            let lines = run(SyntheticRun { max_staleness: 1, steps, groups: 32, samples: 0 });
            serde_json::to_string(&stages(&lines)).unwrap().len()
        };
        let (short, long) = (size(50), size(1000));
        assert!(long < short * 3 / 2 && long < 200_000, "{short} and {long} bytes");
    }

    #[test]
    fn windows_contain_only_activities_within_them() {
        let stage = single(&run(RUN));
        assert_eq!(stage.windows.len(), 3);
        assert_eq!(stage.windows[0].start, 0.0);
        assert!((stage.windows[2].end - stage.seconds).abs() < 0.002);
        for window in &stage.windows {
            assert!(window.spans.iter().all(|s| s.start >= window.start && s.end <= window.end));
            assert!(window.spans.len() + window.groups.len() / 2 <= WINDOW_ACTIVITIES);
            assert!(window.spans.iter().any(|s| s.activity == Activity::Train));
            assert!(window.groups.iter().any(|g| g.1 > 10));
        }
    }

    #[test]
    fn a_stage_without_activities_has_no_timeline() {
        let other = |l: &EventLine| !matches!(l.event, Event::Activity { .. });
        let lines: Vec<EventLine> = run(RUN).into_iter().filter(other).collect();
        assert!(stages(&lines).is_empty());
    }
}

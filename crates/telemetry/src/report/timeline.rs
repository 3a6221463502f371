//! Timeline of rollout and training, in a form whose size does not grow with the run.
//!
//! A run of a thousand steps has tens of thousands of activities. The page contains an overview of each stage as
//! fractions of equal time slices, and single activities only in a few short windows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::intervals::{Interval, Intervals};
use crate::event::{Activity, Event, EventLine, Lane};

/// Smallest and largest number of time slices in the overview of a stage.
const SLICES: (u64, u64) = (20, 280);
/// Steps per slice. A slice averages over a few steps, so that it does not depend on where a step starts in it.
const SLICE_STEPS: u64 = 3;
/// Steps per window.
const WINDOW_STEPS: f64 = 8.0;
/// Largest number of activities in a window; windows with more are shortened.
const WINDOW_ACTIVITIES: usize = 600;

/// Timeline of a stage. Attempts are concatenated on one axis of seconds.
#[derive(Debug, Serialize)]
pub(super) struct StageTimeline {
    name: String,
    seconds: f64,
    /// Start of each attempt after the first.
    attempts: Vec<f64>,
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

/// A part of the stage in which every activity is shown.
#[derive(Debug, Serialize)]
struct Window {
    start: f64,
    end: f64,
    spans: Vec<Span>,
    /// Number of groups in flight, as (time, number) at each change.
    groups: Vec<(f64, u32)>,
}

#[derive(Debug, Clone, Serialize)]
struct Span {
    lane: Lane,
    activity: Activity,
    start: f64,
    end: f64,
    version: u64,
}

/// Returns the timelines of the stages that generate, in the order in which they ran. Stages that train on
/// demonstrations use a single lane and have none.
pub(super) fn stages(lines: &[EventLine]) -> Vec<StageTimeline> {
    let mut stages: Vec<StageRecord> = Vec::new();
    for line in lines.iter().filter(|line| !line.stage.is_empty()) {
        let place = stages.iter().position(|s| s.name == line.stage).unwrap_or_else(|| {
            stages.push(StageRecord { name: line.stage.clone(), ..StageRecord::default() });
            stages.len() - 1
        });
        stages[place].add(line);
    }
    let generates = |stage: &&StageRecord| stage.spans.iter().any(|span| span.lane == Lane::Rollout);
    stages.iter().filter(generates).map(StageRecord::timeline).collect()
}

/// The activities of a stage, on its time axis.
#[derive(Debug, Default)]
struct StageRecord {
    name: String,
    attempts: Vec<AttemptRange>,
    spans: Vec<Span>,
    groups: Vec<Interval>,
    steps: u64,
}

/// The part of the axis that belongs to an attempt.
#[derive(Debug)]
struct AttemptRange {
    attempt: u32,
    /// Start on the axis.
    axis_start: f64,
    /// Start and end in seconds since the attempt's process started.
    start: f64,
    end: f64,
}

impl StageRecord {
    fn add(&mut self, line: &EventLine) {
        let axis_end = self.attempts.last().map_or(0.0, |last| last.axis_start + last.end - last.start);
        if self.attempts.last().is_none_or(|last| last.attempt != line.attempt) {
            let (attempt, start) = (line.attempt, line.elapsed);
            self.attempts.push(AttemptRange { attempt, axis_start: axis_end, start, end: start });
        }
        let Some(range) = self.attempts.last_mut() else {
            return;
        };
        range.end = range.end.max(line.elapsed);
        match line.event {
            Event::Activity { lane, activity, start, end, version, .. } if end >= start => {
                range.end = range.end.max(end);
                let on_axis = |seconds: f64| range.axis_start + (seconds - range.start).max(0.0);
                let (start, end) = (on_axis(start), on_axis(end));
                if activity == Activity::Group {
                    self.groups.push((start, end));
                } else {
                    self.spans.push(Span { lane, activity, start, end, version });
                }
            }
            Event::Step { .. } => self.steps += 1,
            _ => {}
        }
    }

    fn seconds(&self) -> f64 {
        self.attempts.iter().map(|s| s.end - s.start).sum()
    }

    fn intervals(&self, filter: impl Fn(Lane, Activity) -> bool) -> Intervals {
        Intervals::union(self.spans.iter().filter(|s| filter(s.lane, s.activity)).map(|s| (s.start, s.end)))
    }

    fn timeline(&self) -> StageTimeline {
        let seconds = self.seconds();
        let slices = (self.steps / SLICE_STEPS).clamp(SLICES.0, SLICES.1) as usize;
        let slice_seconds = seconds / slices as f64;
        let work = Lane::ALL.map(|lane| self.intervals(|l, a| l == lane && !a.is_wait()));
        let mut activities: Vec<(Lane, Activity)> = self.spans.iter().map(|s| (s.lane, s.activity)).collect();
        activities.sort_unstable();
        activities.dedup();
        let mut overview = BTreeMap::new();
        for &(lane, activity) in &activities {
            let mut time = self.intervals(|l, a| (l, a) == (lane, activity));
            if activity.is_wait() {
                time = time.without(&work[lane as usize]);
            }
            let coverage = time.coverage(slices, slice_seconds).into_iter();
            overview.insert(activity, coverage.map(|part| (part * 100.0).round() as u8).collect());
        }
        StageTimeline {
            name: self.name.clone(),
            seconds: milli(seconds),
            attempts: self.attempts.iter().skip(1).map(|s| milli(s.axis_start)).collect(),
            lanes: Lane::ALL.map(|lane| self.lane(lane, &work[lane as usize], &activities)).into(),
            overlap: milli(work[0].overlap(&work[1])),
            slice_seconds: milli(slice_seconds),
            overview,
            groups: self.mean_groups(slices, slice_seconds),
            windows: self.windows(),
        }
    }

    fn lane(&self, lane: Lane, work: &Intervals, activities: &[(Lane, Activity)]) -> LaneTimes {
        let waiting = self.intervals(|l, a| l == lane && a.is_wait()).without(work).total();
        let own = activities.iter().filter(|(l, _)| *l == lane);
        LaneTimes {
            lane,
            working: milli(work.total()),
            waiting: milli(waiting),
            idle: milli((self.seconds() - work.total() - waiting).max(0.0)),
            activities: own
                .map(|&(_, activity)| {
                    (activity, milli(self.intervals(|l, a| (l, a) == (lane, activity)).total()))
                })
                .collect(),
        }
    }

    fn mean_groups(&self, slices: usize, slice_seconds: f64) -> Vec<f64> {
        let mut mean = vec![0.0; if self.groups.is_empty() { 0 } else { slices }];
        for &group in &self.groups {
            for (i, part) in Intervals::union([group]).slices(slices, slice_seconds) {
                mean[i] += part;
            }
        }
        mean.into_iter().map(|groups| (groups * 100.0).round() / 100.0).collect()
    }

    /// Windows at the beginning, in the middle and at the end; a single one for a short stage.
    fn windows(&self) -> Vec<Window> {
        let seconds = self.seconds();
        let mut length = (seconds / self.steps.max(1) as f64 * WINDOW_STEPS).min(seconds);
        if length * 2.0 >= seconds {
            length = seconds;
        }
        loop {
            // Stops at a thousandth of the stage, however many activities there are.
            let is_shortest = length < seconds / 1e3;
            let mut starts = vec![0.0, (seconds - length) / 2.0, seconds - length];
            starts.dedup_by(|a, b| *a - *b < length / 2.0);
            let windows: Vec<Window> =
                starts.into_iter().map(|start| self.window(start, start + length)).collect();
            let busiest = windows.iter().map(|w| w.spans.len() + w.groups.len() / 2).max().unwrap_or(0);
            if busiest <= WINDOW_ACTIVITIES || is_shortest {
                return windows;
            }
            length /= 2.0;
        }
    }

    fn window(&self, start: f64, end: f64) -> Window {
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
}

/// Rounds to milliseconds, to keep the page small.
fn milli(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{SyntheticRun, resumed, run};

    const RUN: SyntheticRun = SyntheticRun { max_staleness: 0, steps: 150, groups: 32 };

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
            let lines = run(SyntheticRun { max_staleness: 1, steps, groups: 32 });
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

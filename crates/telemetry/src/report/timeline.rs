//! Who was busy when: lanes of rollout and training, as numbers that a page of bounded size can draw.
//!
//! A run of a thousand steps has tens of thousands of intervals. The page gets the whole of a stage as shares of equal
//! slices of time, and single intervals only for a few short windows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::intervals::{Interval, Intervals};
use crate::events::{Activity, Event, EventLine, Lane};

/// Slices into which the whole of a stage is divided: at least and at most.
const SLICES: (u64, u64) = (20, 280);
/// Steps that a slice holds, so that it shows what they have in common and not where they happen to begin.
const SLICE_STEPS: u64 = 3;
/// Steps that a window shows.
const WINDOW_STEPS: f64 = 8.0;
/// Intervals that a window shows at most; a busier one is made shorter.
const WINDOW_INTERVALS: usize = 600;

/// One stage. Its attempts follow each other on one axis of seconds.
#[derive(Debug, Serialize)]
pub(super) struct StageTime {
    name: String,
    seconds: f64,
    /// Where each attempt after the first begins.
    attempts: Vec<f64>,
    lanes: Vec<LaneTime>,
    /// Seconds in which both lanes work.
    both: f64,
    /// Seconds of one slice.
    slice: f64,
    /// Share of each slice that an activity takes, in percent.
    whole: BTreeMap<Activity, Vec<u8>>,
    /// Mean number of groups under way in each slice.
    groups: Vec<f64>,
    windows: Vec<Window>,
}

/// How a lane spent its time, in seconds.
#[derive(Debug, Serialize)]
struct LaneTime {
    lane: Lane,
    works: f64,
    /// Waits and does nothing else.
    waits: f64,
    /// Neither: nothing was told of the time.
    idle: f64,
    activities: Vec<(Activity, f64)>,
}

/// A part of the stage in which every interval is shown.
#[derive(Debug, Serialize)]
struct Window {
    from: f64,
    to: f64,
    spans: Vec<Shown>,
    /// Groups under way: from when, how many.
    groups: Vec<(f64, u32)>,
}

#[derive(Debug, Clone, Serialize)]
struct Shown {
    lane: Lane,
    activity: Activity,
    start: f64,
    end: f64,
    version: u64,
}

/// The stages that rolled out, in the order in which they ran: where all learn from demonstrations there is one lane.
pub(super) fn stages(lines: &[EventLine]) -> Vec<StageTime> {
    let mut stages: Vec<Told> = Vec::new();
    for line in lines.iter().filter(|line| !line.stage.is_empty()) {
        let place = stages.iter().position(|s| s.name == line.stage).unwrap_or_else(|| {
            stages.push(Told { name: line.stage.clone(), ..Told::default() });
            stages.len() - 1
        });
        stages[place].take(line);
    }
    let rolls_out = |stage: &&Told| stage.shown.iter().any(|shown| shown.lane == Lane::Rollout);
    stages.iter().filter(rolls_out).map(Told::summary).collect()
}

/// What was told of a stage, on its axis.
#[derive(Debug, Default)]
struct Told {
    name: String,
    attempts: Vec<Stretch>,
    shown: Vec<Shown>,
    groups: Vec<Interval>,
    steps: u64,
}

/// The part of the axis that belongs to an attempt.
#[derive(Debug)]
struct Stretch {
    attempt: u32,
    /// Where it begins on the axis.
    axis: f64,
    /// Where it begins in the attempt's own time.
    start: f64,
    end: f64,
}

impl Told {
    fn take(&mut self, line: &EventLine) {
        let axis_end = self.attempts.last().map_or(0.0, |last| last.axis + last.end - last.start);
        if self.attempts.last().is_none_or(|last| last.attempt != line.attempt) {
            let (attempt, start) = (line.attempt, line.elapsed);
            self.attempts.push(Stretch { attempt, axis: axis_end, start, end: start });
        }
        let Some(stretch) = self.attempts.last_mut() else {
            return;
        };
        stretch.end = stretch.end.max(line.elapsed);
        match line.event {
            Event::Activity { lane, activity, start, end, version, .. } if end >= start => {
                stretch.end = stretch.end.max(end);
                let moved = |at: f64| stretch.axis + (at - stretch.start).max(0.0);
                let (start, end) = (moved(start), moved(end));
                if activity == Activity::Group {
                    self.groups.push((start, end));
                } else {
                    self.shown.push(Shown { lane, activity, start, end, version });
                }
            }
            Event::Step { .. } => self.steps += 1,
            _ => {}
        }
    }

    fn seconds(&self) -> f64 {
        self.attempts.iter().map(|s| s.end - s.start).sum()
    }

    fn of(&self, wanted: impl Fn(Lane, Activity) -> bool) -> Intervals {
        Intervals::of(self.shown.iter().filter(|s| wanted(s.lane, s.activity)).map(|s| (s.start, s.end)))
    }

    fn summary(&self) -> StageTime {
        let seconds = self.seconds();
        let slices = (self.steps / SLICE_STEPS).clamp(SLICES.0, SLICES.1) as usize;
        let slice = seconds / slices as f64;
        let works = Lane::ALL.map(|lane| self.of(|l, a| l == lane && !a.is_wait()));
        let mut activities: Vec<(Lane, Activity)> = self.shown.iter().map(|s| (s.lane, s.activity)).collect();
        activities.sort_unstable();
        activities.dedup();
        let mut whole = BTreeMap::new();
        for &(lane, activity) in &activities {
            let mut own = self.of(|l, a| (l, a) == (lane, activity));
            if activity.is_wait() {
                own = own.without(&works[lane as usize]);
            }
            let percent = own.in_slices(slices, slice).into_iter().map(|share| (share * 100.0).round() as u8);
            whole.insert(activity, percent.collect());
        }
        StageTime {
            name: self.name.clone(),
            seconds: milli(seconds),
            attempts: self.attempts.iter().skip(1).map(|s| milli(s.axis)).collect(),
            lanes: Lane::ALL.map(|lane| self.lane(lane, &works[lane as usize], &activities)).into(),
            both: milli(works[0].common(&works[1])),
            slice: milli(slice),
            whole,
            groups: self.groups_in_slices(slices, slice),
            windows: self.windows(),
        }
    }

    fn lane(&self, lane: Lane, work: &Intervals, activities: &[(Lane, Activity)]) -> LaneTime {
        let waits = self.of(|l, a| l == lane && a.is_wait()).without(work).total();
        let own = activities.iter().filter(|(l, _)| *l == lane);
        LaneTime {
            lane,
            works: milli(work.total()),
            waits: milli(waits),
            idle: milli((self.seconds() - work.total() - waits).max(0.0)),
            activities: own
                .map(|&(_, activity)| (activity, milli(self.of(|l, a| (l, a) == (lane, activity)).total())))
                .collect(),
        }
    }

    fn groups_in_slices(&self, slices: usize, slice: f64) -> Vec<f64> {
        let mut mean = vec![0.0; if self.groups.is_empty() { 0 } else { slices }];
        for &group in &self.groups {
            for (i, share) in Intervals::of([group]).touched(slices, slice) {
                mean[i] += share;
            }
        }
        mean.into_iter().map(|groups| (groups * 100.0).round() / 100.0).collect()
    }

    /// The beginning, the middle and the end; of a short stage all of it.
    fn windows(&self) -> Vec<Window> {
        let seconds = self.seconds();
        let mut length = (seconds / self.steps.max(1) as f64 * WINDOW_STEPS).min(seconds);
        if length * 2.0 >= seconds {
            length = seconds;
        }
        loop {
            // Nobody has hundreds of intervals within a thousandth of a stage; if somebody does, they are drawn.
            let last = length < seconds / 1e3;
            let mut begins = vec![0.0, (seconds - length) / 2.0, seconds - length];
            begins.dedup_by(|a, b| *a - *b < length / 2.0);
            let windows: Vec<Window> =
                begins.into_iter().map(|from| self.window(from, from + length)).collect();
            let busiest = windows.iter().map(|w| w.spans.len() + w.groups.len() / 2).max().unwrap_or(0);
            if busiest <= WINDOW_INTERVALS || last {
                return windows;
            }
            length /= 2.0;
        }
    }

    fn window(&self, from: f64, to: f64) -> Window {
        let inside = |start: f64, end: f64| start < to && end > from;
        let spans = self.shown.iter().filter(|s| inside(s.start, s.end)).map(|s| Shown {
            start: milli(s.start.max(from)),
            end: milli(s.end.min(to)),
            ..s.clone()
        });
        let mut changes: Vec<(f64, i32)> = Vec::new();
        for &(start, end) in self.groups.iter().filter(|g| inside(g.0, g.1)) {
            changes.push((start.max(from), 1));
            if end < to {
                changes.push((end, -1));
            }
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut running, mut groups) = (0i32, Vec::new());
        for (at, change) in changes {
            running += change;
            let point = (milli(at), running.max(0).unsigned_abs());
            // What happens at once is one change.
            match groups.last_mut() {
                Some(last @ &mut (before, _)) if before == point.0 => *last = point,
                _ => groups.push(point),
            }
        }
        Window { from: milli(from), to: milli(to), spans: spans.collect(), groups }
    }
}

/// Seconds to the millisecond: more would only make the page longer.
fn milli(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Course, resumed, run};

    const COURSE: Course = Course { max_staleness: 0, steps: 150, groups: 32 };

    fn only(lines: &[EventLine]) -> StageTime {
        let mut stages = stages(lines);
        assert_eq!(stages.len(), 1);
        stages.remove(0)
    }

    #[test]
    fn lanes_take_turns_at_staleness_0_and_overlap_above() {
        let turns = only(&run(COURSE));
        // Weights are loaded while the trainer already goes on; nothing else happens at the same time.
        assert!(turns.both < 0.02 * turns.seconds, "{} of {}", turns.both, turns.seconds);
        let beside = only(&run(Course { max_staleness: 2, ..COURSE }));
        assert!(beside.both > 0.5 * beside.seconds, "{} of {}", beside.both, beside.seconds);
        assert!(beside.seconds < turns.seconds);
        for stage in [&turns, &beside] {
            for lane in &stage.lanes {
                let sum = lane.works + lane.waits + lane.idle;
                assert!((sum - stage.seconds).abs() < 0.01, "{lane:?} of {}", stage.seconds);
            }
            let train = stage.lanes[1].activities.iter().find(|(a, _)| *a == Activity::Train).unwrap();
            assert!((train.1 - 150.0 * 1.1).abs() < 0.01, "{train:?}");
            assert!(stage.groups.iter().all(|&g| g <= 32.0) && stage.groups.iter().any(|&g| g > 10.0));
        }
    }

    #[test]
    fn attempts_follow_each_other_and_repeated_work_is_time_too() {
        let course = Course { steps: 60, ..COURSE };
        let (whole, parts) = (only(&run(course)), only(&resumed(course)));
        assert_eq!((whole.attempts.len(), parts.attempts.len()), (0, 1));
        assert!(parts.seconds > whole.seconds);
        let train = |stage: &StageTime| stage.lanes[1].activities.iter().map(|a| a.1).sum::<f64>();
        assert!(train(&parts) > train(&whole) + 4.0, "{} and {}", train(&parts), train(&whole));
    }

    #[test]
    fn a_long_run_is_no_larger_than_a_short_one() {
        let size = |steps| {
            let lines = run(Course { max_staleness: 1, steps, groups: 32 });
            serde_json::to_string(&stages(&lines)).unwrap().len()
        };
        let (short, long) = (size(50), size(1000));
        assert!(long < short * 3 / 2 && long < 200_000, "{short} and {long} bytes");
    }

    #[test]
    fn windows_show_what_is_in_them_and_no_more() {
        let stage = only(&run(COURSE));
        assert_eq!(stage.windows.len(), 3);
        assert_eq!(stage.windows[0].from, 0.0);
        assert!((stage.windows[2].to - stage.seconds).abs() < 0.002);
        for window in &stage.windows {
            assert!(window.spans.iter().all(|s| s.start >= window.from && s.end <= window.to));
            assert!(window.spans.len() + window.groups.len() / 2 <= WINDOW_INTERVALS);
            assert!(window.spans.iter().any(|s| s.activity == Activity::Train));
            assert!(window.groups.iter().any(|g| g.1 > 10));
        }
    }

    #[test]
    fn a_stage_without_activities_has_no_lanes() {
        let told = |l: &EventLine| !matches!(l.event, Event::Activity { .. });
        let lines: Vec<EventLine> = run(COURSE).into_iter().filter(told).collect();
        assert!(stages(&lines).is_empty());
    }
}

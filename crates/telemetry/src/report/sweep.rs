//! Times of the activities of a stage, computed while they arrive.
//!
//! Activities of a lane may overlap, so their times are unions of intervals. Activities are reported at their ends: once
//! many have ended, the times up to the middle one are final and the activities before it are dropped. What an activity did
//! before that point counts for the activity and not for its lane, if the activity is longer than all of those.

use std::collections::BTreeMap;

use super::intervals::Intervals;
use super::timeline::Span;
use crate::event::{Activity, Lane};

/// Largest number of activities held.
const PENDING: usize = 4096;

/// Time of an activity.
#[derive(Debug, Clone)]
pub(super) struct ActivityTime {
    seconds: f64,
    /// Fraction of each slice, without the time in which the lane works if the activity is a wait.
    coverage: Vec<f64>,
}

impl ActivityTime {
    /// Total time in seconds.
    pub(super) fn total(&self) -> f64 {
        self.seconds
    }

    /// Percentage of each slice.
    pub(super) fn percentages(&self) -> Vec<u8> {
        self.coverage.iter().map(|part| (part.min(1.0) * 100.0).round() as u8).collect()
    }
}

/// Times of the activities and lanes of a stage.
#[derive(Debug)]
pub(super) struct Sweep {
    slices: usize,
    slice_seconds: f64,
    pending: Vec<Span>,
    limit: usize,
    /// Times before it are final.
    horizon: f64,
    activities: BTreeMap<(Lane, Activity), ActivityTime>,
    /// Seconds of work and of waiting without concurrent work, by lane.
    lanes: [(f64, f64); 2],
    overlap: f64,
}

impl Sweep {
    pub(super) fn new(slices: usize, slice_seconds: f64) -> Self {
        Self {
            slices,
            slice_seconds,
            pending: Vec::new(),
            limit: PENDING,
            horizon: 0.0,
            activities: BTreeMap::new(),
            lanes: [(0.0, 0.0); 2],
            overlap: 0.0,
        }
    }

    pub(super) fn add(&mut self, span: &Span) {
        let start = span.start.max(self.horizon);
        if span.start < start {
            let early = Intervals::union([(span.start, span.end.min(start))]);
            self.activity(span.lane, span.activity).add(&early, &early);
        }
        // Also without any duration, so that the activity is listed.
        self.activity(span.lane, span.activity);
        if span.end > start {
            self.pending.push(Span { start, ..span.clone() });
        }
        if self.pending.len() >= self.limit {
            self.pending.sort_by(|a, b| a.end.total_cmp(&b.end));
            let until = self.pending[self.pending.len() / 2].end;
            self.advance(until);
        }
    }

    /// Completes the times after the last activity.
    pub(super) fn finish(&mut self) {
        self.advance(f64::INFINITY);
    }

    fn activity(&mut self, lane: Lane, activity: Activity) -> SlicedTime<'_> {
        let Self { slices, slice_seconds, .. } = *self;
        let new = || ActivityTime { seconds: 0.0, coverage: vec![0.0; slices] };
        let time = self.activities.entry((lane, activity)).or_insert_with(new);
        SlicedTime { time, slices, slice_seconds }
    }

    /// Makes the times before `until` final.
    fn advance(&mut self, until: f64) {
        let pending = std::mem::take(&mut self.pending);
        let before = |filter: &dyn Fn(&Span) -> bool| {
            Intervals::union(pending.iter().filter(|s| filter(s)).map(|s| (s.start, s.end.min(until))))
        };
        let work = Lane::ALL.map(|lane| before(&|s| s.lane == lane && !s.activity.is_wait()));
        for lane in Lane::ALL {
            let own = &work[lane as usize];
            let waiting = before(&|s| s.lane == lane && s.activity.is_wait()).without(own);
            self.lanes[lane as usize].0 += own.total();
            self.lanes[lane as usize].1 += waiting.total();
        }
        self.overlap += work[0].overlap(&work[1]);
        let keys: Vec<(Lane, Activity)> = self.activities.keys().copied().collect();
        for (lane, activity) in keys {
            let time = before(&|s| (s.lane, s.activity) == (lane, activity));
            let shown = if activity.is_wait() { time.without(&work[lane as usize]) } else { time.clone() };
            self.activity(lane, activity).add(&time, &shown);
        }
        self.horizon = until;
        let later = pending.into_iter().filter(|span| span.end > until);
        self.pending = later.map(|span| Span { start: span.start.max(until), ..span }).collect();
    }

    /// Times of the activities, by lane and activity.
    pub(super) fn activities(&self) -> impl Iterator<Item = ((Lane, Activity), &ActivityTime)> {
        self.activities.iter().map(|(key, time)| (*key, time))
    }

    /// Seconds of work and of waiting without concurrent work.
    pub(super) fn lane(&self, lane: Lane) -> (f64, f64) {
        self.lanes[lane as usize]
    }

    /// Time during which both lanes work, in seconds.
    pub(super) fn overlap(&self) -> f64 {
        self.overlap
    }

    /// Number of activities held in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.pending.len()
    }
}

/// The time of an activity with the slices of its stage.
struct SlicedTime<'a> {
    time: &'a mut ActivityTime,
    slices: usize,
    slice_seconds: f64,
}

impl SlicedTime<'_> {
    fn add(self, time: &Intervals, shown: &Intervals) {
        self.time.seconds += time.total();
        for (i, part) in shown.slices(self.slices, self.slice_seconds) {
            self.time.coverage[i] += part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::synthetic::{SyntheticRun, run};

    fn sweep(limit: usize, spans: &[Span]) -> Sweep {
        let end = spans.iter().map(|span| span.end).fold(0.0, f64::max);
        let mut sweep = Sweep { limit, ..Sweep::new(50, end / 50.0) };
        for span in spans {
            sweep.add(span);
            assert!(sweep.held() < limit);
        }
        sweep.finish();
        sweep
    }

    #[test]
    fn times_do_not_depend_on_the_number_of_activities_held() {
        let lines = run(SyntheticRun { max_staleness: 2, steps: 200, groups: 8, samples: 0 });
        let spans: Vec<Span> = lines
            .iter()
            .filter_map(|line| match line.event {
                Event::Activity { lane, activity, start, end, version, .. }
                    if activity != Activity::Group =>
                {
                    Some(Span { lane, activity, start, end, version })
                }
                _ => None,
            })
            .collect();
        let (whole, parts) = (sweep(usize::MAX, &spans), sweep(40, &spans));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} and {b}");
        close(whole.overlap(), parts.overlap());
        for lane in Lane::ALL {
            close(whole.lane(lane).0, parts.lane(lane).0);
            close(whole.lane(lane).1, parts.lane(lane).1);
        }
        assert_eq!(whole.activities().count(), 8);
        for ((key, a), (other, b)) in whole.activities().zip(parts.activities()) {
            assert_eq!(key, other);
            close(a.total(), b.total());
            a.coverage.iter().zip(&b.coverage).for_each(|(a, b)| close(*a, *b));
        }
    }
}

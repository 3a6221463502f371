//! Sets of time intervals.

/// Start and end in seconds.
pub(super) type Interval = (f64, f64);

/// Disjoint intervals in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Intervals(Vec<Interval>);

impl Intervals {
    /// Returns the union of the intervals.
    pub(super) fn union(intervals: impl IntoIterator<Item = Interval>) -> Self {
        let mut all: Vec<Interval> = intervals.into_iter().filter(|(start, end)| end > start).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut disjoint: Vec<Interval> = Vec::new();
        for (start, end) in all {
            match disjoint.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => disjoint.push((start, end)),
            }
        }
        Self(disjoint)
    }

    /// Returns the total duration in seconds.
    pub(super) fn total(&self) -> f64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the set difference.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut first = 0;
        for &(mut start, end) in &self.0 {
            while other.0.get(first).is_some_and(|o| o.1 <= start) {
                first += 1;
            }
            for &(other_start, other_end) in other.0[first..].iter().take_while(|o| o.0 < end) {
                if other_start > start {
                    left.push((start, other_start));
                }
                start = start.max(other_end);
            }
            if end > start {
                left.push((start, end));
            }
        }
        Self(left)
    }

    /// Returns the duration of the intersection in seconds.
    pub(super) fn overlap(&self, other: &Self) -> f64 {
        self.total() - self.without(other).total()
    }

    /// Yields the index of each of `count` slices of `slice` seconds, starting at 0, that an interval overlaps, and the
    /// covered fraction. An index may repeat.
    pub(super) fn slices(&self, count: usize, slice: f64) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.0.iter().flat_map(move |&interval| slices(interval, count, slice))
    }
}

/// Yields the index of each of `count` slices of `slice` seconds, starting at 0, that the interval overlaps, and the covered
/// fraction.
pub(super) fn slices((start, end): Interval, count: usize, slice: f64) -> impl Iterator<Item = (usize, f64)> {
    let first = (start / slice) as usize;
    let last = ((end / slice) as usize).min(count.saturating_sub(1));
    (first..=last).map(move |i| {
        let (from, to) = (i as f64 * slice, (i + 1) as f64 * slice);
        (i, ((end.min(to) - start.max(from)) / slice).clamp(0.0, 1.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_operations() {
        let a = Intervals::union([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (4.0, 4.0)]);
        assert_eq!(a, Intervals(vec![(0.0, 3.0), (5.0, 6.0)]));
        assert_eq!(a.total(), 4.0);
        let b = Intervals::union([(0.5, 1.0), (2.0, 5.5)]);
        assert_eq!(a.without(&b), Intervals(vec![(0.0, 0.5), (1.0, 2.0), (5.5, 6.0)]));
        assert_eq!(b.without(&a), Intervals(vec![(3.0, 5.0)]));
        assert_eq!((a.overlap(&b), b.overlap(&a)), (2.0, 2.0));
    }

    #[test]
    fn coverage_of_slices() {
        let a = Intervals::union([(0.5, 2.0), (2.5, 3.0)]);
        let coverage = |count: usize| {
            let mut coverage = vec![0.0; count];
            a.slices(count, 1.0).for_each(|(i, part)| coverage[i] += part);
            coverage
        };
        assert_eq!(coverage(3), [0.5, 1.0, 0.5]);
        assert_eq!(coverage(2), [0.5, 1.0], "times after the last slice are ignored");
    }
}

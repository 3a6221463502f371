//! Sets of instants, as intervals of seconds.

/// From when to when.
pub(super) type Interval = (f64, f64);

/// Disjoint intervals in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Intervals(Vec<Interval>);

impl Intervals {
    /// All instants that lie in any of the intervals.
    pub(super) fn of(intervals: impl IntoIterator<Item = Interval>) -> Self {
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

    /// Seconds in all.
    pub(super) fn total(&self) -> f64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The instants that are in neither of `other`'s intervals.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut first = 0;
        for &(mut start, end) in &self.0 {
            while other.0.get(first).is_some_and(|o| o.1 <= start) {
                first += 1;
            }
            for &(taken, until) in other.0[first..].iter().take_while(|o| o.0 < end) {
                if taken > start {
                    left.push((start, taken));
                }
                start = start.max(until);
            }
            if end > start {
                left.push((start, end));
            }
        }
        Self(left)
    }

    /// Seconds that both have.
    pub(super) fn common(&self, other: &Self) -> f64 {
        self.total() - self.without(other).total()
    }

    /// The share of each of `count` slices of `slice` seconds from 0 on.
    pub(super) fn in_slices(&self, count: usize, slice: f64) -> Vec<f64> {
        let mut shares = vec![0.0; count];
        for (i, share) in self.touched(count, slice) {
            shares[i] += share;
        }
        shares
    }

    /// The slices that it has instants of, with what it takes of them; a slice may come several times.
    pub(super) fn touched(&self, count: usize, slice: f64) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.0.iter().flat_map(move |&(start, end)| {
            let first = (start / slice) as usize;
            let last = ((end / slice) as usize).min(count.saturating_sub(1));
            (first..=last).map(move |i| {
                let (from, to) = (i as f64 * slice, (i + 1) as f64 * slice);
                (i, ((end.min(to) - start.max(from)) / slice).clamp(0.0, 1.0))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_sets() {
        let a = Intervals::of([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (4.0, 4.0)]);
        assert_eq!(a, Intervals(vec![(0.0, 3.0), (5.0, 6.0)]));
        assert_eq!(a.total(), 4.0);
        let b = Intervals::of([(0.5, 1.0), (2.0, 5.5)]);
        assert_eq!(a.without(&b), Intervals(vec![(0.0, 0.5), (1.0, 2.0), (5.5, 6.0)]));
        assert_eq!(b.without(&a), Intervals(vec![(3.0, 5.0)]));
        assert_eq!((a.common(&b), b.common(&a)), (2.0, 2.0));
    }

    #[test]
    fn slices_share_what_lies_in_them() {
        let a = Intervals::of([(0.5, 2.0), (2.5, 3.0)]);
        assert_eq!(a.in_slices(3, 1.0), [0.5, 1.0, 0.5]);
        assert_eq!(a.in_slices(2, 1.0), [0.5, 1.0], "what lies beyond is left out");
    }
}

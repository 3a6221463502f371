//! The values of a metric over the steps, in a bounded number of points.

use serde::Serialize;

/// Largest number of buckets. Each contributes at most two points.
const BUCKETS: usize = 300;

/// The values of a metric. The steps are divided into buckets of equal length, which doubles as the run grows; a bucket
/// keeps its lowest and its highest value, so that no extreme is lost. Up to 300 steps every value is kept.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// Steps per bucket.
    width: u64,
    /// Sorted by index. Buckets without values are not stored.
    buckets: Vec<Bucket>,
    values: u64,
    sum: f64,
    first: Option<Point>,
    last: Option<Point>,
    low: f64,
    high: f64,
}

/// A value, its step over all stages and its place in the order of reports.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    step: u64,
    place: u64,
    value: f64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// The step divided by the width.
    index: u64,
    low: Point,
    high: Point,
}

impl Bucket {
    fn add(&mut self, low: Point, high: Point) {
        if low.value < self.low.value {
            self.low = low;
        }
        if high.value > self.high.value {
            self.high = high;
        }
    }
}

/// The points of a series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Curve {
    /// Steps that a point summarises, as the lowest or the highest of their values; 1 if every value is present.
    pub(super) steps_per_point: u64,
    /// Step over all stages and value, in order.
    pub(super) points: Vec<(u64, f64)>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            width: 1,
            buckets: Vec::new(),
            values: 0,
            sum: 0.0,
            first: None,
            last: None,
            low: f64::INFINITY,
            high: f64::NEG_INFINITY,
        }
    }
}

impl Series {
    /// Adds a value. Values that are not finite are left out.
    pub(super) fn add(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        let point = Point { step, place: self.values, value };
        self.values += 1;
        self.sum += value;
        self.low = self.low.min(value);
        self.high = self.high.max(value);
        self.first.get_or_insert(point);
        self.last = Some(point);
        let index = step / self.width;
        match self.buckets.binary_search_by_key(&index, |bucket| bucket.index) {
            Ok(place) => self.buckets[place].add(point, point),
            Err(place) => self.buckets.insert(place, Bucket { index, low: point, high: point }),
        }
        while self.buckets.len() > BUCKETS {
            self.double();
        }
    }

    fn double(&mut self) {
        self.width *= 2;
        for bucket in &mut self.buckets {
            bucket.index /= 2;
        }
        self.buckets.dedup_by(|later, bucket| {
            let is_same = later.index == bucket.index;
            if is_same {
                bucket.add(later.low, later.high);
            }
            is_same
        });
    }

    /// Returns the points, including the first and the last value.
    pub(super) fn curve(&self) -> Curve {
        let mut points: Vec<Point> =
            self.buckets.iter().flat_map(|bucket| [bucket.low, bucket.high]).collect();
        points.extend(self.first);
        points.extend(self.last);
        points.sort_by_key(|point| (point.step, point.place));
        points.dedup();
        let points = points.into_iter().map(|point| (point.step, six_digits(point.value))).collect();
        Curve { steps_per_point: self.width, points }
    }

    /// Mean of all values; `None` without values.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.values > 0).then(|| self.sum / self.values as f64)
    }

    /// Number of all values.
    pub(super) fn values(&self) -> u64 {
        self.values
    }

    /// Largest value; `None` without values.
    pub(super) fn highest(&self) -> Option<f64> {
        (self.values > 0).then_some(self.high)
    }

    /// The value, if there are several and all are equal.
    pub(super) fn constant(&self) -> Option<f64> {
        (self.values > 1 && self.low == self.high).then_some(self.low)
    }

    /// Number of points held in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.buckets.len() * 2
    }
}

/// Rounds to six significant digits, to keep the page small.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_series_has_every_value() {
        let mut series = Series::default();
        for step in 1..=BUCKETS as u64 {
            series.add(step, step as f64);
        }
        let curve = series.curve();
        assert_eq!(curve.steps_per_point, 1);
        assert_eq!(curve.points, (1..=BUCKETS as u64).map(|step| (step, step as f64)).collect::<Vec<_>>());
    }

    #[test]
    fn a_long_series_keeps_extremes_and_ends_in_few_points() {
        let mut series = Series::default();
        for step in 1..=100_000u64 {
            let value = match step {
                333 | 31_337 => 50.0,
                447 | 77_777 => -50.0,
                _ => (step % 10) as f64,
            };
            series.add(step, value);
            assert!(series.held() <= 2 * BUCKETS);
        }
        let curve = series.curve();
        assert_eq!(curve.steps_per_point, 512);
        assert!(curve.points.len() <= 2 * BUCKETS + 2, "{} points", curve.points.len());
        for extreme in [(333, 50.0), (447, -50.0), (31_337, 50.0), (77_777, -50.0)] {
            assert!(curve.points.contains(&extreme), "{extreme:?}");
        }
        assert_eq!((curve.points[0], curve.points[curve.points.len() - 1]), ((1, 1.0), (100_000, 0.0)));
        assert!(curve.points.is_sorted_by_key(|point| point.0));
        assert_eq!((series.highest(), series.values()), (Some(50.0), 100_000));
    }

    #[test]
    fn rare_values_are_kept_at_any_length() {
        let mut series = Series::default();
        for step in (0..=100_000u64).step_by(1000) {
            series.add(step, step as f64);
        }
        assert_eq!((series.curve().steps_per_point, series.curve().points.len()), (1, 101));
    }

    #[test]
    fn values_of_the_same_step_stay_in_order() {
        let mut series = Series::default();
        for (step, value) in [(5, 0.2), (10, 0.8), (10, 0.1), (15, 0.4), (12, 0.3)] {
            series.add(step, value);
        }
        assert_eq!(series.curve().points, [(5, 0.2), (10, 0.8), (10, 0.1), (12, 0.3), (15, 0.4)]);
    }

    #[test]
    fn only_several_equal_values_are_constant() {
        let mut series = Series::default();
        series.add(1, 0.5);
        assert_eq!(series.constant(), None);
        series.add(2, 0.5);
        series.add(3, f64::NAN);
        assert_eq!(series.constant(), Some(0.5));
        series.add(4, 0.25);
        assert_eq!(series.constant(), None);
    }
}

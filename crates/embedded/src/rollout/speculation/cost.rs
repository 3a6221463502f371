//! Cost of an additional row in a step.

/// Decay of a step's weight per later step: about the last fifty count.
const MEMORY: f64 = 0.98;
/// Upper limit of a step's duration relative to the expected one: the system may have interrupted it.
const LONGEST: f64 = 1.5;

/// Linear fit of the measured durations of steps over their rows, `fixed + per_row · rows`, with the highest weight on
/// the latest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepCost {
    weight: f64,
    rows: f64,
    seconds: f64,
    rows_squared: f64,
    rows_seconds: f64,
}

impl StepCost {
    /// Records a step.
    pub(crate) fn record(&mut self, rows: usize, seconds: f64) {
        let rows = rows as f64;
        let mut seconds = seconds;
        if self.weight > 4.0 {
            let usual = self.seconds / self.rows.max(1.0) * rows.max(self.rows / self.weight);
            seconds = seconds.min(LONGEST * usual);
        }
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.rows, rows),
            (&mut self.seconds, seconds),
            (&mut self.rows_squared, rows * rows),
            (&mut self.rows_seconds, rows * seconds),
        ] {
            *sum = *sum * MEMORY + value;
        }
    }

    /// Fraction of a step's time that one more row adds to a step of `rows` rows: between 0 (rows are free) and `1 / rows`
    /// (only rows cost time). `None` if there were too few steps, or steps of too similar sizes.
    pub(crate) fn share_of_a_row(&self, rows: usize) -> Option<f64> {
        if self.weight < 4.0 {
            return None;
        }
        let (mean_rows, mean_seconds) = (self.rows / self.weight, self.seconds / self.weight);
        let variance = self.rows_squared / self.weight - mean_rows * mean_rows;
        if variance.sqrt() < 0.05 * mean_rows {
            return None;
        }
        let covariance = self.rows_seconds / self.weight - mean_rows * mean_seconds;
        let per_row = (covariance / variance).clamp(0.0, mean_seconds / mean_rows);
        let fixed = mean_seconds - per_row * mean_rows;
        Some(per_row / (fixed + per_row * rows as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: impl IntoIterator<Item = (usize, f64)>) -> StepCost {
        let mut cost = StepCost::default();
        for (rows, seconds) in steps {
            cost.record(rows, seconds);
        }
        cost
    }

    #[test]
    fn rows_may_cost_nothing_or_all_of_the_time() {
        let sizes = [8, 9, 16, 12, 10, 30, 8, 9];
        let free = after(sizes.map(|rows| (rows, 2e-3)));
        assert!(free.share_of_a_row(8).unwrap() < 1e-9);
        let all = after(sizes.map(|rows| (rows, rows as f64 * 1e-4)));
        assert!((all.share_of_a_row(10).unwrap() - 0.1).abs() < 1e-9);
        let half = after(sizes.map(|rows| (rows, 1e-3 + rows as f64 * 1e-4)));
        assert!((half.share_of_a_row(10).unwrap() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn equal_steps_give_no_estimate() {
        assert_eq!(after([(8, 1e-3); 60]).share_of_a_row(8), None);
        assert_eq!(after([(8, 1e-3), (20, 2e-3)]).share_of_a_row(8), None);
    }

    #[test]
    fn an_interruption_counts_little_and_a_change_is_learned() {
        let line = |rows: usize| 1e-3 + rows as f64 * 1e-4;
        let mut cost = after((0..60).map(|i| (8 + i % 9, line(8 + i % 9))));
        let before = cost.share_of_a_row(10).unwrap();
        cost.record(10, 5.0);
        assert!((cost.share_of_a_row(10).unwrap() - before).abs() < 0.01);
        for i in 0..400 {
            let rows = 8 + i % 9;
            cost.record(rows, 50e-3 + rows as f64 * 1e-4);
        }
        assert!(cost.share_of_a_row(10).unwrap() < 0.1 * before);
    }
}

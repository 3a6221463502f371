//! Timed rounds of a workload.

use std::time::Instant;

use super::report::Phase;
use crate::failure::Failure;

/// Maximum number of warm-up rounds.
const WARM_UPS: usize = 3;
/// Duration after which no further warm-up round starts, in seconds.
const WARM_UP_SECONDS: f64 = 1.0;

/// Duration of one round and of its phases, in seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) seconds: f64,
    pub(super) phases: Vec<(&'static str, f64)>,
}

/// Durations of several rounds, in seconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Rounds {
    pub(super) seconds: Vec<f64>,
    /// Median of each phase.
    pub(super) phases: Vec<Phase>,
}

/// Measures the phases of a round.
pub(super) struct PhaseTimer {
    last: Instant,
    round: Round,
}

impl PhaseTimer {
    pub(super) fn start() -> Self {
        Self { last: Instant::now(), round: Round::default() }
    }

    /// Ends a phase and starts the next one.
    pub(super) fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        let seconds = (now - self.last).as_secs_f64();
        self.last = now;
        self.round.seconds += seconds;
        self.round.phases.push((name, seconds));
    }

    pub(super) fn end(self) -> Round {
        self.round
    }
}

/// Warms up, then measures `count` rounds and reports each to `progress`.
pub(super) fn rounds(
    count: usize,
    progress: &dyn Fn(&str),
    mut round: impl FnMut() -> Result<Round, Failure>,
) -> Result<Rounds, Failure> {
    let mut warm = 0.0;
    for _ in 0..WARM_UPS {
        warm += round()?.seconds;
        if warm >= WARM_UP_SECONDS {
            break;
        }
    }
    let mut measured = Vec::with_capacity(count);
    for i in 0..count {
        let done = round()?;
        progress(&format!("round {} of {count}: {:.3} s", i + 1, done.seconds));
        measured.push(done);
    }
    Ok(Rounds::of(&measured))
}

impl Rounds {
    fn of(rounds: &[Round]) -> Self {
        let names = rounds.first().map(|round| round.phases.clone()).unwrap_or_default();
        let phases = names.iter().enumerate().map(|(i, &(name, _))| {
            let seconds: Vec<f64> = rounds.iter().map(|round| round.phases[i].1).collect();
            Phase { name, seconds: median(&seconds) }
        });
        Self { phases: phases.collect(), seconds: rounds.iter().map(|round| round.seconds).collect() }
    }
}

/// Median of the values; 0 if there are none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match (sorted.get(low), sorted.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
    }

    /// Warm-up ends after one second or three rounds and is not measured.
    #[test]
    fn warm_up_rounds_are_not_measured() {
        let mut calls = 0;
        let mut round = |seconds: f64| {
            rounds(2, &|_| (), || {
                calls += 1;
                Ok(Round { seconds: seconds * f64::from(calls), phases: vec![("all", f64::from(calls))] })
            })
            .unwrap()
        };
        let slow = round(2.0);
        assert_eq!(slow.seconds, [4.0, 6.0]);
        assert_eq!((slow.phases[0].name, slow.phases[0].seconds), ("all", 2.5));
        assert_eq!(round(0.001).seconds.len(), 2);
        assert_eq!(calls, 3 + 5);
    }
}

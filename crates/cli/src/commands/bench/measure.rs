//! Rounds of a work, timed.

use std::time::Instant;

use super::report::Phase;
use crate::failure::Failure;

/// Rounds that warm up, at most and as long as they take.
const WARM_UPS: usize = 3;
const WARM_UP_SECONDS: f64 = 1.0;

/// One round: its seconds, and those of its phases.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) seconds: f64,
    pub(super) phases: Vec<(&'static str, f64)>,
}

/// What several rounds took.
#[derive(Debug, Clone, Default)]
pub(super) struct Rounds {
    pub(super) seconds: Vec<f64>,
    /// Medians.
    pub(super) phases: Vec<Phase>,
}

/// A round's clock: what has passed since it was last asked is a phase.
pub(super) struct Laps {
    last: Instant,
    round: Round,
}

impl Laps {
    pub(super) fn start() -> Self {
        Self { last: Instant::now(), round: Round::default() }
    }

    /// Ends a phase and begins the next one.
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

/// Warms up, then measures `count` rounds. `tell` hears of each.
pub(super) fn rounds(
    count: usize,
    tell: &dyn Fn(&str),
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
        tell(&format!("round {} of {count}: {:.3} s", i + 1, done.seconds));
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

/// The middle of some numbers, between the two in the middle where there is an even number; 0 of none.
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

    /// Warm-ups end after a second or three rounds, and are in no figure.
    #[test]
    fn the_first_rounds_do_not_count() {
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

//! What the simulated machines can do.

use serde::{Deserialize, Serialize};

use super::SimError;

/// Tokens per second of one sequence, given how many the replica decodes at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeRate {
    /// `1 / (step_seconds + concurrency · step_seconds_per_sequence)`: what reading the weights costs once, and each
    /// sequence's own arithmetic and cache.
    Roofline {
        /// Seconds of a decoding step, however many sequences take part.
        step_seconds: f64,
        /// Seconds that every sequence adds to it.
        step_seconds_per_sequence: f64,
    },
    /// Measured: `(concurrency, tokens per second of one sequence)`, linear in the concurrency between points. Beyond
    /// the last point the replica as a whole gets no faster.
    Table(Vec<(f64, f64)>),
}

impl DecodeRate {
    /// Tokens per second of one sequence at a concurrency of at least 1.
    pub fn per_sequence(&self, concurrency: f64) -> f64 {
        match self {
            Self::Roofline { step_seconds, step_seconds_per_sequence } => {
                1.0 / (step_seconds + concurrency * step_seconds_per_sequence)
            }
            Self::Table(points) => {
                let Some(&(last, rate)) = points.last() else { return 0.0 };
                if concurrency >= last {
                    return rate * last / concurrency;
                }
                let above = points.iter().position(|p| p.0 > concurrency).unwrap_or(0);
                let (high, low) = (points[above], points[above.saturating_sub(1)]);
                if above == 0 {
                    return high.1;
                }
                low.1 + (high.1 - low.1) * (concurrency - low.0) / (high.0 - low.0)
            }
        }
    }

    fn check(&self) -> Result<(), SimError> {
        let fine = match self {
            Self::Roofline { step_seconds, step_seconds_per_sequence } => {
                *step_seconds >= 0.0
                    && *step_seconds_per_sequence >= 0.0
                    && step_seconds + step_seconds_per_sequence > 0.0
            }
            Self::Table(points) => {
                !points.is_empty()
                    && points.iter().all(|&(c, r)| c >= 1.0 && r > 0.0 && r.is_finite())
                    && points.windows(2).all(|w| w[0].0 < w[1].0)
            }
        };
        if fine {
            return Ok(());
        }
        let why = "a rate is above 0, and a table's concurrencies ascend from 1".to_owned();
        Err(SimError::Scenario { what: "decode rate".to_owned(), why })
    }
}

/// What generates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutHardware {
    /// Engines that decode independently of each other.
    pub replicas: u32,
    /// Sequences that one replica decodes at once; the others wait.
    pub max_concurrency: u32,
    /// How fast.
    pub decode: DecodeRate,
    /// Tokens per second at which one replica reads prompts. While it does, its sequences do not advance.
    pub prefill_tokens_per_second: f64,
    /// Seconds a replica stands still to take new weights.
    pub load_seconds: f64,
}

/// What trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainHardware {
    /// Tokens per second of a whole optimiser step: every pass that the method needs over prompt and completion.
    pub tokens_per_second: f64,
    /// Seconds of a step whatever its size.
    pub fixed_seconds: f64,
    /// Seconds until what was trained is with the rollout replicas, which then take [`RolloutHardware::load_seconds`].
    pub publish_seconds: f64,
    /// Seconds of an evaluation.
    pub evaluate_seconds: f64,
    /// Seconds of a checkpoint.
    pub checkpoint_seconds: f64,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// What generates.
    pub rollout: RolloutHardware,
    /// What trains.
    pub train: TrainHardware,
    /// Rollout and training take turns on the same devices: nothing is generated while a batch trains.
    pub shared: bool,
}

impl Hardware {
    /// Tokens per second of all replicas when every one is full.
    pub fn peak_tokens_per_second(&self) -> f64 {
        let c = f64::from(self.rollout.max_concurrency);
        f64::from(self.rollout.replicas) * c * self.rollout.decode.per_sequence(c)
    }

    /// Refuses hardware on which nothing would ever end.
    pub(crate) fn check(&self) -> Result<(), SimError> {
        let wrong =
            |what: &str, why: &str| Err(SimError::Scenario { what: what.to_owned(), why: why.to_owned() });
        self.rollout.decode.check()?;
        if self.rollout.replicas == 0 || self.rollout.max_concurrency == 0 {
            return wrong("rollout", "it needs at least one replica and one sequence at once");
        }
        let t = &self.train;
        if !(self.rollout.prefill_tokens_per_second > 0.0 && t.tokens_per_second > 0.0) {
            return wrong("tokens per second", "they are above 0");
        }
        let seconds = [
            self.rollout.load_seconds,
            t.fixed_seconds,
            t.publish_seconds,
            t.evaluate_seconds,
            t.checkpoint_seconds,
        ];
        if seconds.iter().any(|s| !(s.is_finite() && *s >= 0.0)) {
            return wrong("hardware", "seconds are finite and at least 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_interpolated_and_a_full_replica_gets_no_faster() {
        let table = DecodeRate::Table(vec![(1.0, 100.0), (3.0, 80.0), (5.0, 50.0)]);
        assert_eq!([1.0, 2.0, 3.0, 4.0, 5.0].map(|c| table.per_sequence(c)), [100.0, 90.0, 80.0, 65.0, 50.0]);
        assert_eq!(table.per_sequence(10.0) * 10.0, 250.0);
        let late = DecodeRate::Table(vec![(8.0, 10.0)]);
        assert_eq!(late.per_sequence(1.0), 10.0);
        let roofline = DecodeRate::Roofline { step_seconds: 0.01, step_seconds_per_sequence: 0.01 };
        assert_eq!(roofline.per_sequence(4.0), 20.0);
    }
}

//! Speed of the simulated hardware.

use serde::{Deserialize, Serialize};

use super::{ScenarioError, ServiceTimes};

/// Decoding speed of one sequence in tokens per second, as a function of the replica's concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecodeRate {
    /// `1 / (step_seconds + concurrency · step_seconds_per_sequence)`: the cost of reading the weights once per step, plus
    /// each sequence's arithmetic and cache reads.
    Roofline {
        /// Seconds per decoding step, independent of the number of sequences.
        step_seconds: f64,
        /// Additional seconds per sequence.
        step_seconds_per_sequence: f64,
    },
    /// Measured: `(concurrency, tokens per second of one sequence)`, interpolated linearly. Beyond the last point the
    /// throughput of the replica stays constant.
    Table(Vec<(f64, f64)>),
    /// Measured times of whole requests to inference servers.
    Service(Box<ServiceTimes>),
}

impl DecodeRate {
    /// Units of work per second of one sequence at a concurrency of at least 1. A unit is a token, except that with service
    /// times it is a second of service at the reference concurrency.
    pub fn per_sequence(&self, concurrency: f64) -> f64 {
        match self {
            Self::Roofline { step_seconds, step_seconds_per_sequence } => {
                1.0 / (step_seconds + concurrency * step_seconds_per_sequence)
            }
            Self::Service(times) => times.speed(concurrency),
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

    /// Mean number of units of work per token.
    pub(crate) fn work_per_token(&self) -> f64 {
        match self {
            Self::Roofline { .. } | Self::Table(_) => 1.0,
            Self::Service(times) => times.mean_seconds_per_token(),
        }
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let valid = match self {
            Self::Service(times) => return times.check(),
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
        if valid { Ok(()) } else { Err(ScenarioError::DecodeRate) }
    }
}

/// Rollout hardware.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutHardware {
    /// Independent rollout engines.
    pub replicas: u32,
    /// Sequences that one replica decodes concurrently; the others wait.
    pub max_concurrency: u32,
    /// Decoding speed.
    pub decode: DecodeRate,
    /// Prefill speed of one replica in tokens per second. Its sequences do not advance during prefill.
    pub prefill_tokens_per_second: f64,
    /// Seconds for which a replica is blocked while loading new weights.
    pub load_seconds: f64,
}

/// Training hardware.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainHardware {
    /// Tokens per second of a whole training step, with every pass that the method needs over prompt and completion.
    pub tokens_per_second: f64,
    /// Fixed cost of a step in seconds.
    pub fixed_seconds: f64,
    /// Seconds until new weights reach the rollout replicas, which then need [`RolloutHardware::load_seconds`].
    pub publish_seconds: f64,
    /// Duration of an evaluation in seconds.
    pub evaluate_seconds: f64,
    /// Duration of a checkpoint in seconds.
    pub checkpoint_seconds: f64,
}

/// Hardware of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Rollout hardware.
    pub rollout: RolloutHardware,
    /// Training hardware.
    pub train: TrainHardware,
    /// Rollout and training alternate on the same devices: nothing is generated while a batch is trained.
    pub shared: bool,
}

impl Hardware {
    /// Tokens per second of all replicas at full concurrency.
    pub fn peak_tokens_per_second(&self) -> f64 {
        let c = f64::from(self.rollout.max_concurrency);
        let decode = &self.rollout.decode;
        f64::from(self.rollout.replicas) * c * decode.per_sequence(c)
            / decode.work_per_token().max(f64::MIN_POSITIVE)
    }

    /// Rejects hardware on which a simulation would never end.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        let (r, t) = (&self.rollout, &self.train);
        r.decode.check()?;
        if r.replicas == 0 || r.max_concurrency == 0 {
            return Err(ScenarioError::NoReplicas);
        }
        for (name, rate) in [
            ("prefill_tokens_per_second", r.prefill_tokens_per_second),
            ("tokens_per_second", t.tokens_per_second),
        ] {
            if rate.is_nan() || rate <= 0.0 {
                return Err(ScenarioError::Rate { name });
            }
        }
        for (name, seconds) in [
            ("load_seconds", r.load_seconds),
            ("fixed_seconds", t.fixed_seconds),
            ("publish_seconds", t.publish_seconds),
            ("evaluate_seconds", t.evaluate_seconds),
            ("checkpoint_seconds", t.checkpoint_seconds),
        ] {
            if !(seconds.is_finite() && seconds >= 0.0) {
                return Err(ScenarioError::Duration { name });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_interpolated_and_throughput_is_constant_beyond_the_table() {
        let table = DecodeRate::Table(vec![(1.0, 100.0), (3.0, 80.0), (5.0, 50.0)]);
        assert_eq!([1.0, 2.0, 3.0, 4.0, 5.0].map(|c| table.per_sequence(c)), [100.0, 90.0, 80.0, 65.0, 50.0]);
        assert_eq!(table.per_sequence(10.0) * 10.0, 250.0);
        let late = DecodeRate::Table(vec![(8.0, 10.0)]);
        assert_eq!(late.per_sequence(1.0), 10.0);
        let roofline = DecodeRate::Roofline { step_seconds: 0.01, step_seconds_per_sequence: 0.01 };
        assert_eq!(roofline.per_sequence(4.0), 20.0);
    }
}

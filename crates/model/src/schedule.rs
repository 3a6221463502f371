//! Learning-rate schedules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OptimizerSettings;

/// Learning-rate schedule after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Stays constant.
    #[default]
    Constant,
    /// Decays linearly.
    Linear,
    /// Decays along half a cosine.
    Cosine,
}

impl Schedule {
    /// Fraction of the peak learning rate at `step` (from 0) of `total`: `(step + 1) / (warmup + 1)` during the
    /// warm-up, so that the first step has a non-zero rate; then from 1 towards `min_ratio`, which step `total` would
    /// reach.
    pub fn factor(self, step: u64, total: u64, warmup: u64, min_ratio: f64) -> f64 {
        if step < warmup {
            return (step + 1) as f64 / (warmup + 1) as f64;
        }
        let span = total.saturating_sub(warmup).max(1) as f64;
        let progress = ((step - warmup) as f64 / span).min(1.0);
        let decay = match self {
            Self::Constant => return 1.0,
            Self::Linear => 1.0 - progress,
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        };
        min_ratio + (1.0 - min_ratio) * decay
    }
}

impl OptimizerSettings {
    /// Learning rate at `step` (from 0) of `total`.
    pub fn learning_rate_at(&self, step: u64, total: u64) -> f64 {
        let factor = self.schedule.factor(step, total, self.warmup_steps, self.min_lr_ratio);
        self.learning_rate * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_increases_and_schedules_decay() {
        let at = |schedule: Schedule, step| schedule.factor(step, 14, 4, 0.1);
        assert_eq!((0..5).map(|s| at(Schedule::Linear, s)).collect::<Vec<_>>(), [0.2, 0.4, 0.6, 0.8, 1.0]);
        assert!((at(Schedule::Linear, 9) - 0.55).abs() < 1e-12);
        assert!((at(Schedule::Cosine, 9) - 0.55).abs() < 1e-12);
        assert!(at(Schedule::Cosine, 6) > at(Schedule::Linear, 6));
        assert!((at(Schedule::Cosine, 14) - 0.1).abs() < 1e-12);
        assert!((at(Schedule::Cosine, 99) - 0.1).abs() < 1e-12);
        assert_eq!(at(Schedule::Constant, 13), 1.0);
        assert_eq!(Schedule::Linear.factor(0, 0, 0, 0.0), 1.0);
    }
}

//! Comparison of two models on the same held-out tasks.

use std::collections::BTreeMap;

use rloom_telemetry::Sample;

/// Held-out tasks by the model whose greedy completion has the higher reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WinRate {
    /// Tasks on which the first model is better.
    pub wins: u64,
    /// Tasks with equal rewards.
    pub ties: u64,
    /// Tasks on which the other model is better.
    pub losses: u64,
}

impl WinRate {
    /// Compares the completions of the tasks that both evaluations have scored.
    pub fn of(samples: &[Sample], against: &[Sample]) -> Self {
        let others: BTreeMap<u64, f64> =
            against.iter().filter_map(|sample| Some((sample.task, sample.reward?))).collect();
        let mut rate = Self::default();
        for sample in samples {
            let Some((own, other)) = sample.reward.zip(others.get(&sample.task)) else { continue };
            match own.total_cmp(other) {
                std::cmp::Ordering::Greater => rate.wins += 1,
                std::cmp::Ordering::Equal => rate.ties += 1,
                std::cmp::Ordering::Less => rate.losses += 1,
            }
        }
        rate
    }

    /// Number of tasks.
    pub fn tasks(&self) -> u64 {
        self.wins + self.ties + self.losses
    }

    /// Fraction of the tasks on which the first model is better; ties do not count as wins.
    pub fn rate(&self) -> f64 {
        self.wins as f64 / self.tasks().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(task: u64, reward: Option<f64>) -> Sample {
        Sample {
            ticket: task,
            sample: 0,
            task,
            prompt: String::new(),
            completion: String::new(),
            answer: String::new(),
            reward,
            components: BTreeMap::new(),
            failures: BTreeMap::new(),
            advantage: None,
            solved: None,
            tokens: 1,
            stop: String::new(),
        }
    }

    #[test]
    fn tasks_are_compared_by_their_number() {
        let own = [sample(3, Some(1.0)), sample(1, Some(0.5)), sample(2, Some(0.0)), sample(4, None)];
        let other = [sample(1, Some(0.5)), sample(2, Some(0.25)), sample(3, Some(0.0)), sample(5, Some(9.0))];
        let rate = WinRate::of(&own, &other);
        assert_eq!(rate, WinRate { wins: 1, ties: 1, losses: 1 });
        assert_eq!((rate.tasks(), rate.rate()), (3, 1.0 / 3.0));
        assert_eq!(WinRate::of(&own, &[]).rate(), 0.0);
    }
}

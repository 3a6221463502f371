use std::sync::atomic::{AtomicU64, Ordering};

use rloom_core::{RewardComponent, Rewards, Task, Trajectory};

use crate::{Completion, OnError, Reward, RewardError, RewardSettings, Verdict};

/// Judges completions by named components and adds them up.
#[derive(Debug)]
pub struct Scorer {
    components: Vec<Component>,
    /// The verifier that says whether a task was solved.
    outcome: Option<usize>,
    on_error: OnError,
    seed: u64,
    stage: u32,
}

#[derive(Debug)]
struct Component {
    name: String,
    weight: f64,
    reward: Box<dyn Reward>,
    failures: AtomicU64,
}

impl Scorer {
    /// Makes a scorer for a stage of a run.
    pub fn new(settings: &RewardSettings, seed: u64, stage: u32) -> Result<Self, RewardError> {
        settings.validate()?;
        let components = settings
            .components
            .iter()
            .map(|c| Component {
                name: c.name.clone(),
                weight: c.weight,
                reward: c.kind.reward(),
                failures: AtomicU64::new(0),
            })
            .collect();
        Ok(Self { components, outcome: settings.outcome_index(), on_error: settings.on_error, seed, stage })
    }

    /// Judges a trajectory whose policy tokens read `text`.
    pub fn score(&self, task: &Task, trajectory: &Trajectory, text: &str) -> Result<Rewards, RewardError> {
        let steps: Vec<f64> = trajectory.steps().map(|step| step.reward).collect();
        self.judge(&Completion {
            task,
            text,
            steps: &steps,
            tokens: trajectory.policy_tokens(),
            stop: trajectory.stop,
            key: trajectory.key,
            seed: self.seed,
            stage: self.stage,
        })
    }

    /// Judges a completion.
    ///
    /// # Errors
    ///
    /// A component that fails, or whose value is not finite, unless failures are to be skipped: then it
    /// counts as not applicable.
    pub fn judge(&self, completion: &Completion<'_>) -> Result<Rewards, RewardError> {
        let mut rewards = Rewards::default();
        for (index, component) in self.components.iter().enumerate() {
            let verdict = match component.judge(completion) {
                Ok(verdict) => verdict,
                Err(error) => {
                    component.failures.fetch_add(1, Ordering::Relaxed);
                    match self.on_error {
                        OnError::Fatal => return Err(error),
                        OnError::Skip => Verdict::not_applicable(),
                    }
                }
            };
            rewards.components.push(RewardComponent {
                name: component.name.clone(),
                weight: component.weight,
                value: verdict.value,
            });
            if self.outcome == Some(index) {
                rewards.solved = verdict.solved;
                rewards.parsed = verdict.parsed;
            }
        }
        Ok(rewards)
    }

    /// The names of its components, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.components.iter().map(|c| c.name.as_str())
    }

    /// How often each component failed since the scorer was made.
    pub fn failures(&self) -> impl Iterator<Item = (&str, u64)> {
        self.components.iter().map(|c| (c.name.as_str(), c.failures.load(Ordering::Relaxed)))
    }
}

impl Component {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, RewardError> {
        let (component, sample) = (self.name.clone(), completion.key);
        match self.reward.judge(completion) {
            Err(source) => Err(RewardError::Failed { component, sample, source }),
            Ok(Verdict { value: Some(value), .. }) if !value.is_finite() => {
                Err(RewardError::NotFinite { component, sample, value })
            }
            Ok(verdict) => Ok(verdict),
        }
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{PromptSource, SampleKey, StopReason, Ticket};

    use super::*;
    use crate::JudgeError;

    #[derive(Debug)]
    struct Broken(f64);

    impl Reward for Broken {
        fn judge(&self, _: &Completion<'_>) -> Result<Verdict, JudgeError> {
            if self.0 == 0.0 { Err(JudgeError::NoSteps) } else { Ok(Verdict::value(self.0)) }
        }
    }

    fn scorer(value: f64, on_error: OnError) -> Scorer {
        let reward: Box<dyn Reward> = Box::new(Broken(value));
        let component = Component { name: "broken".into(), weight: 2.0, reward, failures: AtomicU64::new(0) };
        Scorer { components: vec![component], outcome: None, on_error, seed: 0, stage: 0 }
    }

    fn judge(scorer: &Scorer) -> Result<Rewards, RewardError> {
        let task = Task {
            index: 9,
            prompt: PromptSource::Text("p".into()),
            answer: "1".into(),
            demonstration: None,
            domain: "d".into(),
        };
        scorer.judge(&Completion {
            task: &task,
            text: "1",
            steps: &[],
            tokens: 1,
            stop: StopReason::StopToken,
            key: SampleKey { ticket: Ticket(4), sample: 2, segment: 0 },
            seed: 0,
            stage: 0,
        })
    }

    #[test]
    fn values_that_are_not_finite_name_component_and_sample() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let scorer = scorer(value, OnError::Fatal);
            let error = judge(&scorer).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("reward `broken` gave {value} on sample SampleKey")),
                "{error}"
            );
            assert!(error.contains("Ticket(4), sample: 2"), "{error}");
            assert_eq!(scorer.failures().collect::<Vec<_>>(), [("broken", 1)]);
        }
    }

    #[test]
    fn failures_are_fatal_or_counted() {
        assert!(matches!(judge(&scorer(0.0, OnError::Fatal)), Err(RewardError::Failed { .. })));
        let lenient = scorer(0.0, OnError::Skip);
        for seen in 1..=3 {
            let rewards = judge(&lenient).unwrap();
            assert_eq!((rewards.components[0].value, rewards.total()), (None, None));
            assert_eq!(lenient.failures().collect::<Vec<_>>(), [("broken", seen)]);
        }
        assert_eq!(judge(&scorer(3.0, OnError::Fatal)).unwrap().total(), Some(6.0));
    }
}

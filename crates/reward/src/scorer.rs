use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rloom_core::{RewardComponent, Rewards, SampleKey, Task, Trajectory};

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

/// Which component is at work on a completion, for whoever waits for it.
#[derive(Debug, Default)]
pub struct AtWork(AtomicUsize);

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

    /// A scorer of components that are given with their names and weights. None of them says whether a task was solved.
    pub fn of_rewards(rewards: Vec<(String, f64, Box<dyn Reward>)>, on_error: OnError) -> Self {
        let component =
            |(name, weight, reward)| Component { name, weight, reward, failures: AtomicU64::new(0) };
        let components = rewards.into_iter().map(component).collect();
        Self { components, outcome: None, on_error, seed: 0, stage: 0 }
    }

    /// Judges a trajectory whose policy tokens read `text`. `at_work` says meanwhile which component is at it.
    pub fn score(
        &self,
        task: &Task,
        trajectory: &Trajectory,
        text: &str,
        at_work: &AtWork,
    ) -> Result<Rewards, RewardError> {
        let steps: Vec<f64> = trajectory.steps().map(|step| step.reward).collect();
        let completion = Completion {
            task,
            text,
            steps: &steps,
            tokens: trajectory.policy_tokens(),
            stop: trajectory.stop,
            key: trajectory.key,
            seed: self.seed,
            stage: self.stage,
        };
        self.judge(&completion, at_work)
    }

    /// What becomes of a completion that was not judged in time: an error, or, where failures are to be skipped, rewards
    /// that do not apply.
    ///
    /// # Errors
    ///
    /// [`RewardError::Late`], unless failures are to be skipped.
    pub fn late(&self, at_work: &AtWork, sample: SampleKey, after: Duration) -> Result<Rewards, RewardError> {
        let component = self.component(at_work);
        if let Some(component) = component {
            component.failures.fetch_add(1, Ordering::Relaxed);
        }
        if self.on_error == OnError::Fatal {
            let component = component.map(|c| c.name.clone()).unwrap_or_default();
            return Err(RewardError::Late { component, sample, seconds: after.as_secs_f64() });
        }
        let none = |c: &Component| RewardComponent { name: c.name.clone(), weight: c.weight, value: None };
        Ok(Rewards { components: self.components.iter().map(none).collect(), ..Rewards::default() })
    }

    /// Judges a completion.
    ///
    /// # Errors
    ///
    /// A component that fails or panics, or whose value is not finite, unless failures are to be skipped: then it
    /// counts as not applicable.
    pub fn judge(&self, completion: &Completion<'_>, at_work: &AtWork) -> Result<Rewards, RewardError> {
        let mut rewards = Rewards::default();
        for (index, component) in self.components.iter().enumerate() {
            at_work.0.store(index, Ordering::Relaxed);
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

    /// The component that is at work on a completion.
    pub fn component_at_work(&self, at_work: &AtWork) -> Option<&str> {
        self.component(at_work).map(|component| component.name.as_str())
    }

    fn component(&self, at_work: &AtWork) -> Option<&Component> {
        self.components.get(at_work.0.load(Ordering::Relaxed))
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
        // A component holds no state that a panic could leave half-changed: it judges through a shared reference.
        match catch_unwind(AssertUnwindSafe(|| self.reward.judge(completion))) {
            Err(panic) => {
                Err(RewardError::Panicked { component, sample, message: message(panic.as_ref()).to_owned() })
            }
            Ok(Err(source)) => Err(RewardError::Failed { component, sample, source }),
            Ok(Ok(Verdict { value: Some(value), .. })) if !value.is_finite() => {
                Err(RewardError::NotFinite { component, sample, value })
            }
            Ok(Ok(verdict)) => Ok(verdict),
        }
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
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
            assert!(self.0 != 7.0, "seven is too much");
            if self.0 == 0.0 { Err(JudgeError::NoSteps) } else { Ok(Verdict::value(self.0)) }
        }
    }

    fn scorer(value: f64, on_error: OnError) -> Scorer {
        let reward: Box<dyn Reward> = Box::new(Broken(value));
        Scorer::of_rewards(vec![("broken".into(), 2.0, reward)], on_error)
    }

    fn judge(scorer: &Scorer) -> Result<Rewards, RewardError> {
        let task = Task {
            index: 9,
            prompt: PromptSource::Text("p".into()),
            answer: "1".into(),
            demonstration: None,
            domain: "d".into(),
        };
        let completion = Completion {
            task: &task,
            text: "1",
            steps: &[],
            tokens: 1,
            stop: StopReason::StopToken,
            key: SampleKey { ticket: Ticket(4), sample: 2, segment: 0 },
            seed: 0,
            stage: 0,
        };
        scorer.judge(&completion, &AtWork::default())
    }

    #[test]
    fn a_panic_is_an_error_like_others() {
        let error = judge(&scorer(7.0, OnError::Fatal)).unwrap_err();
        assert!(
            matches!(&error, RewardError::Panicked { component, message, .. }
                if component == "broken" && message == "seven is too much"),
            "{error}"
        );
        let lenient = scorer(7.0, OnError::Skip);
        assert_eq!(judge(&lenient).unwrap().total(), None);
        assert_eq!(lenient.failures().collect::<Vec<_>>(), [("broken", 1)]);
    }

    #[test]
    fn a_late_judgement_names_the_component_that_was_at_work() {
        let sample = SampleKey { ticket: Ticket(4), sample: 2, segment: 0 };
        let late = |on_error| scorer(3.0, on_error).late(&AtWork::default(), sample, Duration::from_secs(2));
        let error = late(OnError::Fatal).unwrap_err().to_string();
        assert!(
            error.starts_with("reward `broken` has not judged") && error.contains("within 2 s"),
            "{error}"
        );
        let rewards = late(OnError::Skip).unwrap();
        assert_eq!((rewards.components.len(), rewards.total()), (1, None));
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

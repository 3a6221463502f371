//! Failures of components.

use rloom_core::{PromptSource, SampleKey, StopReason, Ticket};

use super::*;

#[derive(Debug)]
struct Broken(f64);

impl Reward for Broken {
    fn judge(&self, _: &Completion<'_>) -> Result<Assessment, JudgeError> {
        assert!(self.0 != 7.0, "seven is too much");
        if self.0 == 0.0 { Err(JudgeError::NoSteps) } else { Ok(Assessment::value(self.0)) }
    }
}

fn scorer(value: f64, on_error: OnError) -> Scorer {
    let reward: Box<dyn Reward> = Box::new(Broken(value));
    Scorer::from_rewards(vec![("broken".into(), 2.0, reward)], on_error)
}

fn judge(scorer: &Scorer) -> Result<Rewards, RewardError> {
    let task = Task {
        index: 9,
        prompt: PromptSource::Text("p".into()),
        answer: "1".into(),
        demonstration: None,
        domain: "d".into(),
        extra: std::sync::Arc::default(),
    };
    let completion = Completion {
        task: &task,
        text: "1",
        transcript: "",
        steps: &[],
        tokens: 1,
        token_ids: &[7],
        prompt: "p",
        version: 0,
        stop: StopReason::StopToken,
        key: SampleKey { ticket: Ticket(4), sample: 2, segment: 0 },
        seed: 0,
        stage: 0,
    };
    scorer.judge(&completion, &CurrentComponent::default())
}

#[test]
fn panics_are_errors() {
    let error = judge(&scorer(7.0, OnError::Fatal)).unwrap_err();
    assert!(
        matches!(&error, RewardError::Panicked { component, message, .. }
            if component == "broken" && message == "seven is too much"),
        "{error}"
    );
    let lenient = scorer(7.0, OnError::Drop);
    assert_eq!(judge(&lenient).unwrap().total(), None);
    assert_eq!(lenient.failures().collect::<Vec<_>>(), [("broken", 1)]);
}

#[test]
fn timeouts_name_the_running_component() {
    let sample = SampleKey { ticket: Ticket(4), sample: 2, segment: 0 };
    let timed_out = |on_error| {
        scorer(3.0, on_error).timed_out(&CurrentComponent::default(), sample, Duration::from_secs(2))
    };
    let error = timed_out(OnError::Fatal).unwrap_err();
    assert_eq!(error.to_string(), "reward `broken` exceeded the timeout of 2 s on sample 4/2");
    let rewards = timed_out(OnError::Drop).unwrap();
    assert_eq!((rewards.components.len(), rewards.total()), (1, None));
    let failure = rewards.failure().unwrap();
    assert_eq!((failure.kind, &failure.message), (FailureKind::Infrastructure, &error.to_string()));
}

#[test]
fn values_that_are_not_finite_name_component_and_sample() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let scorer = scorer(value, OnError::Fatal);
        let error = judge(&scorer).unwrap_err().to_string();
        assert!(error.starts_with(&format!("reward `broken` returned {value} on sample 4/2:")), "{error}");
        assert_eq!(scorer.failures().collect::<Vec<_>>(), [("broken", 1)]);
    }
}

#[test]
fn failures_are_fatal_or_counted() {
    assert!(matches!(judge(&scorer(0.0, OnError::Fatal)), Err(RewardError::Failed { .. })));
    let lenient = scorer(0.0, OnError::Drop);
    for seen in 1..=3 {
        let rewards = judge(&lenient).unwrap();
        let message = "reward `broken` failed on sample 4/2: the environment gave no step rewards";
        let failure = Failure { kind: FailureKind::Component, retryable: false, message: message.to_owned() };
        assert_eq!(rewards.components[0].verdict, Verdict::Failed(failure));
        assert_eq!(rewards.total(), None);
        assert_eq!(lenient.failures().collect::<Vec<_>>(), [("broken", seen)]);
    }
    assert_eq!(judge(&scorer(3.0, OnError::Fatal)).unwrap().total(), Some(6.0));
}

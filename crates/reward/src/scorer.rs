use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rloom_core::{RewardComponent, Rewards, SampleKey, StopReason, Task, Trajectory};

use rloom_function::Host;

use crate::domains::outcome_index;
use crate::judge::JudgeModels;
use crate::settings::MAX_DROPPED;
use crate::{
    Completion, ComponentSettings, DomainSet, JudgeError, OnError, Reward, RewardError, RewardSettings,
    Verdict,
};

/// Judges completions with named components and sums their values.
#[derive(Debug)]
pub struct Scorer {
    components: Vec<Component>,
    /// Name of the outcome verifier, where the settings name one.
    outcome: Option<String>,
    on_error: OnError,
    max_dropped: f64,
    seed: u64,
    stage: u32,
}

/// The component that is judging a completion, for timeouts and stall reports.
#[derive(Debug, Default)]
pub struct CurrentComponent(AtomicUsize);

/// An episode to judge.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// The task.
    pub task: &'a Task,
    /// The segments of the episode, in order.
    pub segments: &'a [Trajectory],
    /// Text of the policy tokens of all segments, without special tokens.
    pub text: &'a str,
    /// Text after the prompt, observations included, without special tokens; empty unless a component reads it
    /// ([`Scorer::reads_observations`]).
    pub transcript: &'a str,
    /// Text of the prompt, special tokens included; empty unless a component reads it ([`Scorer::reads_prompt`]).
    pub prompt: &'a str,
}

/// Parts of an episode that components read.
struct Parts {
    steps: Vec<f64>,
    tokens: Vec<u32>,
}

impl Parts {
    fn of<'a>(judged: &Judged<'a>) -> Self {
        let of_segment =
            |own: &'a Trajectory| own.policy_ranges().flat_map(|range| own.tokens[range].iter().copied());
        let steps = judged.segments.iter().flat_map(Trajectory::steps).map(|step| step.reward);
        Self { steps: steps.collect(), tokens: judged.segments.iter().flat_map(of_segment).collect() }
    }
}

#[derive(Debug)]
struct Component {
    name: String,
    weight: f64,
    domains: DomainSet,
    is_verifier: bool,
    reward: Box<dyn Reward>,
    failures: AtomicU64,
}

impl Scorer {
    /// A scorer for a stage of a run.
    pub fn new(settings: &RewardSettings, seed: u64, stage: u32) -> Result<Self, RewardError> {
        settings.validate()?;
        let component = |c: &ComponentSettings| {
            let unusable = |source| RewardError::Unusable { component: c.name.clone(), source };
            let reward = c.kind.reward(settings.timeout()).map_err(unusable)?;
            Ok(Component {
                name: c.name.clone(),
                weight: c.weight,
                domains: c.domains.clone(),
                is_verifier: c.kind.is_verifier(),
                reward,
                failures: AtomicU64::new(0),
            })
        };
        let components = settings.components.iter().map(component).collect::<Result<_, RewardError>>()?;
        let on_error = settings.on_error;
        let max_dropped = settings.max_dropped.unwrap_or(MAX_DROPPED);
        Ok(Self { components, outcome: settings.outcome.clone(), on_error, max_dropped, seed, stage })
    }

    /// A scorer of the given components, with names and weights. The first verifier is the outcome.
    pub fn from_rewards(rewards: Vec<(String, f64, Box<dyn Reward>)>, on_error: OnError) -> Self {
        let component = |(name, weight, reward): (String, f64, Box<dyn Reward>)| Component {
            name,
            weight,
            domains: DomainSet::All,
            is_verifier: reward.is_verifier(),
            reward,
            failures: AtomicU64::new(0),
        };
        let components = rewards.into_iter().map(component).collect();
        Self { components, outcome: None, on_error, max_dropped: MAX_DROPPED, seed: 0, stage: 0 }
    }

    /// Judges an episode with the components that judge completions one by one. With others, the rewards are pending.
    /// `current` reports the running component meanwhile.
    pub fn score(&self, judged: &Judged<'_>, current: &CurrentComponent) -> Result<Rewards, RewardError> {
        let parts = Parts::of(judged);
        self.judge(&self.completion(judged, &parts), current)
    }

    /// Judges the episodes of a group with the components that judge whole groups, and completes their rewards.
    /// Rewards that are complete are judged again: verdicts belong to one call.
    ///
    /// # Errors
    ///
    /// As for [`judge`](Self::judge); a failure concerns the whole group.
    pub fn score_group(
        &self,
        group: &[Judged<'_>],
        rewards: &mut [Rewards],
        current: &CurrentComponent,
    ) -> Result<(), RewardError> {
        let parts: Vec<Parts> = group.iter().map(Parts::of).collect();
        let completions: Vec<Completion<'_>> =
            group.iter().zip(&parts).map(|(judged, parts)| self.completion(judged, parts)).collect();
        let domain = group.first().map_or("", |judged| judged.task.domain.as_str());
        let outcome = self.outcome_index(domain);
        let together = |(_, component): &(usize, &Component)| {
            component.domains.contains(domain) && component.reward.judges_groups()
        };
        for (index, component) in self.components.iter().enumerate().filter(together) {
            current.0.store(index, Ordering::Relaxed);
            let (verdicts, failure) = match component.judge_group(&completions) {
                Ok(verdicts) => (verdicts, None),
                Err(error) => {
                    component.failures.fetch_add(group.len() as u64, Ordering::Relaxed);
                    let failure = self.dropped(error)?;
                    (vec![Verdict::not_applicable(); group.len()], Some(failure))
                }
            };
            for (rewards, verdict) in rewards.iter_mut().zip(verdicts) {
                if let Some(own) = rewards.components.get_mut(index) {
                    (own.value, own.failure) = (verdict.value, failure.clone());
                }
                if outcome == Some(index) {
                    (rewards.solved, rewards.parsed) = (verdict.solved, verdict.parsed);
                }
            }
        }
        for rewards in rewards {
            rewards.pending = false;
        }
        Ok(())
    }

    /// True if a component judges whole groups.
    pub fn judges_groups(&self) -> bool {
        self.components.iter().any(|component| component.reward.judges_groups())
    }

    /// True if a component reads the prompt as text.
    pub fn reads_prompt(&self) -> bool {
        self.components.iter().any(|component| component.reward.reads_prompt())
    }

    /// True if a component judges the whole episode instead of what the policy wrote.
    pub fn reads_observations(&self) -> bool {
        self.components.iter().any(|component| component.reward.reads_observations())
    }

    /// Number of judgements that wait for other processes at a time.
    pub fn waiting_slots(&self) -> usize {
        self.components.iter().map(|component| component.reward.waiting_slots()).sum()
    }

    /// Has the processes of components start on other machines, those that `host_of` names for the component.
    pub fn place(&self, host_of: &dyn Fn(&str) -> Option<Arc<dyn Host>>) {
        for Component { name, reward, .. } in &self.components {
            if let Some(host) = host_of(name) {
                reward.place(host);
            }
        }
    }

    /// Opens the models that components compute in this process.
    pub fn open_models(&self, models: &dyn JudgeModels) -> Result<(), RewardError> {
        for Component { name, reward, .. } in &self.components {
            let opened = reward.open_models(models);
            opened.map_err(|source| RewardError::Unusable { component: name.clone(), source })?;
        }
        Ok(())
    }

    /// Checks that all components can judge.
    pub fn prepare(&self) -> Result<(), RewardError> {
        for Component { name, reward, .. } in &self.components {
            reward.prepare().map_err(|source| RewardError::Unusable { component: name.clone(), source })?;
        }
        Ok(())
    }

    /// Components that run programs, with the tier of their sandbox.
    pub fn sandboxes(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.components
            .iter()
            .filter_map(|component| Some((component.name.as_str(), component.reward.sandbox()?)))
    }

    /// Numbers that the components reported since the last call, averaged by name.
    pub fn take_metrics(&self) -> BTreeMap<String, f64> {
        self.components.iter().flat_map(|component| component.reward.take_metrics()).collect()
    }

    /// Ends the processes of the components. Judgements in progress and later ones fail.
    pub fn close(&self) {
        for component in &self.components {
            component.reward.close();
        }
    }

    fn completion<'a>(&self, judged: &Judged<'a>, parts: &'a Parts) -> Completion<'a> {
        let Judged { task, segments, text, transcript, prompt } = *judged;
        let key = segments.first().map(|first| first.key).unwrap_or_default();
        Completion {
            task,
            text,
            transcript,
            prompt,
            steps: &parts.steps,
            tokens: parts.tokens.len(),
            token_ids: &parts.tokens,
            version: segments.iter().flat_map(|own| &own.versions).next().map_or(0, |span| span.version.0),
            stop: segments.last().map_or(StopReason::Aborted, |last| last.stop),
            key: SampleKey { segment: 0, ..key },
            seed: self.seed,
            stage: self.stage,
        }
    }

    /// Reason for which a completion is left out, if failures leave it out.
    fn dropped(&self, error: RewardError) -> Result<String, RewardError> {
        match self.on_error {
            OnError::Fatal => Err(error),
            OnError::Drop => Ok(error.to_string()),
        }
    }

    /// Index of the outcome verifier of a domain.
    fn outcome_index(&self, domain: &str) -> Option<usize> {
        let components = self.components.iter();
        let described = components.map(|c| (c.name.as_str(), &c.domains, c.is_verifier));
        outcome_index(self.outcome.as_deref(), domain, described)
    }

    /// The failure for which a completion of a task of `domain` is left out: that of a component that counts, or of the
    /// outcome.
    pub fn failure<'a>(&self, domain: &str, rewards: &'a Rewards) -> Option<&'a str> {
        let outcome = || rewards.components.get(self.outcome_index(domain)?)?.failure.as_deref();
        rewards.failure().or_else(outcome)
    }

    /// Largest share of the completions of a group that failures may leave out.
    pub fn max_dropped(&self) -> f64 {
        self.max_dropped
    }

    /// The rewards of a completion whose judgement exceeded the timeout: the component in question has failed, and the
    /// others do not apply.
    ///
    /// # Errors
    ///
    /// [`RewardError::TimedOut`], unless failures leave the completion out.
    pub fn timed_out(
        &self,
        current: &CurrentComponent,
        sample: SampleKey,
        timeout: Duration,
    ) -> Result<Rewards, RewardError> {
        let judging = current.0.load(Ordering::Relaxed);
        let component = self.components.get(judging).map_or_else(String::new, |component| {
            component.failures.fetch_add(1, Ordering::Relaxed);
            component.name.clone()
        });
        let failure = self.dropped(RewardError::TimedOut { component, sample, timeout })?;
        let rewards = self.components.iter().enumerate().map(|(index, component)| RewardComponent {
            failure: (index == judging).then(|| failure.clone()),
            ..RewardComponent::new(&component.name, component.weight, None)
        });
        Ok(Rewards { components: rewards.collect(), ..Rewards::default() })
    }

    /// The rewards of a completion in a group whose judgement exceeded the timeout ([`timed_out`](Self::timed_out)).
    pub fn dropped_group(&self, rewards: &Rewards, current: &CurrentComponent) -> Rewards {
        let mut rewards = Rewards { pending: false, ..rewards.clone() };
        if let Some(component) = rewards.components.get_mut(current.0.load(Ordering::Relaxed)) {
            component.failure = Some("the judgement of the group exceeded the timeout".to_owned());
        }
        rewards
    }

    /// Judges a completion.
    ///
    /// # Errors
    ///
    /// A component that fails or panics, or whose value is not finite, unless failures leave the completion out.
    pub fn judge(
        &self,
        completion: &Completion<'_>,
        current: &CurrentComponent,
    ) -> Result<Rewards, RewardError> {
        let mut rewards = Rewards::default();
        let domain = completion.task.domain.as_str();
        let outcome = self.outcome_index(domain);
        for (index, component) in self.components.iter().enumerate() {
            current.0.store(index, Ordering::Relaxed);
            let applies = component.domains.contains(domain);
            let judges_groups = component.reward.judges_groups();
            rewards.pending |= applies && judges_groups;
            let judged = if !applies || judges_groups {
                Ok(Verdict::not_applicable())
            } else {
                component.judge(completion)
            };
            let (verdict, failure) = match judged {
                Ok(verdict) => (verdict, None),
                Err(error) => {
                    component.failures.fetch_add(1, Ordering::Relaxed);
                    (Verdict::not_applicable(), Some(self.dropped(error)?))
                }
            };
            rewards.components.push(RewardComponent {
                failure,
                ..RewardComponent::new(&component.name, component.weight, verdict.value)
            });
            if outcome == Some(index) {
                rewards.solved = verdict.solved;
                rewards.parsed = verdict.parsed;
            }
        }
        Ok(rewards)
    }

    /// Name of the component that is judging a completion.
    pub fn current_component(&self, current: &CurrentComponent) -> Option<&str> {
        self.component(current).map(|component| component.name.as_str())
    }

    /// True if the component that is judging enforces the timeout itself.
    pub fn waits_elsewhere(&self, current: &CurrentComponent) -> bool {
        self.component(current).is_some_and(|component| component.reward.waiting_slots() > 0)
    }

    fn component(&self, current: &CurrentComponent) -> Option<&Component> {
        self.components.get(current.0.load(Ordering::Relaxed))
    }

    /// Names of the components, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.components.iter().map(|c| c.name.as_str())
    }

    /// Number of failures of each component since the scorer was created.
    pub fn failures(&self) -> impl Iterator<Item = (&str, u64)> {
        self.components.iter().map(|c| (c.name.as_str(), c.failures.load(Ordering::Relaxed)))
    }
}

impl Component {
    fn judge(&self, completion: &Completion<'_>) -> Result<Verdict, RewardError> {
        let completion = &self.view(completion);
        let verdict = self.caught(completion.key, || self.reward.judge(completion))?;
        self.checked(completion, verdict)
    }

    /// The completion as the component sees it.
    fn view<'a>(&self, completion: &Completion<'a>) -> Completion<'a> {
        let text = if self.reward.reads_observations() { completion.transcript } else { completion.text };
        Completion { text, ..*completion }
    }

    fn judge_group(&self, completions: &[Completion<'_>]) -> Result<Vec<Verdict>, RewardError> {
        let key = completions.first().map(|completion| completion.key).unwrap_or_default();
        let views: Vec<Completion<'_>> = completions.iter().map(|completion| self.view(completion)).collect();
        let verdicts = self.caught(key, || self.reward.judge_group(&views))?;
        completions
            .iter()
            .zip(verdicts)
            .map(|(completion, verdict)| self.checked(completion, verdict))
            .collect()
    }

    fn caught<T>(
        &self,
        sample: SampleKey,
        judge: impl FnOnce() -> Result<T, JudgeError>,
    ) -> Result<T, RewardError> {
        let component = self.name.clone();
        // Components are immutable, so a panic cannot leave an inconsistent state.
        match catch_unwind(AssertUnwindSafe(judge)) {
            Err(panic) => {
                Err(RewardError::Panicked { component, sample, message: message(panic.as_ref()).to_owned() })
            }
            Ok(Err(source)) => Err(RewardError::Failed { component, sample, source }),
            Ok(Ok(judged)) => Ok(judged),
        }
    }

    fn checked(&self, completion: &Completion<'_>, verdict: Verdict) -> Result<Verdict, RewardError> {
        match verdict.value {
            Some(value) if !value.is_finite() => {
                let (component, sample) = (self.name.clone(), completion.key);
                Err(RewardError::NotFinite { component, sample, value })
            }
            _ => Ok(verdict),
        }
    }
}

/// Message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use rloom_core::{PromptSource, SampleKey, StopReason, Ticket};

    use super::*;

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
        assert_eq!(rewards.failure(), Some(error.to_string().as_str()));
    }

    #[test]
    fn values_that_are_not_finite_name_component_and_sample() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let scorer = scorer(value, OnError::Fatal);
            let error = judge(&scorer).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("reward `broken` returned {value} on sample 4/2:")),
                "{error}"
            );
            assert_eq!(scorer.failures().collect::<Vec<_>>(), [("broken", 1)]);
        }
    }

    #[test]
    fn failures_are_fatal_or_counted() {
        assert!(matches!(judge(&scorer(0.0, OnError::Fatal)), Err(RewardError::Failed { .. })));
        let lenient = scorer(0.0, OnError::Drop);
        for seen in 1..=3 {
            let rewards = judge(&lenient).unwrap();
            assert_eq!((rewards.components[0].value, rewards.total()), (None, None));
            assert_eq!(
                rewards.failure(),
                Some("reward `broken` failed on sample 4/2: the environment gave no step rewards")
            );
            assert_eq!(lenient.failures().collect::<Vec<_>>(), [("broken", seen)]);
        }
        assert_eq!(judge(&scorer(3.0, OnError::Fatal)).unwrap().total(), Some(6.0));
    }
}

mod agents;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rloom_core::{
    Failure, FailureKind, RewardComponent, Rewards, SampleKey, StopReason, Task, Trajectory, Verdict,
};

use rloom_function::Host;

use crate::domains::outcome_index;
use crate::judge::JudgeModels;
use crate::retries::Retries;
use crate::settings::{MAX_DROPPED, default_retries, default_timeout};
use crate::{
    Assessment, Completion, ComponentSettings, DomainSet, JudgeError, OnError, Reward, RewardError,
    RewardSettings,
};

/// Judges completions with named components and sums their values.
#[derive(Debug)]
pub struct Scorer {
    components: Vec<Component>,
    /// Name of the outcome verifier, where the settings name one.
    outcome: Option<String>,
    retries: Retries,
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
    counts: Counts,
}

/// Numbers of failures and repeated attempts of a component.
#[derive(Debug, Default)]
struct Counts {
    /// Failures, by kind.
    failures: [AtomicU64; FailureKind::ALL.len()],
    retries: AtomicU64,
}

impl Counts {
    fn add(&self, kind: FailureKind, failures: usize) {
        self.failures[kind as usize].fetch_add(failures as u64, Ordering::Relaxed);
    }

    fn failures(&self, kind: FailureKind) -> u64 {
        self.failures[kind as usize].load(Ordering::Relaxed)
    }
}

impl Scorer {
    /// A scorer for a stage of a run.
    pub fn new(settings: &RewardSettings, seed: u64, stage: u32) -> Result<Self, RewardError> {
        // A distillation samples without a reward.
        if !settings.components.is_empty() {
            settings.validate()?;
        }
        let component = |c: &ComponentSettings| {
            let unusable = |source| RewardError::Unusable { component: c.name.clone(), source };
            let reward = c.kind.reward(settings.timeout()).map_err(unusable)?;
            Ok(Component {
                name: c.name.clone(),
                weight: c.weight,
                domains: c.domains.clone(),
                is_verifier: c.kind.is_verifier(),
                reward,
                counts: Counts::default(),
            })
        };
        let components = settings.components.iter().map(component).collect::<Result<_, RewardError>>()?;
        Ok(Self {
            components,
            outcome: settings.outcome.clone(),
            retries: Retries::new(settings.retries, settings.timeout()),
            on_error: settings.on_error,
            max_dropped: settings.max_dropped.unwrap_or(MAX_DROPPED),
            seed,
            stage,
        })
    }

    /// A scorer of the given components, with names and weights. The first verifier is the outcome.
    pub fn from_rewards(rewards: Vec<(String, f64, Box<dyn Reward>)>, on_error: OnError) -> Self {
        let component = |(name, weight, reward): (String, f64, Box<dyn Reward>)| Component {
            name,
            weight,
            domains: DomainSet::All,
            is_verifier: reward.is_verifier(),
            reward,
            counts: Counts::default(),
        };
        Self {
            components: rewards.into_iter().map(component).collect(),
            outcome: None,
            retries: Retries::new(default_retries(), Duration::from_secs_f64(default_timeout())),
            on_error,
            max_dropped: MAX_DROPPED,
            seed: 0,
            stage: 0,
        }
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
            let judged = match component.judge_group(&completions, &self.retries) {
                Ok(assessments) => assessments.into_iter().map(|own| (Verdict::of(own.value), own)).collect(),
                Err(error) => {
                    let failure = self.dropped(component, group.len(), error)?;
                    vec![(Verdict::Failed(failure), Assessment::default()); group.len()]
                }
            };
            for (rewards, (verdict, assessment)) in rewards.iter_mut().zip(judged) {
                if let Some(own) = rewards.components.get_mut(index) {
                    own.verdict = verdict;
                }
                if outcome == Some(index) {
                    (rewards.solved, rewards.parsed) = (assessment.solved, assessment.parsed);
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
        self.retries.close();
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

    /// Counts the failure of a component on a number of completions. Returns the reason for which they are left out, if
    /// failures leave them out.
    fn dropped(
        &self,
        component: &Component,
        completions: usize,
        error: RewardError,
    ) -> Result<Failure, RewardError> {
        let failure = error.failure();
        component.counts.add(failure.kind, completions);
        match self.on_error {
            OnError::Fatal => Err(error),
            OnError::Drop => Ok(failure),
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
    pub fn failure<'a>(&self, domain: &str, rewards: &'a Rewards) -> Option<&'a Failure> {
        let outcome = || rewards.components.get(self.outcome_index(domain)?)?.failure();
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
        let name = self.current_component(current).unwrap_or_default().to_owned();
        let error = RewardError::TimedOut { component: name, sample, timeout };
        let Some(slow) = self.component(current) else { return Err(error) };
        let failure = self.dropped(slow, 1, error)?;
        let verdict = |index| {
            if index == judging { Verdict::Failed(failure.clone()) } else { Verdict::NotApplicable }
        };
        let rewards = self.components.iter().enumerate().map(|(index, component)| RewardComponent {
            name: component.name.clone(),
            weight: component.weight,
            verdict: verdict(index),
        });
        Ok(Rewards { components: rewards.collect(), ..Rewards::default() })
    }

    /// The rewards of a completion in a group whose judgement exceeded the timeout ([`timed_out`](Self::timed_out)).
    pub fn dropped_group(&self, rewards: &Rewards, current: &CurrentComponent) -> Rewards {
        let mut rewards = Rewards { pending: false, ..rewards.clone() };
        if let Some(component) = rewards.components.get_mut(current.0.load(Ordering::Relaxed)) {
            component.verdict = Verdict::Failed(Failure {
                kind: FailureKind::Infrastructure,
                retryable: false,
                message: "the judgement of the group exceeded the timeout".to_owned(),
            });
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
            // Those that judge agents do so once they have judged the whole episode.
            let judged = if !applies || judges_groups || component.reward.judges_agents() {
                Ok(Assessment::not_applicable())
            } else {
                component.judge(completion, &self.retries)
            };
            let (verdict, assessment) = match judged {
                Ok(assessment) => (Verdict::of(assessment.value), assessment),
                Err(error) => (Verdict::Failed(self.dropped(component, 1, error)?), Assessment::default()),
            };
            let (name, weight) = (component.name.clone(), component.weight);
            rewards.components.push(RewardComponent { name, weight, verdict });
            if outcome == Some(index) {
                rewards.solved = assessment.solved;
                rewards.parsed = assessment.parsed;
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
        let all = |counts: &Counts| FailureKind::ALL.into_iter().map(|kind| counts.failures(kind)).sum();
        self.components.iter().map(move |c| (c.name.as_str(), all(&c.counts)))
    }

    /// Number of failures of each kind since the scorer was created.
    pub fn failures_by_kind(&self) -> impl Iterator<Item = (FailureKind, u64)> {
        let of = |kind| (kind, self.components.iter().map(|c| c.counts.failures(kind)).sum());
        FailureKind::ALL.into_iter().map(of)
    }

    /// Number of repeated attempts of each component since the scorer was created.
    pub fn retries(&self) -> impl Iterator<Item = (&str, u64)> {
        self.components.iter().map(|c| (c.name.as_str(), c.counts.retries.load(Ordering::Relaxed)))
    }
}

impl Component {
    fn judge(&self, completion: &Completion<'_>, retries: &Retries) -> Result<Assessment, RewardError> {
        let completion = &self.view(completion);
        let assessment = self.attempts(completion.key, retries, || self.reward.judge(completion))?;
        self.checked(completion, assessment)
    }

    /// The completion as the component sees it.
    fn view<'a>(&self, completion: &Completion<'a>) -> Completion<'a> {
        let text = if self.reward.reads_observations() { completion.transcript } else { completion.text };
        Completion { text, ..*completion }
    }

    fn judge_group(
        &self,
        completions: &[Completion<'_>],
        retries: &Retries,
    ) -> Result<Vec<Assessment>, RewardError> {
        let key = completions.first().map(|completion| completion.key).unwrap_or_default();
        let views: Vec<Completion<'_>> = completions.iter().map(|completion| self.view(completion)).collect();
        let assessments = self.attempts(key, retries, || self.reward.judge_group(&views))?;
        completions.iter().zip(assessments).map(|(completion, own)| self.checked(completion, own)).collect()
    }

    /// Judges, again after failures that may pass.
    fn attempts<T>(
        &self,
        sample: SampleKey,
        retries: &Retries,
        judge: impl Fn() -> Result<T, JudgeError>,
    ) -> Result<T, RewardError> {
        // Components are immutable, so a panic cannot leave an inconsistent state.
        let caught = catch_unwind(AssertUnwindSafe(|| retries.run(&judge)));
        let (judged, attempts) = caught.map_err(|panic| RewardError::Panicked {
            component: self.name.clone(),
            sample,
            message: message(panic.as_ref()).to_owned(),
        })?;
        self.counts.retries.fetch_add(u64::from(attempts - 1), Ordering::Relaxed);
        judged.map_err(|source| {
            let component = self.name.clone();
            RewardError::Failed { component, sample, attempts, source }
        })
    }

    fn checked(
        &self,
        completion: &Completion<'_>,
        assessment: Assessment,
    ) -> Result<Assessment, RewardError> {
        match assessment.value {
            Some(value) if !value.is_finite() => {
                let (component, sample) = (self.name.clone(), completion.key);
                Err(RewardError::NotFinite { component, sample, value })
            }
            _ => Ok(assessment),
        }
    }
}

/// Message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests;

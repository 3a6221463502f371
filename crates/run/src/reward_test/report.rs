//! The report of a test.

use std::collections::BTreeMap;

use rloom_core::{RewardComponent, Rewards};
use rloom_reward::RewardSettings;
use serde::Serialize;

use super::judging::JudgedCandidate;

/// Largest number of characters of a completion in a report.
const EXCERPT: usize = 200;

/// Results of a test.
#[derive(Debug, Clone, Serialize)]
pub struct RewardReport {
    /// Name of the stage.
    pub stage: String,
    /// Number of training tasks.
    pub tasks: u64,
    /// Components that were not tested, with the reasons.
    pub skipped: Vec<String>,
    /// Form of the reference answers as completions.
    pub form: String,
    /// Number of tasks without a reference answer as a completion.
    pub without_reference: u64,
    /// The reference answers; `None` if no task has one.
    pub references: Option<Tested>,
    /// The given completions.
    pub completions: Option<Tested>,
}

/// Results of several completions.
#[derive(Debug, Clone, Serialize)]
pub struct Tested {
    /// Number of completions.
    pub completions: usize,
    /// Share that solves the task; `None` without a verifier. Completions whose judgement failed do not count as solved.
    pub solved: Option<f64>,
    /// Results by component, each for all domains and, if there are several, for each of them.
    pub components: Vec<ComponentResult>,
    /// Completions that were not judged, could not be read or, if they are references, do not solve their task.
    pub problems: Vec<Problem>,
}

/// Results of one component.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentResult {
    /// Name of the component.
    pub component: String,
    /// The domain; `None` for all.
    pub domain: Option<String>,
    /// Number of completions.
    pub completions: usize,
    /// Share with a value.
    pub values: f64,
    /// Mean of the values.
    pub mean: Option<f64>,
    /// Number of completions to which it does not apply.
    pub not_applicable: usize,
    /// Number of failures.
    pub failed: usize,
    /// Share that solves the task; the outcome only.
    pub solved: Option<f64>,
    /// Share in which an answer was found; the outcome only.
    pub parsed: Option<f64>,
}

/// A completion with a problem.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Index of the task.
    pub task: u64,
    /// Its domain.
    pub domain: String,
    /// The component.
    pub component: String,
    /// The problem: `failed`, `not parsed` or `not solved`.
    pub problem: &'static str,
    /// Message of a failure.
    pub message: Option<String>,
    /// Reference answer.
    pub answer: String,
    /// Beginning of the completion.
    pub completion: String,
}

impl Tested {
    pub(super) fn of(judged: &[JudgedCandidate<'_>], reward: &RewardSettings, are_references: bool) -> Self {
        let all: Vec<&JudgedCandidate<'_>> = judged.iter().collect();
        let mut domains: BTreeMap<&str, Vec<&JudgedCandidate<'_>>> = BTreeMap::new();
        for one in judged {
            domains.entry(&one.candidate.task.domain).or_default().push(one);
        }
        let mut components = Vec::new();
        for name in names(judged) {
            components.push(ComponentResult::of(&name, None, &all, reward));
            for (domain, own) in domains.iter().filter(|_| domains.len() > 1) {
                components.push(ComponentResult::of(&name, Some(domain), own, reward));
            }
        }
        let verified: Vec<_> = judged.iter().filter(|one| outcome(one, reward).is_some()).collect();
        let solved = verified.iter().filter(|one| is(one, |rewards| rewards.solved)).count();
        Self {
            completions: judged.len(),
            solved: (!verified.is_empty()).then(|| solved as f64 / verified.len() as f64),
            components,
            problems: judged.iter().filter_map(|one| Problem::of(one, reward, are_references)).collect(),
        }
    }
}

/// Name of the component that decides whether a completion solves its task.
fn outcome<'r>(judged: &JudgedCandidate<'_>, reward: &'r RewardSettings) -> Option<&'r str> {
    reward.outcome_of(&judged.candidate.task.domain).map(|component| component.name.as_str())
}

fn is(judged: &JudgedCandidate<'_>, of: fn(&Rewards) -> Option<bool>) -> bool {
    judged.rewards.as_ref().is_ok_and(|rewards| of(rewards) == Some(true))
}

/// Names of the components, in order.
fn names(judged: &[JudgedCandidate<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for rewards in judged.iter().filter_map(|one| one.rewards.as_ref().ok()) {
        for component in &rewards.components {
            if !names.contains(&component.name) {
                names.push(component.name.clone());
            }
        }
    }
    names
}

impl ComponentResult {
    fn of(
        name: &str,
        domain: Option<&str>,
        judged: &[&JudgedCandidate<'_>],
        reward: &RewardSettings,
    ) -> Self {
        let rewards: Vec<&Rewards> = judged.iter().filter_map(|one| one.rewards.as_ref().ok()).collect();
        let own: Vec<&RewardComponent> =
            rewards.iter().filter_map(|r| r.components.iter().find(|c| c.name == name)).collect();
        let values: Vec<f64> = own.iter().filter_map(|component| component.value()).collect();
        let failed = own.iter().filter(|component| component.failure().is_some()).count();
        let share = |count: usize| count as f64 / judged.len().max(1) as f64;
        let verified: Vec<_> = judged.iter().filter(|one| outcome(one, reward) == Some(name)).collect();
        let outcome = |of: fn(&Rewards) -> Option<bool>| {
            let count = verified.iter().filter(|one| is(one, of)).count();
            (!verified.is_empty()).then(|| count as f64 / verified.len() as f64)
        };
        Self {
            component: name.to_owned(),
            domain: domain.map(str::to_owned),
            completions: judged.len(),
            values: share(values.len()),
            mean: (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
            not_applicable: own.len() - values.len() - failed,
            failed: failed + judged.len() - rewards.len(),
            solved: outcome(|rewards| rewards.solved),
            parsed: outcome(|rewards| rewards.parsed),
        }
    }
}

impl Problem {
    fn of(judged: &JudgedCandidate<'_>, reward: &RewardSettings, is_reference: bool) -> Option<Self> {
        let outcome = || outcome(judged, reward).map(str::to_owned);
        let failure = |rewards: &Rewards| {
            rewards.components.iter().find_map(|c| Some((c.name.clone(), c.failure()?.message.clone())))
        };
        let (component, problem, message) = match &judged.rewards {
            Err(message) => (String::new(), "failed", Some(message.clone())),
            Ok(rewards) => match failure(rewards) {
                Some((component, message)) => (component, "failed", Some(message)),
                None if rewards.parsed == Some(false) => (outcome()?, "not parsed", None),
                None if is_reference && rewards.solved == Some(false) => (outcome()?, "not solved", None),
                None => return None,
            },
        };
        let task = &judged.candidate.task;
        Some(Self {
            task: task.index,
            domain: task.domain.clone(),
            component,
            problem,
            message,
            answer: task.answer.chars().take(EXCERPT).collect(),
            completion: judged.candidate.text.chars().take(EXCERPT).collect(),
        })
    }
}

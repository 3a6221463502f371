use std::path::PathBuf;
use std::time::Duration;

use rloom_core::ValueRange;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domains::outcome_index;
use crate::{DomainSet, Kind, RewardError};

/// Reaction to the failure of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Fail the group, which ends the run unless `schedule.max_failures` allows it to be replaced.
    #[default]
    Fatal,
    /// Leave the completion out of training; failures are counted.
    Drop,
}

/// The reward: a weighted sum of named components.
///
/// ```
/// # use rloom_reward::RewardSettings;
/// let settings: RewardSettings = serde_json::from_str(
///     r#"{ "components": [{ "kind": "math" }, { "kind": "length", "weight": 0.5, "max_tokens": 512 }] }"#,
/// )
/// .unwrap();
/// assert_eq!(settings.components[1].name, "length");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RewardSettings {
    /// Components of the sum; at least one.
    pub components: Vec<ComponentSettings>,
    /// Name of the outcome component: the verifier that evaluation and dynamic sampling use. Default, and in domains that it
    /// does not judge: the first verifier of the task's domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Attempts after the first one of a judgement whose failure may pass: a process that ended, a server that is busy or away, a
    /// sandbox that failed, a function that reports a failure of infrastructure; from 0 to 100. They wait 0.5 s, 1 s, 2 s and so on
    /// up to 20 s, or as long as a server asks, and at most `timeout_seconds` in all.
    #[serde(default = "default_retries")]
    pub retries: u32,
    /// Reaction to the failure of a component: an error, a panic, a value that is not finite, or a timeout.
    #[serde(default)]
    pub on_error: OnError,
    /// With `on_error = "drop"`: largest share of the completions of a group, or of the tasks of an evaluation, that may be
    /// left out; from 0 to below 1. Beyond it the group or the evaluation fails. Default: 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dropped: Option<f64>,
    /// Timeout for one attempt to judge a completion, in seconds; above 0 and at most 31536000 (a year). A judgement that exceeds it
    /// has failed.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: f64,
}

pub(crate) fn default_timeout() -> f64 {
    60.0
}

/// Default of `retries`.
pub(crate) fn default_retries() -> u32 {
    3
}

/// Default of `max_dropped`.
pub(crate) const MAX_DROPPED: f64 = 0.5;

/// One component of the sum. In a configuration it is a flat table with `kind`, `name`, `weight` and the keys of the
/// kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentSettings {
    /// Name, as in the metric `reward/<name>`. Default: the kind.
    pub name: String,
    /// Weight in the sum. Default: 1. With 0 the component is reported without effect on the reward.
    pub weight: f64,
    /// Domains of the tasks that it judges. Default: all.
    pub domains: DomainSet,
    /// Kind, with its settings.
    pub kind: Kind,
}

impl RewardSettings {
    /// One component with weight 1.
    pub fn single(kind: Kind) -> Self {
        Self { components: vec![kind.into()], ..Self::none() }
    }

    /// No component, for a stage that samples without a reward.
    pub fn none() -> Self {
        Self {
            components: Vec::new(),
            outcome: None,
            retries: default_retries(),
            on_error: OnError::Fatal,
            max_dropped: None,
            timeout_seconds: default_timeout(),
        }
    }

    /// Checks the settings.
    pub fn validate(&self) -> Result<(), RewardError> {
        if self.components.is_empty() {
            return Err(RewardError::NoComponents);
        }
        for (i, component) in self.components.iter().enumerate() {
            let name = &component.name;
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
                return Err(RewardError::InvalidName { name: name.clone() });
            }
            if self.components[..i].iter().any(|c| c.name == *name) {
                return Err(RewardError::RepeatedName { name: name.clone() });
            }
            if component.domains == DomainSet::none() {
                return Err(RewardError::NoDomains { name: name.clone() });
            }
            if !component.weight.is_finite() {
                return Err(RewardError::Weight { name: name.clone(), weight: component.weight });
            }
            component
                .kind
                .validate()
                .map_err(|source| RewardError::Component { name: name.clone(), source })?;
        }
        ValueRange::between(0.0, 100.0).check("retries", self.retries.into())?;
        // A year, which clocks can add without overflow.
        ValueRange::above(0.0, 31_536_000.0).check("timeout_seconds", self.timeout_seconds)?;
        if let Some(max_dropped) = self.max_dropped {
            if self.on_error == OnError::Fatal {
                return Err(RewardError::NothingDropped);
            }
            ValueRange::from_below(0.0, 1.0).check("max_dropped", max_dropped)?;
        }
        let Some(outcome) = &self.outcome else { return Ok(()) };
        match self.components.iter().find(|c| c.name == *outcome) {
            None => Err(RewardError::UnknownOutcome { name: outcome.clone() }),
            Some(c) if !c.kind.is_verifier() => {
                Err(RewardError::OutcomeNotVerifier { name: outcome.clone() })
            }
            Some(_) => Ok(()),
        }
    }

    /// Timeout of one judgement.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }

    /// Makes the paths of functions absolute, so that they do not depend on the working directory.
    pub fn make_absolute(&mut self) {
        for component in &mut self.components {
            component.kind.make_absolute();
        }
    }

    /// Files that rewards depend on, besides the files of functions.
    pub fn files(&self) -> Vec<PathBuf> {
        self.components.iter().flat_map(|component| component.kind.files()).collect()
    }

    /// Python functions of the components: `file.py:name` or `caller:name`.
    pub fn python_functions(&self) -> impl Iterator<Item = &str> {
        self.components.iter().filter_map(|component| match &component.kind {
            Kind::Python(settings) => Some(settings.function.as_str()),
            _ => None,
        })
    }

    /// True if a component has to be checked on the machine before a run: it calls a function or runs programs.
    pub fn needs_machine(&self) -> bool {
        self.components.iter().any(|component| component.kind.needs_machine())
    }

    /// Name of the first component that reads the reference answers of a domain.
    pub fn answer_reader(&self, domain: &str) -> Option<&str> {
        let reads = |c: &&ComponentSettings| c.kind.reads_answer() && c.domains.contains(domain);
        self.components.iter().find(reads).map(|c| c.name.as_str())
    }

    /// Weight of the environment's step rewards; `None` if no component uses them.
    pub fn environment_weight(&self) -> Option<f64> {
        self.components.iter().find(|c| matches!(c.kind, Kind::Environment(_))).map(|c| c.weight)
    }

    /// The outcome verifier of the tasks of a domain.
    pub fn outcome_of(&self, domain: &str) -> Option<&ComponentSettings> {
        let components = self.components.iter();
        let described = components.map(|c| (c.name.as_str(), &c.domains, c.kind.is_verifier()));
        outcome_index(self.outcome.as_deref(), domain, described).map(|index| &self.components[index])
    }
}

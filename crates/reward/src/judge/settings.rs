//! Settings of judges.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_core::{SettingError, SettingProblem, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most requests at a time.
const MAX_WORKERS: f64 = 1024.0;
/// Most tokens of an answer.
const MAX_TOKENS: f64 = 1_048_576.0;
/// Numbers that a judge gives by default, from worst to best.
pub(crate) const SCALE: [f64; 2] = [1.0, 10.0];

/// A language model that judges completions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelJudge {
    /// The judge. With `url`, its name at the server; otherwise a model folder or the name of a hub model, which this process
    /// computes.
    pub model: String,
    /// Base address of a server with the interface of OpenAI, such as `https://host/v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Name of the environment variable with the API key of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Revision of a server's model: calibrations and cached verdicts of another revision are not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The verdicts that the judge gives.
    #[serde(default)]
    pub verdict: VerdictKind,
    /// The judge reasons before its verdict, which is the last line of its answer. Otherwise the verdict is the whole answer.
    #[serde(default = "default_true")]
    pub reasons: bool,
    /// Value of `yes_no` verdicts: p(yes) / (p(yes) + p(no)) by the log-probabilities that the server returns.
    #[serde(default)]
    pub logprobs: bool,
    /// Numbers of `scale` and `rubric` verdicts, from worst (value 0) to best (value 1). Default: [1, 10].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<[f64; 2]>,
    /// Choices of `choices` verdicts, with the value of each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub choices: BTreeMap<String, f64>,
    /// Criteria of `rubric` verdicts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<Criterion>,
    /// What `pairwise` verdicts compare a completion with. Default: `reference`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    /// With `against = "group"`: each completion is compared with this number of completions after it, in a circle. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opponents: Option<usize>,
    /// File with the template of the prompt. Default: one for each kind of verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PathBuf>,
    /// Instructions for the judge, part of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric: Option<String>,
    /// Field of a row with instructions for its task, instead of `rubric`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric_field: Option<String>,
    /// The judge sees the whole episode after the prompt, with the observations of the environment. Otherwise it sees what the policy wrote.
    #[serde(default)]
    pub observations: bool,
    /// Maximum number of tokens of an answer.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
    /// Number of questions at a time, from 1 to 1024.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Rates of requests; servers only.
    #[serde(default)]
    pub limits: Limits,
    /// Memory of verdicts.
    #[serde(default)]
    pub cache: CacheSettings,
    /// File of the judge's calibration, which `rloom reward calibrate` writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<PathBuf>,
    /// A run starts only if no false-positive rate of the calibration is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_false_positive_rate: Option<f64>,
    /// The value from which on the task counts as solved, which makes the component a verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved_at: Option<f64>,
}

/// A reward model behind the `/classify` interface of vLLM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Classifier {
    /// Name of the model at the server.
    pub model: String,
    /// Address that requests are posted to, such as `http://host:8000/classify`.
    pub url: String,
    /// Name of the environment variable with the API key of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Revision of the model: cached values of another revision are not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// File with the template of the input. Default: the prompt and the completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PathBuf>,
    /// The model sees the whole episode after the prompt, with the observations of the environment. Otherwise it sees what the policy wrote.
    #[serde(default)]
    pub observations: bool,
    /// The server applies the model's activation; without it the value is the raw output.
    #[serde(default = "default_true")]
    pub activation: bool,
    /// Number of requests at a time, from 1 to 1024.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Rates of requests.
    #[serde(default)]
    pub limits: Limits,
    /// Memory of values.
    #[serde(default)]
    pub cache: CacheSettings,
    /// The value from which on the task counts as solved, which makes the component a verifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solved_at: Option<f64>,
}

/// Kinds of verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Yes (1) or no (0).
    #[default]
    YesNo,
    /// A number on a scale.
    Scale,
    /// One of several choices.
    Choices,
    /// A number for each of several criteria; the value is their weighted mean.
    Rubric,
    /// The better one of two texts, asked in both orders: 1, 0.5 for a tie, or 0.
    Pairwise,
    /// A number from 0 to 1 for each completion of a group, all in one question.
    Rank,
}

/// Opponent of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The reference answer of the task.
    #[default]
    Reference,
    /// Other completions of the group.
    Group,
}

/// A criterion of a rubric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Criterion {
    /// Name in the judge's answer.
    pub name: String,
    /// Description for the judge.
    #[serde(default)]
    pub description: String,
    /// Weight in the mean; above 0.
    #[serde(default = "default_weight")]
    pub weight: f64,
}

/// Limits of requests to a server.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests per minute; 0 for no limit.
    pub requests_per_minute: f64,
    /// Tokens per minute, of questions and answers; 0 for no limit.
    pub tokens_per_minute: f64,
}

/// Memory of verdicts: a question that was answered before is not asked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSettings {
    /// Maximum number of verdicts; 0 for none. The oldest ones are dropped.
    pub entries: usize,
    /// File that keeps them after the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { entries: 10_000, file: None }
    }
}

fn default_true() -> bool {
    true
}

fn default_max_tokens() -> usize {
    1024
}

fn default_workers() -> u32 {
    8
}

fn default_weight() -> f64 {
    1.0
}

impl ModelJudge {
    /// Checks the settings.
    pub(crate) fn validate(&self) -> Result<(), SettingError> {
        check_name("model", &self.model)?;
        let remote = self.url.is_some();
        if let Some(url) = &self.url {
            check_url(url)?;
        }
        for (key, is_set) in [
            ("api_key_env", self.api_key_env.is_some()),
            ("revision", self.revision.is_some()),
            ("logprobs", self.logprobs),
            ("limits", self.limits != Limits::default()),
        ] {
            if is_set && !remote {
                return Err(unused(key, "url", "\"https://…\""));
            }
        }
        check_key_name(self.api_key_env.as_deref())?;
        self.check_verdict()?;
        ValueRange::between(1.0, MAX_TOKENS).check("max_tokens", self.max_tokens as f64)?;
        ValueRange::between(1.0, MAX_WORKERS).check("workers", self.workers.into())?;
        self.limits.validate()?;
        self.cache.validate()?;
        if self.rubric.is_some() && self.rubric_field.is_some() {
            return Err(SettingProblem::Conflict { other: "rubric_field" }.at("rubric"));
        }
        match (&self.calibration, self.max_false_positive_rate) {
            (None, Some(_)) => {
                return Err(unused("max_false_positive_rate", "calibration", "\"FILE\""));
            }
            (_, Some(rate)) => ValueRange::between(0.0, 1.0).check("max_false_positive_rate", rate)?,
            _ => {}
        }
        check_solved_at(self.solved_at)
    }

    /// The keys that belong to one kind of verdict.
    fn check_verdict(&self) -> Result<(), SettingError> {
        use VerdictKind::{Choices, Pairwise, Rubric, Scale, YesNo};
        let is_group = self.against == Some(Against::Group);
        for (key, is_set, kinds, value) in [
            ("logprobs", self.logprobs, &[YesNo][..], "\"yes_no\""),
            ("scale", self.scale.is_some(), &[Scale, Rubric], "\"scale\""),
            ("choices", !self.choices.is_empty(), &[Choices], "\"choices\""),
            ("criteria", !self.criteria.is_empty(), &[Rubric], "\"rubric\""),
            ("against", self.against.is_some(), &[Pairwise], "\"pairwise\""),
        ] {
            if is_set && !kinds.contains(&self.verdict) {
                return Err(unused(key, "verdict", value));
            }
        }
        if self.opponents.is_some() && !is_group {
            return Err(unused("opponents", "against", "\"group\""));
        }
        if let Some(opponents) = self.opponents {
            ValueRange::at_least(1.0).check("opponents", opponents as f64)?;
        }
        if let Some([worst, best]) = self.scale
            && !(worst.is_finite() && best.is_finite() && worst != best)
        {
            let value = format!("[{worst}, {best}]");
            return Err(SettingProblem::Invalid { value, expected: "two different numbers" }.at("scale"));
        }
        match self.verdict {
            Choices => self.check_choices(),
            Rubric => self.check_criteria(),
            _ => Ok(()),
        }
    }

    fn check_choices(&self) -> Result<(), SettingError> {
        if self.choices.is_empty() {
            return Err(SettingProblem::Empty.at("choices"));
        }
        let mut seen = Vec::new();
        for (name, value) in &self.choices {
            if name.trim() != name || name.is_empty() || name.lines().count() != 1 || !value.is_finite() {
                let (value, expected) = (format!("{name:?} = {value}"), "a line of text and a finite number");
                return Err(SettingProblem::Invalid { value, expected }.at("choices"));
            }
            check_unique("choices", name, &mut seen)?;
        }
        Ok(())
    }

    fn check_criteria(&self) -> Result<(), SettingError> {
        if self.criteria.is_empty() {
            return Err(SettingProblem::Empty.at("criteria"));
        }
        let mut seen = Vec::new();
        for Criterion { name, weight, .. } in &self.criteria {
            if name.is_empty() || name.lines().count() != 1 || !weight.is_finite() || *weight <= 0.0 {
                let (value, expected) =
                    (format!("{name:?} with weight {weight}"), "a name and a weight above 0");
                return Err(SettingProblem::Invalid { value, expected }.at("criteria"));
            }
            check_unique("criteria", name, &mut seen)?;
        }
        Ok(())
    }

    /// True if it judges the completions of a group together.
    pub(crate) fn judges_groups(&self) -> bool {
        self.verdict == VerdictKind::Rank || self.against == Some(Against::Group)
    }

    /// True if it compares completions with the reference answer, which every task must have.
    pub(crate) fn needs_reference(&self) -> bool {
        self.verdict == VerdictKind::Pairwise && !self.judges_groups()
    }

    pub(crate) fn make_absolute(&mut self) {
        let files = [&mut self.prompt, &mut self.cache.file, &mut self.calibration];
        files.into_iter().for_each(absolute);
        // Otherwise it is the name of a hub model.
        let folder = Path::new(&self.model);
        if self.url.is_none()
            && folder.is_dir()
            && let Ok(folder) = std::path::absolute(folder)
        {
            self.model = folder.display().to_string();
        }
    }
}

impl Classifier {
    /// Checks the settings.
    pub(crate) fn validate(&self) -> Result<(), SettingError> {
        check_name("model", &self.model)?;
        check_url(&self.url)?;
        check_key_name(self.api_key_env.as_deref())?;
        ValueRange::between(1.0, MAX_WORKERS).check("workers", self.workers.into())?;
        self.limits.validate()?;
        self.cache.validate()?;
        check_solved_at(self.solved_at)
    }

    pub(crate) fn make_absolute(&mut self) {
        [&mut self.prompt, &mut self.cache.file].into_iter().for_each(absolute);
    }
}

impl Limits {
    fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(0.0, 1e12).check("limits.requests_per_minute", self.requests_per_minute)?;
        ValueRange::between(0.0, 1e15).check("limits.tokens_per_minute", self.tokens_per_minute)
    }
}

impl CacheSettings {
    fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(0.0, 1e7).check("cache.entries", self.entries as f64)?;
        if self.file.is_some() && self.entries == 0 {
            let problem =
                SettingProblem::Invalid { value: "0".into(), expected: "above 0 if `cache.file` is set" };
            return Err(problem.at("cache.entries"));
        }
        Ok(())
    }
}

/// Makes a path absolute, so that it does not depend on the working directory.
fn absolute(file: &mut Option<PathBuf>) {
    if let Some(file) = file
        && let Ok(absolute) = std::path::absolute(&*file)
    {
        *file = absolute;
    }
}

fn unused(key: &'static str, other: &'static str, value: &'static str) -> SettingError {
    SettingProblem::Unused { other, value }.at(key)
}

fn check_unique(key: &'static str, name: &str, seen: &mut Vec<String>) -> Result<(), SettingError> {
    let folded = name.to_lowercase();
    if seen.contains(&folded) {
        return Err(SettingProblem::Repeated { value: format!("{name:?}") }.at(key));
    }
    seen.push(folded);
    Ok(())
}

fn check_name(key: &'static str, name: &str) -> Result<(), SettingError> {
    if name.trim().is_empty() {
        return Err(SettingProblem::Invalid { value: format!("{name:?}"), expected: "a name" }.at(key));
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), SettingError> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        let expected = "an address that begins with http:// or https://";
        return Err(SettingProblem::Invalid { value: format!("{url:?}"), expected }.at("url"));
    }
    Ok(())
}

/// The value is not repeated: it may be the key itself.
fn check_key_name(variable: Option<&str>) -> Result<(), SettingError> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match variable {
        Some(variable) if !is_name(variable) => {
            let expected = "the name of an environment variable";
            Err(SettingProblem::Invalid { value: "something else".into(), expected }.at("api_key_env"))
        }
        _ => Ok(()),
    }
}

fn check_solved_at(least: Option<f64>) -> Result<(), SettingError> {
    match least {
        Some(least) => ValueRange::between(f64::MIN, f64::MAX).check("solved_at", least),
        None => Ok(()),
    }
}

use std::sync::Arc;
use std::time::Duration;

use rloom_core::{EarlierReasoning, History, SettingError, SettingProblem, ValueRange};
use rloom_function::Host;
use rloom_text::calls::CallFormat;
use rloom_tools::ToolSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Tools;
use crate::keys::keys;
use crate::settings::Kind;
use crate::{Environment, EnvironmentUnusable};

/// What a malformed call leads to. It is counted in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnMalformed {
    /// Its result is an error message. The other calls of the turn run.
    #[default]
    Observe,
    /// As `observe`, and the turn has a negative step reward.
    Penalty,
    /// As `observe`, and the turn carries no loss, unless it is the last one of its episode.
    Mask,
    /// The episode ends.
    End,
}

/// The calls of an episode that a resumed run continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnResume {
    /// Their results are those that were recorded: no tool runs again.
    #[default]
    Recorded,
    /// The tools run again, in the same order, which restores the state of servers that keep it for each episode.
    Repeat,
}

/// Tools that the policy calls in its turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolsEnvironment {
    /// Sources of the tools.
    pub tools: Vec<ToolSettings>,
    /// Format of the calls. Default: that of the chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<CallFormat>,
    /// Maximum number of turns of an episode, from 1 to 1000. The calls of the last turn do not run.
    #[serde(default = "max_turns")]
    pub max_turns: u32,
    /// Maximum number of calls of an episode. Those beyond have an error as their result.
    #[serde(default = "max_calls")]
    pub max_calls: u32,
    /// Maximum number of calls of a turn. Those beyond have an error as their result.
    #[serde(default = "max_calls_per_turn")]
    pub max_calls_per_turn: u32,
    /// What a malformed call leads to.
    #[serde(default)]
    pub on_malformed: OnMalformed,
    /// Step reward of a turn with malformed calls is the negative of this; only with `on_malformed = "penalty"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed_penalty: Option<f64>,
    /// Maximum time of a call, in seconds.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: f64,
    /// Maximum length of a result in bytes; the end of a longer one is replaced by its length: `[truncated 99 bytes]`.
    #[serde(default = "max_result_bytes")]
    pub max_result_bytes: u64,
    /// Maximum length of a result in tokens of the policy; longer ones are cut off in the same way.
    #[serde(default = "max_result_tokens")]
    pub max_result_tokens: u64,
    /// The calls of an episode that a resumed run continues.
    #[serde(default)]
    pub on_resume: OnResume,
    /// What the policy sees of earlier turns: `"full"`, all of them, or a table with `window` or `summary`. Default: `"full"`.
    #[serde(default, skip_serializing_if = "History::is_full")]
    pub history: History,
    /// Reasoning of earlier turns: `"keep"`, in the same segment, or `"new_segment"`, without it, for chat templates that drop it
    /// between calls. Default: `"keep"`.
    #[serde(default, skip_serializing_if = "EarlierReasoning::is_kept")]
    pub earlier_reasoning: EarlierReasoning,
    /// All characters of the results that tasks do not have, for models with a character tokenizer.
    #[serde(default)]
    pub alphabet: String,
}

keys!(ToolsEnvironment {
    tools: Vec<ToolSettings>,
    format: Option<CallFormat>,
    max_turns: u32,
    max_calls: u32,
    max_calls_per_turn: u32,
    on_malformed: OnMalformed,
    malformed_penalty: Option<f64>,
    timeout_seconds: f64,
    max_result_bytes: u64,
    max_result_tokens: u64,
    on_resume: OnResume,
    history: History,
    earlier_reasoning: EarlierReasoning,
    alphabet: String,
});

fn max_turns() -> u32 {
    10
}

fn max_calls() -> u32 {
    64
}

fn max_calls_per_turn() -> u32 {
    8
}

fn timeout_seconds() -> f64 {
    30.0
}

fn max_result_bytes() -> u64 {
    16384
}

fn max_result_tokens() -> u64 {
    4096
}

impl ToolsEnvironment {
    /// Settings with the default values.
    pub fn new(tools: Vec<ToolSettings>) -> Self {
        Self {
            tools,
            format: None,
            max_turns: max_turns(),
            max_calls: max_calls(),
            max_calls_per_turn: max_calls_per_turn(),
            on_malformed: OnMalformed::default(),
            malformed_penalty: None,
            timeout_seconds: timeout_seconds(),
            max_result_bytes: max_result_bytes(),
            max_result_tokens: max_result_tokens(),
            on_resume: OnResume::default(),
            history: History::Full,
            earlier_reasoning: EarlierReasoning::default(),
            alphabet: String::new(),
        }
    }

    /// Step reward of a turn; `None` if turns have none.
    pub(super) fn step_reward(&self, is_malformed: bool) -> Option<f64> {
        let penalty = self.malformed_penalty.unwrap_or(0.1);
        (self.on_malformed == OnMalformed::Penalty).then_some(if is_malformed { -penalty } else { 0.0 })
    }
}

impl Kind for ToolsEnvironment {
    fn validate(&self) -> Result<(), SettingError> {
        if self.tools.is_empty() {
            return Err(SettingProblem::Empty.at("tools"));
        }
        self.tools.iter().try_for_each(ToolSettings::validate)?;
        ValueRange::between(1.0, 1000.0).check("max_turns", self.max_turns.into())?;
        ValueRange::between(1.0, 10_000.0).check("max_calls", self.max_calls.into())?;
        ValueRange::between(1.0, 100.0).check("max_calls_per_turn", self.max_calls_per_turn.into())?;
        ValueRange::between(0.1, 86_400.0).check("timeout_seconds", self.timeout_seconds)?;
        ValueRange::between(1.0, 1e9).check("max_result_bytes", self.max_result_bytes as f64)?;
        ValueRange::between(1.0, 1e9).check("max_result_tokens", self.max_result_tokens as f64)?;
        if let Some(penalty) = self.malformed_penalty {
            ValueRange::between(0.0, 1e6).check("malformed_penalty", penalty)?;
            if self.on_malformed != OnMalformed::Penalty {
                let expected = "`on_malformed = \"penalty\"`, which alone reads it";
                return Err(
                    SettingProblem::Invalid { value: penalty.to_string(), expected }.at("malformed_penalty")
                );
            }
        }
        if self.on_resume == OnResume::Recorded && self.tools.iter().any(ToolSettings::has_state) {
            let expected = "\"repeat\", because a server of `per_episode` has lost the state of its episode";
            return Err(
                SettingProblem::Invalid { value: "\"recorded\"".to_owned(), expected }.at("on_resume")
            );
        }
        Ok(())
    }

    fn max_turns(&self) -> usize {
        self.max_turns as usize
    }

    fn has_steps(&self) -> bool {
        self.on_malformed == OnMalformed::Penalty
    }

    fn reads_answer(&self) -> bool {
        false
    }

    fn is_game(&self) -> bool {
        false
    }

    fn history(&self) -> Option<&History> {
        Some(&self.history)
    }

    fn earlier_reasoning(&self) -> EarlierReasoning {
        self.earlier_reasoning
    }

    fn alphabet(&self) -> String {
        self.alphabet.clone()
    }

    fn make_absolute(&mut self) {
        self.tools.iter_mut().for_each(ToolSettings::make_absolute);
    }

    fn check(&self, _: Option<Arc<dyn Host>>) -> Result<(), EnvironmentUnusable> {
        Ok(Tools::new(self).map(drop)?)
    }

    fn declared_tools(&self) -> Result<Vec<Value>, EnvironmentUnusable> {
        Ok(Tools::new(self)?.declared.to_vec())
    }

    fn environment(
        &self,
        _: Duration,
        _: Option<Arc<dyn Host>>,
    ) -> Result<Arc<dyn Environment>, EnvironmentUnusable> {
        Ok(Arc::new(Tools::new(self)?))
    }
}

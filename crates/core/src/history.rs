use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{SettingError, SettingProblem, ValueRange};

/// What the policy sees of the earlier turns of an episode.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// All turns: observations are appended to the tokens of the episode.
    #[default]
    Full,
    /// The prompt and this number of last turns with their observations, at least one. A turn for which an earlier one is
    /// left out begins a new segment of the episode.
    Window(
        #[schemars(
            description = "Number of last turns that the policy sees with their observations, from 1 to 1000, after the prompt."
        )]
        u32,
    ),
    /// All turns up to a number of tokens. Then the policy is asked for a summary, and the episode continues in a new
    /// segment with the prompt and the summary.
    Summary(SummarySettings),
}

/// When and how a policy summarises the turns so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SummarySettings {
    /// Number of tokens of a segment above which a summary takes the place of its turns. The context of the model must have
    /// room for the request and the summary as well.
    pub limit: u32,
    /// The request for a summary: a message of the user, or text after a prompt that is text.
    #[serde(default = "default_request")]
    pub request: String,
}

fn default_request() -> String {
    "Summarise what has happened so far and what you have learned. You will continue from your summary alone."
        .to_owned()
}

/// What becomes of the reasoning of earlier turns if the chat template drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EarlierReasoning {
    /// It stays: the tokens of an episode are only appended.
    #[default]
    Keep,
    /// The next turn begins a new segment of the episode, with the conversation as the template renders it.
    NewSegment,
}

impl History {
    /// True for the default.
    pub fn is_full(&self) -> bool {
        *self == Self::Full
    }

    /// Checks the setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        match self {
            Self::Full => Ok(()),
            Self::Window(turns) => ValueRange::between(1.0, 1000.0).check("history.window", (*turns).into()),
            Self::Summary(SummarySettings { limit, request }) => {
                ValueRange::between(1.0, 1e9).check("history.summary.limit", (*limit).into())?;
                if request.trim().is_empty() {
                    return Err(SettingProblem::Empty.at("history.summary.request"));
                }
                Ok(())
            }
        }
    }
}

impl EarlierReasoning {
    /// True for the default.
    pub fn is_kept(&self) -> bool {
        *self == Self::Keep
    }
}

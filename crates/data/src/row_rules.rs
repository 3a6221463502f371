use rloom_core::LossOn;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Treatment of rows with more tokens than fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// The run ends before its first step, with the first such row.
    #[default]
    Error,
    /// The row is dropped.
    Drop,
    /// The first tokens are kept: the completion is cut at its end.
    KeepStart,
    /// The last tokens are kept: the prompt is cut at its beginning. A completion that does not fit after one token of the
    /// prompt is cut at its end.
    KeepEnd,
}

impl TooLong {
    /// True if rows are cut.
    pub fn cuts(self) -> bool {
        matches!(self, Self::KeepStart | Self::KeepEnd)
    }
}

/// How the rows of a source become tokens of an offline stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowRules {
    /// The tokens that carry loss.
    pub loss_on: LossOn,
    /// Treatment of rows that are too long.
    pub too_long: TooLong,
    /// Maximum number of tokens of a row. Default: the context of the model.
    pub max_tokens: Option<u64>,
}

impl RowRules {
    /// Most tokens of a row under a model with this context.
    pub fn limit(&self, context: usize) -> usize {
        self.max_tokens
            .and_then(|limit| usize::try_from(limit).ok())
            .map_or(context, |limit| limit.min(context))
    }
}

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Policy for in-flight completions when new weights are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUpdate {
    /// Finishes them with the weights they started with; queued requests wait for the new weights. Each completion then
    /// has exactly one version.
    #[default]
    Finish,
    /// Continues them with the new weights after recomputing the keys and values of the tokens so far. The
    /// log-probability of every later token is exactly that of the new weights.
    Recompute,
    /// Continues them with the new weights and the old keys and values. Cheap, but no single version would reproduce the
    /// log-probabilities of the later tokens. Completions without a token yet restart, so that the first tokens of
    /// every completion are exactly those of the version they name.
    Keep,
    /// Aborts them; each returns the tokens it has.
    Abort,
}

impl OnUpdate {
    /// Name of the policy in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Recompute => "recompute",
            Self::Keep => "keep",
            Self::Abort => "abort",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_serialized_form() {
        for policy in [OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Keep, OnUpdate::Abort] {
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        }
    }
}

use rloom_core::{SettingError, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[stage.validation]`: the loss on held-out rows, in stages that learn from rows. The rows are those that `eval_path` or
/// `eval_rows` of the stage's data hold out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationSettings {
    /// Steps between validations; 0 for none in this stage. The first and last version of a stage are always validated.
    pub every: u64,
    /// Maximum number of held-out rows, the same ones in every validation. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
}

impl Default for ValidationSettings {
    fn default() -> Self {
        Self { every: 10, rows: None }
    }
}

impl ValidationSettings {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.rows.map_or(Ok(()), |rows| ValueRange::at_least(1.0).check("rows", rows as f64))
    }
}

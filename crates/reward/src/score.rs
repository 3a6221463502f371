use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Value of a completion that passes some of its checks, such as the test cases of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// 1 if all pass, 0 otherwise. Test cases after the first failure are not run.
    #[default]
    All,
    /// Fraction that passes.
    Fraction,
}

impl Score {
    /// The value of `passed` of `total` checks.
    pub(crate) fn of(self, passed: usize, total: usize) -> f64 {
        match self {
            Self::All => f64::from(u8::from(passed == total)),
            Self::Fraction => passed as f64 / total.max(1) as f64,
        }
    }
}

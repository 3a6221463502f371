//! Names of experiment trackers.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An experiment tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tracker {
    /// Weights & Biases; `WANDB_MODE=offline` keeps everything on this machine.
    Wandb,
    /// MLflow; `MLFLOW_TRACKING_URI` names its server or folder.
    Mlflow,
    /// Trackio, which stores its data on this machine.
    Trackio,
}

impl Tracker {
    /// All trackers.
    pub const ALL: [Self; 3] = [Self::Wandb, Self::Mlflow, Self::Trackio];

    /// Returns the name in settings, which is that of the Python package.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Trackio => "trackio",
        }
    }
}

impl fmt::Display for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_settings() {
        for tracker in Tracker::ALL {
            assert_eq!(serde_json::to_value(tracker).unwrap(), tracker.name());
        }
    }
}

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Protection of the machine from a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Namespaces of its own, Landlock, permitted system calls, resource limits.
    Namespaces,
    /// Landlock, permitted system calls, resource limits; for machines without user namespaces, such as Docker containers.
    Landlock,
    /// Resource limits alone: the program can do what its user can.
    None,
}

impl Tier {
    /// Name in configuration and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Choice of the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// `namespaces` if the machine allows it, else `landlock`; refused if it allows neither.
    #[default]
    Auto,
    /// Namespaces, Landlock, permitted system calls and resource limits.
    Namespaces,
    /// Landlock, permitted system calls and resource limits.
    Landlock,
    /// No protection but resource limits: a program can do what the user of the run can. For machines that are
    /// themselves disposable.
    None,
}

impl Choice {
    /// Tiers to try, best first.
    pub(crate) fn tiers(self) -> &'static [Tier] {
        match self {
            Self::Auto => &[Tier::Namespaces, Tier::Landlock],
            Self::Namespaces => &[Tier::Namespaces],
            Self::Landlock => &[Tier::Landlock],
            Self::None => &[Tier::None],
        }
    }
}

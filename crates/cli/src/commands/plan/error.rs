use std::io;
use std::path::PathBuf;

use rloom_sim::{Profile, ProfileError, SimError};

use crate::failure::Failure;

/// Errors of `rloom plan`.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub(crate) enum PlanError {
    /// The recipe has no stage that samples.
    #[error("the recipe has no stage that samples")]
    #[diagnostic(help("supervised stages have no rollouts to schedule"))]
    NoSamplingStage,
    /// The recipe has no stage of this name.
    #[error("the recipe has no stage `{name}`")]
    #[diagnostic(help("{}", stages_hint(sampling)))]
    UnknownStage {
        /// Name given on the command line.
        name: String,
        /// Names of the stages that sample.
        sampling: Vec<String>,
    },
    /// The stage is supervised.
    #[error("stage `{0}` does not sample, so there is nothing to schedule")]
    NotSampling(String),
    /// The profile is neither built in nor a readable file.
    #[error("cannot read hardware profile `{name}`: {error}")]
    #[diagnostic(help("use one of {}, or the path of a TOML file", built_in_profiles()))]
    UnknownProfile {
        /// Name given on the command line.
        name: String,
        /// Error of reading it as a file.
        error: io::Error,
    },
    /// The profile file is invalid.
    #[error("invalid hardware profile `{name}`: {error}")]
    Profile {
        /// Name given on the command line.
        name: String,
        /// Cause.
        error: ProfileError,
    },
    /// A split that leaves no device for training, or too few for a replica.
    #[error("{rollout} of {devices} devices cannot be used for rollout")]
    #[diagnostic(help("a replica needs {per_replica}, and at least one device must remain for training"))]
    RolloutDevices {
        /// Devices for rollout.
        rollout: u32,
        /// Total number of devices.
        devices: u32,
        /// Devices per replica.
        per_replica: u32,
    },
    /// Devices are given for a profile that was measured on inference servers.
    #[error("the profile was measured on inference servers: give their number with --replicas, not devices")]
    DevicesOfServers,
    /// A number of servers is given for a profile that was not measured on servers.
    #[error(
        "--replicas needs --calibrate with a run whose rollouts came from inference servers, or its saved profile"
    )]
    NoServers,
    /// The profile was measured on inference servers, and the recipe has none.
    #[error("the profile was measured on inference servers, and the recipe's rollout engine is `embedded`")]
    EmbeddedRecipe,
    /// An unknown shape of lengths.
    #[error("invalid value `{0}` for --lengths")]
    #[diagnostic(help("use `constant`, `lognormal:0.8` or `tail:0.05`"))]
    Lengths(String),
    /// A file of the run cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// An output file cannot be written.
    #[error("cannot write {}: {error}", .path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// The fitted profile cannot be serialized.
    #[error("cannot serialize the fitted profile: {0}")]
    Serialize(ProfileError),
    /// The simulation or the calibration failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Sim(#[from] SimError),
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Read { .. }
            | PlanError::Write { .. }
            | PlanError::Serialize(_)
            | PlanError::Sim(_) => Self::failed(error),
            _ => Self::usage(error),
        }
    }
}

fn stages_hint(sampling: &[String]) -> String {
    if sampling.is_empty() {
        "supervised stages have no rollouts to schedule".to_owned()
    } else {
        format!("stages that sample: {}", sampling.join(", "))
    }
}

fn built_in_profiles() -> String {
    Profile::names().collect::<Vec<_>>().join(", ")
}

//! Errors of adapters.

use std::path::PathBuf;

use crate::{CheckpointError, ConfigError};

/// An adapter that cannot be read, written or applied.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// `adapter_config.json` cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// `adapter_config.json` is not what PEFT writes.
    #[error("{}: not the configuration of a PEFT adapter: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// A reward model's adapter is opened as a policy's.
    #[error("{}: the adapter is that of a reward model", path.display())]
    #[diagnostic(help("name the folder of a policy here; reward models are components of a reward"))]
    RewardModel {
        /// The configuration.
        path: PathBuf,
    },
    /// A policy's adapter is opened as a reward model's.
    #[error("{}: the adapter has no value head, so that it is no reward model's", path.display())]
    #[diagnostic(help("`modules_to_save` of a reward model's adapter contains `score`"))]
    NoRewardModel {
        /// The configuration.
        path: PathBuf,
    },
    /// The adapter uses something that RLoom does not have.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// The configuration.
        path: PathBuf,
        /// The setting and its value.
        what: String,
    },
    /// The base is not where the adapter says.
    #[error("{}: its base is not in {}", path.display(), base.display())]
    #[diagnostic(help("write the base's folder to `base_model_name_or_path` in this file"))]
    BaseMissing {
        /// The configuration.
        path: PathBuf,
        /// The recorded folder.
        base: PathBuf,
    },
    /// The base has other weights than those that the adapter was trained on.
    #[error("{}: the weights in {} are not those that the adapter was trained on", path.display(), base.display())]
    OtherBase {
        /// The adapter's weights.
        path: PathBuf,
        /// Folder of the base.
        base: PathBuf,
    },
    /// The base of an adapter is itself one.
    #[error("{}: the base in {} is an adapter", path.display(), base.display())]
    Nested {
        /// The configuration.
        path: PathBuf,
        /// Folder of the base.
        base: PathBuf,
    },
    /// An adapter is saved whose base is in no folder.
    #[error("{}: the adapter's base is not stored in a folder", path.display())]
    NoBaseFolder {
        /// The adapter's folder.
        path: PathBuf,
    },
    /// A model without an adapter is saved or merged as one, or the shapes differ.
    #[error("{}: the adapter has another shape than the model's", path.display())]
    OtherShape {
        /// The adapter's folder.
        path: PathBuf,
    },
    /// Error of the adapter's tensors.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Tensors(#[from] CheckpointError),
    /// Error of another configuration file.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Config(#[from] ConfigError),
}

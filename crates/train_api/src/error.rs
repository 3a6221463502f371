use std::io;
use std::path::PathBuf;

/// The training API cannot start.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum TrainApiError {
    /// The folder for checkpoints cannot be used.
    #[error("cannot use {path} for checkpoints: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Reason of the operating system.
        source: io::Error,
    },
    /// The served model is itself an adapter.
    #[error("the served model is an adapter, which cannot be the base of others")]
    #[diagnostic(help("write base and adapter as one model: `rloom export RUN model --merge --out FOLDER`"))]
    AdapterServed,
    /// Adapters name the folder of their base.
    #[error("adapters can only be trained over a model in a folder")]
    NoFolder,
    /// The thread that trains cannot start.
    #[error("cannot start the training thread: {0}")]
    Thread(io::Error),
    /// The operating system gave no random bytes for identifiers.
    #[error("cannot create random identifiers: {message}")]
    Random {
        /// Explanation.
        message: String,
    },
}

//! Weights in files: `safetensors`, single or sharded, in f32, f16 or bf16; written in f32.

mod read;
mod write;

use std::path::PathBuf;

pub(crate) use read::{Checkpoint, TensorFile};
pub(crate) use write::{TensorOut, write_tensors};

/// Weights that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The folder has no weights in a format that can be read.
    #[error("{}: no model.safetensors and no model.safetensors.index.json{}", path.display(), if *other_format { "\nhint: it has weights in another format; open it with transformers and save it again" } else { "" })]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// Whether there are PyTorch pickles instead.
        other_format: bool,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file cannot be mapped into memory.
    #[error(transparent)]
    Map(#[from] rloom_ops::OpsError),
    /// A file is shorter or longer than its header says.
    #[error("{}: the file has {actual} bytes, its header describes {expected}\nhint: the download or copy broke off; fetch the file again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes by the header.
        expected: u64,
        /// Bytes that are there.
        actual: u64,
    },
    /// A file's header is damaged.
    #[error("{}: not a safetensors file: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: safetensors::SafeTensorError,
    },
    /// The index of a sharded checkpoint is damaged or does not fit its files.
    #[error("{}: {message}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A tensor that the model needs is not there.
    #[error("{}: the tensor {name} is missing{}", path.display(), others(*more))]
    MissingTensor {
        /// Where it should be.
        path: PathBuf,
        /// The first missing tensor.
        name: String,
        /// How many more are missing.
        more: usize,
    },
    /// A tensor is there that the model does not have.
    #[error("{}: the tensor {name} does not belong to this model{}\nhint: config.json does not describe these weights", path.display(), others(*more))]
    UnexpectedTensor {
        /// Where it is.
        path: PathBuf,
        /// The first such tensor.
        name: String,
        /// How many more there are.
        more: usize,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{}: {name} has shape {actual:?}, the configuration makes it {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// By the configuration.
        expected: Vec<usize>,
        /// In the file.
        actual: Vec<usize>,
    },
    /// A tensor's numbers are of a type that is not read.
    #[error("{}: {name} is {dtype}, only F32, F16 and BF16 are read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type, as the file has it.
        dtype: String,
    },
    /// The file's own notes are missing or wrong.
    #[error("{}: {message}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A value head is to be written or read for a model that has none.
    #[error("{}: the model has no value head", path.display())]
    NoValueHead {
        /// The value head's file.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

fn others(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

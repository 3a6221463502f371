//! Weights in files: reads `safetensors`, single or sharded, in f32, f16 or bf16; writes f32 or bf16.

mod header;
mod low_bits;
mod read;
mod write;

use std::path::PathBuf;

pub(crate) use low_bits::{FILE as LOW_BITS, LowBits};
pub(crate) use read::{Checkpoint, INDEX, SINGLE, TensorFile};
pub(crate) use write::{TensorOut, Values, write_tensors, write_tensors_as};

/// Weights that cannot be read or written.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The folder has no weights.
    #[error("{}: no model.safetensors and no model.safetensors.index.json", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has PyTorch pickles instead of safetensors.
    #[error("{}: no model.safetensors and no model.safetensors.index.json", path.display())]
    #[diagnostic(help("it has weights in another format; open it with transformers and save it again"))]
    OtherFormat {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The size of a file differs from the one in its header, or the file has shrunk while it was read.
    #[error("{}: the file has {actual} bytes, its header describes {expected}", path.display())]
    #[diagnostic(help("the download or copy was interrupted; fetch the file again"))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Size by the header.
        expected: u64,
        /// Actual size.
        actual: u64,
    },
    /// A file's header is damaged.
    #[error("{}: not a safetensors file: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        source: safetensors::SafeTensorError,
    },
    /// The index of a sharded checkpoint is damaged or does not fit its files.
    #[error("{}: {problem}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// The problem.
        #[source]
        problem: IndexProblem,
    },
    /// A tensor of the model is missing.
    #[error("{}: the tensor {name} is missing{}", path.display(), others(*more))]
    MissingTensor {
        /// File or folder that should contain it.
        path: PathBuf,
        /// The first missing tensor.
        name: String,
        /// Number of further missing tensors.
        more: usize,
    },
    /// A tensor is not part of the model.
    #[error("{}: the tensor {name} does not belong to this model{}", path.display(), others(*more))]
    #[diagnostic(help("config.json does not describe these weights"))]
    UnexpectedTensor {
        /// File that contains it.
        path: PathBuf,
        /// The first such tensor.
        name: String,
        /// Number of further such tensors.
        more: usize,
    },
    /// The shape of a tensor contradicts the configuration.
    #[error("{}: {name} has shape {actual:?}, the configuration requires {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        actual: Vec<usize>,
    },
    /// The number type of a tensor is not supported.
    #[error("{}: {name} is {dtype}, only F32, F16 and BF16 are read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its number type, as spelled in the file.
        dtype: String,
    },
    /// The header's metadata has no step count.
    #[error("{}: the header has no step count", path.display())]
    #[diagnostic(help("this is not an optimizer state"))]
    NoStepCount {
        /// The file.
        path: PathBuf,
    },
    /// A value head is read or written for a model without one.
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
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// Problem of the index of a sharded checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// The file is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The field `weight_map` is missing.
    #[error("weight_map is missing")]
    NoWeightMap,
    /// The file of a tensor is not a string.
    #[error("{tensor}: {value} is not a file name")]
    NotAFileName {
        /// The tensor.
        tensor: String,
        /// The value, as JSON.
        value: String,
    },
    /// The file of a tensor is outside the model folder.
    #[error("{tensor}: {file} is not a file of this folder")]
    OutsideFolder {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A tensor is not in the file that the index names.
    #[error("{tensor} is not in {file:?}, contrary to the index")]
    Misplaced {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// Two files contain the same tensor.
    #[error("{tensor} is in both {} and {}", files[0].display(), files[1].display())]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// The files.
        files: [PathBuf; 2],
    },
}

fn others(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

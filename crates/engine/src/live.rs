//! Weights that a trainer sends from its memory, without a copy on disk.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Form, WeightFolder};

/// Sends the weights of one publication from the trainer's memory. All calls block until the trainer is free.
pub trait WeightSender: fmt::Debug + Send + Sync {
    /// [`Form::Nccl`] or [`Form::Ipc`].
    fn form(&self) -> Form;

    /// Sends all tensors to a receiver that has begun an update.
    fn send(&self, receiver: &mut dyn WeightReceiver) -> Result<(), SendError>;

    /// Writes the weights to a folder, for receivers that have to be loaded again later. Repeated calls return the same one.
    fn folder(&self) -> Result<Arc<WeightFolder>, SendError>;

    /// Frees device memory of the trainer until its next call.
    fn park(&self) -> Result<(), SendError>;
}

/// A process that takes weights from a trainer's memory. Each step runs beside the trainer's part of it.
pub trait WeightReceiver {
    /// Name of the server.
    fn name(&self) -> &str;

    /// Number that changes when the server may have been started again.
    fn incarnation(&self) -> u32;

    /// Number of processes that receive.
    fn ranks(&self) -> usize;

    /// Longest time of a step.
    fn timeout(&self) -> Duration;

    /// Starts a step and returns at once.
    fn begin(&mut self, step: ReceiverStep<'_>);

    /// True if the last step has failed, so that the trainer's part of it would never end.
    fn has_failed(&mut self) -> bool;

    /// Waits for the end of the last step, which has a deadline.
    fn finish(&mut self) -> Result<(), String>;
}

/// Receiver's part of a transfer.
#[derive(Debug, Clone, Copy)]
pub enum ReceiverStep<'a> {
    /// Join the trainer in a communicator.
    Join(&'a Channel),
    /// Take a chunk and load it.
    Receive(&'a WeightChunk),
}

/// Settings of the connection to the trainer's memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Channel {
    /// Form of the weights.
    pub form: Form,
    /// Identifier of an NCCL communicator in standard base64; empty for [`Form::Ipc`].
    pub unique_id: String,
    /// Processes of the communicator: one that sends, with rank 0, and the receivers.
    pub world_size: usize,
    /// Bytes of a chunk; the tensor that exceeds them is its last.
    pub chunk_bytes: usize,
}

/// Consecutive tensors in one buffer of bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightChunk {
    /// Names, as in the model's folder.
    pub names: Vec<String>,
    /// Number formats by `PyTorch`'s names.
    pub dtype_names: Vec<String>,
    /// Shapes.
    pub shapes: Vec<Vec<usize>>,
    /// Sizes in bytes.
    pub tensor_sizes: Vec<usize>,
    /// For [`Form::Ipc`]: handle of the buffer by the identifier of its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipc_handles: Option<Value>,
}

/// Weights that could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The trainer has other weights by now, or has ended. The next publication follows.
    #[error("the trainer no longer has these weights")]
    Gone,
    /// The receiver's part failed.
    #[error("{reason}")]
    Receiver {
        /// Reason.
        reason: String,
    },
    /// The trainer's part failed.
    #[error("the trainer could not send its weights: {reason}")]
    Trainer {
        /// Reason.
        reason: String,
    },
    /// The trainer has ended meanwhile. The publication of the next one follows.
    #[error("the trainer could not send its weights: {reason}")]
    Ended {
        /// Reason.
        reason: String,
    },
}

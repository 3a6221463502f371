//! MessagePack form of a loss and of its sums, for engines in other processes.

use serde::{Serialize, de::DeserializeOwned};

use crate::{LossStep, LossTerms};

/// A message that could not be written or read.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum MessageError {
    /// Writing failed.
    #[error("could not encode the {what}: {source}")]
    Encode {
        /// Content of the message.
        what: &'static str,
        /// Cause of the failure.
        source: rmp_serde::encode::Error,
    },
    /// The bytes are not such a message.
    #[error("could not decode the {what} from {length} bytes: {source}")]
    Decode {
        /// Content of the message.
        what: &'static str,
        /// Number of bytes.
        length: usize,
        /// Cause of the failure.
        source: rmp_serde::decode::Error,
    },
}

fn encoded(what: &'static str, value: &impl Serialize) -> Result<Vec<u8>, MessageError> {
    rmp_serde::to_vec_named(value).map_err(|source| MessageError::Encode { what, source })
}

fn decoded<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, MessageError> {
    rmp_serde::from_slice(bytes).map_err(|source| MessageError::Decode { what, length: bytes.len(), source })
}

const STEP: &str = "loss of an optimiser step";
const TERMS: &str = "sums of a loss";

impl LossStep<'_> {
    /// The step as a message; numbers keep their bits.
    pub fn to_bytes(&self) -> Result<Vec<u8>, MessageError> {
        encoded(STEP, self)
    }
}

impl LossStep<'static> {
    /// Reads a message of [`to_bytes`](LossStep::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        decoded(STEP, bytes)
    }
}

impl LossTerms {
    /// The sums as a message; numbers keep their bits.
    pub fn to_bytes(&self) -> Result<Vec<u8>, MessageError> {
        encoded(TERMS, self)
    }

    /// Reads a message of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        decoded(TERMS, bytes)
    }
}

//! Messages between a [`Sandbox`](crate::Sandbox) and its helper process: MessagePack, one in each direction.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Execution, Outcome, Tier};

/// The order of a helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) tier: Tier,
    pub(crate) execution: Execution,
    /// Working folder, for tiers that use one of the machine.
    pub(crate) folder: Option<PathBuf>,
}

/// The answer of a helper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Ended(Outcome),
    /// The program cannot be started.
    NotStarted(String),
    /// The sandbox cannot be prepared.
    Failed(String),
}

/// Serialises bytes as such, not as a list of numbers.
pub(crate) mod bytes {
    use std::fmt;

    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = list.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes)
        }
    }
}

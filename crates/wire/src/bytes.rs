//! Shared bytes: tensors of one frame borrow from one buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A range of a shared buffer. Cloning copies no data.
#[derive(Clone, Default)]
pub struct Bytes {
    buffer: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Bytes {
    /// A part of these bytes; `None` outside of them.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { buffer: Arc::clone(&self.buffer), range: start..start + range.len() })
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(buffer: Vec<u8>) -> Self {
        let range = 0..buffer.len();
        Self { buffer: Arc::new(buffer), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}

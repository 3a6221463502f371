//! Frames: a message with tensors.

use std::io::Read;

use crate::error::FrameError;
use crate::header::{self, HEADER_BYTES, Header, LENGTH};
use crate::tensor::Tensor;

/// Memory reserved for data before it arrives.
const RESERVED: u64 = 1 << 20;

/// Memory of a frame without its message and data, and of a tensor without its data, in bytes.
const COST: u64 = 256;

/// A message with tensors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frame {
    /// Epoch of the gang; 0 where there is none.
    pub epoch: u64,
    /// Number of the job that the frame belongs to.
    pub job: u64,
    /// JSON text.
    pub message: String,
    /// Tensors with distinct names. A received frame has them in the order of their data.
    pub tensors: Vec<Tensor>,
}

/// Purpose of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Beat,
    Handshake,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Beat => "beat",
            Self::Handshake => "handshake",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Data, Self::Beat, Self::Handshake].into_iter().find(|kind| kind.name() == name)
    }
}

/// End of reading before a frame was complete.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// The stream ended between two frames.
    Closed,
    /// The stream ended inside a frame.
    Cut,
    Frame(FrameError),
    Io(std::io::Error),
}

impl Frame {
    /// A frame without tensors.
    pub fn new(epoch: u64, job: u64, message: impl Into<String>) -> Self {
        Self { epoch, job, message: message.into(), tensors: Vec::new() }
    }

    /// A frame whose message is `value` as JSON.
    pub fn of<T: serde::Serialize>(epoch: u64, job: u64, value: &T) -> Result<Self, FrameError> {
        let message = serde_json::to_string(value);
        let message = message.map_err(|error| FrameError::Message { reason: error.to_string() })?;
        Ok(Self::new(epoch, job, message))
    }

    /// Parses the message.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, FrameError> {
        let parsed = serde_json::from_str(&self.message);
        parsed.map_err(|error| FrameError::Message { reason: error.to_string() })
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, FrameError> {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| FrameError::Missing { name: name.to_owned() })
    }

    /// Memory of the frame in bytes, roughly.
    pub(crate) fn cost(&self) -> u64 {
        let tensors = self.tensors.iter().map(|tensor| tensor.data.len() as u64 + COST);
        COST + self.message.len() as u64 + tensors.sum::<u64>()
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        encode(self, Kind::Data)
    }

    /// Reads one frame of at most `frame_bytes`.
    pub fn decode(bytes: &[u8], frame_bytes: u64) -> Result<Self, FrameError> {
        match read(&mut &*bytes, frame_bytes) {
            Ok((_, frame)) => Ok(frame),
            Err(ReadEnd::Frame(error)) => Err(error),
            Err(ReadEnd::Closed | ReadEnd::Cut | ReadEnd::Io(_)) => Err(FrameError::Truncated),
        }
    }
}

pub(crate) fn encode(frame: &Frame, kind: Kind) -> Result<Vec<u8>, FrameError> {
    let (mut bytes, tensors) = header::encode(frame, kind)?;
    for tensor in tensors {
        bytes.extend_from_slice(&tensor.data);
    }
    Ok(bytes)
}

/// Reads one frame of at most `frame_bytes`.
pub(crate) fn read(source: &mut impl Read, frame_bytes: u64) -> Result<(Kind, Frame), ReadEnd> {
    let length = match fill(source, LENGTH as u64)? {
        bytes if bytes.is_empty() => return Err(ReadEnd::Closed),
        bytes => number(&bytes)?,
    };
    if length > frame_bytes {
        return Err(ReadEnd::Frame(FrameError::Size { bytes: length, limit: frame_bytes }));
    }
    let rest = length.checked_sub(LENGTH as u64);
    let rest = rest.ok_or(ReadEnd::Frame(FrameError::HeaderSize { bytes: 0 }))?;
    let header_bytes = number(&fill(source, LENGTH as u64)?)?;
    if header_bytes > rest.min(HEADER_BYTES) {
        return Err(ReadEnd::Frame(FrameError::HeaderSize { bytes: header_bytes }));
    }
    let header = fill(source, header_bytes)?;
    if header.len() as u64 != header_bytes {
        return Err(ReadEnd::Cut);
    }
    let data_bytes = rest - header_bytes;
    let header = Header::parse(&header, data_bytes).map_err(ReadEnd::Frame)?;
    let data = fill(source, data_bytes)?;
    if data.len() as u64 != data_bytes {
        return Err(ReadEnd::Cut);
    }
    Ok(header.with_data(data))
}

/// Reads `count` bytes, fewer at the end of the stream.
fn fill(source: &mut impl Read, count: u64) -> Result<Vec<u8>, ReadEnd> {
    let mut bytes = Vec::with_capacity(count.min(RESERVED) as usize);
    source.take(count).read_to_end(&mut bytes).map_err(ReadEnd::Io)?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> Result<u64, ReadEnd> {
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| ReadEnd::Cut)
}

//! The safetensors header of a frame.

use std::collections::{BTreeSet, HashMap};

use safetensors::tensor::{Metadata, TensorInfo};

use crate::bytes::Bytes;
use crate::error::FrameError;
use crate::frame::{Frame, Kind};
use crate::tensor::Tensor;

/// Largest header in bytes, which includes the message.
pub const HEADER_BYTES: u64 = 64 << 20;

/// Size of a length field.
pub(crate) const LENGTH: usize = size_of::<u64>();

/// Everything of a frame before the data of its tensors, and the tensors in the order of their data.
pub(crate) fn encode(frame: &Frame, kind: Kind) -> Result<(Vec<u8>, Vec<&Tensor>), FrameError> {
    let mut tensors: Vec<&Tensor> = frame.tensors.iter().collect();
    // The largest alignment first keeps every tensor aligned.
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut names = BTreeSet::from(["__metadata__"]);
    if let Some(tensor) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        return Err(FrameError::Name { name: tensor.name.clone() });
    }
    let mut end = 0;
    let mut infos = Vec::with_capacity(tensors.len());
    for tensor in &tensors {
        let start = end;
        end += tensor.data.len();
        let info =
            TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        infos.push((tensor.name.clone(), info));
    }
    let metadata = HashMap::from([
        ("kind".to_owned(), kind.name().to_owned()),
        ("epoch".to_owned(), frame.epoch.to_string()),
        ("job".to_owned(), frame.job.to_string()),
        ("message".to_owned(), frame.message.clone()),
    ]);
    let invalid = |error: &dyn std::fmt::Display| FrameError::Header { damage: error.to_string() };
    let metadata = Metadata::new(Some(metadata), infos).map_err(|error| invalid(&error))?;
    let mut header = vec![0; 2 * LENGTH];
    serde_json::to_writer(&mut header, &metadata).map_err(|error| invalid(&error))?;
    header.resize(header.len().next_multiple_of(LENGTH), b' ');
    let header_bytes = (header.len() - 2 * LENGTH) as u64;
    if header_bytes > HEADER_BYTES {
        return Err(FrameError::HeaderSize { bytes: header_bytes });
    }
    let length = LENGTH as u64 + header_bytes + end as u64;
    header[..LENGTH].copy_from_slice(&length.to_le_bytes());
    header[LENGTH..2 * LENGTH].copy_from_slice(&header_bytes.to_le_bytes());
    Ok((header, tensors))
}

/// A validated header.
pub(crate) struct Header {
    kind: Kind,
    epoch: u64,
    job: u64,
    message: String,
    tensors: Vec<(String, TensorInfo)>,
}

impl Header {
    /// Parses a header and compares the sizes of its tensors with `data_bytes`, the rest of the frame.
    pub(crate) fn parse(header: &[u8], data_bytes: u64) -> Result<Self, FrameError> {
        let invalid = |damage: String| FrameError::Header { damage };
        let metadata: Metadata =
            serde_json::from_slice(header).map_err(|error| invalid(error.to_string()))?;
        if metadata.data_len() as u64 != data_bytes {
            let damage = format!("its tensors have {} bytes, the frame {data_bytes}", metadata.data_len());
            return Err(invalid(damage));
        }
        let mut fields = metadata.metadata().clone().unwrap_or_default();
        let mut field = |name: &str| fields.remove(name).ok_or_else(|| invalid(format!("it has no {name}")));
        let number =
            |text: String| text.parse().map_err(|_| invalid("an epoch or a job is no number".to_owned()));
        let kind = Kind::of(&field("kind")?).ok_or_else(|| invalid("its kind is unknown".to_owned()))?;
        let epoch = number(field("epoch")?)?;
        let job = number(field("job")?)?;
        let message = field("message")?;
        let info = |name: String| metadata.info(&name).cloned().map(|info| (name, info));
        let tensors = metadata.offset_keys().into_iter().filter_map(info).collect();
        Ok(Self { kind, epoch, job, message, tensors })
    }

    /// The frame, with tensors that share `data`.
    pub(crate) fn with_data(self, data: Vec<u8>) -> (Kind, Frame) {
        let data = Bytes::from(data);
        let tensor = |(name, info): (String, TensorInfo)| Tensor {
            name,
            dtype: info.dtype,
            shape: info.shape,
            data: data.slice(info.data_offsets.0..info.data_offsets.1).unwrap_or_default(),
        };
        let tensors = self.tensors.into_iter().map(tensor).collect();
        (self.kind, Frame { epoch: self.epoch, job: self.job, message: self.message, tensors })
    }
}

//! Writing of weights: one tensor after the other, through a buffer of fixed size. Equal tensors give equal bytes.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::CheckpointError;
use super::low_bits::{high_bits, low_bits};
use crate::Dtype;

/// A tensor to write.
#[derive(Debug, Clone)]
pub(crate) struct TensorOut<'a> {
    pub(crate) name: String,
    pub(crate) shape: Cow<'a, [usize]>,
    pub(crate) values: Values<'a>,
}

/// Elements of a tensor to write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Values<'a> {
    /// Numbers, rounded to the dtype of the file.
    Floats(&'a [f32]),
    /// Numbers in bf16, rounded so that [`LowBits`](Self::LowBits) make them exact again.
    HighBits(&'a [f32]),
    /// The bits that rounding these numbers to bf16 loses ([`low_bits`](fn@low_bits)).
    LowBits(&'a [f32]),
    Bytes(&'a [u8]),
}

impl Values<'_> {
    fn len(self) -> usize {
        match self {
            Self::Floats(values) | Self::HighBits(values) | Self::LowBits(values) => values.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Name of the number type in a file of `dtype`, and its size.
    fn encoding(self, dtype: Dtype) -> (&'static str, usize) {
        match (self, dtype) {
            (Self::Floats(_), Dtype::F32) => ("F32", 4),
            (Self::Floats(_), Dtype::Bf16) | (Self::HighBits(_), _) => ("BF16", 2),
            (Self::LowBits(_), _) => ("I16", 2),
            (Self::Bytes(_), _) => ("U8", 1),
        }
    }

    fn write(self, dtype: Dtype, file: &mut impl Write) -> std::io::Result<()> {
        let numbers = match self {
            Self::Bytes(bytes) => return file.write_all(bytes),
            Self::Floats(numbers) | Self::HighBits(numbers) | Self::LowBits(numbers) => numbers,
        };
        let mut bytes = Vec::with_capacity(1 << 16);
        for numbers in numbers.chunks(1 << 14) {
            bytes.clear();
            match (self, dtype) {
                (Self::HighBits(_), _) => {
                    bytes.extend(numbers.iter().flat_map(|&x| high_bits(x).to_le_bytes()));
                }
                (Self::LowBits(_), _) => {
                    bytes.extend(numbers.iter().flat_map(|&x| low_bits(x).to_le_bytes()));
                }
                (_, Dtype::F32) => rloom_ops::append_f32_bytes(&mut bytes, numbers),
                (_, Dtype::Bf16) => rloom_ops::append_bf16_bytes(&mut bytes, numbers),
            }
            file.write_all(&bytes)?;
        }
        Ok(())
    }
}

/// Writes a `safetensors` file in f32, but for what has another type: tensors sorted by name, `notes` as metadata.
pub(crate) fn write_tensors(
    path: &Path,
    notes: &[(&str, String)],
    tensors: Vec<TensorOut<'_>>,
) -> Result<(), CheckpointError> {
    write_tensors_as(path, notes, tensors, Dtype::F32)
}

/// As [`write_tensors`], rounded to `dtype`.
pub(crate) fn write_tensors_as(
    path: &Path,
    notes: &[(&str, String)],
    mut tensors: Vec<TensorOut<'_>>,
    dtype: Dtype,
) -> Result<(), CheckpointError> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let header = header(notes, &tensors, dtype);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for tensor in &tensors {
            tensor.values.write(dtype, &mut file)?;
        }
        // An explicit flush: dropping the writer would hide errors of the last write.
        file.flush()
    };
    write().map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
}

fn header(notes: &[(&str, String)], tensors: &[TensorOut<'_>], dtype: Dtype) -> Vec<u8> {
    let mut header = Map::new();
    let notes: Map<String, Value> =
        notes.iter().map(|(name, note)| ((*name).to_owned(), json!(note))).collect();
    header.insert("__metadata__".into(), Value::Object(notes));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        let (name, bytes) = tensor.values.encoding(dtype);
        end += tensor.values.len() * bytes;
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": name, "shape": tensor.shape, "data_offsets": [start, end] }),
        );
    }
    let mut bytes = Value::Object(header).to_string().into_bytes();
    // Padded with spaces so that the data is aligned to 8 bytes, as the format recommends.
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

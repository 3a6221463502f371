//! Writing of weights: one tensor after the other, through a buffer of fixed size. Equal tensors give equal bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::CheckpointError;
use crate::Dtype;

/// A tensor to write.
#[derive(Debug, Clone)]
pub(crate) struct TensorOut<'a> {
    pub(crate) name: String,
    pub(crate) shape: &'a [usize],
    pub(crate) values: &'a [f32],
}

/// Writes a `safetensors` file in f32: tensors sorted by name, `notes` as metadata.
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
        let mut bytes = Vec::with_capacity(1 << 16);
        for tensor in &tensors {
            for values in tensor.values.chunks(1 << 14) {
                bytes.clear();
                match dtype {
                    Dtype::F32 => rloom_ops::append_f32_bytes(&mut bytes, values),
                    Dtype::Bf16 => rloom_ops::append_bf16_bytes(&mut bytes, values),
                }
                file.write_all(&bytes)?;
            }
        }
        // An explicit flush: dropping the writer would hide errors of the last write.
        file.flush()
    };
    write().map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
}

fn header(notes: &[(&str, String)], tensors: &[TensorOut<'_>], dtype: Dtype) -> Vec<u8> {
    let name = match dtype {
        Dtype::F32 => "F32",
        Dtype::Bf16 => "BF16",
    };
    let mut header = Map::new();
    let notes: Map<String, Value> =
        notes.iter().map(|(name, note)| ((*name).to_owned(), json!(note))).collect();
    header.insert("__metadata__".into(), Value::Object(notes));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.values.len() * dtype.bytes();
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

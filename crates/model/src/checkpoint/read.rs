//! Reading of weights: files are mapped, and each tensor is converted directly into its destination, so that a model is
//! never in memory twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rloom_ops::{self as ops, MappedFile};
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::{CheckpointError, IndexProblem};

/// One mapped `safetensors` file.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    map: MappedFile,
    /// Offset of the tensor data.
    data: usize,
    metadata: Metadata,
}

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        // Mapping reports a missing file too; checking first gives the operating system's own message.
        std::fs::metadata(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
        let map = MappedFile::open(path)?;
        let (header, metadata) = SafeTensors::read_metadata(map.as_bytes()).map_err(|source| {
            let actual = map.as_bytes().len() as u64;
            match described_len(map.as_bytes()) {
                Some(expected) if expected != actual => {
                    CheckpointError::Truncated { path: path.to_owned(), expected, actual }
                }
                _ => CheckpointError::Header { path: path.to_owned(), source },
            }
        })?;
        Ok(Self { path: path.to_owned(), map, data: 8 + header, metadata })
    }

    /// Value of an entry in the header's metadata.
    pub(crate) fn metadata_entry(&self, name: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(name).map(String::as_str)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.metadata.offset_keys().into_iter().collect()
    }

    /// Converts a tensor to f32 into `to`, whose length must match `shape`.
    pub(crate) fn read_into(
        &self,
        name: &str,
        shape: &[usize],
        to: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let info = self.metadata.info(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            more: 0,
        })?;
        if info.shape != shape {
            return Err(CheckpointError::Shape {
                path: self.path.clone(),
                name: name.to_owned(),
                expected: shape.to_vec(),
                actual: info.shape.clone(),
            });
        }
        let bytes = &self.map.as_bytes()[self.data + info.data_offsets.0..self.data + info.data_offsets.1];
        match info.dtype {
            Dtype::F32 => ops::f32_from_f32_bytes(to, bytes),
            Dtype::F16 => ops::f32_from_f16_bytes(to, bytes),
            Dtype::BF16 => ops::f32_from_bf16_bytes(to, bytes),
            dtype => {
                return Err(CheckpointError::Dtype {
                    path: self.path.clone(),
                    name: name.to_owned(),
                    dtype: format!("{dtype:?}"),
                });
            }
        }
        Ok(())
    }
}

/// File size described by the header; `None` if the header cannot be read.
fn described_len(bytes: &[u8]) -> Option<u64> {
    let header = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    let end = usize::try_from(header).ok()?.checked_add(8)?;
    let Some(text) = bytes.get(8..end) else {
        // The file ends within the header. Lengths beyond the format's limit are invalid.
        return (header <= 100_000_000).then_some(8 + header);
    };
    let value: Value = serde_json::from_slice(text).ok()?;
    let ends = value.as_object()?.iter().filter(|(name, _)| *name != "__metadata__");
    let data = ends
        .map(|(_, tensor)| tensor["data_offsets"][1].as_u64())
        .try_fold(0, |end, next| next.map(|next| end.max(next)))?;
    data.checked_add(8 + header)
}

/// The weights of a model folder.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    folder: PathBuf,
    files: Vec<TensorFile>,
    /// Index of the file that contains each tensor.
    file_of: BTreeMap<String, usize>,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards listed in `model.safetensors.index.json`.
    pub(crate) fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        let mut checkpoint = Self { folder: folder.to_owned(), files: Vec::new(), file_of: BTreeMap::new() };
        if single.is_file() {
            checkpoint.add(&single, &single)?;
        } else if index.is_file() {
            checkpoint.open_shards(&index)?;
        } else {
            let pickles = ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"];
            let path = folder.to_owned();
            return Err(if pickles.iter().any(|name| folder.join(name).is_file()) {
                CheckpointError::OtherFormat { path }
            } else {
                CheckpointError::NoWeights { path }
            });
        }
        Ok(checkpoint)
    }

    fn open_shards(&mut self, index: &Path) -> Result<(), CheckpointError> {
        let invalid = |problem| CheckpointError::Index { path: index.to_owned(), problem };
        let text = std::fs::read_to_string(index)
            .map_err(|source| CheckpointError::Read { path: index.to_owned(), source })?;
        let value: Value = serde_json::from_str(&text).map_err(|error| invalid(error.into()))?;
        let map = value["weight_map"].as_object().ok_or_else(|| invalid(IndexProblem::NoWeightMap))?;
        let mut shards = BTreeMap::new();
        for (tensor, value) in map {
            let tensor = tensor.clone();
            let Some(file) = value.as_str() else {
                return Err(invalid(IndexProblem::NotAFileName { tensor, value: value.to_string() }));
            };
            if file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(invalid(IndexProblem::OutsideFolder { tensor, file: file.to_owned() }));
            }
            shards.entry(file).or_insert_with(Vec::new).push(tensor);
        }
        for file in shards.keys() {
            self.add(&self.folder.join(file), index)?;
        }
        for (file, tensors) in shards {
            let path = self.folder.join(file);
            for tensor in tensors {
                if self.file_of.get(&tensor).is_none_or(|&actual| self.files[actual].path != path) {
                    return Err(invalid(IndexProblem::Misplaced { tensor, file: file.to_owned() }));
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, index: &Path) -> Result<(), CheckpointError> {
        let file = TensorFile::open(path)?;
        for name in file.names() {
            if let Some(earlier) = self.file_of.insert(name.clone(), self.files.len()) {
                return Err(CheckpointError::Index {
                    path: index.to_owned(),
                    problem: IndexProblem::Duplicate {
                        tensor: name,
                        files: [self.files[earlier].path.clone(), path.to_owned()],
                    },
                });
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Checks that exactly the `expected` tensors exist, apart from those that `ignored` accepts.
    pub(crate) fn check_names<'a>(
        &self,
        expected: impl Iterator<Item = &'a str>,
        ignored: impl Fn(&str) -> bool,
    ) -> Result<(), CheckpointError> {
        let expected: BTreeSet<&str> = expected.collect();
        let mut missing = expected.iter().filter(|name| !self.file_of.contains_key(**name));
        if let Some(name) = missing.next() {
            return Err(CheckpointError::MissingTensor {
                path: self.folder.clone(),
                name: (*name).to_owned(),
                more: missing.count(),
            });
        }
        let mut unexpected =
            self.file_of.iter().filter(|(name, _)| !expected.contains(name.as_str()) && !ignored(name));
        if let Some((name, &file)) = unexpected.next() {
            return Err(CheckpointError::UnexpectedTensor {
                path: self.files[file].path.clone(),
                name: name.clone(),
                more: unexpected.count(),
            });
        }
        Ok(())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file_of.contains_key(name)
    }

    /// File that contains a tensor; the first file if none does.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.file_of.get(name).map_or_else(|| self.folder.clone(), |&file| self.files[file].path.clone())
    }

    pub(crate) fn read_into(
        &self,
        name: &str,
        shape: &[usize],
        to: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let file = self.file_of.get(name).map(|&file| &self.files[file]);
        let missing =
            || CheckpointError::MissingTensor { path: self.folder.clone(), name: name.to_owned(), more: 0 };
        file.ok_or_else(missing)?.read_into(name, shape, to)
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensorError;

    use super::*;

    #[test]
    fn the_described_length_needs_no_complete_file() {
        let header = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        let whole = bytes.len() as u64 + 8;
        assert_eq!(described_len(&bytes), Some(whole));
        assert_eq!(described_len(&bytes[..20]), Some(8 + header.len() as u64));
        assert_eq!(described_len(&bytes[..4]), None);
        assert!(matches!(SafeTensors::read_metadata(&bytes), Err(SafeTensorError::MetadataIncompleteBuffer)));
    }
}

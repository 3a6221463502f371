//! Reading: files are mapped, and each tensor is converted straight to where it is used, so that a model is never in
//! memory twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rloom_ops::MappedFile;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::CheckpointError;

/// One mapped `safetensors` file.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    map: MappedFile,
    /// Where the numbers begin.
    data: usize,
    metadata: Metadata,
}

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        // Mapping reports a missing file too; asking first gives it the operating system's own words.
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

    /// A note of the file's header.
    pub(crate) fn note(&self, name: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(name).map(String::as_str)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.metadata.offset_keys().into_iter().collect()
    }

    /// Converts a tensor to f32 into `to`, which has as many elements as `shape` says.
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
            Dtype::F32 => widen(bytes, to, f32::from_le_bytes),
            Dtype::F16 => widen(bytes, to, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => widen(bytes, to, |b| bf16::from_le_bytes(b).to_f32()),
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

fn widen<const N: usize>(bytes: &[u8], to: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    let (numbers, _) = bytes.as_chunks::<N>();
    for (to, &bytes) in to.iter_mut().zip(numbers) {
        *to = number(bytes);
    }
}

/// How long the header says the file is, where the header can be read.
fn described_len(bytes: &[u8]) -> Option<u64> {
    let header = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    let end = usize::try_from(header).ok()?.checked_add(8)?;
    let Some(text) = bytes.get(8..end) else {
        // Cut within the header. A length beyond what the format allows is no length.
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
    /// Which file has which tensor.
    place: BTreeMap<String, usize>,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub(crate) fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        let mut checkpoint = Self { folder: folder.to_owned(), files: Vec::new(), place: BTreeMap::new() };
        if single.is_file() {
            checkpoint.add(&single, &single)?;
        } else if index.is_file() {
            checkpoint.open_shards(&index)?;
        } else {
            let other_format = ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"];
            return Err(CheckpointError::NoWeights {
                path: folder.to_owned(),
                other_format: other_format.iter().any(|name| folder.join(name).is_file()),
            });
        }
        Ok(checkpoint)
    }

    fn open_shards(&mut self, index: &Path) -> Result<(), CheckpointError> {
        let broken = |message: String| CheckpointError::Index { path: index.to_owned(), message };
        let text = std::fs::read_to_string(index)
            .map_err(|source| CheckpointError::Read { path: index.to_owned(), source })?;
        let value: Value = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
        let map = value["weight_map"].as_object().ok_or_else(|| broken("weight_map is missing".into()))?;
        let mut shards = BTreeSet::new();
        for (tensor, file) in map {
            let file = file.as_str().ok_or_else(|| broken(format!("{tensor}: {file} is not a file name")))?;
            if file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(broken(format!("{tensor}: {file} is not a file of this folder")));
            }
            shards.insert(file);
        }
        for shard in shards {
            self.add(&self.folder.join(shard), index)?;
        }
        for (tensor, file) in map {
            let actual = self.place.get(tensor).map(|&file| self.files[file].path.as_path());
            if actual != file.as_str().map(|file| self.folder.join(file)).as_deref() {
                return Err(broken(format!("{tensor} is not in {file}, where the index has it")));
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, index: &Path) -> Result<(), CheckpointError> {
        let file = TensorFile::open(path)?;
        for name in file.names() {
            if let Some(earlier) = self.place.insert(name.clone(), self.files.len()) {
                return Err(CheckpointError::Index {
                    path: index.to_owned(),
                    message: format!(
                        "{name} is in both {} and {}",
                        self.files[earlier].path.display(),
                        path.display()
                    ),
                });
            }
        }
        self.files.push(file);
        Ok(())
    }

    /// Checks that exactly `expected` are there. `ignored` says which others change nothing.
    pub(crate) fn check_names<'a>(
        &self,
        expected: impl Iterator<Item = &'a str>,
        ignored: impl Fn(&str) -> bool,
    ) -> Result<(), CheckpointError> {
        let expected: BTreeSet<&str> = expected.collect();
        let mut missing = expected.iter().filter(|name| !self.place.contains_key(**name));
        if let Some(name) = missing.next() {
            return Err(CheckpointError::MissingTensor {
                path: self.folder.clone(),
                name: (*name).to_owned(),
                more: missing.count(),
            });
        }
        let mut unexpected =
            self.place.iter().filter(|(name, _)| !expected.contains(name.as_str()) && !ignored(name));
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
        self.place.contains_key(name)
    }

    /// The file that has a tensor; the first one where none has.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.place.get(name).map_or_else(|| self.folder.clone(), |&file| self.files[file].path.clone())
    }

    pub(crate) fn read_into(
        &self,
        name: &str,
        shape: &[usize],
        to: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let file = self.place.get(name).map(|&file| &self.files[file]);
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

//! Reading of weights: each tensor is read in blocks and converted directly into its destination, so that a model is
//! never in memory twice. Files are not mapped into memory: a mapped file that shrinks kills the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rloom_ops as ops;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;

use super::header::{self, HeaderError};
use super::{CheckpointError, IndexProblem};
use crate::tensors::TensorSpec;

/// Elements per block of [`TensorFile::read_into`].
const BLOCK: usize = 1 << 18;

/// One open `safetensors` file, whose header describes exactly the bytes that it had when opened.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
    /// Offset of the tensor data.
    data: u64,
    metadata: Metadata,
}

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let (data, metadata) = header::read(&mut file, len).map_err(|error| match error {
            HeaderError::Io(source) => failed(source),
            HeaderError::Length { expected } => {
                CheckpointError::Truncated { path: path.to_owned(), expected, actual: len }
            }
            HeaderError::Invalid(source) => CheckpointError::Header { path: path.to_owned(), source },
        })?;
        Ok(Self { path: path.to_owned(), file, data, metadata })
    }

    /// Value of an entry in the header's metadata.
    pub(crate) fn metadata_entry(&self, name: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(name).map(String::as_str)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of elements of all tensors.
    fn elements(&self) -> u64 {
        let tensors = self.metadata.tensors();
        tensors.values().map(|info| info.shape.iter().map(|&size| size as u64).product::<u64>()).sum()
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.metadata.offset_keys().into_iter().collect()
    }

    /// Checks that a tensor exists, has this shape, and can be read.
    pub(crate) fn check(&self, name: &str, shape: &[usize]) -> Result<(), CheckpointError> {
        self.find(name, shape).map(drop)
    }

    /// A tensor's location in the file, and its encoding.
    fn find(&self, name: &str, shape: &[usize]) -> Result<(&TensorInfo, Encoding), CheckpointError> {
        let info = self.find_info(name, shape)?;
        let encoding = Encoding::of(info.dtype).ok_or_else(|| self.other_dtype(name, info.dtype))?;
        Ok((info, encoding))
    }

    fn other_dtype(&self, name: &str, dtype: Dtype) -> CheckpointError {
        let (path, name) = (self.path.clone(), name.to_owned());
        CheckpointError::Dtype { path, name, dtype: format!("{dtype:?}") }
    }

    fn find_info(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo, CheckpointError> {
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
        Ok(info)
    }

    /// Converts a tensor to f32 into `to`, whose length must match `shape`.
    pub(crate) fn read_into(
        &self,
        name: &str,
        shape: &[usize],
        to: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let (info, encoding) = self.find(name, shape)?;
        let start = self.data + info.data_offsets.0 as u64;
        self.read_blocks(start, encoding, to).map_err(|source| self.read_error(source))
    }

    /// Reads a tensor of bytes or of words, whose length must match `shape`, as it is in the file.
    pub(crate) fn read_raw(
        &self,
        name: &str,
        shape: &[usize],
        dtype: Dtype,
        to: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let info = self.find_info(name, shape)?;
        if info.dtype != dtype {
            return Err(self.other_dtype(name, info.dtype));
        }
        let mut file = &self.file;
        let start = SeekFrom::Start(self.data + info.data_offsets.0 as u64);
        let read = file.seek(start).and_then(|_| file.read_exact(to));
        read.map_err(|source| self.read_error(source))
    }

    fn read_blocks(&self, start: u64, encoding: Encoding, to: &mut [f32]) -> std::io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = vec![0; to.len().min(BLOCK) * encoding.bytes];
        for block in to.chunks_mut(BLOCK) {
            let bytes = &mut bytes[..block.len() * encoding.bytes];
            file.read_exact(bytes)?;
            (encoding.decode)(block, bytes);
        }
        Ok(())
    }

    /// The error of a failed read: [`CheckpointError::Truncated`] if the file has shrunk since it was opened.
    fn read_error(&self, source: std::io::Error) -> CheckpointError {
        let path = self.path.clone();
        if source.kind() == ErrorKind::UnexpectedEof
            && let Ok(now) = self.file.metadata()
        {
            let expected = self.data + self.metadata.data_len() as u64;
            return CheckpointError::Truncated { path, expected, actual: now.len() };
        }
        CheckpointError::Read { path, source }
    }
}

/// Encoding of numbers in a file.
#[derive(Clone, Copy)]
struct Encoding {
    /// Bytes per number.
    bytes: usize,
    decode: fn(&mut [f32], &[u8]),
}

impl Encoding {
    fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self { bytes: 4, decode: ops::f32_from_f32_bytes }),
            Dtype::F16 => Some(Self { bytes: 2, decode: ops::f32_from_f16_bytes }),
            Dtype::BF16 => Some(Self { bytes: 2, decode: ops::f32_from_bf16_bytes }),
            _ => None,
        }
    }
}

/// The weights of a model folder.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    folder: PathBuf,
    files: Vec<TensorFile>,
    /// Index of the file that contains each tensor.
    file_of: BTreeMap<String, usize>,
}

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

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

    /// Opens one file.
    pub(crate) fn of_file(path: &Path) -> Result<Self, CheckpointError> {
        let folder = path.parent().unwrap_or(path).to_owned();
        let mut checkpoint = Self { folder, files: Vec::new(), file_of: BTreeMap::new() };
        checkpoint.add(path, path)?;
        Ok(checkpoint)
    }

    /// True if a folder has weights in this format.
    pub(crate) fn exists(folder: &Path) -> bool {
        folder.join(SINGLE).is_file() || folder.join(INDEX).is_file()
    }

    /// The files with tensors.
    pub(crate) fn tensor_files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(TensorFile::path)
    }

    /// Number of elements of all tensors.
    pub(crate) fn elements(&self) -> u64 {
        self.files.iter().map(TensorFile::elements).sum()
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
    fn check_names<'a>(
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

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.file_of.keys().map(String::as_str)
    }

    /// Shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize], CheckpointError> {
        let file = self.file_with(name)?;
        let info = file.metadata.info(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: file.path.clone(),
            name: name.to_owned(),
            more: 0,
        })?;
        Ok(&info.shape)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file_of.contains_key(name)
    }

    /// File that contains a tensor; the first file if none does.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.file_of.get(name).map_or_else(|| self.folder.clone(), |&file| self.files[file].path.clone())
    }

    /// Checks the names, shapes and encodings of all tensors of a model before memory is allocated for them. Tensors
    /// that `ignored` accepts may exist besides.
    pub(crate) fn check(
        &self,
        specs: &[TensorSpec],
        ignored: impl Fn(&str) -> bool,
    ) -> Result<(), CheckpointError> {
        self.check_names(specs.iter().map(|spec| spec.name.as_str()), ignored)?;
        specs.iter().try_for_each(|spec| self.file_with(&spec.name)?.check(&spec.name, &spec.shape))
    }

    pub(crate) fn read_into(
        &self,
        name: &str,
        shape: &[usize],
        to: &mut [f32],
    ) -> Result<(), CheckpointError> {
        self.file_with(name)?.read_into(name, shape, to)
    }

    fn file_with(&self, name: &str) -> Result<&TensorFile, CheckpointError> {
        let file = self.file_of.get(name).map(|&file| &self.files[file]);
        let missing =
            || CheckpointError::MissingTensor { path: self.folder.clone(), name: name.to_owned(), more: 0 };
        file.ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapped file would end the process by SIGBUS.
    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let mut bytes =
            header::tests::file(r#"{"a":{"dtype":"F16","shape":[8192],"data_offsets":[0,16384]}}"#);
        let whole = bytes.len() + 16384;
        bytes.resize(whole, 0);
        std::fs::write(&path, &bytes).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let mut to = vec![1.0; 8192];
        file.read_into("a", &[8192], &mut to).unwrap();
        assert!(to.iter().all(|&x| x == 0.0));
        std::fs::write(&path, &bytes[..5000]).unwrap();
        let error = file.read_into("a", &[8192], &mut to).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Truncated { expected, actual: 5000, .. } if expected == whole as u64),
            "{error}"
        );
    }

    /// Tensors that are not a whole number of blocks.
    #[test]
    fn blocks_are_joined() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let values: Vec<f32> = (0..2 * BLOCK + 3).map(|i| i as f32).collect();
        let shape = [values.len()];
        let tensor = |name: &str| crate::checkpoint::TensorOut {
            name: name.into(),
            shape: (&shape[..]).into(),
            values: crate::checkpoint::Values::Floats(&values),
        };
        crate::checkpoint::write_tensors(&path, &[], vec![tensor("a"), tensor("b")]).unwrap();
        let file = TensorFile::open(&path).unwrap();
        for name in ["b", "a"] {
            let mut to = vec![0.0; values.len()];
            file.read_into(name, &shape, &mut to).unwrap();
            assert!(to == values, "{name}");
        }
    }
}

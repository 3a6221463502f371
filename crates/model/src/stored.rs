//! Tensors of a model folder of any architecture.

use std::path::Path;

use crate::checkpoint::Checkpoint;
use crate::{CheckpointError, adapter};

/// The tensors of a Hugging Face folder or of an adapter's, by name. Nothing is known of the model that they belong to.
#[derive(Debug)]
pub struct StoredTensors(Checkpoint);

impl StoredTensors {
    /// Opens a folder: `model.safetensors`, the shards of an index, or the tensors of an adapter.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let opened = if adapter::is_adapter(folder) {
            Checkpoint::of_file(&folder.join(adapter::TENSORS))
        } else {
            Checkpoint::open(folder)
        };
        opened.map(Self)
    }

    /// Names of all tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.names()
    }

    /// Values of a tensor, converted to f32.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let shape = self.0.shape(name)?.to_vec();
        let mut values = vec![0.0; shape.iter().product()];
        self.0.read_into(name, &shape, &mut values)?;
        Ok(values)
    }
}

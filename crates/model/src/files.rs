//! Files of a model folder.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, INDEX};
use crate::{CheckpointError, generation};

/// Files that [`Model::load`](crate::Model::load) and [`GenerationConfig::load`](crate::GenerationConfig::load) read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// Files with tensors.
    pub tensors: Vec<PathBuf>,
    /// Small files: the configurations, and the index of sharded weights.
    pub settings: Vec<PathBuf>,
}

impl ModelFiles {
    /// Lists the files of a folder.
    pub fn of(folder: &Path) -> Result<Self, CheckpointError> {
        let checkpoint = Checkpoint::open(folder)?;
        let settings = [CONFIG, generation::FILE, INDEX].map(|name| folder.join(name));
        Ok(Self {
            tensors: checkpoint.tensor_files().map(Path::to_owned).collect(),
            settings: settings.into_iter().filter(|path| path.is_file()).collect(),
        })
    }
}

const CONFIG: &str = "config.json";

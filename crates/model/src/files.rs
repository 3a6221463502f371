//! Files of a model folder.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, INDEX, LOW_BITS};
use crate::{CheckpointError, adapter, generation};

/// Files that [`Model::load`](crate::Model::load) and [`GenerationConfig::load`](crate::GenerationConfig::load) read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// Files with tensors.
    pub tensors: Vec<PathBuf>,
    /// Small files: the configurations, and the index of sharded weights.
    pub settings: Vec<PathBuf>,
}

impl ModelFiles {
    /// Lists the files of a folder; those of an adapter's base are in another one.
    pub fn of(folder: &Path) -> Result<Self, CheckpointError> {
        let [adapter_config, adapter_tensors] = adapter::FILES.map(|name| folder.join(name));
        let tensors = if adapter::is_adapter(folder) {
            vec![adapter_tensors]
        } else {
            let low_bits = Some(folder.join(LOW_BITS)).filter(|path| path.is_file());
            Checkpoint::open(folder)?.tensor_files().map(Path::to_owned).chain(low_bits).collect()
        };
        let settings = [CONFIG, generation::FILE, INDEX].map(|name| folder.join(name));
        let settings = settings.into_iter().chain(adapter::is_adapter(folder).then_some(adapter_config));
        Ok(Self { tensors, settings: settings.filter(|path| path.is_file()).collect() })
    }
}

const CONFIG: &str = "config.json";

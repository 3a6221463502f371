//! Memory-mapped files.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::OpsError;

/// A file mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    pub fn open(path: &Path) -> Result<Self, OpsError> {
        let failed = |source| OpsError::MapFile { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the map is read-only. `memmap2` cannot rule out that another process modifies or truncates the file
        // while it is mapped: reads could then differ from each other, or the process be killed by SIGBUS. Files mapped
        // here are weights, which their writers create atomically by renaming; readers parse the bytes as plain
        // numbers, for which every value is valid.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { map })
    }

    /// Content of the file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.map
    }
}

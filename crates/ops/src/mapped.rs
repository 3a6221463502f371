//! Files as memory.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::OpsError;

/// A file, mapped for reading.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    pub fn open(path: &Path) -> Result<Self, OpsError> {
        let failed = |source| OpsError::MapFile { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the map is read-only. What `memmap2` cannot rule out is another process changing or
        // truncating the file while it is mapped: bytes read could then differ from one read to the next, or
        // the process be killed by SIGBUS. Files mapped here are weights, which their writers put in place
        // whole, by renaming; readers parse the bytes as plain numbers, for which every value is valid.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self { map })
    }

    /// The bytes of the file.
    pub fn as_bytes(&self) -> &[u8] {
        &self.map
    }
}

//! Lists of the files of a version.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Formats of weights that no engine reads from a folder with safetensors files.
const UNUSED: [&str; 7] = ["bin", "gguf", "h5", "msgpack", "onnx", "pt", "pth"];

/// A file of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorFile {
    /// Name in the folder.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// CRC-32C of the contents.
    pub crc: u32,
}

/// Size of all files together.
pub(super) fn total(files: &[MirrorFile]) -> u64 {
    files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
}

/// True if every name is that of a file in the folder itself, and none occurs twice.
pub(super) fn has_plain_names(files: &[MirrorFile]) -> bool {
    let mut names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).all(|pair| pair[0] != pair[1]) && names.into_iter().all(is_plain)
}

/// True for a name without folders that is not hidden.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() <= 255 && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// True for a file of tensors.
pub(super) fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "safetensors")
}

/// Names and sizes of a model folder's own files, sorted by name. Folders in it are left out: those of a checkpoint hold
/// the optimizer's state.
pub(super) fn list(folder: &Path) -> io::Result<Vec<(String, PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        // Through symbolic links, which caches of a hub consist of.
        let metadata = fs::metadata(&path)?;
        if metadata.is_file() && is_plain(&name) {
            files.push((name, path, metadata.len()));
        }
    }
    if files.iter().any(|(name, ..)| is_safetensors(name)) {
        let is_used = |path: &Path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            !extension.is_some_and(|extension| UNUSED.contains(&extension))
        };
        files.retain(|(_, path, _)| is_used(path));
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_folders_and_repeated_names_are_refused() {
        let file = |name: &str| MirrorFile { name: name.to_owned(), bytes: 1, crc: 0 };
        assert!(has_plain_names(&[file("a"), file("b")]));
        assert!(!has_plain_names(&[file("a"), file("b"), file("a")]));
        for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "../a", "a\0"] {
            assert!(!has_plain_names(&[file(name)]), "{name:?}");
        }
    }

    #[test]
    fn only_the_files_that_an_engine_reads_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(folder.path().join(name), name).unwrap();
        let names =
            || -> Vec<String> { list(folder.path()).unwrap().into_iter().map(|(name, ..)| name).collect() };
        write("pytorch_model.bin");
        assert_eq!(names(), ["pytorch_model.bin"]);
        ["model.safetensors", "config.json", ".lock"].into_iter().for_each(write);
        fs::create_dir(folder.path().join("trainer")).unwrap();
        std::os::unix::fs::symlink("config.json", folder.path().join("linked.json")).unwrap();
        assert_eq!(names(), ["config.json", "linked.json", "model.safetensors"]);
    }
}

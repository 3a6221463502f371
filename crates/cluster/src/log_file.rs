//! A file with the whole output of a process, of bounded size.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Size in bytes from which a new file is started.
const LIMIT: u64 = 64 << 20;

/// An output file. A failure, such as a full disk, ends it and nothing else.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    limit: u64,
    file: Option<(File, u64)>,
}

impl LogFile {
    /// Appends to a file, whose folder is created.
    pub(crate) fn append(path: &Path) -> Self {
        Self::bounded(path, LIMIT)
    }

    fn bounded(path: &Path, limit: u64) -> Self {
        if let Some(folder) = path.parent() {
            // If this fails, so does the next call.
            let _ = std::fs::create_dir_all(folder);
        }
        Self { path: path.to_owned(), limit, file: open(path) }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if self.file.as_ref().is_some_and(|(_, size)| *size >= self.limit) {
            let mut before = OsString::from(&self.path);
            before.push(".1");
            let renamed = std::fs::rename(&self.path, before);
            self.file = renamed.ok().and_then(|()| open(&self.path));
        }
        self.file = self.file.take().and_then(|(mut file, size)| {
            file.write_all(bytes).ok()?;
            Some((file, size + bytes.len() as u64))
        });
    }
}

fn open(path: &Path) -> Option<(File, u64)> {
    let file = File::options().create(true).append(true).open(path).ok()?;
    let size = file.metadata().ok()?.len();
    Some((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_appended_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/rank.log");
        let read = |name: &str| std::fs::read_to_string(folder.path().join("logs").join(name)).unwrap();
        LogFile::bounded(&path, 8).write(b"first\n");
        let mut log = LogFile::bounded(&path, 8);
        log.write(b"second\n");
        assert_eq!(read("rank.log"), "first\nsecond\n");
        log.write(b"third\n");
        log.write(b"fourth\n");
        assert_eq!(
            (read("rank.log").as_str(), read("rank.log.1").as_str()),
            ("third\nfourth\n", "first\nsecond\n")
        );
        log.write(b"fifth\n");
        assert_eq!((read("rank.log").as_str(), read("rank.log.1").as_str()), ("fifth\n", "third\nfourth\n"));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = LogFile::append(folder.path());
        log.write(b"lost");
        assert!(log.file.is_none());
        let mut full = LogFile::append(Path::new("/dev/full"));
        full.write(b"lost");
        assert!(full.file.is_none());
    }
}

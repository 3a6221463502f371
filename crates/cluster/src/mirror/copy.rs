//! Copies of single files, with their digests.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::failure::{Limits, MirrorFailure};
use super::manifest::{MirrorFile, list};

/// Bytes that are read or sent at once.
pub(super) const PIECE: usize = 4 << 20;

/// Creates the files of a copy; tests put writers that fail in its place.
pub(super) type Create<'a> = &'a dyn Fn(&Path) -> io::Result<Box<dyn Write>>;

/// Creates files.
pub(super) fn create(path: &Path) -> io::Result<Box<dyn Write>> {
    Ok(Box::new(File::create(path)?))
}

/// A writer that counts and digests.
pub(super) struct Digesting<W> {
    to: W,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

impl<W: Write> Digesting<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, bytes: 0, crc: 0 }
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.to.write_all(piece)?;
        self.bytes += piece.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, piece);
        Ok(())
    }

    /// Completes the file.
    pub(super) fn finish(mut self, name: &str) -> io::Result<MirrorFile> {
        self.to.flush()?;
        Ok(MirrorFile { name: name.to_owned(), bytes: self.bytes, crc: self.crc })
    }
}

/// Copies a model folder's files to an empty folder, and lists them. A file that changes meanwhile is an error.
pub(super) fn copy_folder(
    source: &Path,
    target: &Path,
    limits: Limits<'_>,
    create: Create<'_>,
) -> Result<Vec<MirrorFile>, MirrorFailure> {
    let listed = || list(source).map_err(|error| MirrorFailure::io("read", source, &error));
    let before = listed()?;
    if before.is_empty() {
        return Err(MirrorFailure::damaged(source, "the folder has no files"));
    }
    let mut buffer = vec![0; PIECE];
    let mut copied = Vec::with_capacity(before.len());
    for (name, path, _) in &before {
        copied.push(copy_file(name, path, &target.join(name), &mut buffer, limits, create)?);
    }
    if listed()? != before {
        return Err(MirrorFailure::damaged(source, "the folder changed while it was copied"));
    }
    Ok(copied)
}

fn copy_file(
    name: &str,
    source: &Path,
    target: &Path,
    buffer: &mut [u8],
    limits: Limits<'_>,
    create: Create<'_>,
) -> Result<MirrorFile, MirrorFailure> {
    let reading = |error: io::Error| MirrorFailure::io("read", source, &error);
    let writing = |error: io::Error| MirrorFailure::io("write", target, &error);
    let mut from = File::open(source).map_err(reading)?;
    let before = state(&from.metadata().map_err(reading)?);
    let mut to = Digesting::new(create(target).map_err(writing)?);
    loop {
        limits.check()?;
        match from.read(buffer) {
            Ok(0) => break,
            Ok(count) => to.write(&buffer[..count]).map_err(writing)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(reading(error)),
        }
    }
    let file = to.finish(name).map_err(writing)?;
    // By its path: another file may have taken its place.
    let after = state(&fs::metadata(source).map_err(reading)?);
    if before != after || file.bytes != before.0 {
        return Err(MirrorFailure::damaged(source, "the file changed while it was copied"));
    }
    Ok(file)
}

/// Size, time of the last change and identity of a file.
fn state(metadata: &fs::Metadata) -> (u64, i64, i64, u64) {
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    fn limits(is_ending: &AtomicBool) -> Limits<'_> {
        Limits { deadline: Instant::now() + Duration::from_mins(2), is_ending }
    }

    /// Calls a function before the second write.
    struct Meanwhile<F: FnMut() -> io::Result<()>>(File, u32, F);

    impl<F: FnMut() -> io::Result<()>> Write for Meanwhile<F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1 == 2 {
                (self.2)()?;
            }
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    /// Copies a file of several pieces while `meanwhile` happens.
    fn copy_while(meanwhile: fn(&Path) -> io::Result<()>) -> Result<Vec<MirrorFile>, MirrorFailure> {
        let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = source.path().join("model.bin");
        fs::write(&path, vec![7; 2 * PIECE + 5]).unwrap();
        let ending = AtomicBool::new(false);
        let create = |target: &Path| -> io::Result<Box<dyn Write>> {
            let path = path.clone();
            Ok(Box::new(Meanwhile(File::create(target)?, 0, move || meanwhile(&path))))
        };
        copy_folder(source.path(), target.path(), limits(&ending), &create)
    }

    #[test]
    fn a_copy_is_listed_with_sizes_and_digests() {
        let copied = copy_while(|_| Ok(())).unwrap();
        let crc = crc32c::crc32c(&vec![7; 2 * PIECE + 5]);
        assert_eq!(copied, [MirrorFile { name: "model.bin".into(), bytes: 2 * PIECE as u64 + 5, crc }]);
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_is_refused() {
        let changes: [fn(&Path) -> io::Result<()>; 4] = [
            |path| fs::OpenOptions::new().append(true).open(path)?.write_all(b"more"),
            |path| fs::OpenOptions::new().write(true).open(path)?.set_len(9),
            // Replaced by another of equal size.
            |path| {
                fs::write(path.with_extension("new"), vec![8; 2 * PIECE + 5])?;
                fs::rename(path.with_extension("new"), path)
            },
            |path| fs::write(path.with_file_name("other.json"), "{}"),
        ];
        for change in changes {
            let error = copy_while(change).unwrap_err();
            assert!(matches!(error, MirrorFailure::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("changed while it was copied"), "{error}");
        }
    }

    #[test]
    fn a_full_file_system_is_named() {
        let error = copy_while(|_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(matches!(error, MirrorFailure::NoRoom { .. }), "{error}");
    }

    #[test]
    fn a_copy_ends_with_its_deadline_and_with_the_daemon() {
        let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(source.path().join("a"), "a").unwrap();
        let ending = AtomicBool::new(false);
        let past = Limits { deadline: Instant::now(), is_ending: &ending };
        let copy = |limits| copy_folder(source.path(), target.path(), limits, &create).unwrap_err();
        assert_eq!(copy(past), MirrorFailure::Late);
        ending.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(copy(limits(&ending)), MirrorFailure::Ending);
    }
}

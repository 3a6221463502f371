//! The journal: what the scheduler was told, in order, and all that was generated and scored, kept until a durable
//! checkpoint contains it.
//!
//! # Segments
//!
//! The segment `stage-SS-from-VVVVVV.log` belongs to one stage and follows one version. It begins with copies of what
//! was alive at that version (complete groups, single episodes, unfinished ones), ended by [`Record::Head`]; then comes
//! the log. A checkpoint of version `v` and the segment from `v` are all that a run needs to go on. A segment that
//! follows another holds what came after it, so that an older checkpoint, with the chain of segments from its
//! version on, serves as well: the heads of the later ones are then skipped.
//!
//! A new segment is written beside its place, synced and renamed: under its name it has a whole head.
//!
//! # Bytes
//!
//! Eight bytes name the format; then come records, each of
//!
//! ```text
//! length      u32 LE   of the payload
//! checksum    u32 LE   CRC-32C of the payload
//! header      u32 LE   CRC-32C of the record's offset in the file (u64 LE) and the eight bytes above
//! payload     JSON, compressed with zstd
//! ```
//!
//! # Torn or damaged
//!
//! A killed process leaves the beginning of its last record, and a machine that lost power may leave the right number
//! of wrong bytes there. So a record is *torn*, and is cut off, when it is the last thing in the last segment: it is
//! incomplete or does not match, no sound record stands anywhere behind it, and the head before it is whole. A last record
//! with a flipped bit looks the same and is treated so, too: it is made again, as after a kill, and the run says so. Anything
//! else that does not match is *damage*, an error that names the place. The header's own checksum keeps a damaged
//! length from passing the rest of the file off as one torn record.
//!
//! # Errors
//!
//! A record that could not be written is cut off again; if that fails too, or a sync failed, nothing more is written:
//! what is on the disk is not known then.

mod record;
mod segment;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use record::{Partial, Record};
use segment::{Encoder, MAGIC, Parsed, parse};

use crate::StoreError;
use crate::disk::{self, DiskFile};

const APPEND: &str = "journal/append";
const ROLL: &str = "journal/roll";
const OPEN: &str = "journal/open";
const PRUNE: &str = "journal/prune";

/// What a segment is called while it is being written.
const PARTIAL: &str = ".partial";

/// The journal of a stage, open at its end.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    stage: u32,
    /// The version that the last segment follows.
    version: u64,
    file: DiskFile,
    encoder: Encoder,
    /// Length of the last segment: whole records.
    length: u64,
    /// Why nothing more can be written.
    closed: Option<String>,
}

/// What a journal held when it was opened.
#[derive(Debug, Default, PartialEq)]
pub struct Recovered {
    /// What was alive at the version that it was opened from.
    pub head: Vec<Record>,
    /// What happened since, in order, over all segments.
    pub log: Vec<Record>,
    /// Bytes of a torn last record that were cut off.
    pub torn_bytes: u64,
    /// Segments that were removed because the one that they follow is missing.
    pub dropped_segments: Vec<PathBuf>,
}

/// A segment by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    stage: u32,
    /// The version that it follows.
    version: u64,
}

impl Segment {
    fn file(self) -> String {
        format!("stage-{:02}-from-{:06}.log", self.stage, self.version)
    }

    /// The segment that a file's name is of; `None` for names that are not written here.
    fn of(name: &str) -> Option<Self> {
        let (stage, version) = name.strip_prefix("stage-")?.strip_suffix(".log")?.split_once("-from-")?;
        let segment = Self { stage: stage.parse().ok()?, version: version.parse().ok()? };
        (segment.file() == name).then_some(segment)
    }

    /// Those in a folder, in order; and what is left of ones that were being written.
    fn list(directory: &Path) -> Result<(Vec<Self>, Vec<PathBuf>), StoreError> {
        let read = |source| StoreError::io("read", directory, source);
        let (mut whole, mut begun) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(directory).map_err(read)? {
            let name = entry.map_err(read)?.file_name();
            let Some(name) = name.to_str() else { continue };
            whole.extend(Self::of(name));
            if name.strip_suffix(PARTIAL).and_then(Self::of).is_some() {
                begun.push(directory.join(name));
            }
        }
        whole.sort();
        begun.sort();
        Ok((whole, begun))
    }
}

impl Journal {
    /// Opens the journal of a stage that goes on from `version`, with what the segment from it and all later ones
    /// hold. If that segment is missing, it is begun, and later ones, which are then of another history, are removed;
    /// those of later stages, too, where the stage will be `made_anew`: where it samples what it has not sampled before.
    /// Segments of earlier stages are removed; files that are none are left alone.
    pub fn open(
        directory: &Path,
        stage: u32,
        version: u64,
        made_anew: bool,
    ) -> Result<(Self, Recovered), StoreError> {
        let (segments, begun) = Segment::list(directory)?;
        for path in begun {
            disk::remove_file(OPEN, &path)?;
        }
        for earlier in segments.iter().filter(|segment| segment.stage < stage) {
            disk::remove_file(OPEN, &directory.join(earlier.file()))?;
        }
        let (mut segments, later_stages): (Vec<_>, Vec<_>) = segments
            .into_iter()
            .filter(|segment| segment.stage > stage || (segment.stage == stage && segment.version >= version))
            .partition(|segment| segment.stage == stage);
        let mut encoder = Encoder::new().map_err(|e| StoreError::io("open", directory, e))?;
        let mut recovered = Recovered::default();
        if segments.first().is_none_or(|first| first.version != version) {
            if made_anew {
                segments.extend(later_stages);
            }
            for later in segments.iter().rev() {
                let path = directory.join(later.file());
                disk::remove_file(OPEN, &path)?;
                recovered.dropped_segments.push(path);
            }
            disk::sync_directory(OPEN, directory)?;
            let (file, length) = begin(OPEN, directory, Segment { stage, version }, &[], &mut encoder)?;
            let directory = directory.to_owned();
            return Ok((Self { directory, stage, version, file, encoder, length, closed: None }, recovered));
        }
        let (recovered, last, length) = read_chain(directory, &segments)?;
        let file = DiskFile::append(OPEN, &directory.join(Segment { stage, version: last }.file()))?;
        if recovered.torn_bytes > 0 {
            file.truncate(OPEN, length)?;
        }
        let directory = directory.to_owned();
        Ok((Self { directory, stage, version: last, file, encoder, length, closed: None }, recovered))
    }

    /// Appends a record. A [cut](Record::Cut) is on the disk when this returns, and all records before it.
    pub fn append(&mut self, record: &Record) -> Result<(), StoreError> {
        self.check_open()?;
        let encoded = self.encoder.frame(record, self.length);
        let frame = encoded.map_err(|e| StoreError::io("encode", self.file.path(), e))?;
        if let Err(error) = self.file.write(APPEND, &frame) {
            self.take_back(&error);
            return Err(error);
        }
        if record.is_synced()
            && let Err(error) = self.file.sync(APPEND)
        {
            // Not trained on, so not to be found by whoever resumes.
            self.take_back(&error);
            self.closed.get_or_insert_with(|| error.to_string());
            return Err(error);
        }
        self.length += frame.len() as u64;
        Ok(())
    }

    /// Cuts a record off that was not written whole. If that fails, there is no end to write at any more.
    fn take_back(&mut self, error: &StoreError) {
        if self.file.truncate(APPEND, self.length).is_err() {
            self.closed = Some(error.to_string());
        }
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match &self.closed {
            None => Ok(()),
            Some(failure) => {
                let path = self.file.path().to_owned();
                Err(StoreError::JournalClosed { path, failure: failure.clone() })
            }
        }
    }

    /// Begins the segment that follows `version`; `head` is what is alive there. Does nothing where the chain has
    /// reached that version already: a history that is replayed comes by its own segments again.
    pub fn roll(&mut self, version: u64, head: &[Record]) -> Result<(), StoreError> {
        if version <= self.version {
            return Ok(());
        }
        self.check_open()?;
        // The segment that the new one follows must not end in records that a power failure takes.
        if let Err(error) = self.file.sync(ROLL) {
            self.closed = Some(error.to_string());
            return Err(error);
        }
        let segment = Segment { stage: self.stage, version };
        match begin(ROLL, &self.directory, segment, head, &mut self.encoder) {
            Ok((file, length)) => {
                (self.file, self.length, self.version) = (file, length, version);
                Ok(())
            }
            Err(error) => {
                if self.directory.join(segment.file()).exists() {
                    // It stands, perhaps not durably: a record appended to the segment before would come too late.
                    self.closed = Some(error.to_string());
                }
                Err(error)
            }
        }
    }

    /// Removes the stage's segments that no kept checkpoint needs: those that follow a version older than
    /// `oldest_kept`, except the last one.
    pub fn prune(&self, oldest_kept: u64) -> Result<(), StoreError> {
        let (segments, _) = Segment::list(&self.directory)?;
        for segment in segments {
            if segment.stage == self.stage && segment.version < oldest_kept.min(self.version) {
                disk::remove_file(PRUNE, &self.directory.join(segment.file()))?;
            }
        }
        Ok(())
    }
}

/// What the segments of a stage hold, without touching them: a run may be at work there.
pub fn read(directory: &Path, stage: u32) -> Result<Recovered, StoreError> {
    let (mut segments, _) = Segment::list(directory)?;
    segments.retain(|segment| segment.stage == stage);
    Ok(read_chain(directory, &segments)?.0)
}

/// The records of segments that follow each other, the version of the last, and the length of what is sound in it.
fn read_chain(directory: &Path, segments: &[Segment]) -> Result<(Recovered, u64, u64), StoreError> {
    let mut recovered = Recovered::default();
    let (mut version, mut length) = (0, 0);
    for (place, segment) in segments.iter().enumerate() {
        let path = directory.join(segment.file());
        let bytes = read_to_length(&path).map_err(|source| StoreError::io("read", &path, source))?;
        let Parsed { head, log, sound } = parse(&bytes, &path, place + 1 == segments.len())?;
        if place == 0 {
            recovered.head = head;
        }
        recovered.log.extend(log);
        recovered.torn_bytes = bytes.len() as u64 - sound;
        (version, length) = (segment.version, sound);
    }
    Ok((recovered, version, length))
}

/// Writes a segment beside its place and puts it there, whole. Returns it open at its end, and its length.
fn begin(
    area: &str,
    directory: &Path,
    segment: Segment,
    head: &[Record],
    encoder: &mut Encoder,
) -> Result<(DiskFile, u64), StoreError> {
    let path = directory.join(segment.file());
    let partial = directory.join(segment.file() + PARTIAL);
    let mut bytes = MAGIC.to_vec();
    for record in head.iter().chain([&Record::Head]) {
        let frame = encoder.frame(record, bytes.len() as u64);
        bytes.extend(frame.map_err(|e| StoreError::io("encode", &path, e))?);
    }
    let written = DiskFile::create(area, &partial).and_then(|mut file| {
        file.write(area, &bytes)?;
        file.sync(area)?;
        disk::rename(area, &partial, &path)
    });
    if let Err(error) = written {
        // Best effort: the error that matters is the first one, and a full disk wants its space back.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    disk::sync_directory(area, directory)?;
    Ok((DiskFile::append(area, &path)?, bytes.len() as u64))
}

/// A file's bytes up to the length that it says it has: a device in its place may never end.
fn read_to_length(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

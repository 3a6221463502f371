//! The journal: the scheduler's events in order, and everything generated and scored, kept until a durable checkpoint
//! contains it.
//!
//! # Segments
//!
//! The segment `stage-SS-from-VVVVVV.log` belongs to one stage and follows one version. It starts with a snapshot of
//! the groups that were open at that version (complete groups, single episodes, partial episodes), ended by
//! [`Record::SnapshotEnd`]; the log follows. A checkpoint of version `v` and the segment from `v` are all that a run
//! needs to resume. A segment that follows another one contains what was recorded after it. An older checkpoint can
//! therefore be resumed with the chain of segments from its version; the snapshots of the later ones are then skipped.
//!
//! A new segment is written to a temporary file, synced and renamed: under its final name it has a whole snapshot.
//!
//! # Format
//!
//! Eight magic bytes identify the format and its version. Records follow, each of
//!
//! ```text
//! length      u32 LE   of the payload
//! checksum    u32 LE   CRC-32C of the payload
//! header      u32 LE   CRC-32C of the magic bytes, the record's offset in the file (u64 LE) and the eight bytes above
//! payload     JSON, compressed with zstd
//! ```
//!
//! A segment of another format version is refused with [`StoreError::JournalFormat`].
//!
//! # Torn records and damage
//!
//! A killed process leaves the beginning of its last record; a power failure may leave the right number of wrong bytes.
//! A record is therefore *torn* if it is the last thing in the last segment, is incomplete or does not match its
//! checksums, no valid record follows anywhere, and the snapshot before it is whole. A torn record is truncated. A
//! flipped bit in the last record looks the same and is handled the same way: the record is regenerated as after a
//! kill, and the run reports it. Every other mismatch is *damage*, an error that names the position. The header's own
//! checksum prevents a damaged length from declaring the rest of the file one torn record.
//!
//! # Errors
//!
//! A record that could not be written is truncated. If that fails as well, or if a sync fails, nothing more is written:
//! the content on the disk is then unknown.

mod record;
mod segment;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use record::{PartialEpisode, Record};
pub use segment::FORMAT_VERSION;
use segment::{Encoder, MAGIC, Parsed, parse};

use crate::StoreError;
use crate::disk::{self, DiskFile};

// Areas of the file operations.
const APPEND: &str = "journal/append";
const ROLL: &str = "journal/roll";
const OPEN: &str = "journal/open";
const PRUNE: &str = "journal/prune";

/// Suffix of a segment that is being written.
const PARTIAL: &str = ".partial";

/// The journal of a stage, open for appending.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    stage: u32,
    /// Version that the last segment follows.
    version: u64,
    file: DiskFile,
    encoder: Encoder,
    /// Length of the last segment, in whole records.
    length: u64,
    /// Message of the failure after which nothing more is written.
    failure: Option<String>,
}

/// The content of a journal.
#[derive(Debug, Default, PartialEq)]
pub struct Recovered {
    /// The groups that were open at the version that the journal was opened at.
    pub snapshot: Vec<Record>,
    /// The records since then, in order, of all segments.
    pub log: Vec<Record>,
    /// Size of a torn last record that was truncated, in bytes.
    pub torn_bytes: u64,
    /// Segments that were removed because the one that they follow is missing.
    pub removed_segments: Vec<PathBuf>,
}

/// Handling of later stages' segments when a stage's own segment is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaterStages {
    /// Keeps them: the stage reproduces the weights that they started from.
    Keep,
    /// Removes them: the stage samples new groups, so later stages start from other weights.
    Remove,
}

/// Identifies a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    stage: u32,
    /// Version that it follows.
    version: u64,
}

impl Segment {
    fn file(self) -> String {
        format!("stage-{:02}-from-{:06}.log", self.stage, self.version)
    }

    /// Parses a file name; `None` for names that the journal does not write.
    fn parse(name: &str) -> Option<Self> {
        let (stage, version) = name.strip_prefix("stage-")?.strip_suffix(".log")?.split_once("-from-")?;
        let segment = Self { stage: stage.parse().ok()?, version: version.parse().ok()? };
        (segment.file() == name).then_some(segment)
    }

    /// Lists the segments in a folder in order, and the temporary files of interrupted writes.
    fn list(directory: &Path) -> Result<(Vec<Self>, Vec<PathBuf>), StoreError> {
        let read = |source| StoreError::io("read", directory, source);
        let (mut segments, mut partial) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(directory).map_err(read)? {
            let name = entry.map_err(read)?.file_name();
            let Some(name) = name.to_str() else { continue };
            segments.extend(Self::parse(name));
            if name.strip_suffix(PARTIAL).and_then(Self::parse).is_some() {
                partial.push(directory.join(name));
            }
        }
        segments.sort();
        partial.sort();
        Ok((segments, partial))
    }
}

impl Journal {
    /// Opens the journal of a stage at `version` and reads the segment that follows it and all later ones.
    ///
    /// If that segment is missing, it is created and later ones of the stage are removed, since they belong to another
    /// history; `later_stages` decides about those of later stages. Segments of earlier stages are removed. Other files
    /// are left alone.
    pub fn open(
        directory: &Path,
        stage: u32,
        version: u64,
        later_stages: LaterStages,
    ) -> Result<(Self, Recovered), StoreError> {
        let (segments, partial) = Segment::list(directory)?;
        for path in partial {
            disk::remove_file(OPEN, &path)?;
        }
        for earlier in segments.iter().filter(|segment| segment.stage < stage) {
            disk::remove_file(OPEN, &directory.join(earlier.file()))?;
        }
        let (segments, of_later_stages): (Vec<_>, Vec<_>) = segments
            .into_iter()
            .filter(|segment| segment.stage > stage || (segment.stage == stage && segment.version >= version))
            .partition(|segment| segment.stage == stage);
        if segments.first().is_none_or(|first| first.version != version) {
            let mut orphaned = segments;
            if later_stages == LaterStages::Remove {
                orphaned.extend(of_later_stages);
            }
            return Self::start(directory, Segment { stage, version }, &orphaned);
        }
        let (recovered, last, length) = read_chain(directory, &segments)?;
        let file = DiskFile::append(OPEN, &directory.join(Segment { stage, version: last }.file()))?;
        if recovered.torn_bytes > 0 {
            file.truncate(OPEN, length)?;
        }
        let encoder = new_encoder(directory)?;
        let directory = directory.to_owned();
        Ok((Self { directory, stage, version: last, file, encoder, length, failure: None }, recovered))
    }

    /// Discards what was recorded after `version` of a stage, also in later stages. The groups that were open then are kept.
    /// Segments are removed from the last one on, so that an interrupted call leaves a shorter journal.
    pub fn discard_after(directory: &Path, stage: u32, version: u64) -> Result<(), StoreError> {
        let (segments, _) = Segment::list(directory)?;
        for segment in segments.iter().rev().filter(|s| (s.stage, s.version) > (stage, version)) {
            disk::remove_file(OPEN, &directory.join(segment.file()))?;
        }
        disk::sync_directory(OPEN, directory)?;
        Self::copy_snapshot(directory, directory, stage, version)
    }

    /// Writes to the journal in `to` the groups that were open at `version` of a stage, without what was recorded after it.
    /// Does nothing if the journal in `from` does not reach back to it.
    pub fn copy_snapshot(from: &Path, to: &Path, stage: u32, version: u64) -> Result<(), StoreError> {
        let first = Segment { stage, version };
        if !from.join(first.file()).is_file() {
            return Ok(());
        }
        let snapshot = read_chain(from, &[first])?.0.snapshot;
        write_segment(OPEN, to, first, &snapshot, &mut new_encoder(to)?).map(drop)
    }

    /// Starts a journal with an empty segment, after removing segments that do not follow from it.
    fn start(
        directory: &Path,
        first: Segment,
        orphaned: &[Segment],
    ) -> Result<(Self, Recovered), StoreError> {
        let mut recovered = Recovered::default();
        for segment in orphaned.iter().rev() {
            let path = directory.join(segment.file());
            disk::remove_file(OPEN, &path)?;
            recovered.removed_segments.push(path);
        }
        disk::sync_directory(OPEN, directory)?;
        let mut encoder = new_encoder(directory)?;
        let (file, length) = write_segment(OPEN, directory, first, &[], &mut encoder)?;
        let Segment { stage, version } = first;
        let directory = directory.to_owned();
        Ok((Self { directory, stage, version, file, encoder, length, failure: None }, recovered))
    }

    /// Appends a record. When a [cut](Record::Cut) is appended, it and all earlier records are durable on return.
    pub fn append(&mut self, record: &Record) -> Result<(), StoreError> {
        self.check_open()?;
        let encoded = self.encoder.frame(record, self.length);
        let frame = encoded.map_err(|e| StoreError::io("encode", self.file.path(), e))?;
        if let Err(error) = self.file.write(APPEND, &frame) {
            self.discard_unfinished(&error);
            return Err(error);
        }
        if record.is_synced()
            && let Err(error) = self.file.sync(APPEND)
        {
            // The batch is not trained, so a resumed run must not find its cut.
            self.discard_unfinished(&error);
            self.failure.get_or_insert_with(|| error.to_string());
            return Err(error);
        }
        self.length += frame.len() as u64;
        Ok(())
    }

    /// Truncates a record that was not written completely. If that fails, the end of the segment is unknown.
    fn discard_unfinished(&mut self, error: &StoreError) {
        if self.file.truncate(APPEND, self.length).is_err() {
            self.failure = Some(error.to_string());
        }
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => {
                let path = self.file.path().to_owned();
                Err(StoreError::JournalClosed { path, failure: failure.clone() })
            }
        }
    }

    /// Starts the segment that follows `version`, with a snapshot of the open groups. Does nothing if the chain already
    /// reaches that version: a replayed history passes its own segments again.
    pub fn roll(&mut self, version: u64, snapshot: &[Record]) -> Result<(), StoreError> {
        if version <= self.version {
            return Ok(());
        }
        self.check_open()?;
        // A power failure must not take records from the end of a segment that another one follows.
        if let Err(error) = self.file.sync(ROLL) {
            self.failure = Some(error.to_string());
            return Err(error);
        }
        let segment = Segment { stage: self.stage, version };
        match write_segment(ROLL, &self.directory, segment, snapshot, &mut self.encoder) {
            Ok((file, length)) => {
                (self.file, self.length, self.version) = (file, length, version);
                Ok(())
            }
            Err(error) => {
                if self.directory.join(segment.file()).exists() {
                    // The new segment exists, perhaps not durably: appending to the previous one would be out of order.
                    self.failure = Some(error.to_string());
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

/// Reads the segments of a stage without changing anything, also while a run appends to them.
pub fn read(directory: &Path, stage: u32) -> Result<Recovered, StoreError> {
    let (mut segments, _) = Segment::list(directory)?;
    segments.retain(|segment| segment.stage == stage);
    Ok(read_chain(directory, &segments)?.0)
}

fn new_encoder(directory: &Path) -> Result<Encoder, StoreError> {
    Encoder::new().map_err(|e| StoreError::io("open", directory, e))
}

/// Reads consecutive segments. Returns the records, the version of the last segment and the length of its valid part.
fn read_chain(directory: &Path, segments: &[Segment]) -> Result<(Recovered, u64, u64), StoreError> {
    let mut recovered = Recovered::default();
    let (mut version, mut length) = (0, 0);
    for (index, segment) in segments.iter().enumerate() {
        let path = directory.join(segment.file());
        let bytes = read_to_length(&path).map_err(|source| StoreError::io("read", &path, source))?;
        let Parsed { snapshot, log, valid_bytes } = parse(&bytes, &path, index + 1 == segments.len())?;
        if index == 0 {
            recovered.snapshot = snapshot;
        }
        recovered.log.extend(log);
        recovered.torn_bytes = bytes.len() as u64 - valid_bytes;
        (version, length) = (segment.version, valid_bytes);
    }
    Ok((recovered, version, length))
}

/// Writes a segment atomically. Returns it opened for appending, and its length.
fn write_segment(
    area: &str,
    directory: &Path,
    segment: Segment,
    snapshot: &[Record],
    encoder: &mut Encoder,
) -> Result<(DiskFile, u64), StoreError> {
    let path = directory.join(segment.file());
    let partial = directory.join(segment.file() + PARTIAL);
    let mut bytes = MAGIC.to_vec();
    for record in snapshot.iter().chain([&Record::SnapshotEnd]) {
        let frame = encoder.frame(record, bytes.len() as u64);
        bytes.extend(frame.map_err(|e| StoreError::io("encode", &path, e))?);
    }
    let written = DiskFile::create(area, &partial).and_then(|mut file| {
        file.write(area, &bytes)?;
        file.sync(area)?;
        disk::rename(area, &partial, &path)
    });
    if let Err(error) = written {
        // Best effort: the first error is the one to report, and a full disk needs the space.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    disk::sync_directory(area, directory)?;
    Ok((DiskFile::append(area, &path)?, bytes.len() as u64))
}

/// Reads a file up to its reported length. A device in its place might never end.
fn read_to_length(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

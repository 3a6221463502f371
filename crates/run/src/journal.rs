//! The journal: groups that were generated and scored, and the batches that were cut, kept until a durable
//! checkpoint contains them.
//!
//! A segment belongs to one stage and one checkpointed version and holds what happened after it. A record is
//! `length: u32 LE`, `crc32c: u32 LE` of the payload, then the payload (JSON). A torn last record, what a killed
//! process leaves, is cut off; a damaged one in the middle is an error that names the place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rloom_core::{Group, Ticket};
use serde::{Deserialize, Serialize};

use crate::RunError;

/// One thing that must not be lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// A group is generated and scored.
    Group(Group),
    /// A batch was cut: these groups are trained on next.
    Cut {
        /// The batch's number in its stage.
        batch: u64,
        /// Its groups, in training order.
        tickets: Vec<Ticket>,
    },
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

/// What a segment held when it was opened.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Recovered {
    /// Groups by ticket.
    pub(crate) groups: BTreeMap<Ticket, Group>,
    /// Batches by number.
    pub(crate) cuts: BTreeMap<u64, Vec<Ticket>>,
    /// Bytes of a torn last record that were cut off.
    pub(crate) torn_bytes: u64,
}

fn segment_name(stage: u32, version: u64) -> String {
    format!("stage-{stage:02}-from-{version:06}.log")
}

impl Journal {
    /// Opens the segment that follows `version` of `stage`, with what it holds; segments of other versions are
    /// contained in a durable checkpoint and are removed.
    pub(crate) fn open(directory: &Path, stage: u32, version: u64) -> Result<(Self, Recovered), RunError> {
        let name = segment_name(stage, version);
        let entries = fs::read_dir(directory).map_err(|source| RunError::io("read", directory, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| RunError::io("read", directory, source))?;
            if entry.file_name() != name.as_str() {
                fs::remove_file(entry.path())
                    .map_err(|source| RunError::io("remove", &entry.path(), source))?;
            }
        }
        let path = directory.join(name);
        let bytes = match read_to_length(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(RunError::io("read", &path, source)),
        };
        let (records, sound) = parse(&bytes, &path)?;
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|source| RunError::io("open", &path, source))?;
        let torn_bytes = (bytes.len() - sound) as u64;
        if torn_bytes > 0 {
            file.set_len(sound as u64).map_err(|source| RunError::io("truncate", &path, source))?;
        }
        let mut recovered = Recovered { torn_bytes, ..Recovered::default() };
        for record in records {
            match record {
                Record::Group(group) => {
                    recovered.groups.insert(group.ticket, group);
                }
                Record::Cut { batch, tickets } => {
                    recovered.cuts.insert(batch, tickets);
                }
            }
        }
        Ok((Self { path, file }, recovered))
    }

    /// Appends a record. A cut is synced to the disk: training starts only after it.
    pub(crate) fn append(&mut self, record: &Record) -> Result<(), RunError> {
        let payload = serde_json::to_vec(record)
            .map_err(|e| RunError::io("encode", &self.path, std::io::Error::other(e)))?;
        let mut frame = Vec::with_capacity(payload.len() + 8);
        frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        frame.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
        frame.extend_from_slice(&payload);
        self.file.write_all(&frame).map_err(|source| RunError::io("write", &self.path, source))?;
        if matches!(record, Record::Cut { .. }) {
            self.file.sync_data().map_err(|source| RunError::io("sync", &self.path, source))?;
        }
        Ok(())
    }
}

/// A file's bytes up to the length that it says it has: a device in its place may never end.
fn read_to_length(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The records of a segment and the number of bytes that are sound.
fn parse(bytes: &[u8], path: &Path) -> Result<(Vec<Record>, usize), RunError> {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + 8) {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let checksum = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let Some(payload) = bytes.get(at + 8..at + 8 + length) else {
            break;
        };
        let end = at + 8 + length;
        let damaged = |reason: &str| RunError::JournalDamaged {
            path: path.to_owned(),
            record: records.len(),
            offset: at as u64,
            reason: reason.to_owned(),
        };
        if crc32c::crc32c(payload) != checksum {
            // A torn write can leave the length without all of the bytes behind it on the disk.
            if end == bytes.len() {
                break;
            }
            return Err(damaged("its checksum does not match"));
        }
        let record = serde_json::from_slice(payload).map_err(|e| damaged(&e.to_string()))?;
        records.push(record);
        at = end;
    }
    Ok((records, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(batch: u64) -> Record {
        Record::Cut { batch, tickets: vec![Ticket(batch * 2), Ticket(batch * 2 + 1)] }
    }

    fn written(directory: &Path, n: u64) -> PathBuf {
        let (mut journal, _) = Journal::open(directory, 1, 10).unwrap();
        for batch in 0..n {
            journal.append(&cut(batch)).unwrap();
        }
        journal.path
    }

    #[test]
    fn every_torn_end_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path(), 3);
        let whole = fs::read(&path).unwrap();
        let record = whole.len() / 3;
        for keep in record * 2..whole.len() {
            fs::write(&path, &whole[..keep]).unwrap();
            let (mut journal, recovered) = Journal::open(directory.path(), 1, 10).unwrap();
            assert_eq!(recovered.cuts.len(), 2, "kept {keep} bytes");
            assert_eq!(recovered.torn_bytes, (keep - record * 2) as u64);
            journal.append(&cut(2)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "writing goes on at the sound end");
        }
    }

    #[test]
    fn damage_in_the_middle_names_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = written(directory.path(), 3);
        let mut bytes = fs::read(&path).unwrap();
        let record = bytes.len() / 3;
        bytes[record + 12] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Journal::open(directory.path(), 1, 10).unwrap_err();
        assert!(
            matches!(&error, RunError::JournalDamaged { record: 1, offset, .. } if *offset == record as u64),
            "{error}"
        );
    }

    #[test]
    fn another_version_starts_empty_and_removes_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let old = written(directory.path(), 2);
        let (_, recovered) = Journal::open(directory.path(), 1, 20).unwrap();
        assert_eq!(recovered, Recovered::default());
        assert!(!old.exists());
    }
}

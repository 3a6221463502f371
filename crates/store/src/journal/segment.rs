//! Encoding and decoding of a segment.

use std::path::Path;

use super::Record;
use crate::{JournalDamage, StoreError};

/// Version of the journal's format.
pub const FORMAT_VERSION: u32 = 3;

/// First bytes of a segment. The digit is the format version.
pub(super) const MAGIC: &[u8; 8] = b"rloomJ3\n";
const HEADER: usize = 12;

/// Compression level of zstd. A third of the size for about the time of writing the JSON; higher levels gain nothing.
const LEVEL: i32 = 1;

/// Encodes records. Reuses the compressor's working memory.
pub(super) struct Encoder(zstd::bulk::Compressor<'static>);

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}

impl Encoder {
    pub(super) fn new() -> std::io::Result<Self> {
        zstd::bulk::Compressor::new(LEVEL).map(Self)
    }

    /// Returns the bytes of a record that starts at `offset` of its file.
    pub(super) fn frame(&mut self, record: &Record, offset: u64) -> std::io::Result<Vec<u8>> {
        let payload = self.0.compress(&serde_json::to_vec(record)?)?;
        let length = u32::try_from(payload.len()).map_err(std::io::Error::other)?;
        let mut frame = Vec::with_capacity(HEADER + payload.len());
        frame.extend(length.to_le_bytes());
        frame.extend(crc32c::crc32c(&payload).to_le_bytes());
        let header = header_checksum(&frame, offset);
        frame.extend(header.to_le_bytes());
        frame.extend(payload);
        Ok(frame)
    }
}

fn decode(payload: &[u8]) -> std::io::Result<Record> {
    Ok(serde_json::from_slice(&zstd::decode_all(payload)?)?)
}

fn header_checksum(length_and_checksum: &[u8], offset: u64) -> u32 {
    let magic_and_offset = crc32c::crc32c_append(crc32c::crc32c(MAGIC), &offset.to_le_bytes());
    crc32c::crc32c_append(magic_and_offset, length_and_checksum)
}

/// The bytes at an offset of a segment.
enum Frame<'a> {
    /// The payload of a valid record.
    Valid(&'a [u8]),
    /// A record that is incomplete or does not match its checksums.
    Damaged(JournalDamage),
}

impl<'a> Frame<'a> {
    fn at(bytes: &'a [u8], offset: usize) -> Self {
        let Some(header) = bytes.get(offset..).and_then(|rest| rest.first_chunk::<HEADER>()) else {
            return Self::Damaged(JournalDamage::Truncated);
        };
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if number(8) != header_checksum(&header[..8], offset as u64) {
            return Self::Damaged(JournalDamage::Header);
        }
        let start = offset + HEADER;
        match bytes.get(start..start + number(0) as usize) {
            None => Self::Damaged(JournalDamage::Truncated),
            Some(payload) if crc32c::crc32c(payload) != number(4) => Self::Damaged(JournalDamage::Payload),
            Some(payload) => Self::Valid(payload),
        }
    }
}

/// The content of a segment.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// The snapshot that the segment starts with.
    pub(super) snapshot: Vec<Record>,
    /// The records after the snapshot.
    pub(super) log: Vec<Record>,
    /// Length of the valid part. A torn record may follow.
    pub(super) valid_bytes: u64,
}

/// Checks the first bytes of a segment.
///
/// The magic bytes of another format version are an unsupported format, unless the first record is valid in this
/// format: then the version digit is damaged.
fn check_format(bytes: &[u8], path: &Path) -> Result<(), StoreError> {
    if bytes.starts_with(MAGIC) {
        return Ok(());
    }
    let digit = MAGIC.len() - 2;
    let found = bytes.get(digit).and_then(|&digit| char::from(digit).to_digit(10));
    let is_journal = bytes.starts_with(&MAGIC[..digit]) && bytes.get(digit + 1) == Some(&b'\n');
    let is_this_format = matches!(Frame::at(bytes, MAGIC.len()), Frame::Valid(_));
    Err(match found {
        Some(found) if is_journal && !is_this_format => {
            StoreError::JournalFormat { path: path.to_owned(), found, supported: FORMAT_VERSION }
        }
        _ => damaged(path, 0, 0, JournalDamage::Magic),
    })
}

fn damaged(path: &Path, record: usize, offset: usize, damage: JournalDamage) -> StoreError {
    StoreError::JournalDamaged { path: path.to_owned(), record, offset: offset as u64, damage }
}

/// Parses a segment. `is_last` permits a torn record at the end, as an interrupted write leaves it.
pub(super) fn parse(bytes: &[u8], path: &Path, is_last: bool) -> Result<Parsed, StoreError> {
    check_format(bytes, path)?;
    let mut records = Vec::new();
    let mut snapshot_length = None;
    let mut offset = MAGIC.len();
    while offset < bytes.len() {
        match Frame::at(bytes, offset) {
            Frame::Valid(payload) => {
                let record = decode(payload).map_err(|error| {
                    damaged(path, records.len(), offset, JournalDamage::Undecodable(error))
                })?;
                if record == Record::SnapshotEnd && snapshot_length.is_none() {
                    snapshot_length = Some(records.len());
                }
                records.push(record);
                offset += HEADER + payload.len();
            }
            Frame::Damaged(damage) => {
                let is_torn = is_last && snapshot_length.is_some() && !has_valid_record_after(bytes, offset);
                if !is_torn {
                    return Err(damaged(path, records.len(), offset, damage));
                }
                break;
            }
        }
    }
    let Some(length) = snapshot_length else {
        return Err(damaged(path, records.len(), offset, JournalDamage::SnapshotIncomplete));
    };
    let log = records.split_off(length + 1);
    records.truncate(length);
    Ok(Parsed { snapshot: records, log, valid_bytes: offset as u64 })
}

/// True if a valid record starts anywhere after `offset`. Headers depend on their offset, so bytes inside a record or
/// copied from another file are not mistaken for one.
fn has_valid_record_after(bytes: &[u8], offset: usize) -> bool {
    (offset + 1..bytes.len()).any(|at| matches!(Frame::at(bytes, at), Frame::Valid(_)))
}

//! The bytes of a segment.

use std::path::Path;

use super::Record;
use crate::{JournalDamage, StoreError};

/// What every segment begins with; the digit is the format's.
pub(super) const MAGIC: &[u8; 8] = b"rloomJ2\n";
const HEADER: usize = 12;

/// Level of compression: a third of the bytes for about the time that writing the JSON takes; higher ones gain nothing.
const LEVEL: i32 = 1;

/// Makes the bytes of records. Compression keeps its working memory from one to the next.
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

    /// A record's bytes where it begins at `offset` of its file.
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
    crc32c::crc32c_append(crc32c::crc32c(&offset.to_le_bytes()), length_and_checksum)
}

/// What stands at an offset of a segment.
enum Frame<'a> {
    /// A sound record.
    Sound(&'a [u8]),
    /// The file ends within it.
    CutOff,
    /// What is wrong, as the rest of a sentence.
    Damaged(JournalDamage),
}

impl<'a> Frame<'a> {
    fn at(bytes: &'a [u8], offset: usize) -> Self {
        let Some(header) = bytes[offset..].first_chunk::<HEADER>() else {
            return Self::CutOff;
        };
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if number(8) != header_checksum(&header[..8], offset as u64) {
            return Self::Damaged(JournalDamage::Header);
        }
        let from = offset + HEADER;
        match bytes.get(from..from + number(0) as usize) {
            None => Self::CutOff,
            Some(payload) if crc32c::crc32c(payload) != number(4) => Self::Damaged(JournalDamage::Payload),
            Some(payload) => Self::Sound(payload),
        }
    }
}

/// A segment, read.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// The copies that it begins with.
    pub(super) head: Vec<Record>,
    /// What happened since.
    pub(super) log: Vec<Record>,
    /// Bytes that are sound. What follows them is the torn end.
    pub(super) sound: u64,
}

/// Reads a segment. `may_be_torn` says that it is the last one, whose end a killed process may have left unfinished.
pub(super) fn parse(bytes: &[u8], path: &Path, may_be_torn: bool) -> Result<Parsed, StoreError> {
    let damaged = |record: usize, offset: usize, damage| StoreError::JournalDamaged {
        path: path.to_owned(),
        record,
        offset: offset as u64,
        damage,
    };
    if !bytes.starts_with(MAGIC) {
        return Err(damaged(0, 0, JournalDamage::Magic));
    }
    let mut records = Vec::new();
    let mut head = None;
    let mut at = MAGIC.len();
    while at < bytes.len() {
        let damage = match Frame::at(bytes, at) {
            Frame::Sound(payload) => {
                let record =
                    decode(payload).map_err(|e| damaged(records.len(), at, JournalDamage::Undecodable(e)))?;
                if record == Record::Head && head.is_none() {
                    head = Some(records.len());
                }
                records.push(record);
                at += HEADER + payload.len();
                continue;
            }
            Frame::CutOff => JournalDamage::Truncated,
            Frame::Damaged(damage) => damage,
        };
        if !may_be_torn || head.is_none() || sound_record_after(bytes, at) {
            return Err(damaged(records.len(), at, damage));
        }
        break;
    }
    let Some(head) = head else {
        return Err(damaged(records.len(), at, JournalDamage::SnapshotIncomplete));
    };
    let log = records.split_off(head + 1);
    records.truncate(head);
    Ok(Parsed { head: records, log, sound: at as u64 })
}

/// Whether a sound record begins anywhere behind `offset`. Headers carry their own place, so that bytes within a
/// record, or of another file, are not taken for one.
fn sound_record_after(bytes: &[u8], offset: usize) -> bool {
    (offset + 1..bytes.len()).any(|at| matches!(Frame::at(bytes, at), Frame::Sound(_)))
}

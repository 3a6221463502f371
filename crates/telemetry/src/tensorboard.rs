//! TensorBoard event files with the metrics of the event stream.
//!
//! A file is a sequence of records: `length: u64 LE`, masked crc32c of those eight bytes, the payload, masked crc32c
//! of the payload. A payload is a protocol-buffer `Event`: 1 wall_time (double), 2 step (int64),
//! 3 file_version (string) or 5 summary; a summary contains values (1) of 1 tag (string) and 2 simple_value (float).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes scalars to one event file.
#[derive(Debug)]
pub(crate) struct TensorBoardWriter {
    file: File,
}

impl TensorBoardWriter {
    /// Creates a file in `directory`. Its name contains `unix_seconds`, by which TensorBoard orders files.
    pub(crate) fn create(directory: &Path, unix_seconds: f64, attempt: u32) -> io::Result<Self> {
        let name = format!("events.out.tfevents.{:010}.rloom.{attempt}", unix_seconds as u64);
        let file = File::options().create(true).append(true).open(directory.join(name))?;
        let mut writer = Self { file };
        let mut event = Vec::new();
        field_double(&mut event, 1, unix_seconds);
        field_bytes(&mut event, 3, b"brain.Event:2");
        writer.record(&event)?;
        Ok(writer)
    }

    /// Appends the scalars of a step.
    pub(crate) fn scalars<'a>(
        &mut self,
        unix_seconds: f64,
        step: u64,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut message = Vec::new();
            field_bytes(&mut message, 1, tag.as_bytes());
            varint(&mut message, 2 << 3 | 5);
            message.extend_from_slice(&(value as f32).to_le_bytes());
            field_bytes(&mut summary, 1, &message);
        }
        let mut event = Vec::new();
        field_double(&mut event, 1, unix_seconds);
        varint(&mut event, 2 << 3);
        varint(&mut event, step);
        field_bytes(&mut event, 5, &summary);
        self.record(&event)
    }

    fn record(&mut self, payload: &[u8]) -> io::Result<()> {
        let length = (payload.len() as u64).to_le_bytes();
        let mut frame = Vec::with_capacity(payload.len() + 16);
        frame.extend_from_slice(&length);
        frame.extend_from_slice(&masked_crc(&length).to_le_bytes());
        frame.extend_from_slice(payload);
        frame.extend_from_slice(&masked_crc(payload).to_le_bytes());
        self.file.write_all(&frame)
    }
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn field_double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, field << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn field_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/golden/write_tensorboard.py` reads the same file with the `tensorboard` package.
    #[test]
    fn the_file_equals_one_that_tensorboard_reads() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = TensorBoardWriter::create(directory.path(), 1_700_000_000.5, 1).unwrap();
        writer.scalars(1_700_000_001.25, 300, [("reward", 0.5), ("eval/pass@1", 0.75)].into_iter()).unwrap();
        drop(writer);
        let path = directory.path().join("events.out.tfevents.1700000000.rloom.1");
        let bytes = std::fs::read(path).unwrap();
        let golden = include_bytes!("../tests/golden/tensorboard.bin");
        assert_eq!(bytes, golden);
    }
}

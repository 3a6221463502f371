//! Thrift's compact protocol, as far as it is needed to find sizes in the headers of a Parquet file.

use std::io::{self, Read};

use super::SizeProblem;

/// End of a structure.
const STOP: u8 = 0;
/// Kinds of values.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
pub(super) const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Nesting of values that are skipped.
const MAX_DEPTH: u32 = 64;

/// Reader of values of which no more than `left` bytes exist.
pub(super) struct Compact<R> {
    from: R,
    left: u64,
}

impl<R: Read> Compact<R> {
    pub(super) fn new(from: R, left: u64) -> Self {
        Self { from, left }
    }

    /// Bytes that were not read.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    fn byte(&mut self) -> Result<u8, SizeProblem> {
        let mut byte = [0];
        self.left = self.left.checked_sub(1).ok_or(SizeProblem::Header)?;
        self.from.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64, SizeProblem> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(SizeProblem::Header)
    }

    /// An integer of any size.
    pub(super) fn int(&mut self) -> Result<i64, SizeProblem> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip_bytes(&mut self, count: u64) -> Result<(), SizeProblem> {
        self.left = self.left.checked_sub(count).ok_or(SizeProblem::Header)?;
        let skipped = io::copy(&mut self.from.by_ref().take(count), &mut io::sink())?;
        if skipped == count { Ok(()) } else { Err(SizeProblem::Header) }
    }

    /// Kind and number of a list's elements. Each takes at least a byte.
    pub(super) fn list(&mut self) -> Result<(u8, u64), SizeProblem> {
        let header = self.byte()?;
        let count = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
        if count > self.left { Err(SizeProblem::Header) } else { Ok((header & 15, count)) }
    }

    /// Reads a structure. `field` receives identifier and kind of each field and returns false for those that it has not
    /// read.
    pub(super) fn structure(
        &mut self,
        field: &mut dyn FnMut(&mut Self, i64, u8) -> Result<bool, SizeProblem>,
    ) -> Result<(), SizeProblem> {
        let mut id = 0_i64;
        while let Some(kind) = self.field(&mut id)? {
            if !field(self, id, kind)? {
                self.skip(kind, MAX_DEPTH)?;
            }
        }
        Ok(())
    }

    /// Kind of the next field; `None` at the end of the structure.
    fn field(&mut self, id: &mut i64) -> Result<Option<u8>, SizeProblem> {
        let header = self.byte()?;
        let (delta, kind) = (header >> 4, header & 15);
        if kind == STOP {
            return Ok(None);
        }
        *id = if delta == 0 { self.int()? } else { id.saturating_add(i64::from(delta)) };
        Ok(Some(kind))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), SizeProblem> {
        let depth = depth.checked_sub(1).ok_or(SizeProblem::Header)?;
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.skip_bytes(1),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => self.skip_bytes(8),
            UUID => self.skip_bytes(16),
            BINARY => {
                let count = self.varint()?;
                self.skip_bytes(count)
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
                Ok(())
            }
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.varint()?;
                if count > self.left {
                    return Err(SizeProblem::Header);
                }
                let kinds = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            _ => Err(SizeProblem::Header),
        }
    }

    /// Elements that are true or false take a byte; as fields they take none.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Result<(), SizeProblem> {
        if matches!(kind, TRUE | FALSE) { self.skip_bytes(1) } else { self.skip(kind, depth) }
    }
}

//! Checks of the sizes that a Parquet file states, before the `parquet` crate allocates memory for them. The crate does not
//! check them: a few bytes could make it overflow its stack or request more memory than there is, which ends the process.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, Type};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use super::thrift::{Compact, I32, LIST, STRUCT};

/// Largest page in bytes; writers aim at about a megabyte.
const MAX_PAGE: i64 = 1 << 30;
/// Deepest nesting of columns.
const MAX_DEPTH: usize = 64;
/// More than any Snappy-compressed bytes expand: an element of three bytes stands for at most 64.
const MAX_SNAPPY_RATIO: i64 = 32;
/// Bytes that are read at once for a header. Most are shorter.
const HEADER: usize = 256;

/// Problem of a Parquet file's sizes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SizeProblem {
    /// A header that cannot be read, or that states more bytes than the file has.
    #[error("a header is damaged")]
    Header,
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Columns nested too deeply.
    #[error("its columns are nested more than {MAX_DEPTH} levels deep")]
    Depth,
    /// A group of columns that are not in the file.
    #[error("a group states {stated} columns, of which {existing} can exist")]
    Columns {
        /// Number of columns in the group's header.
        stated: i64,
        /// Number of columns that follow it.
        existing: u64,
    },
    /// A page that is too large or expands to more than it states.
    #[error("column `{column}`: a page of {compressed} bytes expands to {stated} bytes or more")]
    Page {
        /// The column.
        column: String,
        /// Size in the file.
        compressed: i64,
        /// Stated size in memory.
        stated: i64,
    },
    /// A dictionary with more values than its bytes can hold.
    #[error("column `{column}`: a dictionary of {bytes} bytes states {stated} values")]
    Dictionary {
        /// The column.
        column: String,
        /// Size in memory.
        bytes: i64,
        /// Stated number of values.
        stated: i64,
    },
}

/// Checks the tree of columns. What is not a Parquet file is left to the reader.
pub(super) fn check_columns(file: &File) -> Result<(), SizeProblem> {
    let Some((start, length)) = footer(file)? else { return Ok(()) };
    let mut footer = Compact::new(reader(file, start, 1 << 13)?, length);
    footer.structure(&mut |footer, id, kind| {
        if (id, kind) != (2, LIST) {
            return Ok(false);
        }
        let (kind, count) = footer.list()?;
        if kind != STRUCT {
            return Err(SizeProblem::Header);
        }
        columns(footer, count).map(|()| true)
    })
}

/// Place and length of the footer; `None` if there is none that is not encrypted.
fn footer(file: &File) -> io::Result<Option<(u64, u64)>> {
    let length = file.metadata()?.len();
    let Some(end) = length.checked_sub(8) else { return Ok(None) };
    let mut tail = [0; 8];
    reader(file, end, 8)?.read_exact(&mut tail)?;
    let [a, b, c, d, magic @ ..] = tail;
    let size = u64::from(u32::from_le_bytes([a, b, c, d]));
    Ok(end.checked_sub(size).filter(|_| &magic == b"PAR1").map(|start| (start, size)))
}

fn reader(file: &File, start: u64, buffer: usize) -> io::Result<BufReader<File>> {
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(start))?;
    Ok(BufReader::with_capacity(buffer, file))
}

/// Checks the list of columns and groups, each group before its members.
fn columns<R: Read>(footer: &mut Compact<R>, count: u64) -> Result<(), SizeProblem> {
    // Members that each open group still lacks.
    let mut open: Vec<i64> = Vec::new();
    for index in 0..count {
        let mut members = 0;
        footer.structure(&mut |footer, id, kind| {
            let is_members = (id, kind) == (5, I32);
            if is_members {
                members = footer.int()?;
            }
            Ok(is_members)
        })?;
        if let Some(lacking) = open.last_mut() {
            *lacking -= 1;
        }
        let existing = count - index - 1;
        if members > 0 {
            if members as u64 > existing {
                return Err(SizeProblem::Columns { stated: members, existing });
            }
            open.push(members);
        }
        if open.len() > MAX_DEPTH {
            return Err(SizeProblem::Depth);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}

/// Checks the headers of all pages.
pub(super) fn check_pages(file: &File, metadata: &ParquetMetaData) -> Result<(), SizeProblem> {
    let length = file.metadata()?.len();
    for column in metadata.row_groups().iter().flat_map(RowGroupMetaData::columns) {
        // The reader stops where the stated bytes end, and refuses a page that goes beyond.
        let (mut at, stated) = column.byte_range();
        let end = at.checked_add(stated).ok_or(SizeProblem::Header)?;
        while at < end {
            let left = length.checked_sub(at).ok_or(SizeProblem::Header)?;
            let mut header = Compact::new(reader(file, at, HEADER)?, left);
            let page = PageSizes::read(&mut header)?;
            at += left - header.left();
            page.check(column, header.left())?;
            if matches!(column.compression(), Compression::GZIP(_)) {
                page.check_gzip(file, column, at)?;
            }
            at += page.compressed as u64;
        }
    }
    Ok(())
}

/// Sizes in the header of a page.
#[derive(Debug, Default)]
struct PageSizes {
    uncompressed: i64,
    compressed: i64,
    /// Values of a dictionary.
    dictionary: Option<i64>,
    /// Bytes before the compressed ones.
    levels: i64,
}

impl PageSizes {
    fn read<R: Read>(header: &mut Compact<R>) -> Result<Self, SizeProblem> {
        let mut sizes = Self::default();
        header.structure(&mut |header, id, kind| {
            match (id, kind) {
                (2, I32) => sizes.uncompressed = header.int()?,
                (3, I32) => sizes.compressed = header.int()?,
                (7, STRUCT) => {
                    header.structure(&mut |header, id, kind| {
                        let is_count = (id, kind) == (1, I32);
                        if is_count {
                            sizes.dictionary = Some(header.int()?);
                        }
                        Ok(is_count)
                    })?;
                }
                (8, STRUCT) => {
                    header.structure(&mut |header, id, kind| {
                        let is_levels = matches!((id, kind), (5 | 6, I32));
                        if is_levels {
                            sizes.levels = sizes.levels.saturating_add(header.int()?.max(0));
                        }
                        Ok(is_levels)
                    })?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(sizes)
    }

    fn check(&self, column: &ColumnChunkMetaData, left: u64) -> Result<(), SizeProblem> {
        let &Self { uncompressed, compressed, dictionary, .. } = self;
        if uncompressed < 0 || compressed < 0 || compressed as u64 > left {
            return Err(SizeProblem::Header);
        }
        let most = match column.compression() {
            Compression::SNAPPY => MAX_PAGE.min(compressed.saturating_mul(MAX_SNAPPY_RATIO)),
            _ => MAX_PAGE,
        };
        if uncompressed > most || compressed > MAX_PAGE {
            return Err(self.too_large(column));
        }
        let width = match column.column_type() {
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::BOOLEAN | Type::FIXED_LEN_BYTE_ARRAY => 1,
        };
        match dictionary {
            Some(stated) if stated > uncompressed / width => Err(SizeProblem::Dictionary {
                column: column.column_path().string(),
                bytes: uncompressed,
                stated,
            }),
            _ => Ok(()),
        }
    }

    /// The reader expands Gzip to its end, whatever the page states.
    fn check_gzip(&self, file: &File, column: &ColumnChunkMetaData, at: u64) -> Result<(), SizeProblem> {
        let levels = self.levels.min(self.compressed) as u64;
        let compressed = reader(file, at + levels, 1 << 16)?.take(self.compressed as u64 - levels);
        let mut expanded = MultiGzDecoder::new(compressed).take(self.uncompressed as u64 + 1);
        // Damaged bytes are left to the reader, too.
        let bytes = io::copy(&mut expanded, &mut io::sink()).unwrap_or(0);
        if bytes > self.uncompressed as u64 { Err(self.too_large(column)) } else { Ok(()) }
    }

    fn too_large(&self, column: &ColumnChunkMetaData) -> SizeProblem {
        SizeProblem::Page {
            column: column.column_path().string(),
            compressed: self.compressed,
            stated: self.uncompressed,
        }
    }
}

//! Parquet files made byte by byte, with headers that no writer makes.

/// Thrift's compact protocol.
#[derive(Default, Clone)]
pub(crate) struct Thrift(pub(crate) Vec<u8>);

pub(crate) const I32: u8 = 5;
pub(crate) const I64: u8 = 6;
const BINARY: u8 = 8;
pub(crate) const LIST: u8 = 9;
pub(crate) const STRUCT: u8 = 12;

impl Thrift {
    pub(crate) fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    /// Start of a field, `delta` after the one before.
    pub(crate) fn field(mut self, delta: u8, kind: u8) -> Self {
        self.0.push(delta << 4 | kind);
        self
    }

    pub(crate) fn int(self, delta: u8, kind: u8, value: i64) -> Self {
        self.field(delta, kind).varint((value << 1 ^ value >> 63) as u64)
    }

    pub(crate) fn text(self, delta: u8, text: &str) -> Self {
        self.field(delta, BINARY).bytes(text)
    }

    fn bytes(self, text: &str) -> Self {
        let mut own = self.varint(text.len() as u64);
        own.0.extend(text.as_bytes());
        own
    }

    pub(crate) fn list(mut self, delta: u8, kind: u8, count: u64) -> Self {
        self = self.field(delta, LIST);
        self.0.push(0xF0 | kind);
        self.varint(count)
    }

    pub(crate) fn structure(self, delta: u8, inner: Self) -> Self {
        self.field(delta, STRUCT).then(inner.end())
    }

    pub(crate) fn then(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub(crate) fn end(mut self) -> Self {
        self.0.push(0);
        self
    }
}

/// A group with a number of columns.
pub(crate) fn group(columns: i64) -> Thrift {
    Thrift::default().int(3, I32, 0).text(1, "g").int(1, I32, columns).end()
}

/// A file with the given columns, without rows.
pub(crate) fn of_columns(columns: &[Thrift]) -> Vec<u8> {
    let schema = Thrift::default().int(1, I32, 1).list(1, STRUCT, columns.len() as u64);
    let schema = columns.iter().cloned().fold(schema, Thrift::then);
    with_footer(b"PAR1".to_vec(), &schema.int(1, I64, 0).list(1, STRUCT, 0).end())
}

pub(crate) fn with_footer(mut file: Vec<u8>, footer: &Thrift) -> Vec<u8> {
    file.extend(&footer.0);
    file.extend((footer.0.len() as u32).to_le_bytes());
    file.extend(b"PAR1");
    file
}

pub(crate) const UNCOMPRESSED: i64 = 0;
pub(crate) const SNAPPY: i64 = 1;
pub(crate) const GZIP: i64 = 2;
pub(crate) const ZSTD: i64 = 6;

/// A page and the sizes in its header.
#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) is_dictionary: bool,
    pub(crate) uncompressed: i64,
    pub(crate) compressed: i64,
    pub(crate) values: i64,
    /// 0: plain; 8: indices of the dictionary.
    pub(crate) encoding: i64,
    pub(crate) bytes: Vec<u8>,
}

impl Page {
    /// Plain values with the right sizes.
    pub(crate) fn plain(texts: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        for text in texts {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(*text);
        }
        let size = bytes.len() as i64;
        let values = texts.len() as i64;
        Self { is_dictionary: false, uncompressed: size, compressed: size, values, encoding: 0, bytes }
    }
}

/// A file with the column `prompt` of required texts.
pub(crate) fn of_pages(codec: i64, rows: i64, pages: &[Page]) -> Vec<u8> {
    let mut file = b"PAR1".to_vec();
    let mut data_page = 4;
    for page in pages {
        let header = Thrift::default()
            .int(1, I32, if page.is_dictionary { 2 } else { 0 })
            .int(1, I32, page.uncompressed)
            .int(1, I32, page.compressed);
        let inner = Thrift::default().int(1, I32, page.values).int(1, I32, page.encoding);
        let header = if page.is_dictionary {
            header.structure(4, inner)
        } else {
            data_page = file.len() as i64;
            header.structure(2, inner.int(1, I32, 3).int(1, I32, 3))
        };
        file.extend(header.end().0);
        file.extend(&page.bytes);
    }
    let size = file.len() as i64 - 4;
    let column = Thrift::default().int(1, I32, 6).int(2, I32, 0).text(1, "prompt").int(2, I32, 0).end();
    let metadata = Thrift::default().int(1, I32, 6).list(1, I32, 0).list(1, 8, 1).bytes("prompt");
    let metadata = metadata.int(1, I32, codec).int(1, I64, rows).int(1, I64, size).int(1, I64, size);
    let metadata = metadata.int(2, I64, data_page);
    let metadata =
        if pages.iter().any(|page| page.is_dictionary) { metadata.int(2, I64, 4) } else { metadata };
    let chunk = Thrift::default().int(2, I64, 4).structure(1, metadata).end();
    let rows_of_group =
        Thrift::default().list(1, STRUCT, 1).then(chunk).int(1, I64, size).int(1, I64, rows).end();
    let footer = Thrift::default().int(1, I32, 1).list(1, STRUCT, 2).then(group(1)).then(column);
    with_footer(file, &footer.int(1, I64, rows).list(1, STRUCT, 1).then(rows_of_group).end())
}

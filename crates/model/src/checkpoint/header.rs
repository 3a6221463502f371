//! Headers of `safetensors` files: eight bytes with the length, then JSON. Nothing in a header is trusted: sizes are
//! checked against the length of the file before anything of that size is allocated.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::Read;

use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// Largest header, in bytes: the limit of the format.
const LARGEST: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH: u64 = 8;

/// A header that cannot be used.
#[derive(Debug)]
pub(super) enum HeaderError {
    Io(std::io::Error),
    /// The header describes a file of another length.
    Length {
        expected: u64,
    },
    Invalid(SafeTensorError),
}

impl From<SafeTensorError> for HeaderError {
    fn from(error: SafeTensorError) -> Self {
        Self::Invalid(error)
    }
}

/// Reads the header of a file of `len` bytes. Returns the offset of the data, and the tensors, which cover the rest of
/// the file without gaps or overlaps.
pub(super) fn read(file: &mut File, len: u64) -> Result<(u64, Metadata), HeaderError> {
    if len < LENGTH {
        return Err(SafeTensorError::HeaderTooSmall.into());
    }
    let mut prefix = [0; LENGTH as usize];
    file.read_exact(&mut prefix).map_err(HeaderError::Io)?;
    let header = u64::from_le_bytes(prefix);
    if header > LARGEST {
        return Err(SafeTensorError::HeaderTooLarge.into());
    }
    let data = LENGTH + header;
    if data > len {
        return Err(HeaderError::Length { expected: data });
    }
    let mut text = vec![0; header as usize];
    file.read_exact(&mut text).map_err(HeaderError::Io)?;
    let metadata = parse(&text)?;
    // The sum of the sizes may be close to the largest integer.
    let expected = data.checked_add(metadata.data_len() as u64).ok_or(SafeTensorError::ValidationOverflow)?;
    if expected != len {
        return Err(HeaderError::Length { expected });
    }
    Ok((data, metadata))
}

fn parse(text: &[u8]) -> Result<Metadata, SafeTensorError> {
    let Header { metadata, mut tensors } =
        serde_json::from_slice(text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    Metadata::new(metadata, tensors)
}

/// Entries of a header, in the order of the file. Unlike [`Metadata`]'s own parser, rejects repeated names, of which a
/// map would keep the last.
struct Header {
    metadata: Option<HashMap<String, String>>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { metadata: None, tensors: Vec::new() };
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("{name} occurs twice")));
            }
            if name == "__metadata__" {
                header.metadata = map.next_value()?;
            } else {
                header.tensors.push((name, map.next_value()?));
            }
        }
        Ok(header)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use proptest::prelude::*;

    use super::*;

    /// A header with its length, without data.
    pub(in crate::checkpoint) fn file(header: &str) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes
    }

    fn read_bytes(bytes: &[u8], len: u64) -> Result<(u64, Metadata), HeaderError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.set_len(len).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        read(&mut file, len)
    }

    /// Reads a header in front of `data` bytes, most of which take no disk space.
    fn error(header: &str, data: u64) -> HeaderError {
        let bytes = file(header);
        read_bytes(&bytes, bytes.len() as u64 + data).unwrap_err()
    }

    #[test]
    fn a_valid_header_is_read() {
        let header = r#"{"__metadata__":{"step":"3"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
                         "a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}  "#;
        let bytes = file(header);
        let (data, metadata) = read_bytes(&bytes, bytes.len() as u64 + 12).unwrap();
        assert_eq!((data, metadata.data_len()), (bytes.len() as u64, 12));
        assert_eq!(metadata.offset_keys(), ["a", "b"]);
        assert_eq!(metadata.metadata().as_ref().unwrap()["step"], "3");
    }

    #[test]
    fn lengths_that_do_not_fit_the_file_are_named() {
        let header = file(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#);
        let whole = header.len() as u64 + 8;
        for len in [20, whole - 9, whole - 8, whole - 1, whole + 1] {
            let error = read_bytes(&header[..header.len().min(len as usize)], len).unwrap_err();
            let header_only = header.len() as u64;
            let wanted = if len < header_only { header_only } else { whole };
            assert!(
                matches!(error, HeaderError::Length { expected } if expected == wanted),
                "{len}: {error:?}"
            );
        }
        assert!(matches!(
            read_bytes(&header[..4], 4),
            Err(HeaderError::Invalid(SafeTensorError::HeaderTooSmall))
        ));
        for long in [LARGEST + 1, u64::MAX - 7, u64::MAX] {
            let error = read_bytes(&long.to_le_bytes(), LARGEST + 100).unwrap_err();
            assert!(
                matches!(error, HeaderError::Invalid(SafeTensorError::HeaderTooLarge)),
                "{long}: {error:?}"
            );
        }
    }

    #[test]
    fn hostile_tensors_are_errors() {
        let nested = format!("{{\"a\":{}", "[".repeat(100_000));
        let cases = [
            (
                "two at one offset",
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            ),
            (
                "an overlap",
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
            ),
            ("a gap", r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#),
            ("an end before the start", r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#),
            ("a negative offset", r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}}"#),
            ("a fractional offset", r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4.0]}}"#),
            ("three offsets", r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}}"#),
            ("a shape of another size", r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}}"#),
            (
                "a shape whose product overflows",
                r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#,
            ),
            (
                "a shape whose bytes overflow",
                r#"{"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}}"#,
            ),
            (
                "a dimension beyond 64 bits",
                r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]}}"#,
            ),
            ("an unknown number type", r#"{"a":{"dtype":"F99","shape":[4],"data_offsets":[0,4]}}"#),
            ("half a byte", r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#),
            (
                "a repeated name",
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            ),
            (
                "repeated metadata",
                r#"{"__metadata__":{},"__metadata__":{},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            ),
            (
                "metadata of numbers",
                r#"{"__metadata__":{"step":3},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            ),
            ("a list", "[]"),
            ("nothing", ""),
            ("text after the object", r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}} x"#),
            ("deep nesting", &nested),
        ];
        for (name, header) in cases {
            assert!(matches!(error(header, 4), HeaderError::Invalid(_)), "{name}");
        }
    }

    /// The sum of the sizes and the header's length wraps to the length of the file.
    #[test]
    fn sizes_that_wrap_around_are_errors() {
        let part = 1_u64 << 60;
        let tensor = |i: u64, start: u64, size: u64| {
            format!(
                r#""t{i:02}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{start},{}]}}"#,
                start + size
            )
        };
        let mut tensors: Vec<String> = (0..15).map(|i| tensor(i, i * part, part)).collect();
        // As long as the final header, whose numbers have as many digits.
        tensors.push(tensor(15, 15 * part, part - 1000));
        let len = tensors.join(",").len() as u64 + 2;
        tensors[15] = tensor(15, 15 * part, part - 8 - len);
        let bytes = file(&format!("{{{}}}", tensors.join(",")));
        assert_eq!(bytes.len() as u64, 8 + len);
        let error = read_bytes(&bytes, bytes.len() as u64 + 4).unwrap_err();
        assert!(matches!(error, HeaderError::Invalid(SafeTensorError::ValidationOverflow)), "{error:?}");
    }

    proptest! {
        /// Any change of a valid header gives a header that fits its file, or an error.
        #[test]
        fn damaged_headers_do_not_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            keep in any::<prop::sample::Index>(), truncates in any::<bool>(),
        ) {
            let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]}}"#;
            let mut bytes = file(header);
            bytes.resize(bytes.len() + 32, 0);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if truncates {
                bytes.truncate(keep.index(bytes.len()));
            }
            if let Ok((data, metadata)) = read_bytes(&bytes, bytes.len() as u64) {
                prop_assert_eq!(data + metadata.data_len() as u64, bytes.len() as u64);
            }
        }
    }
}

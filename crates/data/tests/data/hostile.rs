//! Data files that were made to harm, or that were damaged: they are errors that name the place, or can be read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rloom_core::Task;
use rloom_data::{DataError, DataSettings, Dataset, FileSettings, SizeProblem, Source, Split};

use crate::made_parquet::{GZIP, I32, Page, SNAPPY, STRUCT, Thrift, UNCOMPRESSED, ZSTD};
use crate::made_parquet::{group, of_columns, of_pages, with_footer};

fn read(path: &Path) -> Result<Vec<Task>, DataError> {
    let settings = DataSettings::from(Source::Files(FileSettings::new(path)));
    Dataset::open(&settings, Split::Train, 0)?.iter().collect()
}

fn read_bytes(name: &str, bytes: &[u8]) -> Result<Vec<Task>, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    read(&path)
}

/// The error, which names the file.
fn error(name: &str, bytes: &[u8]) -> (DataError, String) {
    let error = read_bytes(name, bytes).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(name), "{text}");
    let text = text[text.find(name).unwrap()..].to_owned();
    (error, text)
}

fn parquet(bytes: &[u8]) -> String {
    error("a.parquet", bytes).1
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn a_made_file_is_read() {
    let page = Page::plain(&[b"one", b"two"]);
    let tasks = read_bytes("a.parquet", &of_pages(UNCOMPRESSED, 2, &[page])).unwrap();
    assert_eq!(tasks.len(), 2);
}

#[test]
fn deeply_nested_columns_are_refused() {
    let mut columns: Vec<Thrift> = vec![group(1); 65];
    columns.push(Thrift::default().int(1, I32, 6).int(2, I32, 0).text(1, "prompt").end());
    assert!(parquet(&of_columns(&columns)).contains("nested more than 64 levels deep"));
    columns.remove(0);
    assert!(parquet(&of_columns(&columns)).ends_with("has no rows"), "as deep as allowed");
    // A million levels would overflow the stack.
    let (error, _) = error("a.parquet", &of_columns(&vec![group(1); 1_000_000]));
    assert!(matches!(error, DataError::ParquetSizes { problem: SizeProblem::Depth, .. }), "{error}");
}

#[test]
fn stated_sizes_of_the_metadata_are_checked() {
    let text = parquet(&of_columns(&[group(i64::from(i32::MAX)), group(0)]));
    assert!(text.contains("a group states 2147483647 columns, of which 1 can exist"), "{text}");
    let endless = Thrift::default().int(1, I32, 1).list(1, STRUCT, 1 << 60);
    assert!(parquet(&with_footer(b"PAR1".to_vec(), &endless)).contains("a header is damaged"));
    // Each of the lists takes a few bytes and states four billion elements without content.
    let mut lists = Thrift::default().int(1, I32, 1).list(8, 9, 10_000);
    for _ in 0..10_000 {
        lists.0.push(0xF1);
        lists = lists.varint(u64::from(u32::MAX));
    }
    assert!(parquet(&with_footer(b"PAR1".to_vec(), &lists.end())).contains("a header is damaged"));
    let mut long = of_pages(UNCOMPRESSED, 1, &[Page::plain(&[b"one"])]);
    let at = long.len() - 8;
    for length in [u32::MAX, 1 << 31, (at - 3) as u32, 0] {
        long[at..at + 4].copy_from_slice(&length.to_le_bytes());
        parquet(&long);
    }
}

#[test]
fn stated_sizes_of_pages_are_checked() {
    let page = Page::plain(&[b"one", b"two"]);
    let refused = |codec, page: Page| error("a.parquet", &of_pages(codec, 2, &[page])).0;
    let huge = i64::from(i32::MAX);
    for codec in [UNCOMPRESSED, SNAPPY, ZSTD, GZIP] {
        let error = refused(codec, Page { uncompressed: huge, ..page.clone() });
        assert!(
            matches!(&error, DataError::ParquetSizes { problem: SizeProblem::Page { stated, .. }, .. } if *stated == huge),
            "{codec}: {error}"
        );
        for size in [-1, -huge, huge] {
            refused(codec, Page { compressed: size, ..page.clone() });
        }
        refused(codec, Page { uncompressed: -1, ..page.clone() });
    }
    // A page of 14 bytes, of which Snappy can make 448 at most.
    let snappy = refused(SNAPPY, Page { uncompressed: 1 << 29, ..page.clone() }).to_string();
    assert!(
        snappy.contains("column `prompt`: a page of 14 bytes expands to 536870912 bytes or more"),
        "{snappy}"
    );
    for values in [huge, -1, -huge] {
        refused(UNCOMPRESSED, Page { values, ..page.clone() });
    }
}

#[test]
fn a_page_that_expands_beyond_its_stated_size_is_refused() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..256 {
        gzip.write_all(&zeros).unwrap();
    }
    let bytes = gzip.finish().unwrap();
    let page = Page { compressed: bytes.len() as i64, uncompressed: 1000, bytes, ..Page::plain(&[b"one"]) };
    let (error, _) = error("a.parquet", &of_pages(GZIP, 1, &[page]));
    assert!(matches!(error, DataError::ParquetSizes { problem: SizeProblem::Page { .. }, .. }), "{error}");
    let mut honest = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let plain = Page::plain(&[b"one", b"two"]);
    honest.write_all(&plain.bytes).unwrap();
    let bytes = honest.finish().unwrap();
    let page = Page { compressed: bytes.len() as i64, bytes, ..plain };
    assert_eq!(read_bytes("a.parquet", &of_pages(GZIP, 2, &[page])).unwrap().len(), 2);
}

/// Two values, and a page with the indices `index` of a dictionary.
fn with_dictionary(values: i64, index: u8) -> Vec<u8> {
    let dictionary = Page { is_dictionary: true, values, ..Page::plain(&[b"one", b"two"]) };
    // Width of an index in bits; a run of two times the same index.
    let bytes = vec![8, 2 << 1, index];
    let size = bytes.len() as i64;
    let data =
        Page { uncompressed: size, compressed: size, values: 2, encoding: 8, bytes, is_dictionary: false };
    of_pages(UNCOMPRESSED, 2, &[dictionary, data])
}

#[test]
fn dictionaries_hold_the_indices_that_are_used() {
    assert_eq!(read_bytes("a.parquet", &with_dictionary(2, 1)).unwrap().len(), 2);
    let text = parquet(&with_dictionary(2, 77));
    assert!(text.contains("row 1: cannot be read"), "{text}");
    let text = parquet(&with_dictionary(i64::from(i32::MAX), 0));
    assert!(text.contains("column `prompt`: a dictionary of 14 bytes states 2147483647 values"), "{text}");
    parquet(&with_dictionary(-1, 0));
    parquet(&with_dictionary(0, 0));
}

#[test]
fn texts_that_are_not_utf_8_are_errors_of_their_rows() {
    let text = parquet(&of_pages(UNCOMPRESSED, 2, &[Page::plain(&[b"one", b"\xff\xfe"])]));
    assert!(text.starts_with("a.parquet: row 2: "), "{text}");
}

#[test]
fn rows_that_are_not_there_are_an_error() {
    for rows in [3, i64::MAX, -1, i64::MIN] {
        let _ = parquet(&of_pages(UNCOMPRESSED, rows, &[Page::plain(&[b"one", b"two"])]));
    }
}

#[test]
fn a_date_that_does_not_exist_is_an_error_of_its_row() {
    let mut bytes = std::fs::read(golden("questions.parquet")).unwrap();
    // The dates are the days 0, 1, 2, 3 and 4.
    let days: Vec<u8> = (0..5_u32).flat_map(u32::to_le_bytes).collect();
    let at = bytes.windows(days.len()).position(|window| window == days).unwrap();
    bytes[at + 11] = 0x7F;
    let text = parquet(&bytes);
    assert!(text.starts_with("a.parquet: row 3: cannot be read"), "{text}");
}

/// The same cases each time; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` try others.
fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let is_set = |name: &str| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if is_set("PROPTEST_CASES") { default.cases } else { 3000 },
        rng_seed: if is_set("PROPTEST_RNG_SEED") { default.rng_seed } else { RngSeed::Fixed(1) },
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(cases())]

    /// Every file can be read or is an error, whatever its bytes are.
    #[test]
    fn changed_bytes_of_parquet_files_are_no_panic(
        file in prop::sample::select(&["conversations", "questions", "missing"][..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_footer in any::<bool>(),
        keep in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(golden(&format!("{file}.parquet"))).unwrap();
        let length = bytes.len();
        let footer = 8 + u32::from_le_bytes(bytes[length - 8..length - 4].try_into().unwrap()) as usize;
        let start = if in_footer { length - footer } else { 0 };
        for (at, byte) in changes {
            bytes[start + at.index(length - start)] = byte;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(length));
        }
        if let Err(error) = read_bytes("a.parquet", &bytes) {
            let text = error.to_string();
            prop_assert!(text.contains("a.parquet") || text.contains("field"), "{}", text);
        }
    }
}

#[test]
fn a_line_without_an_end_is_not_read_into_memory() {
    let (error, text) = error("a.jsonl", &vec![b' '; 100 << 20]);
    assert!(matches!(error, DataError::LongLine { .. }), "{error}");
    assert_eq!(text, "a.jsonl:1: the line is longer than 64 MiB");
    // Follows the hint of `DataError::LongLine`.
    let mut long = b"{\"prompt\": \"".to_vec();
    long.resize(long.len() + (20 << 20), b'x');
    long.extend(b"\"}\n{\"prompt\": \"y\"}");
    assert_eq!(read_bytes("a.jsonl", &long).unwrap().len(), 2);
}

#[test]
fn hostile_lines_name_their_place() {
    let deep = |open: &str| format!("{{\"prompt\": \"x\", \"extra\": {}", open.repeat(1_000_000));
    let second = |line: &[u8]| [b"{\"prompt\": \"x\"}\n", line].concat();
    for line in [
        deep("[").as_bytes(),
        deep("{\"a\":").as_bytes(),
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": \"a\0b\"}",
        b"{\"prompt\": \"x\", \"answer\": 1e999}",
        b"{\"prompt\": \"x\", \"answer\": NaN}",
        b"\xef\xbb\xbf{\"prompt\": \"x\"}",
        b"{\"prompt\": \"x\"",
        b"\0\0\0\0",
    ] {
        let (_, text) = error("a.jsonl", &second(line));
        assert!(text.starts_with("a.jsonl:2: not "), "{text}");
        assert!(text.len() < 500, "{text}");
    }
    // The last of several fields with the same name counts, as in Python; an escaped NUL is a character.
    let tasks = read_bytes("a.jsonl", b"{\"prompt\": \"x\", \"prompt\": \"\\u0000\"}").unwrap();
    assert_eq!(
        format!("{:?}", tasks[0].prompt),
        format!("{:?}", rloom_core::PromptSource::Text("\0".into()))
    );
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn only_files_that_are_named_so_are_expanded() {
    let whole = gzip(b"{\"prompt\": \"x\"}\n");
    for bytes in [&whole[..], &whole[..whole.len() / 2]] {
        let (error, _) = error("a.parquet.gz", bytes);
        assert!(matches!(error, DataError::UnknownFormat { .. }), "{error}");
        let (_, text) = self::error("a.jsonl", bytes);
        assert!(text.starts_with("a.jsonl:1: not UTF-8"), "{text}");
    }
}

#[test]
fn a_small_file_does_not_expand_to_an_endless_line() {
    let bomb = gzip(&vec![b' '; 65 << 20]);
    assert!(bomb.len() < 1 << 20);
    let (_, text) = error("a.jsonl.gz", &bomb);
    assert_eq!(text, "a.jsonl.gz:1: the line is longer than 64 MiB");
}

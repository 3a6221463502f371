//! Compressed JSONL files.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::io::Write;

use rloom_data::{DataError, DataSettings, Dataset, FileSettings, Source, Split};

const ROWS: &str = "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n";

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

fn read(name: &str, content: &[u8]) -> Result<u64, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), content).unwrap();
    let open = |path: &std::path::Path| -> Result<Dataset, DataError> {
        Dataset::open(&DataSettings::from(Source::Files(FileSettings::new(path))), Split::Train, 1)
    };
    let text = |error: DataError| error.to_string().replace(&format!("{}/", folder.path().display()), "");
    let of_file = open(&folder.path().join(name)).map(|dataset| dataset.len()).map_err(text);
    // A folder finds it as well.
    assert_eq!(of_file, open(folder.path()).map(|dataset| dataset.len()).map_err(text));
    of_file
}

#[test]
fn compressed_files_have_the_rows_of_the_plain_one() {
    for name in ["a.jsonl.gz", "a.ndjson.gz", "A.JSONL.GZ"] {
        assert_eq!(read(name, &gzip(ROWS)), Ok(2), "{name}");
    }
    assert_eq!(read("a.jsonl.zst", &zstandard(ROWS)), Ok(2));
    // Parts that were compressed separately and joined.
    assert_eq!(read("a.jsonl.gz", &[gzip(ROWS), gzip(ROWS)].concat()), Ok(4));
    assert_eq!(read("a.jsonl.zst", &[zstandard(ROWS), zstandard(ROWS)].concat()), Ok(4));
}

#[test]
fn errors_name_the_line_of_the_expanded_file() {
    let rows = format!("{ROWS}{{\"prompt\": 3}}\n");
    let expected = "a.jsonl.gz:3: field `prompt` must be text or a list of messages, but it is a number";
    assert_eq!(read("a.jsonl.gz", &gzip(&rows)), Err(expected.to_owned()));
}

#[test]
fn damaged_files_are_errors_and_not_a_part_of_their_rows() {
    let rows = ROWS.repeat(5_000);
    for (name, content) in [("a.jsonl.gz", gzip(&rows)), ("a.jsonl.zst", zstandard(&rows))] {
        for end in [content.len() / 2, content.len() - 1] {
            let error = read(name, &content[..end]).unwrap_err();
            assert!(error.starts_with(&format!("cannot read {name}: ")), "{error}");
        }
        let error = read(name, ROWS.as_bytes()).unwrap_err();
        assert!(error.starts_with(&format!("cannot read {name}: ")), "{error}");
    }
}

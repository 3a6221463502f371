use rloom_core::{PolicyId, PolicyVersion, StopReason, Ticket, VersionSpan};
use rloom_env::Turn;

use super::*;
use crate::JournalDamage;
use crate::child;
use crate::faults::{Fault, FaultPlan, fast_directory, install};

fn cut(batch: u64) -> Record {
    Record::Cut {
        batch,
        tickets: vec![Ticket(batch * 2), Ticket(batch * 2 + 1)],
        reused: Vec::new(),
        advantages: None,
    }
}

fn filtered(ticket: u64) -> Record {
    Record::Filtered { ticket: Ticket(ticket) }
}

fn trained(batch: u64) -> Record {
    Record::Trained { policy: PolicyId(1), batch, weights: u64::MAX - 7 }
}

fn partial(sample: u32) -> Record {
    let turn = Turn {
        tokens: vec![7, 8],
        logprobs: vec![-0.1, -1.5e-30],
        temperature: 0.7,
        versions: vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(3), range: 0..2 }],
        stop: StopReason::Aborted,
    };
    Record::PartialEpisode {
        ticket: Ticket(1),
        sample,
        episode: PartialEpisode { turns: vec![turn], agents: Vec::new(), responses: Vec::new() },
    }
}

/// Opens the journal of stage 1.
fn open(directory: &Path, version: u64) -> (Journal, Recovered) {
    Journal::open(directory, 1, version, LaterStages::Keep).unwrap()
}

fn segment(directory: &Path, version: u64) -> PathBuf {
    directory.join(Segment { stage: 1, version }.file())
}

/// Writes a segment from version 10. Returns its path, and the offset of each record and of the end.
fn write_records(directory: &Path, records: &[Record]) -> (PathBuf, Vec<u64>) {
    let (mut journal, _) = open(directory, 10);
    let mut offsets = vec![journal.length];
    for record in records {
        journal.append(record).unwrap();
        offsets.push(journal.length);
    }
    (segment(directory, 10), offsets)
}

#[test]
fn records_read_back() {
    let directory = fast_directory();
    let records = [filtered(3), partial(2), cut(0), trained(0)];
    write_records(directory.path(), &records);
    let (_, recovered) = open(directory.path(), 10);
    assert_eq!(recovered, Recovered { log: records.to_vec(), ..Recovered::default() });
}

#[test]
fn a_torn_record_is_truncated_at_any_length() {
    let directory = fast_directory();
    let records = [cut(0), partial(1), cut(2)];
    let (path, offsets) = write_records(directory.path(), &records);
    let whole = fs::read(&path).unwrap();
    for keep in offsets[2]..offsets[3] {
        for rest in [0, (offsets[3] - keep) as usize] {
            // The end is missing, or its bytes were not written before a power failure.
            let mut bytes = whole[..keep as usize].to_vec();
            bytes.extend(vec![0; rest]);
            fs::write(&path, &bytes).unwrap();
            let (mut journal, recovered) = open(directory.path(), 10);
            assert_eq!(recovered.log, records[..2], "kept {keep} bytes");
            assert_eq!(recovered.torn_bytes, bytes.len() as u64 - offsets[2]);
            journal.append(&cut(2)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "appends after the last valid record");
        }
    }
}

#[test]
fn every_flipped_bit_is_reported_with_its_offset() {
    let directory = fast_directory();
    let records = [partial(0), cut(1), filtered(4)];
    let (path, offsets) = write_records(directory.path(), &records);
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let at = bit as u64 / 8;
        if at >= offsets[2] {
            // Looks like a torn record.
            let (_, recovered) = open(directory.path(), 10);
            assert_eq!(recovered.log, records[..2], "bit {bit}");
            assert_eq!(recovered.torn_bytes, offsets[3] - offsets[2], "bit {bit}");
            continue;
        }
        // Record 0 of the file is `SnapshotEnd`.
        let (number, start) = match offsets.iter().rposition(|&offset| offset <= at) {
            Some(before) => (before + 1, offsets[before]),
            None if at < MAGIC.len() as u64 => (0, 0),
            None => (0, MAGIC.len() as u64),
        };
        let error = Journal::open(directory.path(), 1, 10, LaterStages::Keep).unwrap_err();
        assert!(
            matches!(&error, StoreError::JournalDamaged { path: named, record, offset, .. }
                if (named, *record, *offset) == (&path, number, start)),
            "bit {bit}: {error}"
        );
    }
}

#[test]
fn a_damaged_length_is_not_a_torn_record() {
    let directory = fast_directory();
    let (path, offsets) = write_records(directory.path(), &[cut(0), cut(1), cut(2)]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[offsets[1] as usize + 3] = 0x7f;
    fs::write(&path, &bytes).unwrap();
    let error = Journal::open(directory.path(), 1, 10, LaterStages::Keep).unwrap_err();
    let damage = JournalDamage::Header;
    assert!(
        matches!(&error, StoreError::JournalDamaged { record: 2, damage: found, .. }
            if found.to_string() == damage.to_string()),
        "{error}"
    );
}

/// Writes segments from versions 10, 20 and 30. Returns the records of their logs.
fn write_chain(directory: &Path) -> Vec<Record> {
    let (mut journal, _) = open(directory, 10);
    for version in [10, 20, 30] {
        journal.roll(version, &[partial(version as u32)]).unwrap();
        journal.append(&cut(version)).unwrap();
        journal.append(&filtered(version)).unwrap();
    }
    [10, 20, 30].into_iter().flat_map(|version| [cut(version), filtered(version)]).collect()
}

#[test]
fn an_older_version_reads_the_whole_chain_and_a_newer_one_its_end() {
    let directory = fast_directory();
    let log = write_chain(directory.path());
    for (version, from) in [(10, 0), (20, 2), (30, 4)] {
        let (_, recovered) = open(directory.path(), version);
        assert_eq!(recovered.log, log[from..]);
        let snapshot = if version == 10 { vec![] } else { vec![partial(version as u32)] };
        assert_eq!(recovered.snapshot, snapshot, "rolling to the current version changes nothing");
        assert!(recovered.removed_segments.is_empty());
    }
    let (mut journal, _) = open(directory.path(), 10);
    journal.roll(20, &[]).unwrap();
    journal.append(&cut(31)).unwrap();
    let (_, recovered) = open(directory.path(), 30);
    assert_eq!((recovered.snapshot.len(), recovered.log.len()), (1, 3), "appended at the end of the chain");
}

#[test]
fn only_the_last_segment_can_be_torn() {
    let directory = fast_directory();
    write_chain(directory.path());
    let middle = segment(directory.path(), 20);
    let bytes = fs::read(&middle).unwrap();
    fs::write(&middle, &bytes[..bytes.len() - 1]).unwrap();
    let error = Journal::open(directory.path(), 1, 10, LaterStages::Keep).unwrap_err();
    assert!(
        matches!(&error, StoreError::JournalDamaged { path, record: 3, .. } if *path == middle),
        "{error}"
    );
    assert_eq!(open(directory.path(), 30).1.torn_bytes, 0, "segments before the opened version are not read");
}

#[test]
fn an_incomplete_snapshot_is_damage() {
    let directory = fast_directory();
    let (path, offsets) = write_records(directory.path(), &[]);
    let bytes = fs::read(&path).unwrap();
    for keep in 0..offsets[0] as usize {
        fs::write(&path, &bytes[..keep]).unwrap();
        let error = Journal::open(directory.path(), 1, 10, LaterStages::Keep).unwrap_err();
        assert!(matches!(error, StoreError::JournalDamaged { record: 0, .. }), "{keep}: {error}");
    }
}

#[test]
fn a_chain_without_its_first_segment_is_removed() {
    let directory = fast_directory();
    write_chain(directory.path());
    fs::remove_file(segment(directory.path(), 10)).unwrap();
    let (_, recovered) = open(directory.path(), 10);
    assert_eq!((recovered.snapshot.len(), recovered.log.len()), (0, 0));
    assert_eq!(recovered.removed_segments, [segment(directory.path(), 30), segment(directory.path(), 20)]);
    assert_eq!(open(directory.path(), 10).1, Recovered::default());
}

#[test]
fn other_files_are_kept_and_segments_of_earlier_stages_removed() {
    let directory = fast_directory();
    let path = |name: &str| directory.path().join(name);
    let kept = ["notes.txt", "stage-01-from-10.log", "stage-01-from-000005.log"];
    let removed = ["stage-00-from-000003.log", "stage-01-from-000020.log.partial"];
    for name in kept.iter().chain(&removed) {
        fs::write(path(name), "?").unwrap();
    }
    open(directory.path(), 10);
    assert!(kept.iter().all(|name| path(name).exists()));
    assert!(removed.iter().all(|name| !path(name).exists()));
}

#[test]
fn segments_of_later_stages_are_removed_only_when_the_stage_samples_again() {
    let directory = fast_directory();
    let later = directory.path().join("stage-02-from-000000.log");
    open(directory.path(), 10);
    fs::write(&later, "?").unwrap();
    open(directory.path(), 10);
    assert!(later.exists());
    // The stage's own segment is missing, but the stage reproduces its results.
    open(directory.path(), 20);
    assert!(later.exists());
    let (_, recovered) = Journal::open(directory.path(), 1, 7, LaterStages::Remove).unwrap();
    assert!(!later.exists(), "stage 2 started from weights that stage 1 does not reproduce");
    let own = [20, 10].map(|version| segment(directory.path(), version));
    assert_eq!(recovered.removed_segments, [vec![later], own.to_vec()].concat());
}

#[test]
fn discarding_the_end_of_a_stage_discards_later_stages() {
    let directory = fast_directory();
    write_chain(directory.path());
    let later = directory.path().join("stage-02-from-000000.log");
    fs::write(&later, "?").unwrap();
    Journal::discard_after(directory.path(), 1, 20).unwrap();
    assert!(!later.exists(), "its groups come from weights that change");
    assert_eq!([10, 20, 30].map(|version| segment(directory.path(), version).exists()), [true, true, false]);
}

#[test]
fn pruning_keeps_what_the_oldest_checkpoint_needs() {
    let directory = fast_directory();
    write_chain(directory.path());
    let (journal, _) = open(directory.path(), 10);
    for (oldest, left) in [(10, vec![10, 20, 30]), (20, vec![20, 30]), (25, vec![30]), (99, vec![30])] {
        journal.prune(oldest).unwrap();
        let versions: Vec<u64> =
            Segment::list(directory.path()).unwrap().0.iter().map(|segment| segment.version).collect();
        assert_eq!(versions, left, "oldest kept {oldest}");
    }
}

const ERRORS: [Fault; 3] = [Fault::DiskFull, Fault::ShortWrite, Fault::DeviceError];

/// Appends, rolls and prunes. Returns the appended records and the errors.
fn exercise(journal: &mut Journal) -> (Vec<Record>, Vec<StoreError>) {
    let (mut appended, mut errors) = (Vec::new(), Vec::new());
    for number in 0..3 {
        for record in [filtered(number), cut(number)] {
            match journal.append(&record) {
                Ok(()) => appended.push(record),
                Err(error) => errors.push(error),
            }
        }
        errors.extend(journal.roll(20 + number, &[partial(number as u32)]).err());
    }
    errors.extend(journal.prune(21).err());
    (appended, errors)
}

/// The operations of [`exercise`].
fn operations() -> Vec<String> {
    let directory = fast_directory();
    let (mut journal, _) = open(directory.path(), 10);
    let plan = install(FaultPlan { folder: directory.path().to_owned(), faults: vec![] });
    assert!(exercise(&mut journal).1.is_empty());
    plan.operations()
}

#[test]
fn a_fault_at_any_operation_names_the_file_and_loses_only_the_failed_record() {
    let operations = operations();
    for (number, operation_name) in operations.iter().enumerate() {
        for fault in ERRORS {
            let directory = fast_directory();
            let (mut journal, _) = open(directory.path(), 10);
            let faults = vec![(number, fault)];
            let plan = install(FaultPlan { folder: directory.path().to_owned(), faults });
            let (appended, errors) = exercise(&mut journal);
            let here = format!("{fault:?} at {number}, {operation_name}");
            let StoreError::Io { path, operation, .. } = &errors[0] else { panic!("{here}: {}", errors[0]) };
            assert!(
                path.starts_with(directory.path()) && operation_name.ends_with(operation),
                "{here}: {}",
                errors[0]
            );
            drop(plan);
            drop(journal);
            // Pruning has removed the first segments, or has failed.
            let first = Segment::list(directory.path()).unwrap().0[0].version;
            let (mut journal, recovered) = open(directory.path(), first);
            assert_eq!(recovered.torn_bytes, 0, "{here}");
            let expected: Vec<&Record> = appended.iter().skip(appended.len() - recovered.log.len()).collect();
            assert_eq!(recovered.log.iter().collect::<Vec<_>>(), expected, "{here}");
            if first == 10 {
                assert_eq!(recovered.log.len(), appended.len(), "{here}");
            }
            journal.append(&cut(9)).unwrap();
        }
    }
    let synced: Vec<&str> = operations.iter().map(String::as_str).filter(|p| p.ends_with("sync")).collect();
    assert_eq!(
        synced.len(),
        3 * 4,
        "each cut, and for each roll the old file, the new file and the directory"
    );
}

#[test]
fn nothing_is_written_after_a_failed_sync() {
    let directory = fast_directory();
    let (mut journal, _) = open(directory.path(), 10);
    journal.append(&filtered(1)).unwrap();
    let plan =
        install(FaultPlan { folder: directory.path().to_owned(), faults: vec![(1, Fault::DeviceError)] });
    journal.append(&cut(0)).unwrap_err();
    for error in [journal.append(&filtered(2)).unwrap_err(), journal.roll(20, &[]).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("stage-01-from-000010.log") && text.contains("earlier failure"), "{text}");
    }
    assert_eq!(plan.operations(), ["journal/append/write", "journal/append/sync", "journal/append/truncate"]);
    assert_eq!(open(directory.path(), 10).1.log, [filtered(1)], "a cut that is not durable is removed");
}

#[test]
fn nothing_is_written_after_a_record_that_cannot_be_truncated() {
    let directory = fast_directory();
    let (mut journal, _) = open(directory.path(), 10);
    journal.append(&filtered(1)).unwrap();
    let faults = vec![(0, Fault::ShortWrite), (1, Fault::DeviceError)];
    let _plan = install(FaultPlan { folder: directory.path().to_owned(), faults });
    journal.append(&filtered(2)).unwrap_err();
    journal.append(&filtered(3)).unwrap_err();
    let (_, recovered) = open(directory.path(), 10);
    assert_eq!(recovered.log, [filtered(1)]);
    assert!(recovered.torn_bytes > 0);
}

/// The child process of the next test.
#[test]
#[ignore = "a child process of another test"]
fn aborted_child() {
    let Some(plan) = child::instructions() else { return };
    let (mut journal, _) = open(&plan.folder, 10);
    let _plan = install(plan);
    exercise(&mut journal);
}

#[test]
fn a_kill_at_any_operation_keeps_earlier_records() {
    let all: Vec<Record> = (0..3).flat_map(|number| [filtered(number), cut(number)]).collect();
    for (number, operation_name) in operations().iter().enumerate() {
        for when in ["before", "during", "after"] {
            if when == "during" && !operation_name.ends_with("write") {
                continue;
            }
            let directory = fast_directory();
            let status = child::run("journal::tests::aborted_child", number, when, directory.path());
            let here = format!("{when} {number}, {operation_name}");
            assert!(!status.success(), "{here}: the child was aborted");
            let first = Segment::list(directory.path()).unwrap().0[0].version;
            let (_, recovered) = open(directory.path(), first);
            let torn = when == "during" && operation_name == "journal/append/write";
            assert_eq!(recovered.torn_bytes > 0, torn, "{here}");
            // Records appended before the operation are present; the record of the operation itself may be.
            let skipped = if first == 10 { 0 } else { 2 * (first as usize - 19) };
            assert_eq!(recovered.log, all[skipped..skipped + recovered.log.len()], "{here}");
            let started = operations()[..number].iter().filter(|p| *p == "journal/append/write").count();
            let own = usize::from(when == "after" && operation_name == "journal/append/write");
            assert_eq!(recovered.log.len() + skipped, started + own, "{here}");
            let (segments, partial) = Segment::list(directory.path()).unwrap();
            assert!(partial.is_empty() && !segments.is_empty(), "{here}");
        }
    }
}

/// A segment of format 2 with an empty snapshot. Its header checksums do not include the magic bytes.
fn segment_of_format_2() -> Vec<u8> {
    let payload = zstd::bulk::compress(br#""head""#, 1).unwrap();
    let mut bytes = b"rloomJ2\n".to_vec();
    let offset = (bytes.len() as u64).to_le_bytes();
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend(crc32c::crc32c(&payload).to_le_bytes());
    let header = crc32c::crc32c_append(crc32c::crc32c(&offset), &frame);
    frame.extend(header.to_le_bytes());
    bytes.extend(frame);
    bytes.extend(payload);
    bytes
}

#[test]
fn other_formats_are_refused_by_their_version() {
    let directory = fast_directory();
    let path = segment(directory.path(), 10);
    let old = segment_of_format_2();
    for digit in [1u8, 2, 4] {
        let mut bytes = old.clone();
        bytes[6] = b'0' + digit;
        fs::write(&path, &bytes).unwrap();
        for error in [
            Journal::open(directory.path(), 1, 10, LaterStages::Remove).unwrap_err(),
            read(directory.path(), 1).unwrap_err(),
        ] {
            assert!(
                matches!(&error, StoreError::JournalFormat { path: named, found, supported: 3 }
                    if (named, *found) == (&path, u32::from(digit))),
                "{error}"
            );
            assert!(error.to_string().contains(&format!("has format {digit}")), "{error}");
            assert!(miette::Diagnostic::help(&error).is_some());
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "the file is kept");
    }
}

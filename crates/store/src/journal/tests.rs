use rloom_core::{PolicyId, PolicyVersion, StopReason, VersionSpan};
use rloom_env::Turn;

use super::*;
use crate::faults::{Fault, Plan, install, quick_directory};
use rloom_core::Ticket;

fn cut(batch: u64) -> Record {
    Record::Cut { batch, tickets: vec![Ticket(batch * 2), Ticket(batch * 2 + 1)] }
}

fn filtered(ticket: u64) -> Record {
    Record::Filtered { ticket: Ticket(ticket) }
}

fn partial(sample: u32) -> Record {
    let turn = Turn {
        tokens: vec![7, 8],
        logprobs: vec![-0.1, -1.5e-30],
        temperature: 0.7,
        versions: vec![VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(3), range: 0..2 }],
        stop: StopReason::Aborted,
    };
    Record::Partial { ticket: Ticket(1), sample, partial: Partial { turns: vec![turn] } }
}

/// Opens the journal of stage 1.
fn open(directory: &Path, version: u64) -> (Journal, Recovered) {
    Journal::open(directory, 1, version, false).unwrap()
}

fn segment(directory: &Path, version: u64) -> PathBuf {
    directory.join(Segment { stage: 1, version }.file())
}

/// A segment from version 10 with these records; returns its path and where each record begins, and the end.
fn written(directory: &Path, records: &[Record]) -> (PathBuf, Vec<u64>) {
    let (mut journal, _) = open(directory, 10);
    let mut places = vec![journal.length];
    for record in records {
        journal.append(record).unwrap();
        places.push(journal.length);
    }
    (segment(directory, 10), places)
}

#[test]
fn what_is_written_is_read() {
    let directory = quick_directory();
    let records = [filtered(3), partial(2), cut(0), Record::Trained { batch: 0, weights: 7 }];
    written(directory.path(), &records);
    let (_, recovered) = open(directory.path(), 10);
    assert_eq!(recovered, Recovered { log: records.to_vec(), ..Recovered::default() });
}

#[test]
fn every_torn_end_is_cut_off() {
    let directory = quick_directory();
    let records = [cut(0), partial(1), cut(2)];
    let (path, places) = written(directory.path(), &records);
    let whole = fs::read(&path).unwrap();
    for keep in places[2]..places[3] {
        for rest in [0, (places[3] - keep) as usize] {
            // The end is missing, or the machine lost power before its bytes were written.
            let mut bytes = whole[..keep as usize].to_vec();
            bytes.extend(vec![0; rest]);
            fs::write(&path, &bytes).unwrap();
            let (mut journal, recovered) = open(directory.path(), 10);
            assert_eq!(recovered.log, records[..2], "kept {keep} bytes");
            assert_eq!(recovered.torn_bytes, bytes.len() as u64 - places[2]);
            journal.append(&cut(2)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "writing goes on at the sound end");
        }
    }
}

#[test]
fn every_flipped_bit_is_reported_with_its_place() {
    let directory = quick_directory();
    let records = [partial(0), cut(1), filtered(4)];
    let (path, places) = written(directory.path(), &records);
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let at = bit as u64 / 8;
        if at >= places[2] {
            // The last record: as if torn.
            let (_, recovered) = open(directory.path(), 10);
            assert_eq!(recovered.log, records[..2], "bit {bit}");
            assert_eq!(recovered.torn_bytes, places[3] - places[2], "bit {bit}");
            continue;
        }
        // Counted from the beginning of the file: `Head` is record 0.
        let (number, place) = match places.iter().rposition(|&place| place <= at) {
            Some(before) => (before + 1, places[before]),
            None if at < MAGIC.len() as u64 => (0, 0),
            None => (0, MAGIC.len() as u64),
        };
        let error = Journal::open(directory.path(), 1, 10, false).unwrap_err();
        assert!(
            matches!(&error, StoreError::JournalDamaged { path: named, record, offset, .. }
                if (named, *record, *offset) == (&path, number, place)),
            "bit {bit}: {error}"
        );
    }
}

#[test]
fn a_length_beyond_the_end_is_no_torn_record() {
    let directory = quick_directory();
    let (path, places) = written(directory.path(), &[cut(0), cut(1), cut(2)]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[places[1] as usize + 3] = 0x7f;
    fs::write(&path, &bytes).unwrap();
    let error = Journal::open(directory.path(), 1, 10, false).unwrap_err().to_string();
    assert!(error.contains("record 2") && error.contains("its length is unknown"), "{error}");
}

/// Three segments: from 10, 20 and 30.
fn chain(directory: &Path) -> Vec<Record> {
    let (mut journal, _) = open(directory, 10);
    for version in [10, 20, 30] {
        journal.roll(version, &[partial(version as u32)]).unwrap();
        journal.append(&cut(version)).unwrap();
        journal.append(&filtered(version)).unwrap();
    }
    [10, 20, 30].into_iter().flat_map(|version| [cut(version), filtered(version)]).collect()
}

#[test]
fn an_older_start_reads_the_chain_and_a_newer_one_its_end() {
    let directory = quick_directory();
    let log = chain(directory.path());
    for (version, from) in [(10, 0), (20, 2), (30, 4)] {
        let (_, recovered) = open(directory.path(), version);
        assert_eq!(recovered.log, log[from..]);
        let head = if version == 10 { vec![] } else { vec![partial(version as u32)] };
        assert_eq!(recovered.head, head, "rolling to where the journal stands changes nothing");
        assert!(recovered.dropped_segments.is_empty());
    }
    let (mut journal, _) = open(directory.path(), 10);
    journal.roll(20, &[]).unwrap();
    journal.append(&cut(31)).unwrap();
    let (_, recovered) = open(directory.path(), 30);
    assert_eq!((recovered.head.len(), recovered.log.len()), (1, 3), "written at the end of the chain");
}

#[test]
fn only_the_end_of_the_chain_can_be_torn() {
    let directory = quick_directory();
    chain(directory.path());
    let middle = segment(directory.path(), 20);
    let bytes = fs::read(&middle).unwrap();
    fs::write(&middle, &bytes[..bytes.len() - 1]).unwrap();
    let error = Journal::open(directory.path(), 1, 10, false).unwrap_err();
    assert!(
        matches!(&error, StoreError::JournalDamaged { path, record: 3, .. } if *path == middle),
        "{error}"
    );
    assert_eq!(open(directory.path(), 30).1.torn_bytes, 0, "who does not need it does not read it");
}

#[test]
fn a_torn_head_is_damage() {
    let directory = quick_directory();
    let (path, places) = written(directory.path(), &[]);
    let bytes = fs::read(&path).unwrap();
    for keep in 0..places[0] as usize {
        fs::write(&path, &bytes[..keep]).unwrap();
        let error = Journal::open(directory.path(), 1, 10, false).unwrap_err();
        assert!(matches!(error, StoreError::JournalDamaged { record: 0, .. }), "{keep}: {error}");
    }
}

#[test]
fn without_its_first_segment_a_chain_is_of_another_history() {
    let directory = quick_directory();
    chain(directory.path());
    fs::remove_file(segment(directory.path(), 10)).unwrap();
    let (_, recovered) = open(directory.path(), 10);
    assert_eq!((recovered.head.len(), recovered.log.len()), (0, 0));
    assert_eq!(recovered.dropped_segments, [segment(directory.path(), 30), segment(directory.path(), 20)]);
    assert_eq!(open(directory.path(), 10).1, Recovered::default());
}

#[test]
fn other_files_are_left_alone_and_earlier_stages_go() {
    let directory = quick_directory();
    let place = |name: &str| directory.path().join(name);
    let kept = ["notes.txt", "stage-01-from-10.log", "stage-01-from-000005.log"];
    let gone = ["stage-00-from-000003.log", "stage-01-from-000020.log.partial"];
    for name in kept.iter().chain(&gone) {
        fs::write(place(name), "?").unwrap();
    }
    open(directory.path(), 10);
    assert!(kept.iter().all(|name| place(name).exists()));
    assert!(gone.iter().all(|name| !place(name).exists()));
}

#[test]
fn later_stages_stay_with_a_history_that_is_whole_and_go_with_one_that_is_not() {
    let directory = quick_directory();
    let later = directory.path().join("stage-02-from-000000.log");
    open(directory.path(), 10);
    fs::write(&later, "?").unwrap();
    open(directory.path(), 10);
    assert!(later.exists());
    // Its own segment is missing, but it gives what it gave before.
    open(directory.path(), 20);
    assert!(later.exists());
    let (_, recovered) = Journal::open(directory.path(), 1, 7, true).unwrap();
    assert!(!later.exists(), "what stage 1 trains anew, stage 2 has not started from");
    let own = [20, 10].map(|version| segment(directory.path(), version));
    assert_eq!(recovered.dropped_segments, [vec![later], own.to_vec()].concat());
}

#[test]
fn pruning_keeps_what_the_oldest_checkpoint_needs() {
    let directory = quick_directory();
    chain(directory.path());
    let (journal, _) = open(directory.path(), 10);
    for (oldest, left) in [(10, vec![10, 20, 30]), (20, vec![20, 30]), (25, vec![30]), (99, vec![30])] {
        journal.prune(oldest).unwrap();
        let versions: Vec<u64> =
            Segment::list(directory.path()).unwrap().0.iter().map(|segment| segment.version).collect();
        assert_eq!(versions, left, "oldest kept {oldest}");
    }
}

const ERRORS: [Fault; 3] = [Fault::Full, Fault::Short, Fault::Device];

/// Appends, rolls and prunes; returns the records of the log that were written without an error.
fn work(journal: &mut Journal) -> (Vec<Record>, Vec<StoreError>) {
    let (mut held, mut errors) = (Vec::new(), Vec::new());
    for number in 0..3 {
        for record in [filtered(number), cut(number)] {
            match journal.append(&record) {
                Ok(()) => held.push(record),
                Err(error) => errors.push(error),
            }
        }
        errors.extend(journal.roll(20 + number, &[partial(number as u32)]).err());
    }
    errors.extend(journal.prune(21).err());
    (held, errors)
}

/// The names of all operations of [`work`].
fn points() -> Vec<String> {
    let directory = quick_directory();
    let (mut journal, _) = open(directory.path(), 10);
    let installed = install(Plan { below: directory.path().to_owned(), faults: vec![] });
    assert!(work(&mut journal).1.is_empty());
    installed.points()
}

#[test]
fn a_fault_at_any_operation_names_the_file_and_loses_only_what_failed() {
    let points = points();
    for (number, point) in points.iter().enumerate() {
        for fault in ERRORS {
            let directory = quick_directory();
            let (mut journal, _) = open(directory.path(), 10);
            let plan = Plan { below: directory.path().to_owned(), faults: vec![(number, fault)] };
            let installed = install(plan);
            let (held, errors) = work(&mut journal);
            let here = format!("{fault:?} at {number}, {point}");
            let StoreError::Io { path, operation, .. } = &errors[0] else { panic!("{here}: {}", errors[0]) };
            assert!(
                path.starts_with(directory.path()) && point.ends_with(operation),
                "{here}: {}",
                errors[0]
            );
            drop(installed);
            drop(journal);
            // Pruning has taken the first segments away, or has failed.
            let first = Segment::list(directory.path()).unwrap().0[0].version;
            let (mut journal, recovered) = open(directory.path(), first);
            assert_eq!(recovered.torn_bytes, 0, "{here}");
            let expected: Vec<&Record> = held.iter().skip(held.len() - recovered.log.len()).collect();
            assert_eq!(recovered.log.iter().collect::<Vec<_>>(), expected, "{here}");
            if first == 10 {
                assert_eq!(recovered.log.len(), held.len(), "{here}");
            }
            journal.append(&cut(9)).unwrap();
        }
    }
    let synced: Vec<&str> = points.iter().map(String::as_str).filter(|p| p.ends_with("sync")).collect();
    assert_eq!(synced.len(), 3 * 4, "each cut, and of each roll the old file, the new one and the directory");
}

#[test]
fn after_a_failed_sync_nothing_more_is_written() {
    let directory = quick_directory();
    let (mut journal, _) = open(directory.path(), 10);
    journal.append(&filtered(1)).unwrap();
    let installed = install(Plan { below: directory.path().to_owned(), faults: vec![(1, Fault::Device)] });
    journal.append(&cut(0)).unwrap_err();
    for error in [journal.append(&filtered(2)).unwrap_err(), journal.roll(20, &[]).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("stage-01-from-000010.log") && text.contains("earlier failure"), "{text}");
    }
    assert_eq!(
        installed.points(),
        ["journal/append/write", "journal/append/sync", "journal/append/truncate"]
    );
    assert_eq!(open(directory.path(), 10).1.log, [filtered(1)], "a cut that is not durable is not there");
}

#[test]
fn a_record_that_cannot_be_taken_back_ends_the_writing() {
    let directory = quick_directory();
    let (mut journal, _) = open(directory.path(), 10);
    journal.append(&filtered(1)).unwrap();
    let faults = vec![(0, Fault::Short), (1, Fault::Device)];
    let _installed = install(Plan { below: directory.path().to_owned(), faults });
    journal.append(&filtered(2)).unwrap_err();
    journal.append(&filtered(3)).unwrap_err();
    let (_, recovered) = open(directory.path(), 10);
    assert_eq!(recovered.log, [filtered(1)]);
    assert!(recovered.torn_bytes > 0);
}

/// Tells the child process below where to work and where to die.
const CHILD: &str = "RLOOM_TEST_JOURNAL";

/// Not a test of its own: the process that the next one starts.
#[test]
#[ignore = "a child process of another test"]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let mut parts = order.splitn(3, ' ');
    let number: usize = parts.next().unwrap().parse().unwrap();
    let fault = match parts.next().unwrap() {
        "before" => Fault::DieBefore,
        "halfway" => Fault::DieHalfway,
        _ => Fault::DieAfter,
    };
    let directory = PathBuf::from(parts.next().unwrap());
    let (mut journal, _) = open(&directory, 10);
    let _installed = install(Plan { below: directory, faults: vec![(number, fault)] });
    work(&mut journal);
}

#[test]
fn killed_at_any_point_it_holds_what_was_written_before() {
    let all: Vec<Record> = (0..3).flat_map(|number| [filtered(number), cut(number)]).collect();
    for (number, point) in points().iter().enumerate() {
        for when in ["before", "halfway", "after"] {
            if when == "halfway" && !point.ends_with("write") {
                continue;
            }
            let directory = quick_directory();
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "journal::tests::child", "--ignored"])
                .env(CHILD, format!("{number} {when} {}", directory.path().display()))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap();
            let here = format!("{when} {number}, {point}");
            assert!(!status.success(), "{here}: the child died");
            let first = Segment::list(directory.path()).unwrap().0[0].version;
            let (_, recovered) = open(directory.path(), first);
            let torn = when == "halfway" && point == "journal/append/write";
            assert_eq!(recovered.torn_bytes > 0, torn, "{here}");
            // What was appended before the operation is there; the record of the operation itself may be.
            let skipped = if first == 10 { 0 } else { 2 * (first as usize - 19) };
            assert_eq!(recovered.log, all[skipped..skipped + recovered.log.len()], "{here}");
            let begun = points()[..number].iter().filter(|p| *p == "journal/append/write").count();
            let own = usize::from(when == "after" && point == "journal/append/write");
            assert_eq!(recovered.log.len() + skipped, begun + own, "{here}");
            let (segments, partial) = Segment::list(directory.path()).unwrap();
            assert!(partial.is_empty() && !segments.is_empty(), "{here}");
        }
    }
}

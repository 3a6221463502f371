use std::io::Write;
use std::path::PathBuf;

use super::*;
use crate::event::Event;
use crate::history::surviving;
use crate::synthetic::{Kill, SyntheticRun, each_attempt};

fn lines(kills: &[(u64, u64)]) -> Vec<EventLine> {
    let settings = SyntheticRun { max_staleness: 1, steps: 40, groups: 4, samples: 2 };
    let kills: Vec<Kill> = kills.iter().map(|&(step, saved)| Kill { step, saved }).collect();
    let mut lines = Vec::new();
    each_attempt(settings, &kills, &mut |line| lines.push(line));
    lines
}

fn text(lines: &[EventLine]) -> Vec<Vec<u8>> {
    lines.iter().map(|line| [serde_json::to_vec(line).unwrap(), b"\n".to_vec()].concat()).collect()
}

fn file(directory: &tempfile::TempDir, content: &[u8]) -> PathBuf {
    let path = directory.path().join("events.jsonl");
    std::fs::write(&path, content).unwrap();
    path
}

fn read(events: &EventFile) -> (Vec<(EventLine, bool)>, SkippedLines) {
    let mut read = Vec::new();
    let skipped = events.each(|line, survives| read.push((line, survives))).unwrap();
    (read, skipped)
}

#[test]
fn lines_of_a_file_survive_as_lines_in_memory_do() {
    let directory = tempfile::tempdir().unwrap();
    for kills in [&[][..], &[(30, 25)], &[(10, 0), (20, 5), (35, 30)]] {
        let lines = lines(kills);
        let events = EventFile::open(&file(&directory, &text(&lines).concat())).unwrap();
        assert_eq!(events.lines(), lines.len() as u64);
        let kept = events.select(Some).unwrap();
        assert_eq!(kept.iter().collect::<Vec<_>>(), surviving(&lines));
        assert!(kills.is_empty() == (kept.len() == lines.len()));
        let (read, skipped) = read(&events);
        assert_eq!(skipped, SkippedLines::default());
        assert_eq!(read.into_iter().map(|(line, _)| line).collect::<Vec<_>>(), lines);
    }
}

#[test]
fn the_first_pass_holds_only_repeated_work() {
    let directory = tempfile::tempdir().unwrap();
    let entries = |kills: &[(u64, u64)]| {
        EventFile::open(&file(&directory, &text(&lines(kills)).concat())).unwrap().entries()
    };
    let (single, short, long) = (entries(&[]), entries(&[(30, 25)]), entries(&[(35, 0)]));
    assert!(
        single < 10 && single < short && short < 60 && long > 150,
        "{single}, {short} and {long} entries"
    );
}

#[test]
fn each_damaged_line_costs_that_line_only() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(&[]);
    let mut damaged = text(&lines);
    damaged[3].truncate(20);
    damaged[3].push(b'\n');
    let middle = damaged[10].len() / 2;
    damaged[10][middle] = 0xff;
    damaged[12] = vec![0; 5000];
    damaged[12].push(b'\n');
    damaged[14] = b"\n".to_vec();
    let events = EventFile::open(&file(&directory, &damaged.concat())).unwrap();
    let (read, skipped) = read(&events);
    assert_eq!(skipped, SkippedLines { unreadable: 3, unknown: 0, is_last_incomplete: false });
    let intact = (0usize..).zip(&lines).filter(|(i, _)| ![3, 10, 12, 14].contains(i)).map(|(_, line)| line);
    assert!(read.iter().map(|(line, _)| line).eq(intact));
}

#[test]
fn invalid_utf_8_inside_a_text_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let warning = EventLine { event: Event::Warning { message: "XY".into() }, ..lines(&[]).remove(0) };
    let mut content = text(&[warning.clone(), warning]);
    let place = content[0].windows(2).position(|pair| pair == b"XY").unwrap();
    content[0][place] = 0xc3;
    let (read, skipped) = read(&EventFile::open(&file(&directory, &content.concat())).unwrap());
    assert_eq!((read.len(), skipped.unreadable, skipped.unknown), (1, 1, 0));
}

#[test]
fn lines_appended_after_opening_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(&lines(&[]));
    let half = text[..50].concat();
    let path = file(&directory, &[&half, &text[50][..30]].concat());
    let events = EventFile::open(&path).unwrap();
    let mut writer = File::options().append(true).open(&path).unwrap();
    writer.write_all(&text[50][30..]).unwrap();
    writer.write_all(&text[51..].concat()).unwrap();
    let (read, skipped) = read(&events);
    assert_eq!((read.len(), skipped.is_last_incomplete, skipped.unreadable), (50, true, 0));
    let all = EventFile::open(&path).unwrap();
    assert_eq!(all.lines(), text.len() as u64);
}

#[test]
fn the_last_attempt_is_found_at_the_end_or_before_damage() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(&lines(&[(30, 25)])).concat();
    assert_eq!(last_attempt(&file(&directory, &text)), 2);
    let damaged = [&text[..], &vec![0; 3 << 20]].concat();
    assert_eq!(last_attempt(&file(&directory, &damaged)), 2);
    assert_eq!(last_attempt(&directory.path().join("none")), 0);
}

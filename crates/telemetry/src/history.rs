//! The event stream read back, and what of it still holds after a resume.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::TelemetryError;
use crate::events::{Activity, Event, EventLine};

/// Reads an event stream. Lines that cannot be read (a torn one, one of another program version) are skipped.
pub fn read_events(path: &Path) -> Result<Vec<EventLine>, TelemetryError> {
    let mut lines = Vec::new();
    each_line(path, |line| lines.push(line))?;
    Ok(lines)
}

/// The last attempt that wrote to the stream; 0 where there is none.
pub(crate) fn last_attempt(path: &Path) -> u32 {
    #[derive(Deserialize)]
    struct Attempt {
        attempt: u32,
    }
    let mut last = 0;
    // What was read before an error still counts: attempts only grow.
    let _ = each_line(path, |line: Attempt| last = last.max(line.attempt));
    last
}

fn each_line<T: DeserializeOwned>(path: &Path, mut take: impl FnMut(T)) -> Result<(), TelemetryError> {
    let file = File::open(path).map_err(|source| TelemetryError::io("open", path, source))?;
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    loop {
        text.clear();
        let read =
            reader.read_until(b'\n', &mut text).map_err(|source| TelemetryError::io("read", path, source))?;
        if read == 0 {
            return Ok(());
        }
        if let Ok(line) = serde_json::from_slice(&text) {
            take(line);
        }
    }
}

/// The lines of the surviving history. A resumed run tells of what it does again: steps after the one that it goes on
/// from count in their last telling, and so do evaluations, groups and their ends.
pub fn surviving(lines: &[EventLine]) -> Vec<&EventLine> {
    let mut kept = Vec::with_capacity(lines.len());
    // Backwards, so that what a line is superseded by has been seen.
    let mut undone_after = u64::MAX;
    let mut last_told: HashMap<Subject<'_>, u32> = HashMap::new();
    for line in lines.iter().rev() {
        let undone = step_of(line).is_some_and(|step| step > undone_after);
        if !undone && latest(&mut last_told, line) {
            kept.push(line);
        }
        if let Event::StageStarted { from_step, .. } = &line.event {
            undone_after = undone_after.min(base(line) + from_step);
        }
    }
    kept.reverse();
    kept
}

fn base(line: &EventLine) -> u64 {
    line.global_step.saturating_sub(line.step)
}

/// The step over the whole run that a line tells of; `None` for what is not about a step.
fn step_of(line: &EventLine) -> Option<u64> {
    match &line.event {
        Event::Step { .. } | Event::Sample(_) | Event::Evaluation { .. } | Event::EvaluationSample(_) => {
            Some(line.global_step)
        }
        // A group belongs to no step before its batch is cut: it is superseded by its ticket.
        Event::Activity { activity: Activity::Group, .. } => None,
        Event::Activity { activity, version, .. } => {
            Some(base(line) + version + u64::from(*activity == Activity::Train))
        }
        _ => None,
    }
}

/// What several attempts may tell of.
#[derive(PartialEq, Eq, Hash)]
enum Subject<'a> {
    Evaluation(&'a str, u64),
    EvaluationSample(&'a str, u64),
    Group(&'a str, u64),
    End(&'a str, u64),
}

/// Whether no later attempt tells of the same.
fn latest<'a>(last_told: &mut HashMap<Subject<'a>, u32>, line: &'a EventLine) -> bool {
    let stage = line.stage.as_str();
    let subject = match &line.event {
        Event::Evaluation { .. } => Subject::Evaluation(stage, line.global_step),
        Event::EvaluationSample(_) => Subject::EvaluationSample(stage, line.global_step),
        Event::Activity { activity: Activity::Group, ticket: Some(ticket), .. } => {
            // A group that was generated again has not come to the end that an earlier attempt told of.
            last_told.entry(Subject::End(stage, *ticket)).or_insert(line.attempt);
            Subject::Group(stage, *ticket)
        }
        Event::GroupEnded { ticket, .. } => Subject::End(stage, *ticket),
        _ => return true,
    };
    *last_told.entry(subject).or_insert(line.attempt) == line.attempt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Lane, StageOutline};

    fn line(attempt: u32, step: u64, event: Event) -> EventLine {
        EventLine {
            attempt,
            time: 0.0,
            elapsed: 0.0,
            stage: "rl".into(),
            step,
            global_step: step + 100,
            event,
        }
    }

    fn started(attempt: u32, from_step: u64) -> EventLine {
        let outline = StageOutline { name: "rl".into(), method: "grpo".into(), steps: 9 };
        line(attempt, from_step, Event::StageStarted { outline, from_step })
    }

    fn step(attempt: u32, step: u64) -> EventLine {
        line(attempt, step, Event::Step { metrics: [("reward".to_owned(), f64::from(attempt))].into() })
    }

    fn evaluated(attempt: u32, step: u64) -> EventLine {
        line(attempt, step, Event::Evaluation { metrics: [].into(), tasks: 3, best: false })
    }

    fn activity(attempt: u32, activity: Activity, version: u64, ticket: Option<u64>) -> EventLine {
        let lane = if activity == Activity::Group { Lane::Rollout } else { Lane::Train };
        // Told late: the place of the line says little about what it is about.
        line(attempt, 0, Event::Activity { lane, activity, start: 0.0, end: 1.0, version, ticket })
    }

    fn ended(attempt: u32, ticket: u64, end: &str) -> EventLine {
        line(attempt, 0, Event::GroupEnded { ticket, end: end.into(), reason: None })
    }

    #[test]
    fn a_repeated_step_counts_once() {
        let lines =
            [started(1, 0), step(1, 1), step(1, 2), evaluated(1, 2), step(1, 3), started(2, 2), step(2, 3)];
        let steps: Vec<(u64, u32)> = surviving(&lines)
            .iter()
            .filter(|l| matches!(l.event, Event::Step { .. }))
            .map(|l| (l.step, l.attempt))
            .collect();
        assert_eq!(steps, [(1, 1), (2, 1), (3, 2)]);
        assert!(surviving(&lines).contains(&&lines[3]), "the version that was gone on from stays evaluated");
        let again = [&lines[..], &[evaluated(2, 2)]].concat();
        let kept = surviving(&again);
        assert!(!kept.contains(&&again[3]) && kept.contains(&&again[7]), "unless it is evaluated again");
    }

    #[test]
    fn work_on_undone_steps_is_superseded() {
        let lines = [
            started(1, 0),
            activity(1, Activity::Train, 1, None),
            activity(1, Activity::Publish, 2, None),
            activity(1, Activity::Train, 2, None),
            activity(1, Activity::Publish, 3, None),
            started(2, 2),
            activity(2, Activity::Train, 2, None),
            activity(2, Activity::Publish, 3, None),
        ];
        let kept: Vec<&EventLine> = surviving(&lines);
        let wanted: Vec<&EventLine> = [0, 1, 2, 5, 6, 7].map(|i| &lines[i]).into();
        assert_eq!(kept, wanted);
    }

    #[test]
    fn a_ticket_counts_as_the_last_attempt_tells_of_it() {
        let lines = [
            started(1, 0),
            activity(1, Activity::Group, 0, Some(7)), // kept: its group came back from the journal
            activity(1, Activity::Group, 0, Some(8)),
            ended(1, 8, "stale"),
            ended(1, 9, "put_off"),
            ended(1, 9, "stale"),
            ended(1, 10, "failed"),
            started(2, 0),
            activity(2, Activity::Group, 0, Some(8)), // generated again, so it is not stale
            ended(2, 10, "failed"),
        ];
        let kept: Vec<&EventLine> = surviving(&lines);
        let wanted: Vec<&EventLine> = [0, 1, 4, 5, 7, 8, 9].map(|i| &lines[i]).into();
        assert_eq!(kept, wanted);
    }
}

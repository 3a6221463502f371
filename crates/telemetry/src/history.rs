//! Reading an event stream, and selecting the events that are still valid after a resume.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::TelemetryError;
use crate::event::{Activity, Event, EventLine};

/// Reads an event stream. Skips lines that cannot be parsed: incomplete ones and unknown events of other versions.
pub fn read_events(path: &Path) -> Result<Vec<EventLine>, TelemetryError> {
    let mut lines = Vec::new();
    each_line(path, |line| lines.push(line))?;
    Ok(lines)
}

/// Returns the last attempt that wrote to the stream; 0 if there is none.
pub(crate) fn last_attempt(path: &Path) -> u32 {
    #[derive(Deserialize)]
    struct Attempt {
        attempt: u32,
    }
    let mut last = 0;
    // Lines before a read error are sufficient: attempts only increase.
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

/// Returns the lines that later attempts have not superseded. A resumed run repeats the steps after its checkpoint and
/// reports them again; only the last report of a step, evaluation or group is kept.
pub fn surviving(lines: &[EventLine]) -> Vec<&EventLine> {
    let mut kept = Vec::with_capacity(lines.len());
    // Backwards, so that superseding lines come first.
    let mut repeated_after = u64::MAX;
    let mut last_attempts: HashMap<Subject<'_>, u32> = HashMap::new();
    for line in lines.iter().rev() {
        let is_repeated = step_of(line).is_some_and(|step| step > repeated_after);
        if !is_repeated && is_latest(&mut last_attempts, line) {
            kept.push(line);
        }
        if let Event::StageStarted { from_step, .. } = &line.event {
            repeated_after = repeated_after.min(stage_base(line) + from_step);
        }
    }
    kept.reverse();
    kept
}

/// Number of steps of the earlier stages.
fn stage_base(line: &EventLine) -> u64 {
    line.global_step.saturating_sub(line.step)
}

/// Returns the step over all stages that a line reports on; `None` for lines that do not belong to a step.
fn step_of(line: &EventLine) -> Option<u64> {
    match &line.event {
        Event::Step { .. } | Event::Sample(_) | Event::Evaluation { .. } | Event::EvaluationSample(_) => {
            Some(line.global_step)
        }
        // A group belongs to no step until its batch is cut; it is superseded by ticket.
        Event::Activity { activity: Activity::Group, .. } => None,
        Event::Activity { activity, version, .. } => {
            Some(stage_base(line) + version + u64::from(*activity == Activity::Train))
        }
        _ => None,
    }
}

/// The subject of lines that several attempts may report.
#[derive(PartialEq, Eq, Hash)]
enum Subject<'a> {
    Evaluation(&'a str, u64),
    EvaluationSample(&'a str, u64),
    Group(&'a str, u64),
    End(&'a str, u64),
}

/// True if no later attempt reports on the same subject.
fn is_latest<'a>(last_attempts: &mut HashMap<Subject<'a>, u32>, line: &'a EventLine) -> bool {
    let stage = line.stage.as_str();
    let subject = match &line.event {
        Event::Evaluation { .. } => Subject::Evaluation(stage, line.global_step),
        Event::EvaluationSample(_) => Subject::EvaluationSample(stage, line.global_step),
        Event::Activity { activity: Activity::Group, ticket: Some(ticket), .. } => {
            // A regenerated group invalidates the end that an earlier attempt reported.
            last_attempts.entry(Subject::End(stage, *ticket)).or_insert(line.attempt);
            Subject::Group(stage, *ticket)
        }
        Event::GroupEnded { ticket, .. } => Subject::End(stage, *ticket),
        _ => return true,
    };
    *last_attempts.entry(subject).or_insert(line.attempt) == line.attempt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Lane, StageOutline};

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
        // Reported late: the position of the line differs from the position of its subject.
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
        assert!(surviving(&lines).contains(&&lines[3]), "the evaluation of the resumed version is kept");
        let again = [&lines[..], &[evaluated(2, 2)]].concat();
        let kept = surviving(&again);
        assert!(!kept.contains(&&again[3]) && kept.contains(&&again[7]), "unless it is evaluated again");
    }

    #[test]
    fn activities_of_repeated_steps_are_superseded() {
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
        let expected: Vec<&EventLine> = [0, 1, 2, 5, 6, 7].map(|i| &lines[i]).into();
        assert_eq!(kept, expected);
    }

    #[test]
    fn the_last_report_of_a_ticket_is_kept() {
        let lines = [
            started(1, 0),
            activity(1, Activity::Group, 0, Some(7)), // kept: the group was restored from the journal
            activity(1, Activity::Group, 0, Some(8)),
            ended(1, 8, "stale"),
            ended(1, 9, "deferred"),
            ended(1, 9, "stale"),
            ended(1, 10, "failed"),
            started(2, 0),
            activity(2, Activity::Group, 0, Some(8)), // regenerated, so no longer stale
            ended(2, 10, "failed"),
        ];
        let kept: Vec<&EventLine> = surviving(&lines);
        let expected: Vec<&EventLine> = [0, 1, 4, 5, 7, 8, 9].map(|i| &lines[i]).into();
        assert_eq!(kept, expected);
    }
}

//! Selection of the events that are still valid after a resume.

use crate::event::EventLine;
use crate::survivors::{LineKey, Survivors};

/// Returns the lines that later attempts have not superseded. A resumed run repeats the steps after its checkpoint and
/// reports them again; only the last report of a step, evaluation or group is kept.
pub fn surviving(lines: &[EventLine]) -> Vec<&EventLine> {
    let mut survivors = Survivors::default();
    for (position, line) in (0u64..).zip(lines) {
        survivors.add(position, &LineKey::from(line));
    }
    survivors.complete();
    let numbered = (0u64..).zip(lines);
    let kept = numbered.filter(|(position, line)| survivors.contains(*position, &LineKey::from(*line)));
    kept.map(|(_, line)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Activity, Event, GroupEnd, Lane, StageOutline};

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
        let outline = StageOutline {
            name: "rl".into(),
            method: "grpo".into(),
            steps: 9,
            policies: Vec::new(),
            quantize: None,
        };
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

    fn ended(attempt: u32, ticket: u64, end: GroupEnd) -> EventLine {
        line(attempt, 0, Event::GroupEnded { ticket, end, reason: None })
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
            ended(1, 8, GroupEnd::Stale),
            ended(1, 9, GroupEnd::Deferred),
            ended(1, 9, GroupEnd::Stale),
            ended(1, 10, GroupEnd::Failed),
            started(2, 0),
            activity(2, Activity::Group, 0, Some(8)), // regenerated, so no longer stale
            ended(2, 10, GroupEnd::Failed),
        ];
        let kept: Vec<&EventLine> = surviving(&lines);
        let expected: Vec<&EventLine> = [0, 1, 4, 5, 7, 8, 9].map(|i| &lines[i]).into();
        assert_eq!(kept, expected);
    }
}

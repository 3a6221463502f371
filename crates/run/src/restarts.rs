//! Restarts of a stage whose trainer was lost: the run resumes from its last checkpoint without a new process.

use rloom_stage::StageError;
use rloom_store::checkpoint::CheckpointName;

use crate::RunError;

/// Restarts of a stage from its last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    from: Option<CheckpointName>,
    count: u32,
}

impl Restarts {
    /// Counts a restart. Returns its number among those from the same checkpoint; `None` if that is larger than `limit`.
    pub(crate) fn next(&mut self, from: Option<&CheckpointName>, limit: u32) -> Option<u32> {
        if self.from.as_ref() != from {
            *self = Self { from: from.cloned(), count: 0 };
        }
        self.count += 1;
        (self.count <= limit).then_some(self.count)
    }
}

/// The loss of the trainer on one line, if that is why a stage failed: its first line, and the last line of the output of
/// a process that has ended. A trainer that refuses to start is not lost: it would do so again.
pub(crate) fn lost_trainer(error: &RunError) -> Option<String> {
    let (text, place) = match error {
        RunError::Gang(error) if error.may_succeed_again() => {
            (error.to_string(), "at its start: ".to_owned())
        }
        RunError::Stage(error) => {
            let place = match error {
                StageError::Worker { step, .. } => format!("in step {step}: "),
                _ => String::new(),
            };
            (error.lost_trainer()?.to_string(), place)
        }
        _ => return None,
    };
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default().to_owned();
    let last = match lines.next_back() {
        // A frame of a stack, which ranks that hang write last.
        Some(frame) if frame.starts_with("File \"") => " (stacks are in the logs of the ranks)".to_owned(),
        Some(last) => format!(" (its last output: {last})"),
        None => String::new(),
    };
    Some(format!("{place}{first}{last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(step: u64) -> CheckpointName {
        let policy = rloom_core::PolicyId::MAIN;
        CheckpointName { policy, stage: 0, step, stage_name: "rl".to_owned() }
    }

    #[test]
    fn a_new_checkpoint_starts_the_count_again() {
        let mut restarts = Restarts::default();
        let counted = [None, None, None, Some(name(2)), Some(name(2)), Some(name(4))];
        let counted = counted.map(|from| restarts.next(from.as_ref(), 2));
        assert_eq!(counted, [Some(1), Some(2), None, Some(1), Some(2), Some(1)]);
    }
}

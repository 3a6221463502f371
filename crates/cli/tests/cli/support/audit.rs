//! Checks of the records of a run.

use std::collections::BTreeSet;
use std::path::Path;

use rloom_store::journal::{self, Record};
use rloom_telemetry::LoggedTrajectory;

/// Checks the journal of a run that keeps all checkpoints: each group has one end and one place, in a batch that was
/// recorded once before it was trained once.
pub(crate) fn check_journal(run: &Path, steps: u64, groups: u64) {
    let Audit { mut ends, cut, batches } = audit(run);
    assert_eq!(batches, 2 * steps);
    assert_eq!(cut, (0..steps * groups).collect::<Vec<_>>());
    ends.sort_unstable();
    assert_eq!(ends, cut);
}

/// Checks the journal of a run that keeps all checkpoints and was interrupted: each group has at most one end and one
/// place, in a batch that was recorded once before it was trained once. Returns the number of trained batches.
pub(crate) fn check_interrupted_journal(run: &Path, groups: u64) -> u64 {
    let Audit { ends, cut, batches } = audit(run);
    let unique: BTreeSet<u64> = ends.iter().copied().collect();
    assert_eq!(unique.len(), ends.len(), "groups ended twice");
    assert_eq!(cut, (0..cut.len() as u64).collect::<Vec<_>>(), "groups are missing, or have two places");
    assert!(cut.iter().all(|ticket| unique.contains(ticket)), "groups without an end have a place");
    assert_eq!(cut.len() as u64, batches.div_ceil(2) * groups);
    batches / 2
}

/// What the journal of a run says.
struct Audit {
    /// Groups that have ended, in that order.
    ends: Vec<u64>,
    /// Groups that have a place in a batch, sorted.
    cut: Vec<u64>,
    /// Number of records of batches, which alternate: recorded, trained.
    batches: u64,
}

fn audit(run: &Path) -> Audit {
    let log = journal::read(&run.join("journal"), 0).unwrap().log;
    let (mut ends, mut cut, mut batches) = (Vec::new(), Vec::new(), Vec::new());
    for record in log {
        match record {
            Record::Ready { ticket, .. } | Record::Filtered { ticket } | Record::Failed { ticket, .. } => {
                ends.push(ticket.0);
            }
            Record::Cut { batch, tickets, .. } => {
                batches.push(("cut", batch));
                cut.extend(tickets.into_iter().map(|ticket| ticket.0));
            }
            Record::Trained { batch, .. } => batches.push(("trained", batch)),
            _ => {}
        }
    }
    let expected = (0..).flat_map(|batch| [("cut", batch), ("trained", batch)]).take(batches.len());
    assert!(batches.iter().copied().eq(expected), "{batches:?}");
    cut.sort_unstable();
    Audit { ends, cut, batches: batches.len() as u64 }
}

/// Checks the rollouts of stage `rl`: each step has a batch, and each group is in one batch.
pub(crate) fn check_groups(rollouts: &Path, steps: u64, groups: u64) {
    let mut tickets = Vec::new();
    for step in 1..=steps {
        let bytes = std::fs::read(rollouts.join(format!("rl-step-{step:06}.jsonl.zst"))).unwrap();
        let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
        let read = |line| serde_json::from_str::<LoggedTrajectory>(line).unwrap().trajectory.key.ticket.0;
        tickets.extend(text.lines().map(read).collect::<BTreeSet<u64>>());
    }
    tickets.sort_unstable();
    assert_eq!(tickets, (0..steps * groups).collect::<Vec<_>>());
}

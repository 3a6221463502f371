use std::collections::BTreeSet;

use rloom_core::{PolicyVersion, Ticket};
use serde::{Deserialize, Serialize};

use crate::{SchedError, SchedulerSettings, Stragglers};

/// All that a scheduler knows, but for a request to stop: [`Scheduler::resume`](crate::Scheduler::resume) from it and the
/// same events give the same commands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SchedulerState {
    /// Batches trained and published.
    pub version: PolicyVersion,
    /// The next ticket to give out.
    pub next_ticket: Ticket,
    /// Tickets given out, not ended and in no batch, in order.
    pub alive: Vec<AliveGroup>,
    /// Groups that became ready so far.
    #[serde(default)]
    pub completions: u64,
    /// What was asked for and is not done.
    #[serde(default)]
    pub under_way: UnderWay,
    /// Whether the groups that run are those that were put off.
    #[serde(default)]
    pub put_off_round: bool,
    /// The last version that was evaluated.
    pub evaluated: Option<PolicyVersion>,
    /// The last version that the scheduler knows to be saved.
    #[serde(default)]
    pub saved: Option<PolicyVersion>,
}

/// A ticket that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveGroup {
    /// The ticket.
    pub ticket: Ticket,
    /// How far it is.
    pub progress: Progress,
}

/// How far a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// It is generated and scored.
    Running {
        /// The version under which it started.
        started: PolicyVersion,
    },
    /// It waits for its batch.
    Ready {
        /// The oldest version among its policy tokens.
        oldest: PolicyVersion,
        /// Its place in the order of completion, from 0.
        place: u64,
    },
    /// It was cancelled and will start again.
    PutOff,
}

/// What the driver was asked to do and has not reported as done. One thing at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnderWay {
    /// Nothing.
    #[default]
    Nothing,
    /// A batch is trained and published.
    Training(Vec<Ticket>),
    /// The policy is evaluated.
    Evaluating,
    /// The policy is saved.
    Saving,
}

impl SchedulerState {
    /// Mends a state whose ready group was lost: it runs under the state's version, and [`Event::Begin`] starts it.
    /// False when no such ticket is ready.
    ///
    /// [`Event::Begin`]: crate::Event::Begin
    pub fn forget(&mut self, ticket: Ticket) -> bool {
        let version = self.version;
        let ready = |g: &&mut AliveGroup| g.ticket == ticket && matches!(g.progress, Progress::Ready { .. });
        match self.alive.iter_mut().find(ready) {
            Some(group) => {
                group.progress = Progress::Running { started: version };
                true
            }
            None => false,
        }
    }

    /// Refuses a state that no scheduler with these settings can have had.
    pub(crate) fn validate(&self, settings: &SchedulerSettings) -> Result<(), SchedError> {
        let refuse = |what| Err(SchedError::ImpossibleState(what));
        if !self.alive.iter().map(|g| g.ticket).is_sorted_by(|a, b| a < b) {
            return refuse("its tickets are not in order");
        }
        if self.alive.last().is_some_and(|g| g.ticket >= self.next_ticket) {
            return refuse("it has a ticket that was not given out");
        }
        let mut places = BTreeSet::new();
        for group in &self.alive {
            match group.progress {
                Progress::Running { started } if started > self.version => {
                    return refuse("a group started under a version that there is not");
                }
                Progress::Ready { place, .. } if place >= self.completions || !places.insert(place) => {
                    return refuse("the order in which its groups completed is broken");
                }
                Progress::PutOff if settings.stragglers != Stragglers::PutOff => {
                    return refuse("it has groups that were put off, and the settings put none off");
                }
                _ => {}
            }
        }
        if let UnderWay::Training(tickets) = &self.under_way {
            if tickets.len() as u64 != settings.batch_groups {
                return refuse("the batch that is trained has another size than the settings say");
            }
            let distinct: BTreeSet<Ticket> = tickets.iter().copied().collect();
            let alive = |t: &Ticket| self.alive.binary_search_by_key(t, |g| g.ticket).is_ok();
            if distinct.len() < tickets.len() || tickets.iter().any(|t| *t >= self.next_ticket || alive(t)) {
                return refuse("the batch that is trained has a ticket that cannot be in it");
            }
        }
        Ok(())
    }
}

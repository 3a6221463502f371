//! SCHED-10: batches that also contain groups of earlier batches.

use std::collections::{BTreeMap, BTreeSet};

use rloom_core::{PolicyVersion, RandomKey, SettingError, Ticket, ValueRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::StateDefect;

/// Experience replay: every batch also trains on groups of earlier batches, with the log-probabilities recorded when they
/// were sampled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReuseSettings {
    /// Largest share of reused groups in a batch, from 0 to 0.5. They come in addition to the `groups_per_batch` new
    /// ones: at 0.5 as many again.
    pub share: f64,
    /// Maximum age of a reused group, at least 1: the number of batches trained since the oldest policy version that
    /// generated any of its tokens.
    pub max_age: u64,
    /// Number of times that a group may be reused, at least 1.
    pub max_uses: u64,
}

impl Default for ReuseSettings {
    fn default() -> Self {
        Self { share: 0.25, max_age: 4, max_uses: 1 }
    }
}

impl ReuseSettings {
    /// Checks the settings.
    pub fn validate(&self) -> Result<(), SettingError> {
        ValueRange::between(0.0, 0.5).check("share", self.share)?;
        ValueRange::between(1.0, 1e4).check("max_age", self.max_age as f64)?;
        ValueRange::between(1.0, 1e4).check("max_uses", self.max_uses as f64)
    }

    /// Reused groups that are at most `share` of a batch with `groups_per_batch` new ones.
    pub fn groups(&self, groups_per_batch: u64) -> u64 {
        // A share of 0.2 of 8 new groups is 2, whatever the rounding of the quotient.
        (self.share / (1.0 - self.share) * groups_per_batch as f64 + 1e-9).floor() as u64
    }
}

/// Rule by which batches reuse groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReuseRule {
    /// Most reused groups of a batch.
    pub groups: u64,
    /// Maximum age of a reused group, in versions.
    pub max_age: u64,
    /// Number of times that a group may be reused.
    pub max_uses: u64,
    /// Key of the draws; each batch has its own stream.
    pub draws: RandomKey,
}

/// A trained group that later batches may reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReusableGroup {
    /// Oldest version among its policy tokens.
    pub oldest: PolicyVersion,
    /// The batch that it was part of.
    pub batch: u64,
    /// Number of times it was reused, in the batch in flight included.
    pub uses: u64,
}

impl ReusableGroup {
    /// True if `batch` may reuse the group.
    fn is_allowed(&self, rule: &ReuseRule, batch: u64) -> bool {
        self.uses < rule.max_uses && batch.saturating_sub(self.oldest.0) <= rule.max_age
    }
}

/// A group in a batch that reuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReusedGroup {
    /// Ticket of the group.
    pub ticket: Ticket,
    /// Number of this use among all reuses of the group, from 1.
    pub reuse: u64,
}

/// The groups that batches reuse.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReuseState {
    /// Groups that a later batch may reuse, and those of the batch in flight.
    pub groups: BTreeMap<Ticket, ReusableGroup>,
    /// Reused groups of the batch in flight, by ticket.
    pub drawn: Vec<ReusedGroup>,
}

impl ReuseState {
    /// True without groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.drawn.is_empty()
    }

    /// Draws the reused groups of a batch that is cut with these new groups and their oldest versions.
    pub(crate) fn cut(
        &mut self,
        rule: &ReuseRule,
        batch: u64,
        new: impl IntoIterator<Item = (Ticket, PolicyVersion)>,
    ) -> Vec<ReusedGroup> {
        let is_allowed = |(_, group): &(&Ticket, &ReusableGroup)| group.is_allowed(rule, batch);
        let mut tickets: Vec<Ticket> = self.groups.iter().filter(is_allowed).map(|(t, _)| *t).collect();
        let stream = RandomKey { ticket: batch, ..rule.draws }.stream();
        let wanted = tickets.len().min(usize::try_from(rule.groups).unwrap_or(usize::MAX));
        for place in 0..wanted {
            let others = (tickets.len() - place) as u64;
            tickets.swap(place, place + stream.below(place as u64, others) as usize);
        }
        tickets.truncate(wanted);
        tickets.sort_unstable();
        self.drawn.clear();
        for ticket in tickets {
            let Some(group) = self.groups.get_mut(&ticket) else { continue };
            group.uses += 1;
            self.drawn.push(ReusedGroup { ticket, reuse: group.uses });
        }
        let added = |(ticket, oldest)| (ticket, ReusableGroup { oldest, batch, uses: 0 });
        self.groups.extend(new.into_iter().map(added));
        self.drawn.clone()
    }

    /// Ends the batch in flight: `next` is the number of the next one. Groups that no later batch may reuse are forgotten.
    pub(crate) fn trained(&mut self, rule: Option<&ReuseRule>, next: u64) {
        self.drawn.clear();
        self.groups.retain(|_, group| rule.is_some_and(|rule| group.is_allowed(rule, next)));
    }

    /// Undoes the cut of `batch`.
    pub(crate) fn restart_batch(&mut self, batch: u64) {
        for ReusedGroup { ticket, .. } in self.drawn.drain(..) {
            if let Some(group) = self.groups.get_mut(&ticket) {
                group.uses = group.uses.saturating_sub(1);
            }
        }
        self.groups.retain(|_, group| group.batch < batch);
    }

    /// Rejects a state that no scheduler can have at `version`. `in_flight` are the new groups of the batch in flight,
    /// `open` are the groups that are in no batch.
    pub(crate) fn validate(
        &self,
        version: PolicyVersion,
        in_flight: &[Ticket],
        open: &BTreeSet<Ticket>,
        next_ticket: Ticket,
    ) -> Result<(), StateDefect> {
        let is_known = |(ticket, group): (&Ticket, &ReusableGroup)| {
            let is_new = group.batch == version.0;
            *ticket < next_ticket
                && !open.contains(ticket)
                && group.oldest.0 <= group.batch
                && group.batch <= version.0
                && is_new == in_flight.contains(ticket)
        };
        let is_drawn = |drawn: &ReusedGroup| {
            let group = self.groups.get(&drawn.ticket);
            group.is_some_and(|g| g.batch < version.0 && g.uses == drawn.reuse && g.uses > 0)
        };
        let consistent = self.groups.iter().all(is_known)
            && self.drawn.is_sorted_by(|a, b| a.ticket < b.ticket)
            && self.drawn.iter().all(is_drawn)
            && (self.drawn.is_empty() || !in_flight.is_empty());
        if consistent { Ok(()) } else { Err(StateDefect::Reuse) }
    }
}

//! Groups and their samples, in slots that are used again.

use std::collections::BTreeMap;

use rloom_core::Ticket;

/// Where a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// In no living group.
    Nowhere,
    /// In the queue for a replica.
    Waiting,
    /// Being decoded.
    On(u32),
    /// Off its replica with its turn's last token, this very instant.
    Ended,
    /// With its environment or its reward.
    Away,
    /// Scored.
    Done,
}

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Sample {
    pub(crate) at: Whereabouts,
    /// Counts changes of place, over all lives of the slot: what was announced for an earlier one is void.
    pub(crate) stamp: u32,
    pub(crate) turn: u16,
    pub(crate) turns: u16,
    /// Tokens still to be generated in this turn when its replica took it.
    pub(crate) left: f64,
    /// Tokens before those: prompt, earlier turns, and what an aborted attempt has kept.
    pub(crate) context: f64,
    /// Tokens that must be read before it goes on.
    pub(crate) unread: f64,
    /// The replica's clock when it took it.
    pub(crate) start: f64,
    pub(crate) queued_at: f64,
}

const EMPTY: Sample = Sample {
    at: Whereabouts::Nowhere,
    stamp: 0,
    turn: 0,
    turns: 1,
    left: 0.0,
    context: 0.0,
    unread: 0.0,
    start: 0.0,
    queued_at: 0.0,
};

#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "two draws and two moments, each on its own")]
pub(crate) struct Group {
    pub(crate) ticket: Ticket,
    /// Samples without a reward.
    pub(crate) unfinished: u32,
    /// Tokens of its samples by the version that generated them.
    pub(crate) by_version: Vec<(u64, f64)>,
    /// Tokens of its finished samples, prompts and observations included.
    pub(crate) tokens: f64,
    /// The group's part in its samples' luck with lengths.
    pub(crate) luck: f64,
    pub(crate) prompt: f64,
    pub(crate) fails: bool,
    pub(crate) filtered: bool,
    pub(crate) ready: bool,
    /// The scheduler is told of its end, or of its readiness.
    pub(crate) told: bool,
}

impl Group {
    /// Counts tokens that a version generated.
    pub(crate) fn add(&mut self, version: u64, tokens: f64) {
        match self.by_version.iter_mut().find(|(v, _)| *v == version) {
            Some((_, sum)) => *sum += tokens,
            None => self.by_version.push((version, tokens)),
        }
    }

    pub(crate) fn generated(&self) -> f64 {
        self.by_version.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// All living groups.
#[derive(Debug)]
pub(crate) struct Population {
    pub(crate) group_size: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) samples: Vec<Sample>,
    free: Vec<u32>,
    slots: BTreeMap<Ticket, u32>,
}

impl Population {
    pub(crate) fn new(group_size: u32) -> Self {
        Self { group_size, groups: Vec::new(), samples: Vec::new(), free: Vec::new(), slots: BTreeMap::new() }
    }

    /// A slot for a group; its samples are those of [`Population::samples_of`]. `None` if the ticket has one.
    pub(crate) fn enter(&mut self, ticket: Ticket) -> Option<u32> {
        if self.slots.contains_key(&ticket) {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.samples.resize(self.samples.len() + self.group_size as usize, EMPTY);
            (self.groups.len() - 1) as u32
        });
        self.slots.insert(ticket, slot);
        let group = &mut self.groups[slot as usize];
        let mut by_version = std::mem::take(&mut group.by_version);
        by_version.clear();
        *group = Group { ticket, unfinished: self.group_size, by_version, ..Group::default() };
        for sample in self.samples_of(slot) {
            let stamp = self.samples[sample as usize].stamp;
            self.samples[sample as usize] = Sample { stamp, ..EMPTY };
        }
        Some(slot)
    }

    pub(crate) fn slot(&self, ticket: Ticket) -> Option<u32> {
        self.slots.get(&ticket).copied()
    }

    /// The group has ended, or is put off. Its samples must be nowhere.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slots.remove(&ticket) {
            self.free.push(slot);
        }
    }

    pub(crate) fn samples_of(&self, slot: u32) -> std::ops::Range<u32> {
        slot * self.group_size..(slot + 1) * self.group_size
    }

    pub(crate) fn group_of(&self, sample: u32) -> u32 {
        sample / self.group_size
    }
}

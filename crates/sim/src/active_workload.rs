//! Active groups and their samples, in reusable slots.

use std::collections::BTreeMap;

use rloom_core::Ticket;

/// Progress of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleState {
    /// Not part of an active group, or cancelled.
    Inactive,
    /// In the queue for a replica.
    Waiting,
    /// Being decoded on this replica.
    Decoding(u32),
    /// Its turn ended at the current instant and has not been processed.
    TurnEnded,
    /// Waiting for its environment or its reward.
    External,
    /// Scored.
    Done,
}

/// State of a sample. Aligned to a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Sample {
    pub(crate) state: SampleState,
    /// Number of state changes over all uses of the slot; invalidates events scheduled for an earlier state.
    pub(crate) stamp: u32,
    pub(crate) turn: u16,
    pub(crate) turns: u16,
    /// Tokens still to be generated in this turn when decoding started.
    pub(crate) left: f64,
    /// Units of work per token, the unit of the replica's clock.
    pub(crate) pace: f64,
    /// Tokens before those: prompt, earlier turns, and tokens kept from an aborted attempt.
    pub(crate) context: f64,
    /// Tokens to prefill before decoding starts.
    pub(crate) unread: f64,
    /// Replica clock when decoding started.
    pub(crate) start: f64,
    pub(crate) queued_at: f64,
}

const EMPTY: Sample = Sample {
    state: SampleState::Inactive,
    stamp: 0,
    turn: 0,
    turns: 1,
    left: 0.0,
    pace: 1.0,
    context: 0.0,
    unread: 0.0,
    start: 0.0,
    queued_at: 0.0,
};

#[derive(Debug, Clone, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "two random outcomes and two progress flags, all independent"
)]
pub(crate) struct Group {
    pub(crate) ticket: Ticket,
    /// Samples without a reward.
    pub(crate) unfinished: u32,
    /// Generated tokens by policy version.
    pub(crate) by_version: Vec<(u64, f64)>,
    /// Tokens of its finished samples, including prompts and observations.
    pub(crate) tokens: f64,
    /// Standard normal component shared by the lengths of its samples.
    pub(crate) shared_length: f64,
    pub(crate) prompt: f64,
    pub(crate) fails: bool,
    pub(crate) filtered: bool,
    pub(crate) ready: bool,
    /// An event that the group is ready, filtered or failed was queued for the scheduler.
    pub(crate) reported: bool,
}

impl Group {
    /// Adds tokens generated with a version.
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

/// All active groups and their samples.
#[derive(Debug)]
pub(crate) struct ActiveWorkload {
    pub(crate) group_size: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) samples: Vec<Sample>,
    /// Samples that wait for their environment or reward.
    pub(crate) external: u64,
    /// Groups that are ready and in no batch.
    pub(crate) ready: u64,
    free: Vec<u32>,
    slots: BTreeMap<Ticket, u32>,
}

impl ActiveWorkload {
    pub(crate) fn new(group_size: u32) -> Self {
        Self {
            group_size,
            groups: Vec::new(),
            samples: Vec::new(),
            external: 0,
            ready: 0,
            free: Vec::new(),
            slots: BTreeMap::new(),
        }
    }

    /// Allocates a slot for a group; its samples are those of [`ActiveWorkload::samples_of`]. Returns `None` if the ticket
    /// has a slot already.
    pub(crate) fn insert(&mut self, ticket: Ticket) -> Option<u32> {
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

    /// Frees the slot of a group. Its samples must be inactive or done.
    pub(crate) fn remove(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slots.remove(&ticket) {
            self.ready -= u64::from(self.groups[slot as usize].ready);
            self.free.push(slot);
        }
    }

    /// Marks a group as ready for a batch.
    pub(crate) fn mark_ready(&mut self, slot: u32) {
        self.groups[slot as usize].ready = true;
        self.ready += 1;
    }

    pub(crate) fn samples_of(&self, slot: u32) -> std::ops::Range<u32> {
        slot * self.group_size..(slot + 1) * self.group_size
    }

    pub(crate) fn group_of(&self, sample: u32) -> u32 {
        sample / self.group_size
    }
}

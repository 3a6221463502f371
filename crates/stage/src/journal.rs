//! The journal of a stage, and the records of earlier attempts that are replayed before anything happens.

use std::collections::VecDeque;

use rloom_core::Ticket;
use rloom_learn::GivenAdvantages;
use rloom_sched::ReusedGroup;
use rloom_store::StoreError;
use rloom_store::journal::{Journal, Record};

/// Journal and replay of a stage.
#[derive(Debug)]
pub struct StageJournal {
    journal: Journal,
    /// Records that are still to be replayed.
    log: VecDeque<Record>,
    /// True once all records are replayed: events happen now and are recorded.
    live: bool,
    /// True while the replayed attempt is to stop and has not reached its end.
    stopping: bool,
    /// True if training on the recorded batches gives the recorded weights bit by bit.
    repeats_bits: bool,
    /// The batch that is being retrained and the recorded digest of its weights.
    expected: Option<(u64, u64)>,
}

impl StageJournal {
    /// Creates the journal of a stage that replays `log` first. `repeats_bits` is true if the trainer repeats its results bit by
    /// bit, on the numeric path that was recorded.
    pub fn new(journal: Journal, log: Vec<Record>, repeats_bits: bool) -> Self {
        let log = log.into();
        Self { journal, log, live: false, stopping: false, repeats_bits, expected: None }
    }

    /// True once all records are replayed.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Appends a record, unless the journal is being replayed.
    pub(crate) fn append(&mut self, record: &Record) -> Result<(), StoreError> {
        if self.live { self.journal.append(record) } else { Ok(()) }
    }

    /// Appends a cut, also at the end of a replay.
    pub(crate) fn append_cut(
        &mut self,
        batch: u64,
        tickets: &[Ticket],
        reused: Vec<ReusedGroup>,
        advantages: Option<GivenAdvantages>,
    ) -> Result<(), StoreError> {
        self.journal.append(&Record::Cut { batch, tickets: tickets.to_vec(), reused, advantages })
    }

    /// Starts the segment that follows `version`.
    pub(crate) fn roll(&mut self, version: u64, snapshot: &[Record]) -> Result<(), StoreError> {
        self.journal.roll(version, snapshot)
    }

    /// Removes segments older than `oldest`.
    pub(crate) fn prune(&mut self, oldest: u64) -> Result<(), StoreError> {
        self.journal.prune(oldest)
    }

    /// The next record to replay.
    pub(crate) fn next_record(&mut self) -> Option<Record> {
        self.log.pop_front()
    }

    /// Ends the replay. Returns true if the replayed attempt died while it was stopping.
    pub(crate) fn go_live(&mut self) -> bool {
        self.live = true;
        std::mem::take(&mut self.stopping)
    }

    /// Notes that the replayed attempt was asked to stop, or that it was resumed.
    pub(crate) fn set_stopping(&mut self, stopping: bool) {
        self.stopping = stopping;
    }

    /// True if the end of the stage is that of a replayed attempt that was asked to stop: the next attempt continued from
    /// there.
    pub(crate) fn ends_an_attempt(&mut self) -> bool {
        std::mem::take(&mut self.stopping)
    }

    /// Notes the recorded digest of a batch that is being retrained.
    pub(crate) fn expect(&mut self, batch: u64, digest: u64) {
        self.expected = Some((batch, digest));
    }

    /// The recorded digest of a retrained batch, if it is not `digest`.
    pub(crate) fn unexpected(&mut self, batch: u64, digest: u64) -> Option<u64> {
        let (recorded, expected) = self.expected.take()?;
        (recorded == batch && expected != digest).then_some(expected)
    }

    /// True if training on the recorded batches gives the recorded weights bit by bit.
    pub(crate) fn repeats_bits(&self) -> bool {
        self.repeats_bits
    }
}

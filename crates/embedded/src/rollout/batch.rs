//! Continuous batching: the running sequences, the tokens that a step computes, and the allocation of blocks.
//!
//! `cached` is the number of a sequence's tokens that have keys and values in the cache. Each step computes some of the
//! missing ones of every running sequence: one row for a sequence that decodes, a chunk for one in prefill or
//! recomputation. A sequence whose last token has been computed gets its next one.
//!
//! Invariants:
//!
//! 1. Running sequences are in order of [`Rank`] (priority, then age), and a step is planned from the first on.
//! 2. A block is written by one sequence alone. Shared blocks are full; others are copied ([`Prefix`](super::blocks::Prefix)).
//!    All recorded blocks, and all blocks of sequences that are not `mixed`, are of the loaded weights.
//! 3. When blocks run out, idle ones are given up first, then the last running sequence in that order is preempted. The
//!    first running sequence therefore always proceeds: it fits the pool alone, which was checked on submission. No
//!    running sequence is preempted for a new one, whatever its priority.
//! 4. A draft takes no block that another running sequence may need next, and preempts nothing.
//! 5. A preempted sequence keeps its tokens and its rank. Its keys and values are recomputed with bitwise identical
//!    results, since no kernel's result for a row depends on the other rows of the call.

use std::collections::BTreeMap;
use std::time::Instant;

use rloom_core::StopReason;
use rloom_model::{RowRequest, StepRow};
use rloom_ops::{HeadOutput, KV_BLOCK};

use self::choice::Choice;
use crate::rollout::blocks::BlockPool;
use crate::rollout::decoder::{DecodeError, Decoder};
use crate::rollout::sequence::{Rank, Sequence};
use crate::rollout::speculation::Drafter;
use rloom_engine::{Abort, DraftStatistics, PolicyLabel, RolloutError, RolloutStatistics, Speculation};

mod admission;
mod choice;
#[cfg(test)]
mod tests;

/// Number of blocks for a number of tokens.
pub(crate) fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(KV_BLOCK)
}

/// Limits of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_batch: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) blocks: usize,
    pub(crate) speculation: Speculation,
}

/// Tokens `from..to` of a running sequence to compute in this step, followed by its draft.
#[derive(Debug)]
struct Chunk {
    sequence: usize,
    from: usize,
    to: usize,
    drafted: usize,
}

impl Chunk {
    fn rows(&self) -> usize {
        self.to - self.from + self.drafted
    }
}

/// The sequences of one lane.
#[derive(Debug)]
pub(crate) struct Batch {
    lane: usize,
    limits: Limits,
    pool: BlockPool,
    waiting: BTreeMap<Rank, Sequence>,
    running: Vec<Sequence>,
    /// Groups of the sequences that have left since the last [`Batch::take_departed`].
    left: Vec<Option<u64>>,
    statistics: RolloutStatistics,
    /// Answers of the head for the requested rows of the last step.
    answers: HeadOutput,
    /// `None` without speculation.
    drafter: Option<Drafter>,
    choice: Choice,
}

impl Batch {
    pub(crate) fn new(lane: usize, limits: Limits, threads: usize) -> Self {
        let drafter = match limits.speculation {
            Speculation::Off => None,
            Speculation::Ngram => Some(Drafter::default()),
        };
        let drafts = drafter.is_some().then(DraftStatistics::default);
        Self {
            lane,
            limits,
            pool: BlockPool::new(limits.blocks),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            left: Vec::new(),
            statistics: RolloutStatistics { drafts, ..RolloutStatistics::default() },
            answers: HeadOutput::default(),
            drafter,
            choice: Choice::new(threads),
        }
    }

    /// Drafts as much as possible, regardless of cost.
    #[cfg(test)]
    pub(crate) fn draft_always(&mut self) {
        self.drafter = Some(Drafter::always());
        self.statistics.drafts = Some(DraftStatistics::default());
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Blocks that sequences hold.
    pub(crate) fn used_blocks(&self) -> usize {
        self.pool.total() - self.pool.available()
    }

    pub(crate) fn blocks(&self) -> usize {
        self.pool.total()
    }

    pub(crate) fn statistics(&self) -> RolloutStatistics {
        self.statistics
    }

    /// Resets everything but the statistics, after a failure that left the state undefined. Returns the sequences that it
    /// still has.
    pub(crate) fn reset(&mut self) -> Vec<Sequence> {
        // The measured value of drafts depends on requests and machine, not on the failure.
        let (statistics, drafter) = (self.statistics, self.drafter.take());
        let fresh = Self { statistics, drafter, ..Self::new(self.lane, self.limits, self.choice.threads()) };
        let failed = std::mem::replace(self, fresh);
        failed.running.into_iter().chain(failed.waiting.into_values()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// True if the batch has a place for a sequence of this rank, blocks aside. Running sequences count, and waiting ones
    /// that precede it.
    pub(crate) fn has_place(&self, rank: Rank) -> bool {
        self.running.len() + self.waiting.range(..rank).count() < self.limits.max_batch
    }

    /// True if it has fewer sequences than places.
    pub(crate) fn has_room(&self) -> bool {
        self.running.len() + self.waiting.len() < self.limits.max_batch
    }

    /// True if a started sequence has not ended.
    pub(crate) fn has_started(&self) -> bool {
        !self.running.is_empty() || self.waiting.values().any(|s| s.started)
    }

    pub(crate) fn insert(&mut self, sequence: Sequence) {
        self.waiting.insert(sequence.rank, sequence);
    }

    /// Groups of the sequences that have left since the last call.
    pub(crate) fn take_departed(&mut self) -> Vec<Option<u64>> {
        std::mem::take(&mut self.left)
    }

    /// Prepares the next step: ends cancelled sequences and admits waiting ones. With `only_started`, sequences that have
    /// not been started keep waiting.
    pub(crate) fn admit_ready(&mut self, decoder: &mut impl Decoder, only_started: bool) {
        self.finish_where(|s| s.is_cancelled().then_some(StopReason::Aborted));
        self.admit(decoder, only_started);
    }

    /// Computes one step of the running sequences. After an error of the decoder the cache is undefined.
    pub(crate) fn step(&mut self, decoder: &mut impl Decoder, label: PolicyLabel) -> Result<(), DecodeError> {
        let mut chunks = self.plan();
        self.draft(&mut chunks);
        let began = self.drafter.is_some().then(Instant::now);
        let vocabulary = decoder.vocabulary();
        let mut rows = Vec::with_capacity(chunks.iter().map(Chunk::rows).sum());
        let mut wanted = Vec::with_capacity(rows.capacity());
        let mut next = std::mem::take(&mut self.choice.next);
        next.clear();
        for chunk in &chunks {
            let sequence = &self.running[chunk.sequence];
            let end = chunk.to + chunk.drafted;
            rows.extend((chunk.from..end).map(|position| StepRow {
                token: sequence.token_or_draft(position),
                position: position as u32,
                blocks: &sequence.cache.blocks,
            }));
            if chunk.to == sequence.tokens.len() {
                next.push((chunk.sequence, wanted.len()));
                let first = rows.len() - 1 - chunk.drafted;
                wanted.extend((0..=chunk.drafted).map(|nth| RowRequest {
                    row: (first + nth) as u32,
                    request: sequence.request(sequence.tokens.len() + nth, vocabulary),
                }));
            }
        }
        let computed = rows.len();
        if computed > 0 {
            decoder.step(&rows, &wanted, &mut self.answers)?;
            self.statistics.steps += 1;
            self.statistics.computed_tokens += computed as u64;
        }
        drop(rows);
        for chunk in &chunks {
            self.running[chunk.sequence].cache.tokens = chunk.to;
            if let Some(drafts) = &mut self.statistics.drafts {
                drafts.drafted_tokens += chunk.drafted as u64;
            }
        }
        for chunk in &chunks {
            self.record(chunk.sequence, chunk.to - chunk.from > 1);
        }
        self.choice.next = next;
        self.choose(decoder);
        // Rows of a prompt and rows that decode differ in cost.
        let decodes = |chunk: &Chunk| chunk.to - chunk.from == 1;
        if let (Some(began), Some(drafter)) = (began, &mut self.drafter)
            && computed > 0
            && chunks.iter().all(decodes)
        {
            drafter.record(computed, began.elapsed().as_secs_f64());
        }
        self.apply(label);
        Ok(())
    }

    /// Ends every sequence for which `why` returns a reason; each answers with the tokens it has.
    pub(crate) fn finish_where(&mut self, why: impl Fn(&Sequence) -> Option<StopReason>) {
        for sequence in std::mem::take(&mut self.running) {
            match why(&sequence) {
                Some(stop) => self.detach(sequence).finish(stop),
                None => self.running.push(sequence),
            }
        }
        let leaving: Vec<(Rank, StopReason)> =
            self.waiting.iter().filter_map(|(&rank, s)| Some((rank, why(s)?))).collect();
        for (rank, stop) in leaving {
            if let Some(sequence) = self.waiting.remove(&rank) {
                self.detach(sequence).finish(stop);
            }
        }
    }

    /// Fails every sequence for which `why` returns an error.
    pub(crate) fn refuse(&mut self, why: impl Fn(&Sequence) -> Option<RolloutError>) {
        for sequence in std::mem::take(&mut self.running) {
            match why(&sequence) {
                Some(error) => self.detach(sequence).fail(error),
                None => self.running.push(sequence),
            }
        }
        let refused: Vec<(Rank, RolloutError)> =
            self.waiting.iter().filter_map(|(&rank, s)| Some((rank, why(s)?))).collect();
        for (rank, error) in refused {
            if let Some(sequence) = self.waiting.remove(&rank) {
                self.detach(sequence).fail(error);
            }
        }
    }

    /// Aborts the selected sequences.
    pub(crate) fn abort(&mut self, which: Abort) {
        self.finish_where(|s| which.selects(s.group, s.key).then_some(StopReason::Aborted));
    }

    /// Aborts the sequences that have been started.
    pub(crate) fn abort_started(&mut self) {
        self.finish_where(|s| s.started.then_some(StopReason::Aborted));
    }
}

//! Continuous batching: which sequences run, which tokens a step computes, who holds which blocks.
//!
//! A sequence is its tokens; how many of them have keys and values in the cache (`cached`) is bookkeeping. Each step
//! computes some of the missing ones of every running sequence: one row for a sequence that decodes, a chunk for one
//! that is being prefilled or recomputed. A sequence whose last token has been computed gets its next one.
//!
//! Invariants:
//!
//! 1. Running sequences are in order of [`Rank`] (priority, then age), and a step is planned from the first on.
//! 2. A block is written by one sequence alone. Shared blocks are full, except the last block of a group's prompt: its
//!    writer is the sequence that computed the prompt, and the others copy it before they write.
//! 3. When blocks run out, prompts that no running sequence uses are forgotten first, then the last running sequence
//!    in that order is put back, then the other prompts are forgotten. The first running sequence therefore always
//!    proceeds: it fits the pool alone, which was checked when the request came. Nothing that runs is put back for a
//!    newcomer's sake, whatever its priority.
//! 4. What is put back keeps its tokens and its place in line. Its keys and values are recomputed to the same bits,
//!    since no kernel's result for a row depends on the rows that share the call.

use std::collections::BTreeMap;
use std::ops::{Add, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rloom_core::{PolicyVersion, StopReason};
use rloom_model::StepRow;
use rloom_ops::{Buf, KV_BLOCK};

use crate::blocks::BlockPool;
use crate::decoder::Decoder;
use crate::error::RequestName;
use crate::sampling::{Pick, SampleScratch};
use crate::sequence::{Rank, Sequence};
use crate::{Abort, RolloutError};

mod admission;
#[cfg(test)]
mod tests;

/// Blocks that hold this many tokens.
pub(crate) fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(KV_BLOCK)
}

/// What one lane may do at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_batch: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) blocks: usize,
}

/// What has been done, in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Steps of lanes.
    pub steps: u64,
    /// Tokens whose keys and values were computed, recomputed ones included.
    pub computed_tokens: u64,
    /// Prompt tokens that were taken over from another sequence of the group.
    pub shared_tokens: u64,
    /// Tokens chosen.
    pub sampled_tokens: u64,
    /// Times that a sequence was put back because blocks ran out.
    pub put_back: u64,
}

impl Add for Statistics {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            computed_tokens: self.computed_tokens + other.computed_tokens,
            shared_tokens: self.shared_tokens + other.shared_tokens,
            sampled_tokens: self.sampled_tokens + other.sampled_tokens,
            put_back: self.put_back + other.put_back,
        }
    }
}

/// A group's prompt, kept while requests of the group are in the lane.
#[derive(Debug)]
struct Prompt {
    tokens: Arc<[u32]>,
    /// The sequence that computes it; `None` when it is ready.
    leader: Option<Rank>,
    blocks: Vec<u32>,
    /// Logits after its last token, `[vocabulary]`.
    logits_v: Vec<f32>,
}

/// The tokens `from..to` of a running sequence, to be computed in this step.
#[derive(Debug)]
struct Chunk {
    sequence: usize,
    from: usize,
    to: usize,
}

/// Where the logits of a running sequence's next token are.
#[derive(Debug)]
enum Source {
    /// A row of this step's logits.
    Row(usize),
    /// The logits kept with its group's prompt.
    Prompt(u64),
}

/// The sequences of one lane.
#[derive(Debug)]
pub(crate) struct Batch {
    lane: usize,
    limits: Limits,
    pool: BlockPool,
    waiting: BTreeMap<Rank, Sequence>,
    running: Vec<Sequence>,
    prompts: BTreeMap<u64, Prompt>,
    /// Sequences of each group in the lane.
    members: BTreeMap<u64, usize>,
    /// Groups of the sequences that have left since the last [`Batch::take_left`].
    left: Vec<Option<u64>>,
    statistics: Statistics,
    logits: Buf,
    scratch: Vec<Mutex<SampleScratch>>,
}

impl Batch {
    pub(crate) fn new(lane: usize, limits: Limits, threads: usize) -> Self {
        Self {
            lane,
            limits,
            pool: BlockPool::new(limits.blocks),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            prompts: BTreeMap::new(),
            members: BTreeMap::new(),
            left: Vec::new(),
            statistics: Statistics::default(),
            logits: Buf::zeros(0),
            scratch: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn used_blocks(&self) -> usize {
        self.pool.total() - self.pool.free()
    }

    pub(crate) fn blocks(&self) -> usize {
        self.pool.total()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Starts anew with nothing but the statistics, after a failure that left it in a state unknown: the sequences that
    /// it still has.
    pub(crate) fn start_anew(&mut self) -> Vec<Sequence> {
        let fresh =
            Self { statistics: self.statistics, ..Self::new(self.lane, self.limits, self.scratch.len()) };
        let failed = std::mem::replace(self, fresh);
        failed.running.into_iter().chain(failed.waiting.into_values()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Whether a sequence of this rank would find a place in the batch, if blocks suffice: only those that run or wait
    /// before it are in its way.
    pub(crate) fn has_place(&self, rank: Rank) -> bool {
        self.running.len() + self.waiting.range(..rank).count() < self.limits.max_batch
    }

    /// Whether it has fewer sequences than places.
    pub(crate) fn has_room(&self) -> bool {
        self.running.len() + self.waiting.len() < self.limits.max_batch
    }

    /// Whether some sequence has been started and not ended.
    pub(crate) fn has_started(&self) -> bool {
        !self.running.is_empty() || self.waiting.values().any(|s| s.started)
    }

    pub(crate) fn insert(&mut self, sequence: Sequence) {
        if let Some(group) = sequence.group {
            *self.members.entry(group).or_default() += 1;
        }
        self.waiting.insert(sequence.rank, sequence);
    }

    /// Groups of the sequences that have left since the last call.
    pub(crate) fn take_left(&mut self) -> Vec<Option<u64>> {
        std::mem::take(&mut self.left)
    }

    /// Who is in the next step: ends what nobody waits for any more and starts what waits. With `only_started`,
    /// sequences that have not been started stay where they are.
    pub(crate) fn muster(&mut self, decoder: &mut impl Decoder, only_started: bool) {
        self.leave(|s| s.is_cancelled().then_some(StopReason::Aborted));
        self.admit(decoder, only_started);
    }

    /// One step of those that run.
    ///
    /// An error is the decoder's; what the cache holds is then unknown.
    pub(crate) fn step(&mut self, decoder: &mut impl Decoder, version: PolicyVersion) -> Result<(), String> {
        let chunks = self.plan();
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        let mut next = Vec::new();
        let mut prompt_ends = Vec::new();
        // A sequence that has taken over its whole prompt has nothing to compute: its logits are the prompt's.
        for (i, sequence) in self.running.iter().enumerate() {
            if let Some(group) = sequence.group
                && sequence.cached == sequence.tokens.len()
            {
                next.push((i, Source::Prompt(group)));
            }
        }
        for chunk in &chunks {
            let sequence = &self.running[chunk.sequence];
            rows.extend((chunk.from..chunk.to).map(|position| StepRow {
                token: sequence.tokens[position],
                position: position as u32,
                blocks: &sequence.blocks,
            }));
            let ends_prompt = sequence.leads && chunk.to == sequence.prompt.len();
            let ends = chunk.to == sequence.tokens.len();
            if ends {
                next.push((chunk.sequence, Source::Row(wanted.len())));
            }
            if ends_prompt {
                prompt_ends.push((chunk.sequence, wanted.len()));
            }
            if ends || ends_prompt {
                wanted.push(rows.len() as u32 - 1);
            }
        }
        if !rows.is_empty() {
            decoder.step(&rows, &wanted, &mut self.logits)?;
            self.statistics.steps += 1;
            self.statistics.computed_tokens += rows.len() as u64;
        }
        drop(rows);
        for chunk in &chunks {
            self.running[chunk.sequence].cached = chunk.to;
        }
        let vocabulary = decoder.vocabulary();
        for (sequence, row) in prompt_ends {
            self.publish_prompt(sequence, row * vocabulary..(row + 1) * vocabulary);
        }
        let picks = self.choose(decoder, &next);
        self.apply(&next, picks, version);
        Ok(())
    }

    /// Chooses the next token of each listed sequence; `None` where the logits are not finite.
    fn choose(&self, decoder: &impl Decoder, next: &[(usize, Source)]) -> Vec<Option<Pick>> {
        let vocabulary = decoder.vocabulary();
        let pick = |(index, source): &(usize, Source), scratch: &mut SampleScratch| {
            let sequence = &self.running[*index];
            let logits_v = match source {
                Source::Row(row) => &self.logits.as_slice()[row * vocabulary..(row + 1) * vocabulary],
                Source::Prompt(group) => self.prompts.get(group)?.logits_v.as_slice(),
            };
            sequence.sampler.pick(logits_v, sequence.forbidden(), sequence.uniform(), scratch)
        };
        let picks: Vec<OnceLock<Option<Pick>>> = next.iter().map(|_| OnceLock::new()).collect();
        let pieces = self.scratch.len();
        decoder.ctx().parallel_for(pieces.min(next.len()), |piece| {
            let mut scratch = self.scratch[piece].lock().unwrap_or_else(PoisonError::into_inner);
            for i in (piece..next.len()).step_by(pieces) {
                picks[i].get_or_init(|| pick(&next[i], &mut scratch));
            }
        });
        picks.into_iter().map(|cell| cell.into_inner().flatten()).collect()
    }

    /// Gives the chosen tokens to their sequences and answers those that are finished.
    fn apply(&mut self, next: &[(usize, Source)], picks: Vec<Option<Pick>>, version: PolicyVersion) {
        let mut ended: BTreeMap<Rank, Result<StopReason, RolloutError>> = BTreeMap::new();
        for ((index, _), pick) in next.iter().zip(picks) {
            let sequence = &mut self.running[*index];
            let outcome = match pick {
                Some(pick) => {
                    self.statistics.sampled_tokens += 1;
                    sequence.push(pick, version)
                }
                None => Err(RolloutError::NotFinite {
                    request: RequestName(sequence.key),
                    position: sequence.tokens.len(),
                    version,
                }),
            };
            if let Some(end) = outcome.transpose() {
                ended.insert(sequence.rank, end);
            }
        }
        if ended.is_empty() {
            return;
        }
        for sequence in std::mem::take(&mut self.running) {
            match ended.remove(&sequence.rank) {
                None => self.running.push(sequence),
                Some(Ok(stop)) => self.detach(sequence).finish(stop),
                Some(Err(error)) => self.detach(sequence).fail(error),
            }
        }
    }

    /// Keeps the prompt that a leader has just computed for the rest of its group.
    fn publish_prompt(&mut self, leader: usize, logits: Range<usize>) {
        let leader = &mut self.running[leader];
        leader.leads = false;
        let Some(prompt) = leader.group.and_then(|group| self.prompts.get_mut(&group)) else { return };
        prompt.leader = None;
        prompt.logits_v = self.logits.as_slice()[logits].to_vec();
        prompt.blocks = leader.blocks[..blocks_for(prompt.tokens.len())].to_vec();
        for &block in &prompt.blocks {
            self.pool.share(block);
        }
    }

    /// Answers every sequence for which `why` gives a reason with what it has.
    pub(crate) fn leave(&mut self, why: impl Fn(&Sequence) -> Option<StopReason>) {
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

    /// Ends the sequences that are to be aborted.
    pub(crate) fn abort(&mut self, which: Abort) {
        self.leave(|s| which.concerns(s.group, s.key).then_some(StopReason::Aborted));
    }

    /// Ends the sequences that have been started.
    pub(crate) fn abort_started(&mut self) {
        self.leave(|s| s.started.then_some(StopReason::Aborted));
    }
}

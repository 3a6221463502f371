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
//! 4. A draft takes no block that another running sequence may need next, and nothing is put back for one.
//! 5. What is put back keeps its tokens and its place in line. Its keys and values are recomputed to the same bits,
//!    since no kernel's result for a row depends on the rows that share the call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rloom_core::StopReason;
use rloom_model::{RowRequest, StepRow};
use rloom_ops::{HeadOutput, HeadRequest, KV_BLOCK};

use self::choice::{Choice, Source};
use crate::rollout::blocks::BlockPool;
use crate::rollout::decoder::{DecodeError, Decoder};
use crate::rollout::sampling::Prediction;
use crate::rollout::sequence::{Rank, Sequence};
use crate::rollout::speculation::Drafter;
use rloom_engine::{Abort, DraftStatistics, PolicyLabel, RolloutError, RolloutStatistics, Speculation};

mod admission;
mod choice;
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
    pub(crate) speculation: Speculation,
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

/// The tokens `from..to` of a running sequence, to be computed in this step, and the sequence's draft behind them.
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
    prompts: BTreeMap<u64, Prompt>,
    /// Sequences of each group in the lane.
    members: BTreeMap<u64, usize>,
    /// Groups of the sequences that have left since the last [`Batch::take_departed`].
    left: Vec<Option<u64>>,
    statistics: RolloutStatistics,
    /// What the head gave for the wanted rows of the last step.
    answers: HeadOutput,
    /// Where there is none, nothing is drafted.
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
            prompts: BTreeMap::new(),
            members: BTreeMap::new(),
            left: Vec::new(),
            statistics: RolloutStatistics { drafts, ..RolloutStatistics::default() },
            answers: HeadOutput::default(),
            drafter,
            choice: Choice::new(threads),
        }
    }

    /// Has it draft whatever it can, whether it pays or not.
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

    pub(crate) fn used_blocks(&self) -> usize {
        self.pool.total() - self.pool.free()
    }

    pub(crate) fn blocks(&self) -> usize {
        self.pool.total()
    }

    pub(crate) fn statistics(&self) -> RolloutStatistics {
        self.statistics
    }

    /// Starts anew with nothing but the statistics, after a failure that left it in a state unknown: the sequences that
    /// it still has.
    pub(crate) fn reset(&mut self) -> Vec<Sequence> {
        // What drafts are worth has been measured of the requests and the machine, not of what failed.
        let (statistics, drafter) = (self.statistics, self.drafter.take());
        let fresh = Self { statistics, drafter, ..Self::new(self.lane, self.limits, self.choice.threads()) };
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
    pub(crate) fn take_departed(&mut self) -> Vec<Option<u64>> {
        std::mem::take(&mut self.left)
    }

    /// Who is in the next step: ends what nobody waits for any more and starts what waits. With `only_started`,
    /// sequences that have not been started stay where they are.
    pub(crate) fn admit_ready(&mut self, decoder: &mut impl Decoder, only_started: bool) {
        self.leave(|s| s.is_cancelled().then_some(StopReason::Aborted));
        self.admit(decoder, only_started);
    }

    /// One step of those that run.
    ///
    /// An error is the decoder's; what the cache holds is then unknown.
    pub(crate) fn step(&mut self, decoder: &mut impl Decoder, label: PolicyLabel) -> Result<(), DecodeError> {
        let mut chunks = self.plan();
        self.draft(&mut chunks);
        let began = self.drafter.is_some().then(Instant::now);
        let vocabulary = decoder.vocabulary();
        let mut rows = Vec::with_capacity(chunks.iter().map(Chunk::rows).sum());
        let mut wanted = Vec::with_capacity(rows.capacity());
        let mut prompt_ends = Vec::new();
        let mut next = std::mem::take(&mut self.choice.next);
        // A sequence that has taken over its whole prompt has nothing to compute: its logits are the prompt's.
        next.clear();
        next.extend(self.running.iter().enumerate().filter_map(|(i, sequence)| {
            let group = sequence.group.filter(|_| sequence.cached == sequence.tokens.len())?;
            Some((i, Source::Prompt(group)))
        }));
        for chunk in &chunks {
            let sequence = &self.running[chunk.sequence];
            let end = chunk.to + chunk.drafted;
            rows.extend((chunk.from..end).map(|position| StepRow {
                token: sequence.token_or_draft(position),
                position: position as u32,
                blocks: &sequence.blocks,
            }));
            let ends_prompt = sequence.leads && chunk.to == sequence.prompt.len();
            let ends = chunk.to == sequence.tokens.len();
            if ends {
                next.push((chunk.sequence, Source::Rows(wanted.len())));
            }
            if ends_prompt {
                prompt_ends.push((chunk.sequence, wanted.len()));
            }
            if ends || ends_prompt {
                let first = rows.len() - 1 - chunk.drafted;
                wanted.extend((0..=chunk.drafted).map(|nth| RowRequest {
                    row: (first + nth) as u32,
                    // The rest of the group will choose by the logits after its prompt.
                    request: if ends_prompt {
                        HeadRequest::Logits
                    } else {
                        sequence.ask(sequence.tokens.len() + nth, vocabulary)
                    },
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
            self.running[chunk.sequence].cached = chunk.to;
            if let Some(drafts) = &mut self.statistics.drafts {
                drafts.drafted_tokens += chunk.drafted as u64;
            }
        }
        for (sequence, answer) in prompt_ends {
            self.publish_prompt(sequence, answer);
        }
        self.choice.next = next;
        self.choose(decoder);
        // What a prompt's rows cost is not what a row that decodes costs.
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

    /// Keeps the prompt that a leader has just computed for the rest of its group.
    fn publish_prompt(&mut self, leader: usize, answer: usize) {
        let leader = &mut self.running[leader];
        leader.leads = false;
        let Some(prompt) = leader.group.and_then(|group| self.prompts.get_mut(&group)) else { return };
        prompt.leader = None;
        if let Some(Prediction::Logits(logits_v)) = Prediction::of(&self.answers, answer) {
            prompt.logits_v = logits_v.to_vec();
        }
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

    /// Ends the sequences that are to be aborted.
    pub(crate) fn abort(&mut self, which: Abort) {
        self.leave(|s| which.selects(s.group, s.key).then_some(StopReason::Aborted));
    }

    /// Ends the sequences that have been started.
    pub(crate) fn abort_started(&mut self) {
        self.leave(|s| s.started.then_some(StopReason::Aborted));
    }
}

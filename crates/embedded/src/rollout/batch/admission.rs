//! Admission, preemption and allocation of blocks.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rloom_ops::KV_BLOCK;

use super::{Batch, Chunk, blocks_for};
use crate::rollout::blocks::{BlockPool, Prefix, common_tokens};
use crate::rollout::decoder::Decoder;
use crate::rollout::sequence::{Rank, Sequence};
use rloom_engine::{InvalidReason, PolicyLabel, RequestName, RolloutError};

impl Batch {
    /// Starts waiting sequences in order of rank, as far as places and blocks suffice.
    ///
    /// A new sequence leaves one block for every running sequence, itself included: otherwise the next few tokens would
    /// preempt it, and its prefill would be wasted.
    pub(super) fn admit(&mut self, decoder: &mut impl Decoder, only_started: bool) {
        let places = self.limits.max_batch.saturating_sub(self.running.len());
        if places == 0 || self.waiting.is_empty() {
            return;
        }
        let candidates: Vec<Rank> =
            self.waiting.values().filter(|s| s.started || !only_started).map(|s| s.rank).collect();
        let mut admitted = 0;
        for rank in candidates {
            if admitted == places {
                break;
            }
            let Some(sequence) = self.waiting.get(&rank) else { continue };
            // Later sequences do not have to wait with it.
            if self.is_being_computed(sequence) {
                continue;
            }
            let prefix = self.prefix_of(sequence);
            let Some(sequence) = self.waiting.remove(&rank) else { continue };
            match prefix {
                Some(prefix) => {
                    self.start(sequence, prefix, decoder);
                    admitted += 1;
                }
                None if self.running.is_empty() => {
                    // No block is held and all do not suffice: the check on submission is wrong.
                    let error = self.never_fits(&sequence);
                    self.detach(sequence).fail(error);
                }
                None => {
                    self.waiting.insert(rank, sequence);
                    break;
                }
            }
        }
    }

    /// True if an earlier running sequence is computing at least half of the tokens that this one would compute, and more
    /// than one: once they are computed, they are found.
    fn is_being_computed(&self, sequence: &Sequence) -> bool {
        if sequence.cache.carried.is_some() {
            return false;
        }
        let in_prefill =
            |other: &&Sequence| other.tokens.len() > other.cache.tokens + 1 && !other.cache.mixed;
        let earlier = self.running.iter().take_while(|other| other.rank < sequence.rank);
        earlier.filter(in_prefill).any(|other| {
            let reusable = &sequence.tokens[..sequence.tokens.len() - 1];
            let coming = common_tokens(reusable, &other.tokens).saturating_sub(other.cache.tokens);
            coming > 1 && 2 * coming >= sequence.tokens.len() - other.cache.tokens
        })
    }

    /// Tokens of the sequence that are in the cache, if the other blocks that it needs are available.
    fn prefix_of(&self, sequence: &Sequence) -> Option<Prefix> {
        let mut prefix = match sequence.cache.carried {
            // The last token is computed in any case, to sample the next one.
            None => self.pool.find(&sequence.tokens[..sequence.tokens.len() - 1]),
            Some(_) => Prefix::default(),
        };
        let headroom = if self.running.is_empty() { 0 } else { self.running.len() + 1 };
        let needed = blocks_for(sequence.tokens.len()) - prefix.blocks.len() + headroom;
        let available = self.pool.available_beside(&prefix);
        if available < needed {
            return None;
        }
        // A block is held while it is copied.
        prefix.partial = prefix.partial.filter(|&(block, _)| !self.pool.is_idle(block) || available > needed);
        Some(prefix)
    }

    /// Starts a sequence with blocks for all of its tokens, of which the cache has a prefix.
    fn start(&mut self, mut sequence: Sequence, prefix: Prefix, decoder: &mut impl Decoder) {
        debug_assert!(sequence.cache.blocks.is_empty() && sequence.cache.tokens == 0);
        sequence.cache.tokens = prefix.tokens();
        sequence.cache.recorded = prefix.blocks.len();
        sequence.cache.blocks = prefix.blocks;
        for &block in &sequence.cache.blocks {
            self.pool.share(block);
        }
        if let Some((block, _)) = prefix.partial {
            self.pool.share(block);
            if let Some(own) = self.pool.take() {
                decoder.copy_block(block, own);
                sequence.cache.blocks.push(own);
            }
            self.pool.release(block);
        }
        self.statistics.reused_tokens += sequence.cache.tokens as u64;
        while sequence.cache.blocks.len() < blocks_for(sequence.tokens.len()) {
            let Some(block) = self.pool.take() else { break };
            sequence.cache.blocks.push(block);
        }
        if let Some((carried, tokens)) = sequence.cache.carried.take() {
            decoder.copy_in(&carried, &sequence.cache.blocks[..blocks_for(tokens)]);
            sequence.cache.tokens = tokens;
        }
        sequence.start(self.lane);
        let place = self.running.partition_point(|other| other.rank < sequence.rank);
        self.running.insert(place, sequence);
    }

    /// Records the computed tokens of a running sequence, so that other sequences find them; with `partial`, also those of
    /// its last block.
    pub(super) fn record(&mut self, running: usize, partial: bool) {
        if let Some(sequence) = self.running.get_mut(running) {
            record(&mut self.pool, sequence, partial);
        }
    }

    /// Plans the tokens of this step in order of rank. Sequences that decode get the block that they need, by preemption
    /// of later ones if necessary.
    pub(super) fn plan(&mut self) -> Vec<Chunk> {
        let mut chunks = Vec::with_capacity(self.running.len());
        let mut budget = self.limits.prefill_chunk;
        let mut i = 0;
        while i < self.running.len() {
            let rank = self.running[i].rank;
            let from = self.running[i].cache.tokens;
            let missing = self.running[i].tokens.len() - from;
            let mut to = from + missing;
            if missing > 1 {
                to = from + missing.min(budget);
                budget -= to - from;
            }
            while self.running.get(i).is_some_and(|s| s.rank == rank && s.cache.blocks.len() < blocks_for(to))
            {
                match self.pool.take() {
                    Some(block) => self.running[i].cache.blocks.push(block),
                    None => self.preempt(),
                }
            }
            // The preempted sequence may have been this one.
            if self.running.get(i).is_some_and(|s| s.rank == rank) {
                if to > from {
                    chunks.push(Chunk { sequence: i, from, to, drafted: 0 });
                }
                i += 1;
            }
        }
        chunks
    }

    /// Adds drafts to the chunks of sequences that decode, as far as they pay off and blocks are free.
    pub(super) fn draft(&mut self, chunks: &mut [Chunk]) {
        let Some(drafter) = &mut self.drafter else { return };
        for chunk in &*chunks {
            let sequence = &mut self.running[chunk.sequence];
            if chunk.to - chunk.from == 1 && chunk.to == sequence.tokens.len() {
                sequence.look_up();
            } else {
                sequence.lookup.clear();
            }
        }
        let lookups = chunks.iter().map(|chunk| &self.running[chunk.sequence].lookup);
        let rows = chunks.iter().map(Chunk::rows).sum();
        let threshold = drafter.threshold(rows, self.running.len(), lookups);
        for chunk in chunks {
            let running = self.running.len();
            let sequence = &mut self.running[chunk.sequence];
            let mut drafted = drafter.length(&sequence.lookup, threshold);
            while drafted > 0 && sequence.cache.blocks.len() < blocks_for(chunk.to + drafted) {
                match self.pool.take_beyond(running) {
                    Some(block) => sequence.cache.blocks.push(block),
                    None => drafted -= 1,
                }
            }
            sequence.lookup.drafted = drafted;
            chunk.drafted = drafted;
        }
    }

    /// Preempts the last running sequence, whose blocks are then available. A single one that holds all blocks fails.
    fn preempt(&mut self) {
        match self.running.pop() {
            Some(sequence) if !self.running.is_empty() => {
                self.statistics.preempted += 1;
                self.requeue(sequence);
            }
            Some(sequence) => {
                let error = self.never_fits(&sequence);
                self.detach(sequence).fail(error);
            }
            None => {}
        }
    }

    /// Removes all records, since the weights change. Sequences that are still running continue with keys and values of
    /// both versions.
    pub(crate) fn forget_prefixes(&mut self) {
        self.pool.forget_all();
        for sequence in &mut self.running {
            sequence.cache.mixed = true;
        }
    }

    /// Frees a sequence's blocks and moves it back to the waiting ones.
    fn requeue(&mut self, mut sequence: Sequence) {
        self.release_cache(&mut sequence);
        self.waiting.insert(sequence.rank, sequence);
    }

    /// Moves all running sequences back to the waiting ones: the contents of the cache are obsolete.
    pub(crate) fn requeue_all(&mut self) {
        for sequence in std::mem::take(&mut self.running) {
            self.requeue(sequence);
        }
    }

    /// Moves running sequences without a sampled token back to the waiting ones, so that sequences that sample their first
    /// token with new weights use keys and values of these weights only.
    pub(crate) fn requeue_without_tokens(&mut self) {
        for sequence in std::mem::take(&mut self.running) {
            if sequence.has_sampled() {
                self.running.push(sequence);
            } else {
                self.requeue(sequence);
            }
        }
    }

    /// Removes half of the sequences, those with the fewest cached tokens, for another lane that has these weights. Their
    /// keys and values go with them if the decoder can copy them. Sequences with tokens of other versions stay.
    pub(crate) fn split_off_half(&mut self, decoder: &impl Decoder, label: PolicyLabel) -> Vec<Sequence> {
        let all = self.running.iter().chain(self.waiting.values());
        let mut ranks: Vec<(usize, Reverse<Rank>)> =
            all.filter(|s| s.is_of(label)).map(|s| (s.cache.tokens, Reverse(s.rank))).collect();
        ranks.sort_unstable();
        let all = self.running.len() + self.waiting.len();
        ranks.truncate(all / 2);
        let chosen: BTreeSet<Rank> = ranks.into_iter().map(|(_, Reverse(rank))| rank).collect();
        let (mut leaving, staying): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|s| chosen.contains(&s.rank));
        self.running = staying;
        for sequence in &mut leaving {
            let held = &sequence.cache.blocks[..blocks_for(sequence.cache.tokens)];
            sequence.cache.carried = decoder.copy_out(held).map(|copy| (copy, sequence.cache.tokens));
        }
        leaving.extend(chosen.iter().filter_map(|rank| self.waiting.remove(rank)));
        self.statistics.migrated += leaving.len() as u64;
        for sequence in &mut leaving {
            self.release_cache(sequence);
        }
        leaving
    }

    /// Drops keys and values that waiting sequences have brought from other lanes, since the weights change.
    pub(crate) fn drop_carried_caches(&mut self) {
        for sequence in self.waiting.values_mut() {
            sequence.cache.carried = None;
        }
    }

    /// Removes a sequence that is neither waiting nor running from the accounting.
    pub(super) fn detach(&mut self, mut sequence: Sequence) -> Sequence {
        self.left.push(sequence.group);
        self.release_cache(&mut sequence);
        sequence
    }

    /// Releases a sequence's blocks. They stay recorded under its tokens.
    fn release_cache(&mut self, sequence: &mut Sequence) {
        record(&mut self.pool, sequence, true);
        self.pool.release_all(&mut sequence.cache.blocks);
        sequence.cache.tokens = 0;
        sequence.cache.recorded = 0;
        sequence.cache.mixed = false;
        sequence.lookup.clear();
    }

    fn never_fits(&self, sequence: &Sequence) -> RolloutError {
        RolloutError::InvalidRequest {
            request: RequestName(sequence.key),
            reason: InvalidReason::ExceedsCache {
                tokens: sequence.tokens.len(),
                needed: blocks_for(sequence.tokens.len()),
                block: rloom_ops::KV_BLOCK,
                blocks: self.pool.total(),
            },
        }
    }
}

/// Records the computed tokens of a sequence, so that other sequences find them; with `partial`, also those of its last
/// block. If another block with the same tokens was recorded before, the sequence continues with that one.
fn record(pool: &mut BlockPool, sequence: &mut Sequence, partial: bool) {
    if sequence.cache.mixed {
        return;
    }
    let cache = &mut sequence.cache;
    let mut parent = cache.recorded.checked_sub(1).map(|last| cache.blocks[last]);
    let mut unrecorded = sequence.tokens[cache.recorded * KV_BLOCK..cache.tokens].chunks_exact(KV_BLOCK);
    for tokens in &mut unrecorded {
        let own = cache.blocks[cache.recorded];
        let recorded = pool.record(parent, tokens, own);
        if recorded != own {
            pool.share(recorded);
            pool.release(own);
            cache.blocks[cache.recorded] = recorded;
        }
        cache.recorded += 1;
        parent = Some(recorded);
    }
    let rest = unrecorded.remainder();
    if partial && !rest.is_empty() {
        pool.record(parent, rest, cache.blocks[cache.recorded]);
    }
}

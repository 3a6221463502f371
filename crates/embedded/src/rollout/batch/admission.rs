//! Admission, preemption and allocation of blocks.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Batch, Chunk, Prompt, blocks_for};
use crate::rollout::decoder::Decoder;
use crate::rollout::sequence::{Rank, Sequence};
use rloom_engine::{InvalidReason, PolicyLabel, RequestName, RolloutError};

/// Relation of a sequence to its group's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Shares nothing.
    Alone,
    /// Computes the prompt for the group.
    Lead(u64),
    /// Waits for another sequence that computes the prompt.
    Wait,
    /// Uses the computed prompt.
    Follow(u64),
}

impl Batch {
    /// Starts waiting sequences in order of rank, as far as places and blocks suffice.
    ///
    /// A new sequence leaves one free block for every running sequence, itself included: otherwise the next few tokens
    /// would preempt it, and its prefill would be wasted.
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
            let Some(sequence) = self.waiting.remove(&rank) else { continue };
            match self.make_room(&sequence) {
                // Sequences of other groups do not have to wait with it.
                Some(Share::Wait) => {
                    self.waiting.insert(rank, sequence);
                }
                Some(share) => {
                    self.start(sequence, share, decoder);
                    admitted += 1;
                }
                None if self.running.is_empty() => {
                    // All blocks are free and do not suffice: the check on submission is wrong.
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

    /// Relation in which the sequence can start now; `None` if blocks do not suffice. If nothing is running, prompts are
    /// dropped until they do.
    fn make_room(&mut self, sequence: &Sequence) -> Option<Share> {
        loop {
            let share = self.share_of(sequence);
            let shared = match share {
                Share::Wait => return Some(share),
                Share::Follow(_) => sequence.prompt.len() / rloom_ops::KV_BLOCK,
                Share::Alone | Share::Lead(_) => 0,
            };
            let needed = blocks_for(sequence.tokens.len()) - shared;
            let headroom = if self.running.is_empty() { 0 } else { self.running.len() + 1 };
            if self.pool.free() >= needed + headroom {
                return Some(share);
            }
            if !(self.running.is_empty() && self.drop_a_prompt(true)) {
                return None;
            }
        }
    }

    fn share_of(&self, sequence: &Sequence) -> Share {
        if sequence.cache.carried.is_some() {
            return Share::Alone;
        }
        let Some(group) = sequence.group else { return Share::Alone };
        match self.prompts.get(&group) {
            None => Share::Lead(group),
            // Requests of a group should have equal prompts; one that differs shares nothing and is still correct.
            Some(prompt) if prompt.tokens != sequence.prompt => Share::Alone,
            Some(prompt) if prompt.leader.is_some() => Share::Wait,
            Some(_) => Share::Follow(group),
        }
    }

    /// Starts a sequence, with blocks for all of its tokens.
    fn start(&mut self, mut sequence: Sequence, share: Share, decoder: &mut impl Decoder) {
        debug_assert!(sequence.cache.blocks.is_empty() && sequence.cache.tokens == 0);
        match share {
            Share::Lead(group) => {
                sequence.leads = true;
                let tokens = Arc::clone(&sequence.prompt);
                let leader = Some(sequence.rank);
                self.prompts
                    .insert(group, Prompt { tokens, leader, blocks: Vec::new(), logits_v: Vec::new() });
            }
            Share::Follow(group) => {
                if let Some(prompt) = self.prompts.get(&group) {
                    let full = prompt.tokens.len() / rloom_ops::KV_BLOCK;
                    for &block in &prompt.blocks[..full] {
                        self.pool.share(block);
                        sequence.cache.blocks.push(block);
                    }
                    if let Some(&partial) = prompt.blocks.get(full)
                        && let Some(own) = self.pool.take()
                    {
                        decoder.copy_block(partial, own);
                        sequence.cache.blocks.push(own);
                    }
                    sequence.cache.tokens = prompt.tokens.len();
                    self.statistics.shared_tokens += sequence.cache.tokens as u64;
                }
            }
            Share::Alone | Share::Wait => {}
        }
        while sequence.cache.blocks.len() < blocks_for(sequence.tokens.len()) {
            let Some(block) = self.pool.take() else { break };
            sequence.cache.blocks.push(block);
        }
        if let Some((carried, tokens)) = sequence.cache.carried.take() {
            decoder.copy_in(&carried, &sequence.cache.blocks[..blocks_for(tokens)]);
            sequence.cache.tokens = tokens;
        }
        sequence.started = true;
        sequence.progress.start(self.lane);
        let place = self.running.partition_point(|other| other.rank < sequence.rank);
        self.running.insert(place, sequence);
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
                // A leader stops at the prompt's end, since the whole group needs the logits there.
                if self.running[i].leads {
                    to = to.min(self.running[i].prompt.len());
                }
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
            if chunk.to - chunk.from == 1 && chunk.to == sequence.tokens.len() && !sequence.leads {
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

    /// Frees at least one block, unless a single sequence holds all of them, which then fails.
    fn preempt(&mut self) {
        if self.drop_a_prompt(false) {
            return;
        }
        match self.running.pop() {
            Some(sequence) if !self.running.is_empty() => {
                self.statistics.preempted += 1;
                self.requeue(sequence);
            }
            Some(sequence) if self.prompts.is_empty() => {
                let error = self.never_fits(&sequence);
                self.detach(sequence).fail(error);
            }
            Some(sequence) => {
                self.running.push(sequence);
                self.drop_prompts();
            }
            None => {}
        }
    }

    /// Drops one group's finished prompt: one that no running sequence shares, or any if `any` is true.
    fn drop_a_prompt(&mut self, any: bool) -> bool {
        let unused = self.prompts.iter().find_map(|(&group, prompt)| {
            let used = || self.running.iter().any(|s| s.group == Some(group));
            (prompt.leader.is_none() && (any || !used())).then_some(group)
        });
        let Some(group) = unused else { return false };
        self.drop_prompt(group);
        true
    }

    fn drop_prompt(&mut self, group: u64) {
        if let Some(mut prompt) = self.prompts.remove(&group) {
            self.pool.free_all(&mut prompt.blocks);
        }
    }

    /// Drops all prompts, also those that are being computed.
    pub(crate) fn drop_prompts(&mut self) {
        for mut prompt in std::mem::take(&mut self.prompts).into_values() {
            self.pool.free_all(&mut prompt.blocks);
        }
        for sequence in &mut self.running {
            sequence.leads = false;
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
        self.drop_prompts();
    }

    /// Moves running sequences without a sampled token back to the waiting ones and drops the prompts, so that sequences
    /// that sample their first token with new weights use keys and values of these weights only.
    pub(crate) fn requeue_without_tokens(&mut self) {
        for sequence in std::mem::take(&mut self.running) {
            if sequence.has_sampled() {
                self.running.push(sequence);
            } else {
                self.requeue(sequence);
            }
        }
        self.drop_prompts();
    }

    /// Removes half of the sequences, those with the fewest cached tokens, for another lane that has these weights. Their
    /// keys and values go with them if the decoder can copy them. Sequences with tokens of other versions stay.
    pub(crate) fn split_off_half(&mut self, decoder: &impl Decoder, label: PolicyLabel) -> Vec<Sequence> {
        let all = self.running.iter().chain(self.waiting.values());
        let mut ranks: Vec<(usize, Reverse<Rank>)> =
            all.filter(|s| !s.leads && s.is_of(label)).map(|s| (s.cache.tokens, Reverse(s.rank))).collect();
        ranks.sort_unstable();
        let all = self.running.len() + self.waiting.len();
        ranks.truncate(all / 2);
        let chosen: BTreeSet<Rank> = ranks.into_iter().map(|(_, Reverse(rank))| rank).collect();
        let (mut leaving, staying): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|s| chosen.contains(&s.rank));
        self.running = staying;
        for sequence in &mut leaving {
            let held = &sequence.cache.blocks[..blocks_for(sequence.cache.tokens)];
            sequence.cache.carried = decoder
                .copy_out(held)
                .map(|copy| (copy, sequence.cache.tokens.min(sequence.tokens.len() - 1)));
        }
        leaving.extend(chosen.iter().filter_map(|rank| self.waiting.remove(rank)));
        self.statistics.migrated += leaving.len() as u64;
        leaving.into_iter().map(|sequence| self.deregister(sequence)).collect()
    }

    /// Drops keys and values that waiting sequences have brought from other lanes, since the weights change.
    pub(crate) fn drop_carried_caches(&mut self) {
        for sequence in self.waiting.values_mut() {
            sequence.cache.carried = None;
        }
    }

    /// Removes a sequence that is neither waiting nor running from the accounting.
    pub(super) fn detach(&mut self, sequence: Sequence) -> Sequence {
        self.left.push(sequence.group);
        self.deregister(sequence)
    }

    fn deregister(&mut self, mut sequence: Sequence) -> Sequence {
        self.release_cache(&mut sequence);
        if let Some(group) = sequence.group {
            let members = self.members.entry(group).or_default();
            *members -= 1;
            if *members == 0 {
                self.members.remove(&group);
                self.drop_prompt(group);
            }
        }
        sequence
    }

    /// Frees a sequence's part of the cache.
    fn release_cache(&mut self, sequence: &mut Sequence) {
        self.pool.free_all(&mut sequence.cache.blocks);
        sequence.cache.tokens = 0;
        sequence.lookup.clear();
        // A prompt without its leader is never completed; the next sequence of the group starts over.
        if std::mem::take(&mut sequence.leads)
            && let Some(group) = sequence.group
        {
            self.drop_prompt(group);
        }
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

//! Allocation of the blocks of the key-value cache, and the prefixes that they hold.
//!
//! A block whose keys and values are computed is recorded under the tokens it holds and the block before it. It stays
//! after its sequences have ended, until its memory is needed: the least recently used block is given up first. A later
//! sequence with the same first tokens finds it: the next turn of a conversation, another sample of the same prompt, a
//! repeated request or one that was preempted. Lookups compare the tokens themselves.
//!
//! Every block is in one of three states: free, idle (recorded, and no sequence holds it), or held by sequences. A
//! sequence that holds a recorded block also holds the recorded blocks before it, and releases them later. The least
//! recently used idle block is therefore never one that another recorded block continues.

use std::collections::BTreeMap;
use std::ops::Bound;

use rloom_ops::KV_BLOCK;

/// Blocks by their tokens. No entry's tokens begin with all tokens of another entry.
type Children = BTreeMap<Box<[u32]>, u32>;

/// Content of a block: the tokens after those of another block.
#[derive(Debug)]
struct Record {
    /// The block before it; `None` at the start of a sequence.
    parent: Option<u32>,
    /// At most [`KV_BLOCK`] tokens; a block with fewer has no children. A sequence may still append to it.
    tokens: Box<[u32]>,
    children: Children,
}

/// Blocks that hold the first tokens of a sequence.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Full blocks, in order.
    pub(crate) blocks: Vec<u32>,
    /// A block whose first tokens continue them, and their number: to be copied, since another sequence may write to it or
    /// continue it with other tokens.
    pub(crate) partial: Option<(u32, usize)>,
}

impl Prefix {
    /// Number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.blocks.len() * KV_BLOCK + self.partial.map_or(0, |(_, tokens)| tokens)
    }
}

/// A fixed number of blocks: the sequences that hold each, and the recorded content.
///
/// Free blocks are allocated last-in first-out, starting with the lowest ids, before idle ones are given up.
#[derive(Debug)]
pub(crate) struct BlockPool {
    /// Number of sequences that hold each block.
    holders: Vec<u32>,
    free: Vec<u32>,
    records: Vec<Option<Record>>,
    /// Recorded blocks at the start of a sequence.
    roots: Children,
    /// Idle blocks by the time of their last use.
    idle: BTreeMap<u64, u32>,
    /// Time of the last use of each idle block.
    used: Vec<u64>,
    clock: u64,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            holders: vec![0; blocks],
            free: (0..blocks as u32).rev().collect(),
            records: (0..blocks).map(|_| None).collect(),
            roots: Children::new(),
            idle: BTreeMap::new(),
            used: vec![0; blocks],
            clock: 0,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.holders.len()
    }

    /// Number of blocks that can be allocated: free and idle ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Number of blocks that can be allocated once a sequence holds this prefix.
    pub(crate) fn available_beside(&self, prefix: &Prefix) -> usize {
        self.available() - prefix.blocks.iter().filter(|&&block| self.is_idle(block)).count()
    }

    /// True if no sequence holds this recorded block.
    pub(crate) fn is_idle(&self, block: u32) -> bool {
        self.holders[block as usize] == 0 && self.records[block as usize].is_some()
    }

    /// Allocates a block with one holder; gives up the least recently used idle block if none is free.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = self.free.pop().or_else(|| {
            let (_, block) = self.idle.pop_first()?;
            self.forget(block);
            Some(block)
        })?;
        debug_assert_eq!(self.holders[block as usize], 0);
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Allocates a block if more than `reserve` are available.
    pub(crate) fn take_beyond(&mut self, reserve: usize) -> Option<u32> {
        if self.available() > reserve { self.take() } else { None }
    }

    /// Adds a holder to a held or idle block.
    pub(crate) fn share(&mut self, block: u32) {
        debug_assert!(
            self.holders[block as usize] > 0 || self.records[block as usize].is_some(),
            "block {block} is free"
        );
        if self.is_idle(block) {
            self.idle.remove(&self.used[block as usize]);
        }
        self.holders[block as usize] += 1;
    }

    /// Removes a holder. Without the last one, a recorded block is idle and any other is free.
    pub(crate) fn release(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        debug_assert!(*holders > 0, "block {block} is free already");
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        if self.records[block as usize].is_some() {
            self.clock += 1;
            self.used[block as usize] = self.clock;
            self.idle.insert(self.clock, block);
        } else {
            self.free.push(block);
        }
    }

    /// Releases all blocks of a holder, from the last to the first: the lowest free one is allocated first again, and a
    /// block is given up before those that precede it.
    pub(crate) fn release_all(&mut self, blocks: &mut Vec<u32>) {
        while let Some(block) = blocks.pop() {
            self.release(block);
        }
    }

    /// Blocks that hold the longest recorded prefix of these tokens.
    pub(crate) fn find(&self, tokens: &[u32]) -> Prefix {
        let mut prefix = Prefix::default();
        let mut rest = tokens;
        let mut children = &self.roots;
        while let Some((first, after)) = rest.split_at_checked(KV_BLOCK)
            && let Some(&block) = children.get(first)
            && let Some(record) = &self.records[block as usize]
        {
            prefix.blocks.push(block);
            (children, rest) = (&record.children, after);
        }
        // In lexicographic order, the entry with the longest common prefix is next to the tokens.
        let next = &rest[..rest.len().min(KV_BLOCK)];
        let before = children.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(next))).next_back();
        let after = children.range::<[u32], _>((Bound::Included(next), Bound::Unbounded)).next();
        let neighbours = before.into_iter().chain(after);
        let longest = neighbours
            .map(|(held, &block)| (common_tokens(held, next), block))
            .max_by_key(|&(tokens, _)| tokens);
        prefix.partial = longest.filter(|&(tokens, _)| tokens > 0).map(|(tokens, block)| (block, tokens));
        prefix
    }

    /// Records that a held block has these tokens, which follow those of `parent`. Returns the block that holds them: this
    /// one, or one that was recorded with the same tokens before.
    pub(crate) fn record(&mut self, parent: Option<u32>, tokens: &[u32], block: u32) -> u32 {
        debug_assert!(self.holders[block as usize] > 0 && tokens.len() <= KV_BLOCK);
        let Some(children) = self.children_mut(parent) else { return block };
        let same_or_longer = children.range::<[u32], _>((Bound::Included(tokens), Bound::Unbounded)).next();
        if let Some((held, &other)) = same_or_longer
            && held.starts_with(tokens)
        {
            return other;
        }
        let shorter = children.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(tokens))).next_back();
        if let Some((held, &other)) = shorter
            && tokens.starts_with(held)
        {
            self.forget(other);
            if self.holders[other as usize] == 0 {
                self.idle.remove(&self.used[other as usize]);
                self.free.push(other);
            }
        }
        if let Some(children) = self.children_mut(parent) {
            children.insert(tokens.into(), block);
        }
        self.records[block as usize] =
            Some(Record { parent, tokens: tokens.into(), children: Children::new() });
        block
    }

    /// Removes all records, since keys and values of other weights are not for new sequences. Idle blocks are free.
    pub(crate) fn forget_all(&mut self) {
        self.records.fill_with(|| None);
        self.roots.clear();
        self.free.extend(std::mem::take(&mut self.idle).into_values());
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Removes the record of a block without children.
    fn forget(&mut self, block: u32) {
        if let Some(record) = self.records[block as usize].take() {
            debug_assert!(record.children.is_empty(), "block {block} is continued by others");
            if let Some(siblings) = self.children_mut(record.parent) {
                siblings.remove(&record.tokens);
            }
        }
    }

    /// Blocks that continue a recorded one, or begin a sequence.
    fn children_mut(&mut self, parent: Option<u32>) -> Option<&mut Children> {
        match parent {
            None => Some(&mut self.roots),
            Some(parent) => self.records[parent as usize].as_mut().map(|record| &mut record.children),
        }
    }
}

/// Number of equal first tokens.
pub(crate) fn common_tokens(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tokens of a whole block.
    fn full(first: u32) -> Vec<u32> {
        (first..first + KV_BLOCK as u32).collect()
    }

    /// Holds blocks with these tokens, recorded in pieces of a block, and returns them.
    fn hold(pool: &mut BlockPool, tokens: &[u32]) -> Vec<u32> {
        let mut held: Vec<u32> = Vec::new();
        for piece in tokens.chunks(KV_BLOCK) {
            let own = pool.take().unwrap();
            let recorded = pool.record(held.last().copied(), piece, own);
            if recorded != own && piece.len() == KV_BLOCK {
                pool.share(recorded);
                pool.release(own);
                held.push(recorded);
            } else {
                held.push(own);
            }
        }
        held
    }

    #[test]
    fn low_blocks_come_first() {
        let mut pool = BlockPool::new(4);
        let mut held: Vec<u32> = (0..3).filter_map(|_| pool.take()).collect();
        assert_eq!(held, [0, 1, 2]);
        pool.release_all(&mut held);
        assert_eq!(pool.take(), Some(0));
        let mut held = hold(&mut pool, &[full(0), full(20)].concat());
        pool.release_all(&mut held);
        pool.release(0);
        pool.forget_all();
        assert_eq!([(); 4].map(|()| pool.take()), [0, 1, 2, 3].map(Some), "also after records are removed");
    }

    #[test]
    fn a_prefix_is_found_by_its_tokens() {
        let mut pool = BlockPool::new(10);
        let mut held = hold(&mut pool, &[full(0), full(20), full(40)[..5].to_vec()].concat());
        let prefix = |blocks: &[u32], partial| Prefix { blocks: blocks.to_vec(), partial };
        assert_eq!(pool.find(&full(0)), prefix(&[0], None));
        assert_eq!(pool.find(&[full(0), full(20), full(40)].concat()), prefix(&[0, 1], Some((2, 5))));
        assert_eq!(pool.find(&[full(0), full(20), vec![40, 41, 7]].concat()), prefix(&[0, 1], Some((2, 2))));
        assert_eq!(pool.find(&[full(0), full(20)].concat()[..30]), prefix(&[0], Some((1, 14))));
        assert_eq!(pool.find(&[0, 1, 2, 9]), prefix(&[], Some((0, 3))));
        assert_eq!(pool.find(&[]), Prefix::default());
        // The same tokens after others are another content.
        assert_eq!(pool.find(&[full(0), full(40)].concat()), prefix(&[0], None));
        assert_eq!(pool.find(&full(20)), Prefix::default());
        // Equal content is recorded once, a longer one replaces a shorter one.
        let again = hold(&mut pool, &[full(0), full(20), full(40)].concat());
        assert_eq!(again[..2], held[..2]);
        assert_eq!(pool.find(&[full(0), full(20), full(40)].concat()), prefix(&again, None));
        pool.release_all(&mut held);
        assert_eq!(pool.available(), 7, "the replaced block is free");
        pool.forget_all();
        assert_eq!(pool.find(&full(0)), Prefix::default());
        assert_eq!(pool.available(), 7, "held blocks stay with their sequence");
    }

    #[test]
    fn the_least_recently_used_blocks_are_given_up_first() {
        let mut pool = BlockPool::new(6);
        let [mut first, mut second] =
            [0, 100].map(|from| hold(&mut pool, &[full(from), full(from + 50)].concat()));
        pool.release_all(&mut first);
        pool.release_all(&mut second);
        // A use of the first makes the second the older one.
        let found = pool.find(&full(0));
        found.blocks.iter().for_each(|&block| pool.share(block));
        found.blocks.iter().for_each(|&block| pool.release(block));
        let held = |pool: &BlockPool| {
            [0, 100].map(|from| pool.find(&[full(from), full(from + 50)].concat()).blocks.len())
        };
        let mut seen = Vec::new();
        while pool.take().is_some() {
            seen.push(held(&pool));
        }
        assert_eq!(
            seen,
            [[2, 2], [2, 2], [1, 2], [1, 1], [1, 0], [0, 0]],
            "the end of a sequence before its start"
        );
    }

    /// Chains of tokens over a small alphabet of blocks, so that many share prefixes.
    fn chains() -> impl Strategy<Value = Vec<Vec<u32>>> {
        let chain = (proptest::collection::vec(0u32..2, 0..3), 0usize..KV_BLOCK, 0u32..3);
        let chain = chain.prop_map(|(blocks, rest, tail)| {
            let mut tokens: Vec<u32> = blocks.iter().flat_map(|&b| full(b * 7)).collect();
            tokens.extend((0..rest as u32).map(|i| if i < 4 { i } else { i + tail }));
            tokens
        });
        proptest::collection::vec(chain, 1..6)
    }

    proptest! {
        /// After any sequence of operations a block is free exactly if it has no holder.
        #[test]
        fn counts_agree_with_a_list_of_holders(moves in proptest::collection::vec((0u8..3, 0usize..64), 0..200)) {
            let mut pool = BlockPool::new(7);
            let mut held: Vec<u32> = Vec::new();
            for (kind, pick) in moves {
                match kind {
                    0 => match pool.take() {
                        Some(block) => { prop_assert!(!held.contains(&block)); held.push(block); }
                        None => prop_assert!((0..7).all(|b| held.contains(&b))),
                    },
                    1 if !held.is_empty() => { let b = held[pick % held.len()]; pool.share(b); held.push(b); }
                    2 if !held.is_empty() => { let b = held.swap_remove(pick % held.len()); pool.release(b); }
                    _ => {}
                }
                let distinct = (0..7).filter(|b| held.contains(b)).count();
                prop_assert_eq!(pool.available(), 7 - distinct);
            }
        }

        /// Sequences that hold, find and release chains: what is found was written to the blocks and not overwritten, held
        /// blocks are never allocated again, and as long as nothing is given up, everything recorded is found.
        #[test]
        fn what_is_found_is_what_was_written(
            chains in chains(), moves in proptest::collection::vec((0u8..5, 0usize..64), 1..80), blocks in 4usize..40,
        ) {
            let mut pool = BlockPool::new(blocks);
            // Content of each block, as a cache has it.
            let mut written: Vec<Vec<u32>> = vec![Vec::new(); blocks];
            let mut sequences: Vec<Vec<u32>> = Vec::new();
            let mut recorded: Vec<Vec<u32>> = Vec::new();
            let mut given_up = false;
            for (kind, pick) in moves {
                match kind {
                    0 if !sequences.is_empty() => {
                        let mut held = sequences.swap_remove(pick % sequences.len());
                        pool.release_all(&mut held);
                    }
                    1 if pick == 0 => { pool.forget_all(); recorded.clear(); sequences.clear(); given_up = true; pool = BlockPool::new(blocks); }
                    _ => {
                        let tokens = &chains[pick % chains.len()];
                        let prefix = pool.find(tokens);
                        let content: Vec<u32> = prefix.blocks.iter().flat_map(|&b| written[b as usize].clone()).collect();
                        prop_assert_eq!(&content, &tokens[..content.len()]);
                        if let Some((block, common)) = prefix.partial {
                            prop_assert_eq!(&written[block as usize][..common], &tokens[content.len()..content.len() + common]);
                        }
                        if !given_up {
                            let longest = recorded.iter().map(|other| common_tokens(other, tokens)).max().unwrap_or(0);
                            prop_assert_eq!(prefix.tokens(), longest);
                        }
                        let mut held = prefix.blocks;
                        for &block in &held {
                            pool.share(block);
                        }
                        let before = pool.available();
                        for piece in tokens[held.len() * KV_BLOCK..].chunks(KV_BLOCK) {
                            given_up |= pool.free.is_empty();
                            let Some(own) = pool.take() else { break };
                            prop_assert!(!held.contains(&own) && sequences.iter().all(|other| !other.contains(&own)));
                            written[own as usize] = piece.to_vec();
                            let at = pool.record(held.last().copied(), piece, own);
                            if at != own && piece.len() == KV_BLOCK {
                                pool.share(at);
                                pool.release(own);
                                held.push(at);
                            } else {
                                held.push(own);
                            }
                        }
                        prop_assert!(pool.available() <= before);
                        if held.len() == tokens.len().div_ceil(KV_BLOCK) {
                            recorded.push(tokens.clone());
                        }
                        sequences.push(held);
                    }
                }
                let distinct = (0..blocks as u32).filter(|b| sequences.iter().any(|s| s.contains(b))).count();
                prop_assert_eq!(pool.available(), blocks - distinct);
                prop_assert_eq!(pool.idle.len(), (0..blocks as u32).filter(|&b| pool.is_idle(b)).count());
            }
        }
    }
}

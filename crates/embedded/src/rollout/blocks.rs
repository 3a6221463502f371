//! Allocation of the blocks of the key-value cache.

/// Reference counts over a fixed number of blocks.
///
/// Free blocks are allocated last-in first-out, starting with the lowest ids: a lane that needs little memory keeps using
/// the same pages, whatever the size of the pool.
#[derive(Debug)]
pub(crate) struct BlockPool {
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize) -> Self {
        Self { holders: vec![0; blocks], free: (0..blocks as u32).rev().collect() }
    }

    pub(crate) fn total(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Allocates a block with one holder.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        debug_assert_eq!(self.holders[block as usize], 0);
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Allocates a block if more than `reserve` are free.
    pub(crate) fn take_beyond(&mut self, reserve: usize) -> Option<u32> {
        if self.free.len() > reserve { self.take() } else { None }
    }

    /// Adds a holder.
    pub(crate) fn share(&mut self, block: u32) {
        debug_assert!(self.holders[block as usize] > 0, "block {block} is free");
        self.holders[block as usize] += 1;
    }

    /// Removes a holder; the last one frees the block.
    pub(crate) fn release(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        debug_assert!(*holders > 0, "block {block} is free already");
        *holders -= 1;
        if *holders == 0 {
            self.free.push(block);
        }
    }

    /// Frees all blocks of a holder, so that the lowest is allocated first again.
    pub(crate) fn free_all(&mut self, blocks: &mut Vec<u32>) {
        while let Some(block) = blocks.pop() {
            self.release(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn low_blocks_come_first() {
        let mut pool = BlockPool::new(4);
        let mut held: Vec<u32> = (0..3).filter_map(|_| pool.take()).collect();
        assert_eq!(held, [0, 1, 2]);
        pool.free_all(&mut held);
        assert_eq!(pool.take(), Some(0));
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
                prop_assert_eq!(pool.free(), 7 - distinct);
            }
        }
    }
}

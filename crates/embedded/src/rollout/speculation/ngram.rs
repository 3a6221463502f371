//! Index of earlier occurrences of a sequence's last tokens.

/// Length of the longest run of tokens that is looked up; shorter runs are the fallback.
pub(crate) const ORDERS: usize = 3;

/// Maximum number of entries per order; newer ones replace older ones.
const MOST_SLOTS: usize = 1 << 14;

/// Last occurrence of each run of 1 to [`ORDERS`] tokens of a sequence. An entry may have been overwritten by another run
/// with the same hash, so lookups compare the tokens.
#[derive(Debug, Default)]
pub(crate) struct NgramIndex {
    /// Position after the run, by order (length minus one) and hash; 0 if there is none.
    slots: [Vec<u32>; ORDERS],
    /// Number of indexed tokens.
    indexed: usize,
}

/// An earlier occurrence of a sequence's last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occurrence {
    /// Number of matching tokens minus one.
    pub(crate) order: usize,
    /// The position after it.
    pub(crate) next: usize,
}

impl NgramIndex {
    /// Indexes the tokens added since the last call, of a sequence of at most `most` tokens. Returns the latest earlier
    /// occurrence of the longest matching run of last tokens.
    pub(crate) fn catch_up(&mut self, tokens: &[u32], most: usize) -> Option<Occurrence> {
        if self.slots[0].is_empty() {
            let slots = (2 * most.max(tokens.len())).next_power_of_two().clamp(64, MOST_SLOTS);
            self.slots = std::array::from_fn(|_| vec![0; slots]);
        }
        let mut found = None;
        for end in self.indexed + 1..=tokens.len() {
            found = None;
            for (order, slots) in self.slots.iter_mut().enumerate() {
                let Some(start) = end.checked_sub(order + 1) else { break };
                let run = &tokens[start..end];
                let at = hash(run) & (slots.len() - 1);
                let earlier = std::mem::replace(&mut slots[at], end as u32) as usize;
                if earlier > order && tokens[earlier - order - 1..earlier] == *run {
                    found = Some(Occurrence { order, next: earlier });
                }
            }
        }
        self.indexed = tokens.len();
        found
    }
}

fn hash(run: &[u32]) -> usize {
    let mix = |hash: u64, &token: &u32| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (run.iter().fold(0x51ed_270b, mix) >> 40) as usize
}

/// The `length` tokens that followed an occurrence. If the sequence ends before, the draft continues with its own tokens:
/// repetitions tend to continue.
pub(crate) fn follow(tokens: &[u32], next: usize, length: usize, draft: &mut Vec<u32>) {
    draft.clear();
    for i in next..next + length {
        let token = tokens.get(i).or_else(|| draft.get(i - tokens.len())).copied();
        draft.extend(token);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Searches all positions, the latest first.
    fn search(tokens: &[u32]) -> Option<Occurrence> {
        (0..ORDERS).rev().find_map(|order| {
            let last = tokens.len().checked_sub(order + 1).map(|start| &tokens[start..])?;
            let next = (order + 1..tokens.len()).rev().find(|&end| tokens[end - order - 1..end] == *last)?;
            Some(Occurrence { order, next })
        })
    }

    proptest! {
        /// For any number of tokens per call. The table is large enough to avoid collisions.
        #[test]
        fn lookups_agree_with_a_search(
            tokens in proptest::collection::vec(0u32..5, 1..120), cuts in proptest::collection::vec(1usize..9, 120),
        ) {
            let mut index = NgramIndex::default();
            let mut seen = 0;
            for cut in cuts {
                if seen == tokens.len() {
                    break;
                }
                seen = (seen + cut).min(tokens.len());
                let found = index.catch_up(&tokens[..seen], 4000);
                prop_assert_eq!(found, search(&tokens[..seen]));
            }
        }
    }

    #[test]
    fn a_small_table_gives_no_wrong_occurrence() {
        let tokens: Vec<u32> = (0..60_000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        let mut index = NgramIndex::default();
        for end in (1..tokens.len()).step_by(97) {
            if let Some(Occurrence { order, next }) = index.catch_up(&tokens[..end], 10) {
                assert_eq!(tokens[next - order - 1..next], tokens[end - order - 1..end]);
            }
        }
    }

    #[test]
    fn a_draft_repeats_a_cycle_of_the_sequence() {
        let tokens = [9, 1, 2, 3, 1, 2, 3];
        let found = NgramIndex::default().catch_up(&tokens, 20);
        assert_eq!(found, Some(Occurrence { order: 2, next: 4 }));
        let mut draft = Vec::new();
        follow(&tokens, 4, 8, &mut draft);
        assert_eq!(draft, [1, 2, 3, 1, 2, 3, 1, 2]);
    }
}

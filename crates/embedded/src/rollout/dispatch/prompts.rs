//! Prompts that a lane has received, to send it requests that begin with the same tokens.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::rollout::blocks::common_tokens;

/// The latest prompts of a lane, none of which begins with all tokens of another. A lane may have given up their keys and
/// values: a request that comes for them is then computed whole.
#[derive(Debug)]
pub(crate) struct RecentPrompts {
    /// Time of the last use of each prompt.
    used: BTreeMap<Arc<[u32]>, u64>,
    by_time: BTreeMap<u64, Arc<[u32]>>,
    clock: u64,
    tokens: usize,
    /// Upper limit of `tokens`; the least recently used prompts are forgotten first.
    most_tokens: usize,
}

impl RecentPrompts {
    pub(super) fn new(most_tokens: usize) -> Self {
        Self { used: BTreeMap::new(), by_time: BTreeMap::new(), clock: 0, tokens: 0, most_tokens }
    }

    /// Forgets all prompts.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.most_tokens);
    }

    /// Adds a prompt.
    pub(super) fn add(&mut self, prompt: &Arc<[u32]>) {
        self.clock += 1;
        let mut prompt = Arc::clone(prompt);
        if let Some(longer) = self.neighbours(&prompt).after.filter(|longer| longer.starts_with(&prompt)) {
            prompt = Arc::clone(longer);
        } else if let Some(shorter) =
            self.neighbours(&prompt).before.filter(|&shorter| prompt.starts_with(shorter))
        {
            let shorter = Arc::clone(shorter);
            self.remove(&shorter);
        }
        self.remove(&prompt);
        self.tokens += prompt.len();
        self.by_time.insert(self.clock, Arc::clone(&prompt));
        self.used.insert(prompt, self.clock);
        while self.tokens > self.most_tokens
            && let Some((_, oldest)) = self.by_time.first_key_value()
        {
            let oldest = Arc::clone(oldest);
            self.remove(&oldest);
        }
    }

    /// Number of first tokens that this prompt has in common with one of these.
    pub(super) fn common_tokens(&self, prompt: &[u32]) -> usize {
        let Neighbours { before, after } = self.neighbours(prompt);
        before.into_iter().chain(after).map(|held| common_tokens(held, prompt)).max().unwrap_or(0)
    }

    /// The prompts before and after this one in lexicographic order, of which one has the longest common prefix.
    fn neighbours(&self, prompt: &[u32]) -> Neighbours<'_> {
        let before = self.used.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(prompt))).next_back();
        let after = self.used.range::<[u32], _>((Bound::Included(prompt), Bound::Unbounded)).next();
        Neighbours { before: before.map(|(held, _)| held), after: after.map(|(held, _)| held) }
    }

    fn remove(&mut self, prompt: &Arc<[u32]>) {
        if let Some(time) = self.used.remove(prompt) {
            self.by_time.remove(&time);
            self.tokens -= prompt.len();
        }
    }
}

/// Prompts before and after another one in lexicographic order.
struct Neighbours<'a> {
    before: Option<&'a Arc<[u32]>>,
    after: Option<&'a Arc<[u32]>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_and_the_latest_prompts_are_kept() {
        let mut recent = RecentPrompts::new(12);
        let add = |recent: &mut RecentPrompts, prompt: &[u32]| recent.add(&Arc::from(prompt));
        add(&mut recent, &[1, 2, 3]);
        assert_eq!(recent.common_tokens(&[1, 2, 4, 5]), 2);
        // The next turn replaces the first; a repetition of the first changes nothing.
        add(&mut recent, &[1, 2, 3, 4, 5]);
        add(&mut recent, &[1, 2, 3]);
        assert_eq!((recent.used.len(), recent.tokens), (1, 5));
        add(&mut recent, &[2; 4]);
        add(&mut recent, &[1, 2]);
        add(&mut recent, &[3; 4]);
        assert_eq!(recent.common_tokens(&[2; 4]), 0, "the least recently used one is forgotten");
        assert_eq!(recent.common_tokens(&[1, 2, 3, 4, 5, 6]), 5);
        recent.clear();
        assert_eq!((recent.common_tokens(&[3]), recent.tokens), (0, 0));
    }

    proptest! {
        #[test]
        fn common_tokens_agree_with_a_search(
            prompts in proptest::collection::vec(proptest::collection::vec(0u32..3, 1..9), 0..20),
            asked in proptest::collection::vec(0u32..3, 1..9),
        ) {
            let mut recent = RecentPrompts::new(1000);
            for prompt in &prompts {
                recent.add(&Arc::from(&prompt[..]));
            }
            let expected = prompts.iter().map(|prompt| common_tokens(prompt, &asked)).max().unwrap_or(0);
            prop_assert_eq!(recent.common_tokens(&asked), expected);
            prop_assert_eq!(recent.tokens, recent.used.keys().map(|prompt| prompt.len()).sum::<usize>());
            prop_assert_eq!(recent.by_time.len(), recent.used.len());
        }
    }
}

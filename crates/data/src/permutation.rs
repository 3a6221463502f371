use rloom_core::{RandomKey, RandomStream};

/// Rounds of the Feistel network. Four are enough for pseudo-randomness with an ideal round function (Luby
/// and Rackoff, 1988); small domains mix better with more, and a round is one Philox block.
const ROUNDS: u64 = 8;

/// A random order of `0..len` that is read at any position, in constant memory.
///
/// A balanced Feistel network permutes the smallest domain of 4^h ≥ `len` numbers; values outside `0..len`
/// are walked on until they fall inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002),
/// fewer than four steps on average.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    stream: RandomStream,
    len: u64,
    half_bits: u32,
}

impl Permutation {
    /// The order that `key` names. `len` is at most 2⁶³, far beyond any dataset; a larger one is clipped to
    /// it.
    pub fn new(key: RandomKey, len: u64) -> Self {
        let len = len.min(1 << 63);
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { stream: key.stream(), len, half_bits: bits.div_ceil(2).max(1) }
    }

    /// How many numbers it orders.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it orders nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number at `position`, which is taken modulo the length. An empty permutation gives 0.
    pub fn at(&self, position: u64) -> u64 {
        if self.len < 2 {
            return 0;
        }
        let mut value = self.scramble(position % self.len);
        while value >= self.len {
            value = self.scramble(value);
        }
        value
    }

    fn scramble(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let mixed = left ^ (self.stream.bits(round << 32 | right) & mask);
            (left, right) = (right, mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rloom_core::Purpose;

    fn key(ticket: u64) -> RandomKey {
        RandomKey::new(11, 0, Purpose::Shuffle, ticket)
    }

    #[test]
    fn every_number_comes_once() {
        for len in [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097] {
            let permutation = Permutation::new(key(len), len);
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let value = permutation.at(position) as usize;
                assert!(!seen[value], "{value} twice in a permutation of {len}");
                seen[value] = true;
            }
        }
    }

    #[test]
    fn huge_domains_stay_in_range() {
        for len in [(1 << 62) + 1, 1 << 63, u64::MAX] {
            let permutation = Permutation::new(key(1), len);
            assert!((0..100).all(|i| permutation.at(i) < permutation.len()));
        }
    }

    /// All 24 orders of four numbers, over many keys: chi-squared with 23 degrees of freedom, 99.99 %
    /// quantile 58.6.
    #[test]
    fn orders_are_uniform_over_keys() {
        let mut counts = std::collections::BTreeMap::new();
        let keys = 24_000;
        for ticket in 0..keys {
            let permutation = Permutation::new(key(ticket), 4);
            *counts.entry([0, 1, 2, 3].map(|i| permutation.at(i))).or_insert(0u64) += 1;
        }
        assert_eq!(counts.len(), 24);
        let expected = keys as f64 / 24.0;
        let chi: f64 = counts.values().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        assert!(chi < 58.6, "chi-squared {chi}");
    }

    /// Where a number lands is uniform too: chi-squared with 99 degrees of freedom, 99.99 % quantile 160.
    #[test]
    fn positions_are_uniform_over_keys() {
        let len = 100;
        let mut counts = vec![0u64; len as usize];
        for ticket in 0..20_000 {
            counts[Permutation::new(key(ticket), len).at(7) as usize] += 1;
        }
        let chi: f64 = counts.iter().map(|&c| (c as f64 - 200.0).powi(2) / 200.0).sum();
        assert!(chi < 160.0, "chi-squared {chi}");
    }
}

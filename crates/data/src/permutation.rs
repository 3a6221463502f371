use rloom_core::{RandomKey, RandomStream};

/// Rounds of the Feistel network. Four suffice for pseudo-randomness with an ideal round function (Luby and Rackoff,
/// 1988); small domains mix better with more, and a round is one Philox block.
const ROUNDS: u64 = 8;

/// A random permutation of `0..len` with random access, in constant memory.
///
/// A balanced Feistel network permutes the smallest domain of 4^h ≥ `len` numbers; values outside `0..len` are permuted
/// again until they are inside (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), fewer
/// than four times on average.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permutation {
    stream: RandomStream,
    len: u64,
    half_bits: u32,
}

impl Permutation {
    /// The permutation of `0..len` for `key`. `len` is limited to 2⁶³, far beyond any dataset.
    pub(crate) fn new(key: RandomKey, len: u64) -> Self {
        let len = len.min(1 << 63);
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { stream: key.stream(), len, half_bits: bits.div_ceil(2).max(1) }
    }

    /// Number of permuted values.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The value at `position`, which is taken modulo the length. 0 for the empty permutation.
    pub(crate) fn at(&self, position: u64) -> u64 {
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
    fn every_value_occurs_once() {
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

    /// The value at a fixed position is uniform: chi-squared with 99 degrees of freedom, 99.99 % quantile 160.
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

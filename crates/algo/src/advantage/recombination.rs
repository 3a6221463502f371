/// Combinations of turns from different episodes of a group whose rewards an advantage reads. They are judged without being
/// played, so each agent takes a single turn that depends on no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recombination {
    /// Every turn of an agent with every turn of each other agent.
    Cross,
    /// The turns of an episode, with that of one agent replaced by its turn in another episode.
    Replaced,
}

impl Recombination {
    /// Maximum number of combinations of a group.
    pub const LIMIT: u64 = 4096;

    /// Number of combinations of a group, those that were played included; `None` above [`LIMIT`](Self::LIMIT).
    pub fn count(self, episodes: u64, agents: u32) -> Option<u64> {
        let count = match self {
            Self::Cross => episodes.checked_pow(agents),
            Self::Replaced => episodes
                .checked_mul(episodes.saturating_sub(1))
                .and_then(|pairs| pairs.checked_mul(agents.into()))
                .and_then(|replaced| replaced.checked_add(episodes)),
        };
        count.filter(|count| *count <= Self::LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_counted_up_to_the_limit() {
        assert_eq!(Recombination::Cross.count(8, 4), Some(4096));
        assert_eq!(Recombination::Cross.count(9, 4), None);
        assert_eq!(Recombination::Cross.count(2, 64), None);
        assert_eq!(Recombination::Replaced.count(4, 3), Some(4 + 4 * 3 * 3));
        assert_eq!(Recombination::Replaced.count(64, 2), None);
        assert_eq!(Recombination::Replaced.count(u64::MAX, 2), None);
    }
}

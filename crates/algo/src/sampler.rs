/// Properties of the sampler that determine the correction of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    /// Largest age of a trained token, in policy versions.
    pub max_staleness: u64,
    /// True if the sampler's log-probabilities are bitwise identical to those of the trainer with the same weights.
    pub is_exact: bool,
}

impl Sampler {
    /// True if samples come from another distribution than the policy at the start of their batch.
    pub(crate) fn is_off_policy(self) -> bool {
        self.max_staleness > 0 || !self.is_exact
    }
}

/// An exact sampler with this bound on staleness.
impl From<u64> for Sampler {
    fn from(max_staleness: u64) -> Self {
        Self { max_staleness, is_exact: true }
    }
}

use serde::{Deserialize, Serialize};

use crate::settings::keys::{OutOfRange, check};

/// Least probability of all tokens that are not compared. Log-probabilities in f32 do not tell a smaller one from 0.
pub(super) const LEAST_REST: f64 = 1e-7;

/// A divergence of the student's distribution p from the teacher's q, over the whole vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VocabularyDivergence {
    /// KL(q ‖ p).
    ForwardKl,
    /// KL(p ‖ q).
    ReverseKl,
    /// β·KL(q ‖ m) + (1 − β)·KL(p ‖ m) with m = β·q + (1 − β)·p.
    JensenShannon {
        /// β.
        beta: f64,
    },
}

/// Settings that all divergences have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Common {
    pub(crate) temperature: f64,
    pub(crate) on_policy_share: f64,
    pub(crate) top_k: u64,
}

/// Largest number of tokens that are compared.
const MAX_TOP_K: u64 = 1024;

impl Common {
    pub(crate) fn check(self) -> Result<(), OutOfRange> {
        let Self { temperature, on_policy_share: share, top_k } = self;
        check("temperature", temperature, temperature > 0.0, "above 0", "1 is usual")?;
        check(
            "on_policy_share",
            share,
            (0.0..=1.0).contains(&share),
            "between 0 and 1",
            "0 samples nothing",
        )?;
        check("top_k", top_k as f64, top_k <= MAX_TOP_K, "at most 1024", "0 for the whole vocabulary")
    }
}

/// A divergence D = Σ f(p, q) over tokens.
pub(crate) trait Kernel {
    /// Checks the settings that the others do not have.
    fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    fn common(&self) -> Common;

    fn over_vocabulary(&self) -> VocabularyDivergence;

    /// f and ∂f/∂p of a token with these log-probabilities, up to a constant that all tokens share.
    fn term(&self, lp: f64, lq: f64) -> (f64, f64);
}

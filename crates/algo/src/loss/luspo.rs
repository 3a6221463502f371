use super::gspo::SequenceClip;
use super::kernel::{Bounds, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm};
use super::ppo_clip::check_clip;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// Length-unbiased sequence policy optimisation (arXiv 2602.05261): the term of `gspo` times the sequence's length,
    ///
    /// ℓ_i = −|y_i|·min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i), over the number of sequences.
    Luspo {
        /// ε_low: the ratio's lower bound is 1 − ε_low.
        clip_low: f64 = 3e-4,
        /// ε_high: the ratio's upper bound is 1 + ε_high.
        clip_high: f64 = 4e-4,
    }
}

impl Kernel for Luspo {
    fn check(&self) -> Result<(), OutOfRange> {
        check_clip(self.clip_low, self.clip_high)
    }

    fn scope(&self) -> Scope {
        Scope::Sequence
    }

    fn is_per_sequence(&self) -> bool {
        true
    }

    fn reads(&self) -> Reads {
        Reads::RATIO
    }

    fn bounds(&self) -> Bounds {
        Bounds::BOTH
    }

    fn scales_with_advantage(&self) -> bool {
        true
    }

    fn idle_on_policy(&self) -> &'static [&'static str] {
        &["clip_low", "clip_high"]
    }

    /// Both the ratio and the weight are means over the sequence in log space.
    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::GEOMETRIC)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        // The factor cancels the mean over the length, so each token has the whole ratio.
        SequenceClip { low: self.clip_low, high: self.clip_high, share: 1.0 }.row(row, terms);
    }
}

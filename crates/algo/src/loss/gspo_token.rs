use super::gspo::SequenceClip;
use super::kernel::{Bounds, Kernel, Reads, Row, Scope, StaleWeight, TokenTerm};
use super::ppo_clip::check_clip;
use crate::settings::keys::{OutOfRange, settings};

settings! {
    /// GSPO-token (arXiv 2507.18071): the value of `gspo` with s_it = sg(s_i)·exp(lp_t − sg(lp_t)) and a token's own
    /// A_it, over the aggregation. Each token gets a gradient by its own advantage.
    GspoToken {
        /// ε_low: the ratio's lower bound is 1 − ε_low.
        clip_low: f64 = 3e-4,
        /// ε_high: the ratio's upper bound is 1 + ε_high.
        clip_high: f64 = 4e-4,
    }
}

impl Kernel for GspoToken {
    fn check(&self) -> Result<(), OutOfRange> {
        check_clip(self.clip_low, self.clip_high)
    }

    fn scope(&self) -> Scope {
        Scope::Sequence
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

    /// Every token has the ratio of its sequence.
    fn stale_weight(&self) -> Option<StaleWeight> {
        Some(StaleWeight::GEOMETRIC)
    }

    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]) {
        SequenceClip { low: self.clip_low, high: self.clip_high, share: 1.0 }.row(row, terms);
    }
}

use super::kernel::{Common, Kernel, VocabularyDivergence};
use crate::settings::keys::settings;

settings! {
    /// KL(p ‖ q) = Σ p·(ln p − ln q) (arXiv 2306.08543, 2306.13649). It is large where the student has a token that the
    /// teacher would not say.
    ReverseKl {
        /// Temperature of both distributions.
        temperature: f64 = 1.0,
        /// Share of the prompts whose completions the student samples; the others take the demonstration.
        on_policy_share: f64 = 0.0,
        /// Number of the teacher's most probable tokens that are compared, the rest as one; 0 for the whole vocabulary.
        top_k: u64 = 0,
    }
}

impl Kernel for ReverseKl {
    fn common(&self) -> Common {
        let Self { temperature, on_policy_share, top_k } = *self;
        Common { temperature, on_policy_share, top_k }
    }

    fn over_vocabulary(&self) -> VocabularyDivergence {
        VocabularyDivergence::ReverseKl
    }

    fn term(&self, lp: f64, lq: f64) -> (f64, f64) {
        (lp.exp() * (lp - lq), lp - lq)
    }
}

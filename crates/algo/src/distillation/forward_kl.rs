use super::kernel::{Common, Kernel, VocabularyDivergence};
use crate::settings::keys::settings;

settings! {
    /// KL(q ‖ p) = Σ q·(ln q − ln p), the cross-entropy with the soft labels of the teacher up to a constant
    /// (arXiv 1503.02531, without its factor τ²). It is large where the student misses a token of the teacher.
    ForwardKl {
        /// Temperature of both distributions.
        temperature: f64 = 1.0,
        /// Share of the prompts whose completions the student samples; the others take the demonstration.
        on_policy_share: f64 = 0.0,
        /// Number of the teacher's most probable tokens that are compared, the rest as one; 0 for the whole vocabulary.
        top_k: u64 = 0,
    }
}

impl Kernel for ForwardKl {
    fn common(&self) -> Common {
        let Self { temperature, on_policy_share, top_k } = *self;
        Common { temperature, on_policy_share, top_k }
    }

    fn over_vocabulary(&self) -> VocabularyDivergence {
        VocabularyDivergence::ForwardKl
    }

    fn term(&self, lp: f64, lq: f64) -> (f64, f64) {
        let q = lq.exp();
        (q * (lq - lp), -(lq - lp).exp())
    }
}

use super::kernel::{Common, Kernel, VocabularyDivergence};
use crate::settings::keys::{OutOfRange, check, settings};

settings! {
    /// β·KL(q ‖ m) + (1 − β)·KL(p ‖ m) with m = β·q + (1 − β)·p (arXiv 2306.13649, section 2). Between 0 and
    /// −β·ln β − (1−β)·ln(1−β). Divided by β it tends to the forward KL for β → 0, divided by 1 − β to the reverse KL for
    /// β → 1.
    JensenShannon {
        /// Weight β of the teacher in the mixture, above 0 and below 1.
        beta: f64 = 0.5,
        /// Temperature of both distributions.
        temperature: f64 = 1.0,
        /// Share of the prompts whose completions the student samples; the others take the demonstration.
        on_policy_share: f64 = 0.0,
        /// Number of the teacher's most probable tokens that are compared, the rest as one; 0 for the whole vocabulary.
        top_k: u64 = 0,
    }
}

impl Kernel for JensenShannon {
    fn check(&self) -> Result<(), OutOfRange> {
        let fits = self.beta > 0.0 && self.beta < 1.0;
        check(
            "beta",
            self.beta,
            fits,
            "above 0 and below 1",
            "the ends are kind = \"forward_kl\" and \"reverse_kl\"",
        )
    }

    fn common(&self) -> Common {
        let Self { temperature, on_policy_share, top_k, .. } = *self;
        Common { temperature, on_policy_share, top_k }
    }

    fn over_vocabulary(&self) -> VocabularyDivergence {
        VocabularyDivergence::JensenShannon { beta: self.beta }
    }

    fn term(&self, lp: f64, lq: f64) -> (f64, f64) {
        let (p, q, beta) = (lp.exp(), lq.exp(), self.beta);
        let m = (1.0 - beta).mul_add(p - q, q).max(f64::MIN_POSITIVE);
        // x·ln(x/m), continued by 0.
        let log = |x: f64| (x / m).max(f64::MIN_POSITIVE).ln();
        let (of_student, of_teacher) = (log(p), log(q));
        (beta * q * of_teacher + (1.0 - beta) * p * of_student, (1.0 - beta) * of_student)
    }
}

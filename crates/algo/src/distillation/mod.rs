//! Distillation: a student learns the distribution of a teacher at every token of a completion.
//!
//! p is the student's distribution over the vocabulary and q the teacher's, both at the loss's temperature. Over the whole
//! vocabulary an engine computes the divergence of each token and its derivative by the logits, so that neither distribution is
//! stored. Over the teacher's k most probable tokens it is computed here, with the remaining probability of both as one further
//! token.
//!
//! A divergence is one file with its settings, defaults, checks and terms, and a line in the table below.

mod forward_kl;
mod jensen_shannon;
pub(crate) mod kernel;
mod reverse_kl;

pub use kernel::VocabularyDivergence;

use crate::AlgoError;
use crate::settings::kind::out_of_range;

/// The divergence of a distillation and its settings.
pub type DistillationSettings = crate::settings::kind::KindSettings<DistillationKind>;

/// Generates [`DistillationKind`] and [`Distillation`] from the table.
macro_rules! distillations {
    ($($(#[doc = $doc:literal])+ $file:ident::$kind:ident = $name:literal,)+) => {
        /// The divergences of a distillation with their settings.
        pub mod kinds {
            $(pub use super::$file::$kind;)+
        }
        use kinds::*;

        $crate::settings::kind::kinds! {
            /// Divergence of the student from its teacher.
            DistillationKind of "distillation", |kind| kind.defaults().settings() => { $($(#[doc = $doc])+ $kind = $name,)+ }
        }

        /// A distillation with its settings.
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Distillation {
            $($(#[doc = $doc])+ $kind($kind),)+
        }

        impl Distillation {
            pub(crate) fn kernel(&self) -> &dyn kernel::Kernel {
                match self { $(Self::$kind(loss) => loss,)+ }
            }

            /// The divergence.
            pub fn kind(&self) -> DistillationKind {
                match self { $(Self::$kind(_) => DistillationKind::$kind,)+ }
            }

            /// The divergence and all settings that it uses.
            pub(crate) fn settings(&self) -> DistillationSettings {
                match self {
                    $(Self::$kind(loss) => DistillationSettings::resolved(DistillationKind::$kind, loss, &[]),)+
                }
            }
        }

        impl DistillationSettings {
            /// A distillation of that kind with these settings, unchecked.
            fn distillation(&self, kind: DistillationKind) -> Distillation {
                match kind { $(DistillationKind::$kind => Distillation::$kind(self.apply()),)+ }
            }
        }
    };
}

distillations! {
    /// KL(teacher ‖ student): the student covers all that the teacher does.
    forward_kl::ForwardKl = "forward_kl",
    /// KL(student ‖ teacher): the student avoids what the teacher would not do.
    reverse_kl::ReverseKl = "reverse_kl",
    /// The generalised Jensen-Shannon divergence between the two.
    jensen_shannon::JensenShannon = "jensen_shannon",
}

impl DistillationKind {
    /// The distillation with its default settings.
    pub fn defaults(self) -> Distillation {
        DistillationSettings::default().distillation(self)
    }
}

impl DistillationSettings {
    /// The distillation with checked settings.
    pub(crate) fn resolve(&self, kind: DistillationKind) -> Result<Distillation, AlgoError> {
        let distillation = self.distillation(kind);
        let kernel = distillation.kernel();
        kernel.check().and_then(|()| kernel.common().check()).map_err(out_of_range::<DistillationKind>)?;
        Ok(distillation)
    }

    /// True if the student samples completions: a share of them is set.
    pub fn samples(&self) -> bool {
        matches!(self.get("on_policy_share"), Some(crate::Value::Number(share)) if share != 0.0)
    }
}

impl Distillation {
    /// Temperature of both distributions.
    pub fn temperature(&self) -> f64 {
        self.kernel().common().temperature
    }

    /// Share of the completions that the student samples; the others are demonstrations.
    pub fn on_policy_share(&self) -> f64 {
        self.kernel().common().on_policy_share
    }

    /// Number of the teacher's most probable tokens that are compared; `None` for the whole vocabulary.
    pub fn top_k(&self) -> Option<usize> {
        usize::try_from(self.kernel().common().top_k).ok().filter(|&k| k > 0)
    }

    /// The divergence for an engine that computes it over the whole vocabulary.
    pub fn over_vocabulary(&self) -> VocabularyDivergence {
        self.kernel().over_vocabulary()
    }

    /// Divergence over the teacher's most probable tokens and the rest, and its derivative by each of the student's
    /// log-probabilities, which is written to `slopes`. Both lists are log-probabilities of the same tokens.
    ///
    /// The rest is one further token with the remaining probability of each distribution, so that the divergence is at most
    /// that over the whole vocabulary, and 0 for equal distributions.
    pub(crate) fn over_top(&self, student: &[f64], teacher: &[f64], slopes: &mut [f64]) -> f64 {
        let kernel = self.kernel();
        let rest =
            |lp: &[f64]| (1.0 - lp.iter().map(|lp| lp.exp()).sum::<f64>()).max(kernel::LEAST_REST).ln();
        let (mut value, of_rest) = kernel.term(rest(student), rest(teacher));
        for ((&lp, &lq), slope) in student.iter().zip(teacher).zip(slopes) {
            let (term, by_p) = kernel.term(lp, lq);
            value += term;
            // What a token gains, the rest loses.
            *slope = lp.exp() * (by_p - of_rest);
        }
        value
    }
}

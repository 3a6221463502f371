//! Preference losses: functions of the summed log-probabilities of completions, in pairs or with a label each.
//!
//! With Σ over the policy tokens of a completion: d = Σ (lp − ref), p = mean lp, c chosen, r rejected, Δ = d_c − d_r.
//!
//! A loss is one file with its settings, defaults, checks and terms, and a line in the table below. All tokens of a completion
//! share one derivative, since the loss depends on their sum.

mod aot;
mod apo_down;
mod apo_zero;
mod bco;
mod cdpo;
mod cpo;
mod discopop;
mod divergence;
mod dpo;
mod exo;
mod hinge;
mod ipo;
pub(crate) mod kernel;
mod kto;
mod nca;
mod orpo;
mod robust;
mod running;
mod simpo;
mod sppo;

pub use divergence::Divergence;
pub use kernel::Anchor;
pub use running::RunningMean;

use crate::settings::kind::out_of_range;
use crate::{AlgoError, DataKind, Scope};

/// The kind of a preference loss and its settings.
pub type PreferenceSettings = crate::settings::kind::KindSettings<PreferenceKind>;

/// Generates [`PreferenceKind`] and [`Preference`] from the table.
macro_rules! preferences {
    ($($(#[doc = $doc:literal])+ $file:ident::$kind:ident = $name:literal,)+) => {
        /// The preference losses with their settings.
        pub mod kinds {
            $(pub use super::$file::$kind;)+
        }
        use kinds::*;

        $crate::settings::kind::kinds! {
            /// The preference loss.
            PreferenceKind of "preference", |kind| kind.defaults().settings() => { $($(#[doc = $doc])+ $kind = $name,)+ }
        }

        /// A preference loss with its settings.
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Preference {
            $($(#[doc = $doc])+ $kind($kind),)+
        }

        impl Preference {
            pub(crate) fn kernel(&self) -> &dyn kernel::Kernel {
                match self { $(Self::$kind(loss) => loss,)+ }
            }

            /// Kind of the loss.
            pub fn kind(&self) -> PreferenceKind {
                match self { $(Self::$kind(_) => PreferenceKind::$kind,)+ }
            }

            /// The kind and all settings that it uses.
            pub(crate) fn settings(&self) -> PreferenceSettings {
                match self {
                    $(Self::$kind(loss) => PreferenceSettings::resolved(PreferenceKind::$kind, loss, &[]),)+
                }
            }
        }

        impl PreferenceSettings {
            /// A loss of that kind with these settings, unchecked.
            fn preference(&self, kind: PreferenceKind) -> Preference {
                match kind { $(PreferenceKind::$kind => Preference::$kind(self.apply()),)+ }
            }
        }
    };
}

preferences! {
    /// Direct preference optimisation.
    dpo::Dpo = "dpo",
    /// Conservative DPO: label smoothing.
    cdpo::Cdpo = "cdpo",
    /// Robust DPO: unbiased for labels that are wrong at a known rate.
    robust::Robust = "robust",
    /// The hinge of SLiC-HF.
    hinge::Hinge = "hinge",
    /// Identity preference optimisation.
    ipo::Ipo = "ipo",
    /// Kahneman-Tversky optimisation.
    kto::Kto = "kto",
    /// Binary classifier optimisation.
    bco::Bco = "bco",
    /// Odds-ratio preference optimisation.
    orpo::Orpo = "orpo",
    /// Contrastive preference optimisation.
    cpo::Cpo = "cpo",
    /// Simple preference optimisation.
    simpo::Simpo = "simpo",
    /// Noise contrastive alignment.
    nca::Nca = "nca",
    /// Efficient exact optimisation.
    exo::Exo = "exo",
    /// Self-play preference optimisation.
    sppo::Sppo = "sppo",
    /// Anchored preference optimisation, raising the chosen completion.
    apo_zero::ApoZero = "apo_zero",
    /// Anchored preference optimisation, lowering both completions.
    apo_down::ApoDown = "apo_down",
    /// Alignment by optimal transport.
    aot::Aot = "aot",
    /// The loss that DiscoPOP discovered.
    discopop::Discopop = "discopop",
}

impl PreferenceKind {
    /// The loss with its default settings.
    pub fn defaults(self) -> Preference {
        PreferenceSettings::default().preference(self)
    }
}

impl PreferenceSettings {
    /// The loss with checked settings.
    pub(crate) fn resolve(&self, kind: PreferenceKind) -> Result<Preference, AlgoError> {
        let preference = self.preference(kind);
        preference.kernel().check().map_err(out_of_range::<PreferenceKind>)?;
        Ok(preference)
    }
}

impl Preference {
    /// Part of an optimiser step that the loss must see at once.
    pub fn scope(&self) -> Scope {
        self.kernel().unit().scope()
    }

    /// Kind of the data that the loss learns from.
    pub fn data(&self) -> DataKind {
        self.kernel().unit().data()
    }

    /// True if the reference's log-probabilities are used.
    pub fn reads_reference(&self) -> bool {
        self.kernel().reads_reference()
    }

    /// The anchor that the loss reads.
    pub fn anchor(&self) -> Option<Anchor> {
        self.kernel().anchor()
    }

    /// z of an optimiser step: max(0, mean d) over the mismatched completions, from the sum of d of each.
    pub fn mismatched_anchor(log_ratios: &[f64]) -> f64 {
        RunningMean::default().after(log_ratios).mean.max(0.0)
    }

    /// δ after an optimiser step whose completions have these d.
    #[must_use]
    pub fn running_anchor(&self, before: RunningMean, log_ratios: &[f64]) -> RunningMean {
        let beta = self.kernel().beta();
        before.after(&log_ratios.iter().map(|d| beta * d).collect::<Vec<_>>())
    }
}

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
mod bco_pair;
mod cdpo;
mod chosen_nll;
mod cpo;
mod discopop;
mod divergence;
mod dpo;
mod exo;
mod hinge;
mod ipo;
pub(crate) mod kernel;
mod kto;
mod mpo;
mod nca;
mod orpo;
mod robust;
mod running;
mod simpo;
mod sppo;
mod weighted;
mod wpo;

pub use divergence::Divergence;
pub use kernel::Anchor;
pub use running::RunningMean;
pub use weighted::{WeightedLoss, WeightedLosses};

use crate::settings::kind::{KindSettings, out_of_range};
use crate::{AlgoError, DataKind, Scope};

/// The kind of a preference loss and its settings.
pub type PreferenceSettings = crate::settings::kind::KindSettings<PreferenceKind>;

/// The settings of the losses.
pub mod kinds {
    pub use super::{
        aot::Aot, apo_down::ApoDown, apo_zero::ApoZero, bco::Bco, bco_pair::BcoPair, cdpo::Cdpo,
        chosen_nll::ChosenNll, cpo::Cpo, discopop::Discopop, dpo::Dpo, exo::Exo, hinge::Hinge, ipo::Ipo,
        kto::Kto, mpo::Mpo, nca::Nca, orpo::Orpo, robust::Robust, simpo::Simpo, sppo::Sppo, wpo::Wpo,
    };
}
use kinds::{
    Aot, ApoDown, ApoZero, Bco, BcoPair, Cdpo, ChosenNll, Cpo, Discopop, Dpo, Exo, Hinge, Ipo, Kto, Mpo, Nca,
    Orpo, Robust, Simpo, Sppo, Wpo,
};

/// Generates an enum of losses with their settings and the enum of their kinds, from a table.
macro_rules! losses {
    (
        $(#[$of_kinds:meta])* $kinds:ident of $table:literal, $(#[$of_loss:meta])* $loss:ident by $make:ident, $defaults:ident
        { $($(#[doc = $doc:literal])+ $kind:ident = $name:literal,)+ }
    ) => {
        $crate::settings::kind::kinds! {
            $(#[$of_kinds])*
            $kinds of $table, |kind| kind.$defaults().settings() => { $($(#[doc = $doc])+ $kind = $name,)+ }
        }

        $(#[$of_loss])*
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $loss {
            $($(#[doc = $doc])+ $kind($kind),)+
        }

        impl $loss {
            pub(crate) fn kernel(&self) -> &dyn kernel::Kernel {
                match self { $(Self::$kind(loss) => loss,)+ }
            }

            /// Kind of the loss.
            pub fn kind(&self) -> $kinds {
                match self { $(Self::$kind(_) => $kinds::$kind,)+ }
            }

            /// The kind and all settings that it uses.
            pub(crate) fn settings(&self) -> KindSettings<$kinds> {
                match self {
                    $(Self::$kind(loss) => KindSettings::resolved($kinds::$kind, loss, &[]),)+
                }
            }
        }

        impl $kinds {
            /// The loss with its default settings.
            pub fn $defaults(self) -> $loss {
                KindSettings::<Self>::default().$make(self)
            }
        }

        impl KindSettings<$kinds> {
            /// A loss of that kind with these settings, unchecked.
            pub(crate) fn $make(&self, kind: $kinds) -> $loss {
                match kind { $($kinds::$kind => $loss::$kind(self.apply()),)+ }
            }
        }
    };
}

losses! {
    /// The preference loss.
    PreferenceKind of "preference",
    /// A preference loss with its settings.
    Preference by preference, defaults {
        /// Direct preference optimisation.
        Dpo = "dpo",
        /// Conservative DPO: label smoothing.
        Cdpo = "cdpo",
        /// Robust DPO: unbiased for labels that are wrong at a known rate.
        Robust = "robust",
        /// The hinge of SLiC-HF.
        Hinge = "hinge",
        /// Identity preference optimisation.
        Ipo = "ipo",
        /// Kahneman-Tversky optimisation.
        Kto = "kto",
        /// Binary classifier optimisation.
        Bco = "bco",
        /// Odds-ratio preference optimisation.
        Orpo = "orpo",
        /// Contrastive preference optimisation.
        Cpo = "cpo",
        /// Simple preference optimisation.
        Simpo = "simpo",
        /// Noise contrastive alignment.
        Nca = "nca",
        /// Efficient exact optimisation.
        Exo = "exo",
        /// Self-play preference optimisation.
        Sppo = "sppo",
        /// Anchored preference optimisation, raising the chosen completion.
        ApoZero = "apo_zero",
        /// Anchored preference optimisation, lowering both completions.
        ApoDown = "apo_down",
        /// Alignment by optimal transport.
        Aot = "aot",
        /// The loss that DiscoPOP discovered.
        Discopop = "discopop",
        /// Weighted preference optimisation.
        Wpo = "wpo",
        /// A weighted list of losses.
        Mpo = "mpo",
    }
}

losses! {
    /// A loss of pairs in a weighted list.
    PairLossKind of "preference.losses",
    /// A loss of pairs with its settings.
    PairLoss by loss, loss {
        /// Direct preference optimisation.
        Dpo = "dpo",
        /// Conservative DPO: label smoothing.
        Cdpo = "cdpo",
        /// Robust DPO: unbiased for labels that are wrong at a known rate.
        Robust = "robust",
        /// The hinge of SLiC-HF.
        Hinge = "hinge",
        /// Identity preference optimisation.
        Ipo = "ipo",
        /// Binary classifier optimisation on a pair.
        BcoPair = "bco_pair",
        /// Odds-ratio preference optimisation.
        Orpo = "orpo",
        /// Contrastive preference optimisation.
        Cpo = "cpo",
        /// Simple preference optimisation.
        Simpo = "simpo",
        /// Noise contrastive alignment.
        Nca = "nca",
        /// Efficient exact optimisation.
        Exo = "exo",
        /// Self-play preference optimisation.
        Sppo = "sppo",
        /// Anchored preference optimisation, raising the chosen completion.
        ApoZero = "apo_zero",
        /// Anchored preference optimisation, lowering both completions.
        ApoDown = "apo_down",
        /// Alignment by optimal transport.
        Aot = "aot",
        /// The loss that DiscoPOP discovered.
        Discopop = "discopop",
        /// Negative log-likelihood of the chosen completion.
        ChosenNll = "sft",
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

    /// True if the policy's log-probabilities at half the temperature are used.
    pub fn reads_sharpened(&self) -> bool {
        self.kernel().reads_sharpened()
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

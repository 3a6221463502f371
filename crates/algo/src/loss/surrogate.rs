//! The table of losses, with the name in recipes, the settings and the kernel of each.

use super::{LossKind, LossSettings, Scope, Surrogate};
use crate::AlgoError;
use crate::settings::kind::out_of_range;

/// Generates [`LossKind`] and [`Surrogate`] from the table.
macro_rules! losses {
    (
        recipes { $($(#[doc = $doc:literal])+ $file:ident::$kind:ident = $name:literal,)+ }
        internal { $($(#[doc = $own_doc:literal])+ $own_file:ident::$own:ident,)+ }
    ) => {
        /// The losses with their settings.
        pub mod kinds {
            $(pub use super::$file::$kind;)+
            $(pub use super::$own_file::$own;)+
        }
        use kinds::*;

        $crate::settings::kind::kinds! {
            /// The policy loss.
            LossKind of "loss", |kind| kind.defaults().settings().unwrap_or_default() => { $($(#[doc = $doc])+ $kind = $name,)+ }
        }

        /// The part of a loss that learns from the advantage (or from demonstrations, or outcomes).
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Surrogate {
            $($(#[doc = $doc])+ $kind($kind),)+
            $($(#[doc = $own_doc])+ $own($own),)+
        }

        impl Surrogate {
            pub(crate) fn kernel(&self) -> &dyn kernel::Kernel {
                match self {
                    $(Self::$kind(loss) => loss,)+
                    $(Self::$own(loss) => loss,)+
                }
            }

            /// Kind of the loss; `None` for losses that recipes cannot choose.
            pub fn kind(&self) -> Option<LossKind> {
                match self {
                    $(Self::$kind(_) => Some(LossKind::$kind),)+
                    $(Self::$own(_) => None,)+
                }
            }

            /// The kind and all settings that it uses; `None` for losses that recipes cannot choose.
            pub(crate) fn settings(&self) -> Option<LossSettings> {
                match self {
                    $(Self::$kind(loss) => Some(LossSettings::resolved(LossKind::$kind, loss, &[])),)+
                    $(Self::$own(_) => None,)+
                }
            }
        }

        impl LossSettings {
            /// A loss of that kind with these settings, unchecked.
            fn surrogate(&self, kind: LossKind) -> Surrogate {
                match kind { $(LossKind::$kind => Surrogate::$kind(self.apply()),)+ }
            }
        }
    };
}
pub(super) use losses;

impl LossKind {
    /// The loss with its default settings.
    pub fn defaults(self) -> Surrogate {
        LossSettings::default().surrogate(self)
    }
}

impl LossSettings {
    /// The loss with checked settings.
    pub(crate) fn resolve(&self, kind: LossKind) -> Result<Surrogate, AlgoError> {
        let surrogate = self.surrogate(kind);
        surrogate.kernel().check().map_err(out_of_range::<LossKind>)?;
        Ok(surrogate)
    }
}

impl Surrogate {
    /// Part of an optimiser step that the loss must see at once.
    pub fn scope(&self) -> Scope {
        self.kernel().scope()
    }

    /// True if the loss is one term per sequence: its normaliser is the number of sequences, and all tokens of a
    /// sequence share one advantage.
    pub fn is_per_sequence(&self) -> bool {
        self.kernel().is_per_sequence()
    }

    /// True if the advantage is used.
    pub fn reads_advantage(&self) -> bool {
        self.kernel().reads().advantage
    }

    /// True if the proximal policy's log-probabilities are used.
    pub fn reads_old(&self) -> bool {
        self.kernel().reads().old
    }

    /// True if the sampler's log-probabilities are used.
    pub fn reads_behavior(&self) -> bool {
        self.kernel().reads().behavior
    }

    /// True if the reference's log-probabilities are used.
    pub fn reads_reference(&self) -> bool {
        self.kernel().reads().reference
    }

    /// True if the outcome of each sequence is used.
    pub fn reads_outcome(&self) -> bool {
        self.kernel().reads().outcome
    }

    /// True if the loss has a ratio, which corrects for earlier optimiser steps of the batch.
    pub fn has_ratio(&self) -> bool {
        self.reads_old() || self.reads_behavior()
    }
}

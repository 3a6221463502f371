//! The contract of an advantage estimator, and the table of them.

use super::report::AdvantageReport;
use super::view::{GroupView, Raw};
use super::{AdvantageKind, AdvantageSettings, Estimator, Recombination, RoleBaselines, RunningMoments};
use crate::settings::{keys::OutOfRange, kind::out_of_range};
use crate::{AlgoError, Keep};

/// Inputs of an estimator beyond the rewards.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each input there is")]
pub(crate) struct Reads {
    /// A learned value for each token: needs a critic, and returns are computed for it.
    pub(crate) values: bool,
    /// A learned value before each round of several agents: needs a critic of its own.
    pub(crate) round_values: bool,
    /// Named rewards.
    pub(crate) components: bool,
    /// Turns with their own rewards.
    pub(crate) steps: bool,
    /// The group's greedy episode.
    pub(crate) greedy: bool,
    /// Advantages that are computed elsewhere.
    pub(crate) given: bool,
    /// Mean rewards of combinations of turns from different episodes.
    pub(crate) recombined: Option<Recombination>,
    /// Log-probabilities of a process-reward model with this β.
    pub(crate) prm: Option<f64>,
}

/// Default whitening of advantages over the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whitening {
    Off,
    On,
    /// Part of the estimator, which without it would equal `without`.
    Always {
        without: AdvantageKind,
    },
}

/// The batch that an estimator sees.
pub(crate) struct Batch<'b, 'g> {
    pub(crate) groups: &'b [GroupView<'g>],
    /// Weight of the KL in the reward.
    pub(crate) kl_coef: f64,
    /// Rewards of the stage so far.
    pub(crate) running: &'b mut RunningMoments,
    /// Averages of the rewards of agents so far.
    pub(crate) roles: &'b mut RoleBaselines,
    pub(crate) report: &'b mut AdvantageReport,
}

impl<'g> Batch<'_, 'g> {
    /// Computes the advantages of each group separately.
    pub(crate) fn each(
        &mut self,
        mut of: impl FnMut(&GroupView<'g>, &mut AdvantageReport) -> Vec<Raw>,
    ) -> Vec<Vec<Raw>> {
        self.groups.iter().map(|group| of(group, self.report)).collect()
    }
}

/// An advantage estimator.
pub(crate) trait Estimate {
    /// Checks the values of the settings.
    fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Keys that have no effect with the values of the others.
    fn ignored(&self) -> &'static [&'static str] {
        &[]
    }

    /// True if the estimator compares the sampled episodes of a group, so that a group of one has no gradient.
    fn needs_group(&self) -> bool {
        true
    }

    /// True if all tokens of an episode share one advantage.
    fn is_per_episode(&self) -> bool {
        true
    }

    /// True if a KL in the reward is subtracted per token, otherwise per episode.
    fn pays_kl_by_token(&self) -> bool {
        false
    }

    /// True if a KL can be part of the reward.
    fn takes_kl(&self) -> bool {
        true
    }

    fn whitening(&self) -> Whitening {
        Whitening::Off
    }

    fn reads(&self) -> Reads {
        Reads::default()
    }

    /// The episodes that are kept; `None` if all are.
    fn keep(&self) -> Option<Keep> {
        None
    }

    /// The advantages of each episode of each group.
    fn estimate(&self, batch: &mut Batch<'_, '_>) -> Vec<Vec<Raw>>;
}

/// Generates [`AdvantageKind`] and [`Estimator`] from the table.
macro_rules! estimators {
    ($($(#[doc = $doc:literal])+ $file:ident::$kind:ident = $name:literal,)+) => {
        /// The estimators with their settings.
        pub mod kinds { $(pub use super::$file::$kind;)+ }
        $(use $file::$kind;)+

        $crate::settings::kind::kinds! {
            /// The advantage estimator.
            AdvantageKind of "advantage", |kind| kind.defaults().settings() => { $($(#[doc = $doc])+ $kind = $name,)+ }
        }

        /// An advantage estimator: converts rewards to advantages, before whitening.
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Estimator { $($(#[doc = $doc])+ $kind($kind),)+ }

        impl Estimator {
            pub(crate) fn kernel(&self) -> &dyn estimator::Estimate {
                match self { $(Self::$kind(estimator) => estimator,)+ }
            }

            /// Kind of the estimator.
            pub fn kind(&self) -> AdvantageKind {
                match self { $(Self::$kind(_) => AdvantageKind::$kind,)+ }
            }

            /// The kind and all settings that it uses.
            pub(crate) fn settings(&self) -> AdvantageSettings {
                let ignored = self.kernel().ignored();
                match self {
                    $(Self::$kind(own) => AdvantageSettings::resolved(AdvantageKind::$kind, own, ignored),)+
                }
            }
        }

        impl AdvantageSettings {
            /// The estimator of that kind with these settings, unchecked.
            fn estimator(&self, kind: AdvantageKind) -> Estimator {
                match kind { $(AdvantageKind::$kind => Estimator::$kind(self.apply()),)+ }
            }
        }
    };
}
pub(super) use estimators;

impl AdvantageKind {
    /// The estimator with its default settings.
    pub fn defaults(self) -> Estimator {
        AdvantageSettings::default().estimator(self)
    }
}

impl AdvantageSettings {
    /// The estimator with checked settings.
    pub(crate) fn resolve(&self, kind: AdvantageKind) -> Result<Estimator, AlgoError> {
        let estimator = self.estimator(kind);
        estimator.kernel().check().map_err(out_of_range::<AdvantageKind>)?;
        Ok(estimator)
    }
}

impl Estimator {
    /// True if the estimator compares the sampled episodes of a group, so that a group of one has no gradient.
    pub fn needs_group(&self) -> bool {
        self.kernel().needs_group()
    }

    /// True if all tokens of an episode share one advantage.
    pub fn is_per_episode(&self) -> bool {
        self.kernel().is_per_episode()
    }

    /// True if the baseline is the task's greedy episode.
    pub fn reads_greedy_episode(&self) -> bool {
        self.kernel().reads().greedy
    }

    /// True if a critic values what all agents know before each round.
    pub fn reads_round_values(&self) -> bool {
        self.kernel().reads().round_values
    }

    /// The combinations of turns whose rewards the estimator reads.
    pub fn recombination(&self) -> Option<Recombination> {
        self.kernel().reads().recombined
    }

    /// True if the estimator uses the rewards of single turns.
    pub fn reads_steps(&self) -> bool {
        self.kernel().reads().steps
    }
}

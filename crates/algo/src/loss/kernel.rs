use serde::{Deserialize, Serialize};

pub(crate) use crate::kl::ratio;
use crate::settings::keys::OutOfRange;
use crate::{RatioTo, WeightAction, WeightLevel};

/// Part of an optimiser step that a loss must see at once.
///
/// An engine always calls the loss with whole sequences, and never divides a group between micro-batches for a loss of pairs. A loss of step scope is called once
/// ([`step_loss`](crate::step_loss)), after all micro-batches of the optimiser step have been scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Single tokens.
    Token,
    /// All policy tokens of a sequence.
    Sequence,
    /// Both completions of a pair, which are neighbours.
    Pair,
    /// All sequences of the optimiser step.
    Step,
}

/// Active bound of a clip or of a constant weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Clipped {
    #[default]
    No,
    Low,
    High,
    Dual,
}

/// One sequence's inputs, widened. All slices have one entry per policy token, of which there is at least one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) lp: &'a [f64],
    /// Denominator of the ratio: the proximal policy or the sampler.
    pub(crate) old: &'a [f64],
    /// The proximal policy; `lp` if not given.
    pub(crate) proximal: &'a [f64],
    /// The sampler; `lp` if not given.
    pub(crate) behavior: &'a [f64],
    /// The reference; `lp` if not given.
    pub(crate) reference: &'a [f64],
    /// 0 if not given.
    pub(crate) advantage: &'a [f64],
    /// Tokens selected from the whole step; empty except for losses of step scope.
    pub(crate) picked: &'a [bool],
    /// 0 if not given.
    pub(crate) outcome: f64,
    /// Coefficients of a loss that is computed elsewhere; empty for the others.
    pub(crate) given: &'a [f64],
}

impl Row<'_> {
    pub(crate) fn len(&self) -> usize {
        self.lp.len()
    }

    /// lp − old.
    pub(crate) fn log_ratio(&self, t: usize) -> f64 {
        self.lp[t] - self.old[t]
    }
}

/// Term of a token before weight and normaliser.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenTerm {
    pub(crate) value: f64,
    pub(crate) d_logprob: f64,
    pub(crate) clipped: Clipped,
}

/// Inputs of a surrogate beyond the log-probability.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each array there is")]
pub(crate) struct Reads {
    pub(crate) advantage: bool,
    /// Reads `old`: has a ratio that corrects for earlier optimiser steps of the batch.
    pub(crate) old: bool,
    pub(crate) behavior: bool,
    pub(crate) reference: bool,
    pub(crate) outcome: bool,
}

impl Reads {
    /// Only the advantage.
    pub(crate) const ADVANTAGE: Self =
        Self { advantage: true, old: false, behavior: false, reference: false, outcome: false };
    /// Advantage and `old`.
    pub(crate) const RATIO: Self = Self { old: true, ..Self::ADVANTAGE };
    /// Advantage and sampler.
    pub(crate) const BEHAVIOR: Self = Self { behavior: true, ..Self::ADVANTAGE };
}

/// Bounds of a surrogate for which clip fractions are reported.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Bounds {
    pub(crate) low: bool,
    pub(crate) high: bool,
    pub(crate) dual: bool,
}

impl Bounds {
    pub(crate) const BOTH: Self = Self { low: true, high: true, dual: false };
    pub(crate) const HIGH: Self = Self { low: false, high: true, dual: false };

    pub(crate) fn or(self, other: Self) -> Self {
        Self { low: self.low | other.low, high: self.high | other.high, dual: self.dual | other.dual }
    }
}

/// A trained token of the optimiser step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepToken {
    /// Index among all policy tokens of the step.
    pub(crate) position: u64,
    pub(crate) log_ratio: f64,
    pub(crate) old: f64,
    pub(crate) advantage: f64,
}

/// Default importance weight of a loss whose samples may be stale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StaleWeight {
    pub(crate) level: WeightLevel,
    pub(crate) action: WeightAction,
}

impl StaleWeight {
    /// Decoupled PPO's, per token (arXiv 2505.24298). A weight far above 1 comes from a token that was very
    /// unlikely for the sampler, and is masked.
    pub(crate) const TOKEN: Self = Self { level: WeightLevel::Token, action: WeightAction::Mask };
    /// The same over the sequence's geometric mean.
    pub(crate) const GEOMETRIC: Self = Self { level: WeightLevel::Geometric, action: WeightAction::Mask };
}

/// A surrogate, sequence by sequence.
pub(crate) trait Kernel {
    /// Checks the values of the settings.
    fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Denominator of the ratio if samples may be stale and the recipe gives no weight. A ratio that bounds the change
    /// from the start of the batch stays relative to the proximal policy: relative to the sampler, the bound could be
    /// exceeded before the first step.
    fn stale_ratio_to(&self) -> RatioTo {
        RatioTo::Old
    }

    /// Default weight from the proximal policy to the sampler if samples may be stale and the ratio is not relative to
    /// the sampler. `None` if the loss already corrects for its sampler, or has no samples.
    fn stale_weight(&self) -> Option<StaleWeight> {
        None
    }

    fn scope(&self) -> Scope {
        Scope::Token
    }

    /// True if the loss is one term per sequence: its normaliser is the number of sequences and all tokens of a
    /// sequence share one advantage. The value of a sequence is the sum over its tokens.
    fn is_per_sequence(&self) -> bool {
        false
    }

    /// True if the one term of a sequence is a mean over its tokens, so that it does not grow with the number of tokens.
    fn is_mean(&self) -> bool {
        false
    }

    fn reads(&self) -> Reads;

    /// True if the loss is computed elsewhere: its coefficients are inputs that are already normalised.
    fn is_given(&self) -> bool {
        false
    }

    fn bounds(&self) -> Bounds {
        Bounds::default()
    }

    /// True if the derivative of every token is a finite multiple of its advantage, and therefore 0 for a zero
    /// advantage.
    fn scales_with_advantage(&self) -> bool {
        false
    }

    /// Keys without effect while every ratio is 1.
    fn idle_on_policy(&self) -> &'static [&'static str] {
        &[]
    }

    /// Positions of the tokens that a loss of step scope selects; `draw` returns 64 random bits for a position.
    fn pick(&self, tokens: &[StepToken], draw: &dyn Fn(u64) -> u64) -> Vec<u64> {
        let _ = (tokens, draw);
        Vec::new()
    }

    /// Writes the term of each token.
    fn row(&self, row: &Row<'_>, terms: &mut [TokenTerm]);
}

/// Computes `terms` token by token.
pub(crate) fn each(row: &Row<'_>, terms: &mut [TokenTerm], term: impl Fn(usize) -> TokenTerm) {
    for (t, out) in terms.iter_mut().enumerate().take(row.len()) {
        *out = term(t);
    }
}

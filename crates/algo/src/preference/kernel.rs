use crate::settings::keys::OutOfRange;
use crate::{DataKind, Scope};

/// A completion: sums over its policy tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Completion {
    /// Σ lp.
    pub(crate) lp: f64,
    /// Σ ref; equal to `lp` if the loss reads no reference.
    pub(crate) reference: f64,
    /// Σ of the policy's log-probabilities at half the temperature; equal to `lp` if the loss does not read them.
    pub(crate) sharpened: f64,
    /// Number of policy tokens, at least 1.
    pub(crate) tokens: f64,
    /// True for a chosen or desirable completion.
    pub(crate) is_desirable: bool,
}

impl Completion {
    /// d = Σ (lp − ref).
    pub(crate) fn log_ratio(&self) -> f64 {
        self.lp - self.reference
    }

    /// p = mean lp.
    pub(crate) fn mean(&self) -> f64 {
        self.lp / self.tokens
    }
}

/// Part of a completion in the loss before the normaliser.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Term {
    pub(crate) value: f64,
    /// Derivative by Σ lp.
    pub(crate) slope: f64,
}

/// Completions that a loss compares in one term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A chosen and a rejected completion, in this order; the loss is a mean over pairs.
    Pair,
    /// A completion with its label; the loss is a mean over completions.
    Completion,
    /// All pairs of the optimiser step; the loss is a mean over pairs.
    Step,
}

/// Number of the optimiser step that a loss is relative to. It is computed before the step and held constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// z = max(0, mean of d over completions of other prompts): each prompt of the optimiser step with the completion of
    /// the one before.
    Mismatched,
    /// δ: mean of β·d over all completions of the stage so far, including those of the step.
    Running,
    /// Mean number of tokens of the chosen completions of the optimiser step.
    ChosenTokens,
}

impl Anchor {
    /// True for a mean of log-ratios, which is reported.
    pub(crate) fn is_log_ratio(self) -> bool {
        self != Self::ChosenTokens
    }
}

/// A preference loss.
pub(crate) trait Kernel {
    /// Checks the values of the settings.
    fn check(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Scale of the implicit reward.
    fn beta(&self) -> f64;

    /// True if the reference's log-probabilities are used.
    fn reads_reference(&self) -> bool {
        true
    }

    /// True if the policy's log-probabilities at half the temperature are used.
    fn reads_sharpened(&self) -> bool {
        false
    }

    fn unit(&self) -> Unit {
        Unit::Pair
    }

    /// The anchor that the loss reads.
    fn anchor(&self) -> Option<Anchor> {
        None
    }

    /// Weight of the tokens of a completion beyond the length of the shorter one of its pair.
    fn tail_weight(&self) -> f64 {
        1.0
    }

    /// Implicit reward of a completion, for the metrics.
    fn reward(&self, completion: &Completion) -> f64 {
        self.beta() * completion.log_ratio()
    }

    /// Writes the term of each completion of a [`Unit`].
    fn terms(&self, unit: &[Completion], anchor: f64, terms: &mut [Term]);
}

impl Unit {
    pub(crate) fn scope(self) -> Scope {
        match self {
            Self::Completion => Scope::Sequence,
            Self::Pair => Scope::Pair,
            Self::Step => Scope::Step,
        }
    }

    pub(crate) fn data(self) -> DataKind {
        match self {
            Self::Completion => DataKind::Labels,
            Self::Pair | Self::Step => DataKind::Pairs,
        }
    }
}

/// Terms of pairs from their value and its derivatives by Σ lp of the chosen and of the rejected completion.
pub(crate) fn each_pair(
    unit: &[Completion],
    terms: &mut [Term],
    pair: impl Fn(&Completion, &Completion) -> (f64, f64, f64),
) {
    for (completions, terms) in unit.chunks_exact(2).zip(terms.chunks_exact_mut(2)) {
        let (value, chosen, rejected) = pair(&completions[0], &completions[1]);
        terms[0] = Term { value, slope: chosen };
        terms[1] = Term { value: 0.0, slope: rejected };
    }
}

/// Terms of a loss of Δ = d_c − d_r, from its value and its derivative by Δ.
pub(crate) fn of_margin(unit: &[Completion], terms: &mut [Term], loss: impl Fn(f64) -> (f64, f64)) {
    each_pair(unit, terms, |chosen, rejected| {
        let (value, slope) = loss(chosen.log_ratio() - rejected.log_ratio());
        (value, slope, -slope)
    });
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// log σ(x).
pub(crate) fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

/// −(1−ε)·log σ(x) − ε·log σ(−x) and its derivative: the loss of a label that is wrong with probability ε.
pub(crate) fn smoothed(x: f64, epsilon: f64) -> (f64, f64) {
    (-(1.0 - epsilon) * log_sigmoid(x) - epsilon * log_sigmoid(-x), sigmoid(x) - (1.0 - epsilon))
}

/// Checks β.
pub(crate) fn check_beta(beta: f64) -> Result<(), OutOfRange> {
    crate::settings::keys::check("beta", beta, beta > 0.0, "above 0", "0.1 is usual")
}

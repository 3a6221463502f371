use serde::{Deserialize, Serialize};

use super::{
    Correction, LossBatch, LossGrad, LossTerms, Scope, Surrogate, TokenScores, ValueLoss,
    correction::Weight,
    inputs::{Inputs, Wide, rounded},
    kernel::{Clipped, Row, TokenTerm},
};
use crate::{Aggregation, AlgoError, GlobalCounts, KlLoss, RatioTo};

/// A loss: Σ surrogate·weight + coef·KL − coef·entropy + coef·value loss, each over its normaliser.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PolicyLoss {
    /// The surrogate.
    pub surrogate: Surrogate,
    /// Denominator of its importance ratio.
    pub ratio_to: RatioTo,
    /// Weights and rejection for a sampler that is not the proximal policy. They apply only to the surrogate.
    pub correction: Correction,
    /// True if samples may come from an older policy. The metrics then include the divergence from the samplers even
    /// without a weight ([`LossMetrics::correction_weight_mean`](crate::LossMetrics::correction_weight_mean)); no
    /// coefficient depends on it.
    pub is_stale: bool,
    /// Normaliser of the per-token terms: a token-scoped surrogate, KL and entropy. A surrogate that is one term per
    /// sequence is divided by the number of sequences. An episode of several segments counts as one sequence.
    pub aggregation: Aggregation,
    /// Divergence from the reference; `None` for none.
    pub kl: Option<KlLoss>,
    /// Weight of the entropy bonus, 0 for none.
    pub entropy_coef: f64,
    /// Value loss of a shared backbone; for a separate critic see [`value_loss`](super::value_loss()).
    pub value: Option<ValueLoss>,
}

impl PolicyLoss {
    /// A surrogate and its normaliser, without anything else.
    pub fn new(surrogate: Surrogate, aggregation: Aggregation) -> Self {
        Self {
            surrogate,
            ratio_to: RatioTo::Old,
            correction: Correction::default(),
            is_stale: false,
            aggregation,
            kl: None,
            entropy_coef: 0.0,
            value: None,
        }
    }

    /// True if the reference's log-probabilities are used.
    pub fn reads_reference(&self) -> bool {
        self.kl.is_some() || self.surrogate.reads_reference()
    }

    /// Part of an optimiser step that it must see at once: the engine calls [`policy_loss`] with at least that much,
    /// and [`step_loss`](super::step_loss()) where it is [`Scope::Step`].
    pub fn scope(&self) -> Scope {
        self.surrogate.scope()
    }
}

/// Value and coefficients of a micro-batch.
///
/// Pure. The coefficients of a sequence depend only on that sequence and on `counts`, so results are bitwise identical
/// for any split of the optimiser step into micro-batches. Empty batches and empty rows are allowed.
///
/// # Errors
///
/// Arrays of wrong length, rows that do not tile them, a missing input that the loss reads, NaN or infinity (naming
/// row and token), counts smaller than the batch itself, or a loss of [`Scope::Step`], which is
/// [`step_loss`](crate::step_loss)'s.
pub fn policy_loss(
    loss: &PolicyLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
) -> Result<LossGrad, AlgoError> {
    if loss.scope() == Scope::Step {
        return Err(AlgoError::StepScope);
    }
    of_micro_batch(loss, batch, scores, counts, &[])
}

/// [`policy_loss`] for a loss of any scope; `picked` marks the selected tokens of a step-scoped one, flat over the
/// rows.
pub(super) fn of_micro_batch(
    loss: &PolicyLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
    picked: &[bool],
) -> Result<LossGrad, AlgoError> {
    let inputs = Inputs::of_policy(loss, batch, scores)?;
    let kernel = loss.surrogate.kernel();
    let tokens = scores.logprob.len();
    let mut grad = LossGrad {
        d_logprob: vec![0.0; tokens],
        d_entropy: vec![0.0; tokens],
        d_value: vec![0.0; scores.value.len()],
        d_last_value: Vec::new(),
        terms: LossTerms::of_policy(loss),
        ..LossGrad::default()
    };
    if let Some(given) = inputs.given {
        grad.terms.add_surrogate(given.value);
    }
    let (mut wide, mut terms, mut weights) = (Wide::default(), Vec::new(), Vec::new());
    for (index, range) in inputs.rows.iter().enumerate() {
        if range.is_empty() {
            continue;
        }
        inputs.check_row(index, range)?;
        inputs.observe_mismatch(range, &mut grad.terms);
        let is_masked = inputs.is_masked(index);
        grad.terms.count_sequence(range.len(), inputs.has_mask().then_some(is_masked), counts)?;
        if is_masked {
            continue;
        }
        if kernel.is_per_sequence() {
            inputs.check_even_advantage(index, range)?;
        }
        let row = wide.row(&inputs, index, range, picked);
        terms.clear();
        terms.resize(range.len(), TokenTerm::default());
        kernel.row(&row, &mut terms);
        loss.correction.weigh(&row, &mut weights);
        let of_row = OfRow { loss, inputs: &inputs, counts, row, index, start: range.start };
        of_row.add(&terms, &weights, &mut grad)?;
        if let (Some(spec), Some(value)) = (&loss.value, &inputs.value) {
            spec.add(value, index, range, counts, &mut grad)?;
        }
    }
    Ok(grad)
}

/// A row and its position in the micro-batch.
struct OfRow<'a> {
    loss: &'a PolicyLoss,
    inputs: &'a Inputs<'a>,
    counts: &'a GlobalCounts,
    row: Row<'a>,
    index: usize,
    /// Index of its first token.
    start: usize,
}

/// True if the surrogate drops a token because its ratio is out of bounds.
fn is_dropped(term: &TokenTerm) -> bool {
    term.clipped != Clipped::No && term.d_logprob == 0.0
}

impl OfRow<'_> {
    /// Log-ratio for the factor of the KL. Only the ratio to the sampler makes the mean correct; with a correction
    /// weight the surrogate's own ratio is a different one.
    fn kl_log_ratio(&self, t: usize) -> f64 {
        if self.loss.correction.weight.is_some() {
            self.row.lp[t] - self.row.behavior[t]
        } else {
            self.row.log_ratio(t)
        }
    }

    /// Weights and divides the row's terms, and adds KL and entropy.
    fn add(&self, terms: &[TokenTerm], weights: &[Weight], grad: &mut LossGrad) -> Result<(), AlgoError> {
        let Self { loss, row, .. } = self;
        let length = self.inputs.episode_length(self.index, row.len());
        let divisor = loss.aggregation.divisor(length, self.counts)?;
        let kernel = loss.surrogate.kernel();
        let surrogate_divisor = match (kernel.is_per_sequence(), self.inputs.given) {
            // Already normalised.
            (_, Some(_)) => 1.0,
            // The segments of an episode share its weight by their lengths.
            (true, None) if kernel.is_mean() => {
                self.counts.episodes() as f64 * (length as f64 / row.len() as f64)
            }
            (true, None) => self.counts.episodes() as f64,
            (false, None) => divisor,
        };
        for (t, (term, weight)) in terms.iter().zip(weights).enumerate() {
            let (i, sums) = (self.start + t, &mut grad.terms);
            sums.add_surrogate(weight.value * term.value / surrogate_divisor);
            sums.count_clipped(term.clipped);
            sums.count_picked(row.picked.get(t).copied().unwrap_or(false));
            sums.observe_weight(weight, row.lp[t] - row.behavior[t], is_dropped(term));
            let mut coefficient = weight.value * term.d_logprob / surrogate_divisor;
            if let Some(kl) = &loss.kl {
                let (value, slope) = kl.value_and_gradient(row.lp[t], row.reference[t], self.kl_log_ratio(t));
                coefficient += kl.coef * slope / divisor;
                sums.add_kl_loss(kl.coef * value / divisor);
            }
            let entropy = f64::from(self.inputs.entropy[i]);
            sums.observe_entropy(entropy);
            if loss.entropy_coef != 0.0 {
                sums.add_entropy_loss(-loss.entropy_coef * entropy / divisor);
            }
            let given = self.inputs.given.map_or(0.0, |given| given.d_entropy[i]);
            grad.d_entropy[i] = rounded(given - loss.entropy_coef / divisor, self.index, t)?;
            self.inputs.observe(row, t, sums);
            grad.d_logprob[i] = rounded(coefficient, self.index, t)?;
        }
        Ok(())
    }
}

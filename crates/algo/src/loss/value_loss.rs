use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    LossBatch, LossGrad, LossTerms, TokenScores,
    inputs::{Inputs, ValueInputs, rounded},
};
use crate::{AlgoError, GlobalCounts};

/// The loss of a learned value V against returns: ½·max((V − R)², (clip(V, V_old ± ε) − R)²) per token (arXiv
/// 1707.06347, section 5, with PPO's usual clip), over all policy tokens of the optimiser step. Zero gradient where the
/// clip's constant branch is active.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ValueLoss {
    /// Weight of the value loss; 1 for a separate critic.
    pub coef: f64,
    /// ε; `None` for no clip.
    pub clip: Option<f64>,
}

/// Value and coefficients of a micro-batch for a separate critic, whose only scores are values: `d_logprob` and
/// `d_entropy` are empty. On a shared backbone the same term is part of [`policy_loss`](crate::policy_loss).
///
/// Rows, masks, counts and errors are as in `policy_loss`; reads `returns`, and `old_value` for the clip.
pub fn value_loss(
    spec: &ValueLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
) -> Result<LossGrad, AlgoError> {
    let inputs = Inputs::of_critic(spec, batch, scores)?;
    let mut grad = LossGrad {
        d_value: vec![0.0; scores.value.len()],
        terms: LossTerms::of_critic(spec),
        ..LossGrad::default()
    };
    for (row, range) in inputs.rows.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        inputs.check_row(row, range)?;
        let is_masked = inputs.is_masked(row);
        grad.terms.count_sequence(range.len(), inputs.has_mask().then_some(is_masked), counts)?;
        if let (false, Some(value)) = (is_masked, &inputs.value) {
            spec.add(value, row, range, counts, &mut grad)?;
        }
    }
    Ok(grad)
}

impl ValueLoss {
    /// Value, derivative, and whether the constant branch is active.
    fn term(&self, value: f64, target: f64, old: f64) -> (f64, f64, bool) {
        let error = value - target;
        let plain = (0.5 * error * error, error, false);
        let Some(reach) = self.clip else { return plain };
        let bounded = value.max(old - reach).min(old + reach) - target;
        if bounded * bounded > error * error { (0.5 * bounded * bounded, 0.0, true) } else { plain }
    }

    /// Adds a row's terms, over all policy tokens of the step.
    pub(super) fn add(
        &self,
        inputs: &ValueInputs<'_>,
        row: usize,
        range: &Range<usize>,
        counts: &GlobalCounts,
        grad: &mut LossGrad,
    ) -> Result<(), AlgoError> {
        let divisor = counts.tokens as f64;
        for i in range.clone() {
            let (value, target) = (f64::from(inputs.value[i]), f64::from(inputs.returns[i]));
            let old = inputs.old.get(i).copied().map_or(value, f64::from);
            let (loss, slope, is_clipped) = self.term(value, target, old);
            grad.terms.add_value_loss(self.coef, loss / divisor);
            grad.terms.observe_value(value, target, is_clipped);
            grad.d_value[i] = rounded(self.coef * slope / divisor, row, i - range.start)?;
        }
        Ok(())
    }
}

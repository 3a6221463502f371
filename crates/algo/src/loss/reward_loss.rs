use serde::{Deserialize, Serialize};

use super::{
    LossBatch, LossGrad, LossTerms, TokenScores,
    inputs::{Inputs, rounded},
    preference_loss::check_pairs,
};
use crate::{AlgoError, GlobalCounts, Score};

/// The loss of a reward model, which learns from values: after the last token of each completion, or after each step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardLoss {
    /// Of completions in pairs: −log σ(r_c − r_r − m) + c·(r_c + r_r)² (Bradley-Terry; margin m of arXiv 2307.09288, centering of
    /// arXiv 2312.09244), a mean over pairs. r is the value after the last token, m the margin of the pair.
    Pairs {
        /// c.
        center: f64,
    },
    /// Of steps that are right or wrong: cross-entropy at the last token of each (arXiv 2305.20050), a mean over steps. The value
    /// is the difference of the logits of right and wrong.
    Steps {
        /// Labelled steps of the whole optimiser step.
        steps: u64,
    },
}

/// A step of a completion with its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLabel {
    /// Policy tokens of the row up to the end of the step.
    pub end: usize,
    /// True if the step is right.
    pub is_right: bool,
}

/// Value and coefficients of a micro-batch for a reward model, whose only scores are values: `d_logprob` and `d_entropy` are
/// empty.
///
/// Rows, masks, counts and errors are as in [`policy_loss`](crate::policy_loss). Pairs are as in
/// [`preference_loss`](crate::preference_loss), and read the margins; steps read the labels of each row.
pub fn reward_loss(
    loss: &RewardLoss,
    batch: &LossBatch<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
) -> Result<LossGrad, AlgoError> {
    let inputs = Inputs::of_reward(loss, batch, scores)?;
    let mut grad = LossGrad {
        d_value: vec![0.0; scores.value.len()],
        d_last_value: vec![0.0; batch.rows.len()],
        terms: LossTerms::of_reward(),
        ..LossGrad::default()
    };
    for (row, range) in inputs.rows.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        inputs.check_row(row, range)?;
        let value = f64::from(scores.last_value[row]);
        if !value.is_finite() {
            return Err(AlgoError::NonFinite { what: Score::Value, row, token: range.len(), value });
        }
        let is_masked = inputs.is_masked(row);
        grad.terms.count_sequence(range.len(), inputs.has_mask().then_some(is_masked), counts)?;
    }
    match *loss {
        RewardLoss::Pairs { center } => pairs(center, batch, &inputs, scores, counts, &mut grad)?,
        RewardLoss::Steps { steps } => self::steps(steps, batch, &inputs, scores, &mut grad)?,
    }
    Ok(grad)
}

/// log(1 + exp(x)) and its derivative.
fn softplus(x: f64) -> (f64, f64) {
    let tail = (-x.abs()).exp();
    let slope = if x >= 0.0 { 1.0 / (1.0 + tail) } else { tail / (1.0 + tail) };
    (x.max(0.0) + tail.ln_1p(), slope)
}

fn pairs(
    center: f64,
    batch: &LossBatch<'_>,
    inputs: &Inputs<'_>,
    scores: &TokenScores,
    counts: &GlobalCounts,
    grad: &mut LossGrad,
) -> Result<(), AlgoError> {
    check_pairs(batch)?;
    let divisor = counts.sequences as f64 / 2.0;
    for chosen in (0..batch.rows.len()).step_by(2) {
        let rejected = chosen + 1;
        if inputs.is_masked(chosen) || inputs.is_masked(rejected) {
            continue;
        }
        let [of_chosen, of_rejected] = [chosen, rejected].map(|row| f64::from(scores.last_value[row]));
        let margin = batch.margin.map_or(0.0, |margin| f64::from(margin[chosen]));
        let (value, slope) = softplus(of_rejected - of_chosen + margin);
        let sum = of_chosen + of_rejected;
        grad.terms.add_surrogate((value + center * sum * sum) / divisor);
        for (row, sign) in [(chosen, -1.0), (rejected, 1.0)] {
            let d = (sign * slope + 2.0 * center * sum) / divisor;
            grad.d_last_value[row] = rounded(d, row, batch.rows[row].len())?;
        }
        grad.terms.observe_reward_pair(of_chosen, of_rejected);
    }
    Ok(())
}

fn steps(
    steps: u64,
    batch: &LossBatch<'_>,
    inputs: &Inputs<'_>,
    scores: &TokenScores,
    grad: &mut LossGrad,
) -> Result<(), AlgoError> {
    let mut seen = 0;
    for (row, (range, labels)) in batch.rows.iter().zip(batch.steps).enumerate() {
        let mut start = 0;
        for (step, label) in labels.iter().enumerate() {
            if label.end <= start || label.end > range.len() {
                return Err(AlgoError::StepEnd { row, step, end: label.end, tokens: range.len() });
            }
            start = label.end;
        }
        seen += labels.len() as u64;
        if inputs.is_masked(row) {
            continue;
        }
        for label in labels {
            // The value after a step is that of the prefix of the token after it.
            let (score, d) = if label.end < range.len() {
                let token = range.start + label.end;
                (scores.value[token], &mut grad.d_value[token])
            } else {
                (scores.last_value[row], &mut grad.d_last_value[row])
            };
            let score = f64::from(score);
            let sign = if label.is_right { -1.0 } else { 1.0 };
            let (value, slope) = softplus(sign * score);
            grad.terms.add_surrogate(value / steps as f64);
            *d = rounded(sign * slope / steps as f64, row, label.end)?;
            grad.terms.observe_reward_step(softplus(score).1, label.is_right);
        }
    }
    if seen > steps {
        return Err(AlgoError::Counts { what: "steps", counted: steps, seen });
    }
    Ok(())
}

//! Loss on held-out rows, without training.

use std::{borrow::Cow, collections::BTreeMap};

use rloom_algo::{
    Algorithm, AlgorithmState, LossStep, LossTerms, Mismatch, Objective, PolicyLoss, Sft, Surrogate,
};
use rloom_core::{Group, PolicyVersion, metric};
use rloom_engine::{TrainEngine, TrainError, Which};

use crate::preference::labels;
use crate::reward::{CalibrationBin, calibration, calibration_error, judgements};
use crate::rows::{loss_inputs, members, split_groups};
use crate::{BatchScores, BatchTrainer, Models};

/// The loss on held-out groups, and what is reported with it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Validation {
    /// Metrics, under names with the prefix `validation/`.
    pub metrics: BTreeMap<String, f64>,
    /// The calibration curve of a reward model, by ascending predicted probability; bins without judgements are left out.
    pub calibration: Vec<CalibrationBin>,
}

impl BatchTrainer {
    /// Measures the model that the method trains on held-out groups: by the loss that the method minimises, and what is reported
    /// with it. A method whose loss does not tell the fit has the cross-entropy instead.
    ///
    /// Parts of about `batch` groups are scored at a time. Losses and anchors that compare the completions of an optimiser step
    /// compare those of a part; the others do not depend on the division. Nothing changes the state of the algorithm.
    pub fn validate<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        groups: &[Group],
        state: &AlgorithmState,
        batch: usize,
    ) -> Result<Validation, TrainError> {
        let engine = &mut models.policy;
        let all = members(groups);
        let counts = self.counts(&all);
        let reward = self.algorithm.reward_model.map(|spec| (spec, Self::reward_loss(spec, &all)));
        let (mut terms, mut judged) = (LossTerms::default(), Vec::new());
        // Parts are not smaller than a batch: an anchor needs several completions.
        for part in split_groups(groups.len(), groups.len() / batch.max(1)) {
            let part = &groups[part];
            let members = members(part);
            let mut known = BatchScores::default();
            if self.algorithm.needs_reference() {
                known.reference = self.reference(engine, &members)?;
            }
            if self.algorithm.preference.is_some() {
                known.labels = labels(part)?;
            }
            self.add_reward_labels(part, &mut known)?;
            let packed = self.pack(&members)?;
            let scores = engine.score(Which::Policy, &packed)?;
            let mut inputs = Cow::Owned(loss_inputs(&packed, &members, &known, None, Mismatch::Unmeasured));
            self.add_sharpened(engine, &packed, &mut inputs)?;
            let objective = if let Some((_, loss)) = reward {
                Objective::Reward(loss)
            } else {
                let batch = (&members[..], &packed[..]);
                let draws = self.draws(PolicyVersion(0), 0);
                let (loss, mut state) = (validation_loss(&self.algorithm, state), state.clone());
                self.objective(engine, loss, batch, &known.reference, &mut state, draws)?
            };
            for grad in LossStep::new(objective, counts, &inputs).evaluate_step(&scores)? {
                terms.merge(&grad.terms);
            }
            if let Some((spec, _)) = reward {
                judged.extend(judgements(spec, &inputs, &scores));
            }
        }
        let named = terms.finish(&counts)?.named().into_iter();
        let mut metrics: BTreeMap<String, f64> =
            named.map(|(name, value)| (format!("{}{name}", metric::VALIDATION_PREFIX), value)).collect();
        let calibration = reward.map(|(spec, _)| calibration(spec, &judged));
        if let Some(bins) = &calibration {
            metrics.insert(metric::VALIDATION_CALIBRATION_ERROR.to_owned(), calibration_error(bins));
        }
        Ok(Validation { metrics, calibration: calibration.unwrap_or_default() })
    }
}

/// The loss that is reported: the value of `dft` is 0 for tokens of probability 0 as well.
fn validation_loss(algorithm: &Algorithm, state: &AlgorithmState) -> PolicyLoss {
    let loss = algorithm.loss_at(state);
    match loss.surrogate {
        Surrogate::Dft(_) => PolicyLoss { surrogate: Surrogate::Sft(Sft), ..loss },
        _ => loss,
    }
}

//! Loss of the policy on held-out rows, without training.

use std::{borrow::Cow, collections::BTreeMap};

use rloom_algo::{Algorithm, AlgorithmState, LossStep, LossTerms, Mismatch, PolicyLoss, Sft, Surrogate};
use rloom_core::{Group, PolicyVersion, metric};
use rloom_engine::{TrainEngine, TrainError, Which};

use crate::preference::labels;
use crate::rows::{loss_inputs, members, split_groups};
use crate::{BatchScores, BatchTrainer, Models};

impl BatchTrainer {
    /// Metrics of the policy on held-out groups: the loss that the method minimises, and what is reported with it, under names
    /// with the prefix `validation/`. A method whose loss does not tell the fit has the cross-entropy instead.
    ///
    /// Parts of about `batch` groups are scored at a time. Losses and anchors that compare the completions of an optimiser step
    /// compare those of a part; the others do not depend on the division. Nothing changes the state of the algorithm.
    pub fn validate<E: TrainEngine>(
        &self,
        models: &mut Models<E>,
        groups: &[Group],
        state: &AlgorithmState,
        batch: usize,
    ) -> Result<BTreeMap<String, f64>, TrainError> {
        let engine = &mut models.policy;
        let counts = self.counts(&members(groups));
        let mut terms = LossTerms::default();
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
            let packed = self.pack(&members)?;
            let scores = engine.score(Which::Policy, &packed)?;
            let mut inputs = Cow::Owned(loss_inputs(&packed, &members, &known, None, Mismatch::Unmeasured));
            self.add_sharpened(engine, &packed, &mut inputs)?;
            let batch = (&members[..], &packed[..]);
            let draws = self.draws(PolicyVersion(0), 0);
            let (loss, mut state) = (validation_loss(&self.algorithm, state), state.clone());
            let objective = self.objective(engine, loss, batch, &known.reference, &mut state, draws)?;
            for grad in LossStep::new(objective, counts, &inputs).evaluate_step(&scores)? {
                terms.merge(&grad.terms);
            }
        }
        let named = terms.finish(&counts)?.named().into_iter();
        Ok(named.map(|(name, value)| (format!("{}{name}", metric::VALIDATION_PREFIX), value)).collect())
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

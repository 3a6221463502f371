use serde::{Deserialize, Serialize};

use super::{
    LossMetrics, PolicyLoss, Scope, ValueLoss,
    correction::Weight,
    kernel::{Bounds, Clipped},
    statistics::{Extremes, Mean, Moments},
};
use crate::{
    AlgoError, Correction, ExactSum, GlobalCounts, KlEstimator, WeightAction, kl::LOG_RATIO_LIMIT, kl::ratio,
};

/// Sums over the micro-batches of an optimiser step. Merging is exact: order and split do not matter.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LossTerms {
    tokens: u64,
    sequences: u64,
    /// Tokens outside masked rows.
    trained: u64,
    /// Masked sequences; `None` if no batch had a mask.
    masked: Option<u64>,
    bounds: Bounds,
    picks: bool,
    surrogate: ExactSum,
    kl_loss: ExactSum,
    entropy_loss: ExactSum,
    clipped_low: u64,
    clipped_high: u64,
    clipped_dual: u64,
    picked: u64,
    entropy: Mean,
    approx_kl: Mean,
    ratio: Extremes,
    kl: Mean,
    mismatch_kl: Mean,
    mismatch: Extremes,
    correction: Option<CorrectionTerms>,
    value: Option<ValueTerms>,
    preference: Option<PreferenceTerms>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reward: Option<RewardTerms>,
    /// Divergences from the teacher; `None` without one.
    divergence: Option<Mean>,
}

/// Sums over the weights of a correction.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct CorrectionTerms {
    /// True if the ratio to the sampler is used for lack of a weight.
    is_by_ratio: bool,
    masks: bool,
    rejects: bool,
    weights: Moments,
    /// Tokens whose weight is 0 because it is out of bounds.
    masked: u64,
    rejected: u64,
}

impl CorrectionTerms {
    fn new(correction: &Correction, is_stale: bool) -> Self {
        Self {
            is_by_ratio: is_stale && correction.weight.is_none(),
            masks: is_stale || correction.weight.is_some_and(|w| w.action == WeightAction::Mask),
            rejects: correction.rejection.is_some(),
            ..Self::default()
        }
    }

    fn merge(&mut self, other: &Self) {
        self.is_by_ratio |= other.is_by_ratio;
        self.masks |= other.masks;
        self.rejects |= other.rejects;
        self.weights.merge(&other.weights);
        self.masked += other.masked;
        self.rejected += other.rejected;
    }
}

/// Sums over the tokens whose value is trained.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct ValueTerms {
    clips: bool,
    /// Weighted value loss.
    part: ExactSum,
    loss: ExactSum,
    clipped: u64,
    returns: Moments,
    errors: Moments,
}

impl ValueTerms {
    fn new(spec: &ValueLoss) -> Self {
        Self { clips: spec.clip.is_some(), ..Self::default() }
    }

    fn merge(&mut self, other: &Self) {
        self.clips |= other.clips;
        self.part.merge(&other.part);
        self.loss.merge(&other.loss);
        self.clipped += other.clipped;
        self.returns.merge(&other.returns);
        self.errors.merge(&other.errors);
    }

    /// 1 − Var(R − V)/Var(R); `None` if all returns are equal.
    fn explained_variance(&self) -> Option<f64> {
        let of_returns = self.returns.spread();
        (of_returns > 0.0).then(|| 1.0 - self.errors.spread() / of_returns)
    }
}

/// Sums over the completions of a preference loss.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct PreferenceTerms {
    chosen_reward: Mean,
    rejected_reward: Mean,
    chosen_logprob: Mean,
    rejected_logprob: Mean,
    pairs: u64,
    accurate: u64,
    anchor: Option<f64>,
}

impl PreferenceTerms {
    fn merge(&mut self, other: &Self) {
        self.chosen_reward.merge(&other.chosen_reward);
        self.rejected_reward.merge(&other.rejected_reward);
        self.chosen_logprob.merge(&other.chosen_logprob);
        self.rejected_logprob.merge(&other.rejected_logprob);
        self.pairs += other.pairs;
        self.accurate += other.accurate;
        self.anchor = self.anchor.or(other.anchor);
    }

    fn report(&self, metrics: &mut LossMetrics) {
        let (chosen, rejected) = (self.chosen_reward.value(), self.rejected_reward.value());
        metrics.reward_chosen = chosen;
        metrics.reward_rejected = rejected;
        metrics.reward_margin = chosen.zip(rejected).map(|(chosen, rejected)| chosen - rejected);
        metrics.reward_accuracy = (self.pairs > 0).then(|| self.accurate as f64 / self.pairs as f64);
        metrics.reward_anchor = self.anchor;
        metrics.logprob_chosen = self.chosen_logprob.value();
        metrics.logprob_rejected = self.rejected_logprob.value();
    }
}

/// Sums over the rewards of a reward model.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct RewardTerms {
    rewards: Mean,
    extremes: Extremes,
    margins: Mean,
    /// Pairs or steps, and those among them that are judged correctly.
    judged: u64,
    accurate: u64,
}

impl RewardTerms {
    fn add(&mut self, reward: f64) {
        self.rewards.add(reward);
        self.extremes.add(reward);
    }

    fn judge(&mut self, is_accurate: bool) {
        self.judged += 1;
        self.accurate += u64::from(is_accurate);
    }

    fn merge(&mut self, other: &Self) {
        self.rewards.merge(&other.rewards);
        self.extremes.merge(&other.extremes);
        self.margins.merge(&other.margins);
        self.judged += other.judged;
        self.accurate += other.accurate;
    }

    fn report(&self, metrics: &mut LossMetrics) {
        let extremes = self.extremes.given();
        metrics.accuracy = (self.judged > 0).then(|| self.accurate as f64 / self.judged as f64);
        metrics.margin = self.margins.value();
        metrics.mean_reward = self.rewards.value();
        metrics.min_reward = extremes.map(|extremes| extremes.low);
        metrics.max_reward = extremes.map(|extremes| extremes.high);
    }
}

/// Merges optional terms.
fn merge_optional<T: Clone>(to: &mut Option<T>, from: Option<&T>, merge: fn(&mut T, &T)) {
    match (to.as_mut(), from) {
        (Some(to), Some(from)) => merge(to, from),
        (None, Some(from)) => *to = Some(from.clone()),
        (_, None) => {}
    }
}

impl LossTerms {
    pub(super) fn of_policy(loss: &PolicyLoss) -> Self {
        Self {
            bounds: loss.surrogate.kernel().bounds(),
            picks: loss.scope() == Scope::Step,
            correction: (loss.correction.is_some() || loss.is_stale)
                .then(|| CorrectionTerms::new(&loss.correction, loss.is_stale)),
            value: loss.value.as_ref().map(ValueTerms::new),
            ..Self::default()
        }
    }

    pub(super) fn of_critic(spec: &ValueLoss) -> Self {
        Self { value: Some(ValueTerms::new(spec)), ..Self::default() }
    }

    pub(super) fn of_preference(anchor: Option<f64>) -> Self {
        Self { preference: Some(PreferenceTerms { anchor, ..PreferenceTerms::default() }), ..Self::default() }
    }

    pub(super) fn of_reward() -> Self {
        Self { reward: Some(RewardTerms::default()), ..Self::default() }
    }

    /// Adds the rewards of a pair, which is judged correctly if the chosen completion has the higher one.
    pub(super) fn observe_reward_pair(&mut self, chosen: f64, rejected: f64) {
        if let Some(terms) = &mut self.reward {
            terms.add(chosen);
            terms.add(rejected);
            terms.margins.add(chosen - rejected);
            terms.judge(chosen > rejected);
        }
    }

    /// Adds the probability that a step is right, which is judged correctly if it is on the side of the label.
    pub(super) fn observe_reward_step(&mut self, probability: f64, is_right: bool) {
        if let Some(terms) = &mut self.reward {
            terms.add(probability);
            terms.judge((probability > 0.5) == is_right);
        }
    }

    pub(super) fn of_distillation() -> Self {
        Self { divergence: Some(Mean::default()), ..Self::default() }
    }

    /// Adds the divergence of a token from the teacher.
    pub(super) fn observe_divergence(&mut self, divergence: f64) {
        if let Some(mean) = &mut self.divergence {
            mean.add(divergence);
        }
    }

    /// Adds a completion with its implicit reward and its summed log-probability.
    pub(super) fn observe_completion(&mut self, is_desirable: bool, reward: f64, logprob: f64) {
        let Some(terms) = &mut self.preference else { return };
        let (of_reward, of_logprob) = if is_desirable {
            (&mut terms.chosen_reward, &mut terms.chosen_logprob)
        } else {
            (&mut terms.rejected_reward, &mut terms.rejected_logprob)
        };
        of_reward.add(reward);
        of_logprob.add(logprob);
    }

    /// Adds a pair, which is accurate if its chosen completion has the higher reward.
    pub(super) fn observe_pair(&mut self, is_accurate: bool) {
        if let Some(terms) = &mut self.preference {
            terms.pairs += 1;
            terms.accurate += u64::from(is_accurate);
        }
    }

    /// Counts a sequence; `is_masked` is `None` without a mask.
    pub(super) fn count_sequence(
        &mut self,
        tokens: usize,
        is_masked: Option<bool>,
        counts: &GlobalCounts,
    ) -> Result<(), AlgoError> {
        self.sequences += 1;
        self.tokens += tokens as u64;
        if let Some(is_masked) = is_masked {
            *self.masked.get_or_insert(0) += u64::from(is_masked);
        }
        if is_masked != Some(true) {
            self.trained += tokens as u64;
        }
        self.check(counts, |seen, counted| seen <= counted)
    }

    fn check(&self, counts: &GlobalCounts, fits: impl Fn(u64, u64) -> bool) -> Result<(), AlgoError> {
        for (what, seen, counted) in
            [("tokens", self.tokens, counts.tokens), ("sequences", self.sequences, counts.sequences)]
        {
            if !fits(seen, counted) {
                return Err(AlgoError::Counts { what, counted, seen });
            }
        }
        Ok(())
    }

    pub(super) fn add_surrogate(&mut self, x: f64) {
        self.surrogate.add(x);
    }

    pub(super) fn add_kl_loss(&mut self, x: f64) {
        self.kl_loss.add(x);
    }

    pub(super) fn add_entropy_loss(&mut self, x: f64) {
        self.entropy_loss.add(x);
    }

    pub(super) fn add_value_loss(&mut self, coef: f64, x: f64) {
        if let Some(value) = &mut self.value {
            value.part.add(coef * x);
            value.loss.add(x);
        }
    }

    pub(super) fn observe_value(&mut self, value: f64, target: f64, is_clipped: bool) {
        if let Some(terms) = &mut self.value {
            terms.clipped += u64::from(is_clipped);
            terms.returns.add(target);
            terms.errors.add(target - value);
        }
    }

    pub(super) fn count_clipped(&mut self, clipped: Clipped) {
        match clipped {
            Clipped::No => {}
            Clipped::Low => self.clipped_low += 1,
            Clipped::High => self.clipped_high += 1,
            Clipped::Dual => self.clipped_dual += 1,
        }
    }

    pub(super) fn count_picked(&mut self, is_picked: bool) {
        self.picked += u64::from(is_picked);
    }

    /// `log_ratio` is relative to the sampler; `is_dropped` is true if the surrogate drops the token because of its
    /// ratio.
    pub(super) fn observe_weight(&mut self, weight: &Weight, log_ratio: f64, is_dropped: bool) {
        let Some(correction) = &mut self.correction else { return };
        let (value, is_masked) = if correction.is_by_ratio {
            (weight.value * ratio(log_ratio).0, is_dropped)
        } else {
            (weight.value, weight.is_masked)
        };
        correction.weights.add(value);
        correction.masked += u64::from(is_masked);
        correction.rejected += u64::from(weight.is_rejected);
    }

    pub(super) fn observe_entropy(&mut self, entropy: f64) {
        self.entropy.add(entropy);
    }

    pub(super) fn observe_log_ratio(&mut self, log_ratio: f64) {
        self.approx_kl.add(-log_ratio);
        self.ratio.add(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp());
    }

    pub(super) fn observe_kl(&mut self, kl: f64) {
        self.kl.add(kl);
    }

    pub(super) fn observe_mismatch(&mut self, trainer: f64, behavior: f64) {
        // Tokens are the sampler's, so this estimates KL(sampler ‖ trainer).
        self.mismatch_kl.add(KlEstimator::K3.value_and_gradient(behavior, trainer).0);
        self.mismatch.add((trainer - behavior).abs());
    }

    /// Adds another micro-batch of the same optimiser step.
    pub fn merge(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.sequences += other.sequences;
        self.trained += other.trained;
        merge_optional(&mut self.masked, other.masked.as_ref(), |to, from| *to += from);
        self.bounds = self.bounds.or(other.bounds);
        self.picks |= other.picks;
        self.surrogate.merge(&other.surrogate);
        self.kl_loss.merge(&other.kl_loss);
        self.entropy_loss.merge(&other.entropy_loss);
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.clipped_dual += other.clipped_dual;
        self.picked += other.picked;
        self.entropy.merge(&other.entropy);
        self.approx_kl.merge(&other.approx_kl);
        self.ratio.merge(&other.ratio);
        self.kl.merge(&other.kl);
        self.mismatch_kl.merge(&other.mismatch_kl);
        self.mismatch.merge(&other.mismatch);
        merge_optional(&mut self.correction, other.correction.as_ref(), CorrectionTerms::merge);
        merge_optional(&mut self.value, other.value.as_ref(), ValueTerms::merge);
        merge_optional(&mut self.preference, other.preference.as_ref(), PreferenceTerms::merge);
        merge_optional(&mut self.reward, other.reward.as_ref(), RewardTerms::merge);
        merge_optional(&mut self.divergence, other.divergence.as_ref(), Mean::merge);
    }

    /// The loss of the micro-batches merged so far.
    pub fn loss(&self) -> f64 {
        let mut sum = self.surrogate.clone();
        sum.merge(&self.kl_loss);
        sum.merge(&self.entropy_loss);
        if let Some(value) = &self.value {
            sum.merge(&value.part);
        }
        sum.value()
    }

    /// Number of policy tokens so far, including masked rows.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Metrics of the optimiser step.
    ///
    /// # Errors
    ///
    /// [`AlgoError::Counts`] if the merged micro-batches do not match the counts, so that every coefficient had a wrong
    /// normaliser.
    pub fn finish(&self, counts: &GlobalCounts) -> Result<LossMetrics, AlgoError> {
        self.check(counts, |seen, counted| seen == counted)?;
        let ratio = self.ratio.given();
        let mut metrics = LossMetrics {
            loss: self.loss(),
            surrogate: self.surrogate.value(),
            kl_loss: self.kl_loss.value(),
            entropy_loss: self.entropy_loss.value(),
            entropy: self.entropy.value(),
            approx_kl: self.approx_kl.value(),
            kl: self.kl.value(),
            clip_ratio_low: self.share(self.bounds.low, self.clipped_low),
            clip_ratio_high: self.share(self.bounds.high, self.clipped_high),
            clip_ratio_dual: self.share(self.bounds.dual, self.clipped_dual),
            cov_picked_ratio: self.share(self.picks, self.picked),
            ratio_min: ratio.map(|r| r.low),
            ratio_max: ratio.map(|r| r.high),
            mismatch_kl: self.mismatch_kl.value(),
            mismatch_max_abs: self.mismatch.given().map(|m| m.high),
            teacher_divergence: self.divergence.as_ref().and_then(Mean::value),
            masked_ratio: self.masked.map(|masked| masked as f64 / self.sequences as f64),
            ..LossMetrics::default()
        };
        if let Some(correction) = &self.correction {
            metrics.correction_weight_mean = correction.weights.mean();
            metrics.correction_ess = correction.weights.effective_share();
            metrics.correction_masked_ratio = self.share(correction.masks, correction.masked);
            metrics.correction_rejected_ratio = self.share(correction.rejects, correction.rejected);
        }
        if let Some(preference) = &self.preference {
            preference.report(&mut metrics);
        }
        if let Some(reward) = &self.reward {
            reward.report(&mut metrics);
        }
        if let Some(value) = self.value.as_ref().filter(|_| self.trained > 0) {
            metrics.value_loss = Some(value.loss.value());
            metrics.value_clip_ratio = self.share(value.clips, value.clipped);
            metrics.explained_variance = value.explained_variance();
        }
        Ok(metrics)
    }

    /// Number of tokens as a fraction of the trained ones.
    fn share(&self, is_measured: bool, tokens: u64) -> Option<f64> {
        (is_measured && self.trained > 0).then(|| tokens as f64 / self.trained as f64)
    }
}

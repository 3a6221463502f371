use rloom_core::metric;

/// Metrics of one or several optimiser steps. `None` if not measured.
///
/// All but the mismatch and [`masked_ratio`](Self::masked_ratio) exclude masked rows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossMetrics {
    /// The loss: the sum of the next three parts and the weighted value loss.
    pub loss: f64,
    /// Value of the surrogate.
    pub surrogate: f64,
    /// coef·KL.
    pub kl_loss: f64,
    /// −coef·entropy.
    pub entropy_loss: f64,
    /// Mean entropy (nats per token).
    pub entropy: Option<f64>,
    /// Mean of old − lp (nats per token); `old` is the denominator of the ratio, the proximal policy or the sampler.
    pub approx_kl: Option<f64>,
    /// Mean k3 relative to the reference (nats per token), regardless of the loss's estimator.
    pub kl: Option<f64>,
    /// Fraction of tokens at the lower bound. `ppo_clip`, `clip_cov`, `gspo`, `gmpo`: those with A < 0 without a
    /// gradient because of it (in `gspo` all tokens of the sequence); `dppo_*`: those with A < 0 outside the trust
    /// region; `cispo`: those whose weight is at the floor, for any A.
    pub clip_ratio_low: Option<f64>,
    /// Fraction of tokens at the upper bound. As `clip_ratio_low`, with A > 0; `cispo`: those whose weight is at the
    /// cap; `topr`: those with A < 0 whose weight is truncated to 1.
    pub clip_ratio_high: Option<f64>,
    /// Fraction of tokens where the dual clip is active.
    pub clip_ratio_dual: Option<f64>,
    /// Fraction of tokens selected by a loss of step scope.
    pub cov_picked_ratio: Option<f64>,
    /// Smallest ρ of a token, relative to the same policy as `approx_kl`.
    pub ratio_min: Option<f64>,
    /// Largest ρ of a token.
    pub ratio_max: Option<f64>,
    /// Mean k3 estimate of KL(sampler ‖ trainer) (nats per token).
    pub mismatch_kl: Option<f64>,
    /// Largest |trainer − sampler| (nats).
    pub mismatch_max_abs: Option<f64>,
    /// Mean applied weight of the correction: bounded, and 0 if masked or rejected. If samples may be stale and there
    /// is no such weight, the mean of the tokens' ratios to the sampler, exp(lp − beh), unbounded and 0 if rejected;
    /// its expectation is 1.
    pub correction_weight_mean: Option<f64>,
    /// Effective sample size (Σw)²/(n·Σw²) of those weights over the n tokens.
    pub correction_ess: Option<f64>,
    /// Fraction of tokens whose weight is out of bounds and therefore 0; without a weight, of those that the surrogate
    /// drops because of their ratio.
    pub correction_masked_ratio: Option<f64>,
    /// Fraction of rejected tokens, including those that are also masked.
    pub correction_rejected_ratio: Option<f64>,
    /// The value loss before its weight.
    pub value_loss: Option<f64>,
    /// Fraction of tokens whose value loss is clipped.
    pub value_clip_ratio: Option<f64>,
    /// 1 − Var(R − V)/Var(R); `None` if all returns are equal.
    pub explained_variance: Option<f64>,
    /// Mean implicit reward of chosen or desirable completions.
    pub reward_chosen: Option<f64>,
    /// Mean implicit reward of rejected or undesirable completions.
    pub reward_rejected: Option<f64>,
    /// Difference of the two means.
    pub reward_margin: Option<f64>,
    /// Fraction of pairs whose chosen completion has the higher implicit reward.
    pub reward_accuracy: Option<f64>,
    /// The anchor of the loss.
    pub reward_anchor: Option<f64>,
    /// Mean summed log-probability of chosen or desirable completions (nats).
    pub logprob_chosen: Option<f64>,
    /// Mean summed log-probability of rejected or undesirable completions (nats).
    pub logprob_rejected: Option<f64>,
    /// Fraction of the pairs, or steps, that a reward model judges correctly.
    pub accuracy: Option<f64>,
    /// Mean reward of chosen minus that of rejected completions.
    pub margin: Option<f64>,
    /// Smallest reward; of a step, the probability that it is right.
    pub min_reward: Option<f64>,
    /// Mean reward.
    pub mean_reward: Option<f64>,
    /// Largest reward.
    pub max_reward: Option<f64>,
    /// Mean divergence from the teacher (nats per token).
    pub teacher_divergence: Option<f64>,
    /// Fraction of masked sequences; `None` without a mask. Not a named metric: the masking code reports the reasons.
    pub masked_ratio: Option<f64>,
}

impl LossMetrics {
    /// The measured metrics by name.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        [
            (metric::LOSS, Some(self.loss)),
            (metric::ENTROPY, self.entropy),
            (metric::APPROX_KL, self.approx_kl),
            (metric::KL, self.kl),
            (metric::CLIP_RATIO_LOW, self.clip_ratio_low),
            (metric::CLIP_RATIO_HIGH, self.clip_ratio_high),
            (metric::CLIP_RATIO_DUAL, self.clip_ratio_dual),
            (metric::COV_PICKED_RATIO, self.cov_picked_ratio),
            (metric::RATIO_MIN, self.ratio_min),
            (metric::RATIO_MAX, self.ratio_max),
            (metric::MISMATCH_KL, self.mismatch_kl),
            (metric::MISMATCH_MAX_ABS, self.mismatch_max_abs),
            (metric::CORRECTION_WEIGHT_MEAN, self.correction_weight_mean),
            (metric::CORRECTION_ESS, self.correction_ess),
            (metric::CORRECTION_MASKED_RATIO, self.correction_masked_ratio),
            (metric::CORRECTION_REJECTED_RATIO, self.correction_rejected_ratio),
            (metric::REWARDS_CHOSEN, self.reward_chosen),
            (metric::REWARDS_REJECTED, self.reward_rejected),
            (metric::REWARDS_MARGINS, self.reward_margin),
            (metric::REWARDS_ACCURACIES, self.reward_accuracy),
            (metric::REWARDS_ANCHOR, self.reward_anchor),
            (metric::LOGPS_CHOSEN, self.logprob_chosen),
            (metric::LOGPS_REJECTED, self.logprob_rejected),
            (metric::ACCURACY, self.accuracy),
            (metric::MARGIN, self.margin),
            (metric::MIN_REWARD, self.min_reward),
            (metric::MEAN_REWARD, self.mean_reward),
            (metric::MAX_REWARD, self.max_reward),
            (metric::TEACHER_DIVERGENCE, self.teacher_divergence),
            (metric::VALUE_LOSS, self.value_loss),
            (metric::VALUE_CLIP_RATIO, self.value_clip_ratio),
            (metric::VALUE_EXPLAINED_VARIANCE, self.explained_variance),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }

    /// Metrics of a batch from those of its optimiser steps: means of means, extremes of extremes, each over the
    /// steps that measured it. `None` without a step.
    pub fn over_steps(steps: &[Self]) -> Option<Self> {
        if steps.is_empty() {
            return None;
        }
        let values = |get: fn(&Self) -> Option<f64>| steps.iter().filter_map(get);
        let mean = |get: fn(&Self) -> Option<f64>| {
            let n = values(get).count();
            (n > 0).then(|| values(get).sum::<f64>() / n as f64)
        };
        let plain = |get: fn(&Self) -> f64| steps.iter().map(get).sum::<f64>() / steps.len() as f64;
        Some(Self {
            loss: plain(|m| m.loss),
            surrogate: plain(|m| m.surrogate),
            kl_loss: plain(|m| m.kl_loss),
            entropy_loss: plain(|m| m.entropy_loss),
            entropy: mean(|m| m.entropy),
            approx_kl: mean(|m| m.approx_kl),
            kl: mean(|m| m.kl),
            clip_ratio_low: mean(|m| m.clip_ratio_low),
            clip_ratio_high: mean(|m| m.clip_ratio_high),
            clip_ratio_dual: mean(|m| m.clip_ratio_dual),
            cov_picked_ratio: mean(|m| m.cov_picked_ratio),
            ratio_min: values(|m| m.ratio_min).reduce(f64::min),
            ratio_max: values(|m| m.ratio_max).reduce(f64::max),
            mismatch_kl: mean(|m| m.mismatch_kl),
            mismatch_max_abs: values(|m| m.mismatch_max_abs).reduce(f64::max),
            correction_weight_mean: mean(|m| m.correction_weight_mean),
            correction_ess: mean(|m| m.correction_ess),
            correction_masked_ratio: mean(|m| m.correction_masked_ratio),
            correction_rejected_ratio: mean(|m| m.correction_rejected_ratio),
            reward_chosen: mean(|m| m.reward_chosen),
            reward_rejected: mean(|m| m.reward_rejected),
            reward_margin: mean(|m| m.reward_margin),
            reward_accuracy: mean(|m| m.reward_accuracy),
            reward_anchor: mean(|m| m.reward_anchor),
            logprob_chosen: mean(|m| m.logprob_chosen),
            logprob_rejected: mean(|m| m.logprob_rejected),
            value_loss: mean(|m| m.value_loss),
            value_clip_ratio: mean(|m| m.value_clip_ratio),
            explained_variance: mean(|m| m.explained_variance),
            accuracy: mean(|m| m.accuracy),
            margin: mean(|m| m.margin),
            min_reward: values(|m| m.min_reward).reduce(f64::min),
            mean_reward: mean(|m| m.mean_reward),
            max_reward: values(|m| m.max_reward).reduce(f64::max),
            teacher_divergence: mean(|m| m.teacher_divergence),
            masked_ratio: mean(|m| m.masked_ratio),
        })
    }
}

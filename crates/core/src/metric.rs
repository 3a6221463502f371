//! Metric names, following other trainers where possible, with documentation for the generated reference.
//!
//! Every name is defined once, in the table below, which defines a constant for each and the list [`ALL`].

/// Documentation of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDoc {
    /// Name of the metric, or the prefix of the names of several.
    pub name: &'static str,
    /// True if the name is a prefix.
    pub is_prefix: bool,
    /// Unit of the values; empty for dimensionless values.
    pub unit: &'static str,
    /// Description.
    pub doc: &'static str,
}

impl MetricDoc {
    /// True for the metrics that this entry describes.
    pub fn describes(&self, metric: &str) -> bool {
        if self.is_prefix {
            metric.len() > self.name.len() && metric.starts_with(self.name)
        } else {
            metric == self.name
        }
    }
}

/// Returns the entry that describes a metric. An exact name takes precedence over a prefix.
pub fn describe(metric: &str) -> Option<&'static MetricDoc> {
    let entries = || ALL.iter().filter(|entry| entry.describes(metric));
    entries().find(|entry| !entry.is_prefix).or_else(|| entries().next())
}

/// Defines constants and [`ALL`] from entries `NAME = "name", "unit";` and, for prefixes, `NAME = prefix "name/", "unit";`.
macro_rules! metrics {
    (@is_prefix prefix) => { true };
    (@is_prefix) => { false };
    ($($(#[doc = $doc:literal])+ $constant:ident = $($prefix:ident)? $name:literal, $unit:literal;)+) => {
        $($(#[doc = $doc])+ pub const $constant: &str = $name;)+

        /// All metrics, in the order of the reference.
        pub const ALL: &[MetricDoc] = &[$(MetricDoc {
            name: $name,
            is_prefix: metrics!(@is_prefix $($prefix)?),
            unit: $unit,
            doc: concat!($($doc),+).trim_ascii(),
        }),+];
    };
}

metrics! {
    /// Mean total reward of the batch.
    REWARD = "reward", "";
    /// Standard deviation of the total reward over the batch.
    REWARD_STD = "reward_std", "";
    /// Mean of a named reward component. The component's name follows.
    REWARD_PREFIX = prefix "reward/", "";
    /// Mean implicit reward of chosen or desirable completions: β·Σ(lp − ref), or what the loss has instead.
    REWARDS_CHOSEN = "rewards/chosen", "";
    /// Mean implicit reward of rejected or undesirable completions.
    REWARDS_REJECTED = "rewards/rejected", "";
    /// Mean implicit reward of chosen completions minus that of rejected ones.
    REWARDS_MARGINS = "rewards/margins", "";
    /// Fraction of pairs whose chosen completion has the higher implicit reward.
    REWARDS_ACCURACIES = "rewards/accuracies", "fraction";
    /// Number that implicit rewards are compared with: z of `kto`, δ of `bco`.
    REWARDS_ANCHOR = "rewards/anchor", "";
    /// Mean summed log-probability of chosen or desirable completions.
    LOGPS_CHOSEN = "logps/chosen", "nats";
    /// Mean summed log-probability of rejected or undesirable completions.
    LOGPS_REJECTED = "logps/rejected", "nats";
    /// Fraction of pairs, or of steps, that the reward model judges correctly.
    ACCURACY = "accuracy", "fraction";
    /// Mean reward of chosen completions minus that of rejected ones, by the reward model.
    MARGIN = "margin", "";
    /// Smallest reward of a batch by the reward model; of a process-reward model, the probability that a step is right.
    MIN_REWARD = "min_reward", "";
    /// Mean reward of a batch by the reward model.
    MEAN_REWARD = "mean_reward", "";
    /// Largest reward of a batch by the reward model.
    MAX_REWARD = "max_reward", "";
    /// Mean divergence of the student from its teacher over the tokens trained on.
    TEACHER_DIVERGENCE = "teacher/divergence", "nats/token";
    /// Fraction of the trained completions that the student sampled; the others are demonstrations.
    TEACHER_ON_POLICY = "teacher/on_policy", "fraction";
    /// Mean reward of an agent of its own, in environments with several. The agent's name follows.
    AGENT_REWARD_PREFIX = prefix "agent_reward/", "";
    /// Mean over episodes of a number that the environment reports. The name follows.
    ENVIRONMENT_PREFIX = prefix "environment/", "";
    /// Failures of a named reward component in the stage so far. The component's name follows.
    REWARD_FAILURES_PREFIX = prefix "reward_failures/", "failures";
    /// Failures of reward components in the stage so far, by what failed: `infrastructure`, `task` or `component` follows.
    REWARD_FAILURE_KIND_PREFIX = prefix "reward_failure_kind/", "failures";
    /// Attempts that a named reward component repeated in the stage so far. The component's name follows.
    REWARD_RETRIES_PREFIX = prefix "reward_retries/", "attempts";
    /// Calls of tools that ran since the last step.
    TOOL_CALLS = "tools/calls", "calls";
    /// Calls of one tool that ran since the last step. The tool's name follows.
    TOOL_CALLS_PREFIX = prefix "tools/calls/", "calls";
    /// Calls of tools whose result was an error since the last step.
    TOOL_FAILURES = "tools/failed", "calls";
    /// Malformed calls of tools since the last step.
    TOOL_MALFORMED = "tools/malformed", "calls";
    /// Malformed calls of tools since the last step, by what is wrong. The status follows.
    TOOL_MALFORMED_PREFIX = prefix "tools/malformed/", "calls";
    /// Calls of tools over a limit since the last step.
    TOOL_REFUSED = "tools/refused", "calls";
    /// Episodes that agents outside of the program completed since the last step.
    SESSION_EPISODES = "sessions/episodes", "episodes";
    /// Mean number of calls of the policy in these episodes.
    SESSION_CALLS = "sessions/calls", "calls";
    /// Mean number of segments of these episodes: branches of their conversations.
    SESSION_SEGMENTS = "sessions/segments", "segments";
    /// Mean duration of these episodes.
    SESSION_SECONDS = "time/session", "seconds";
    /// Attempts of agents that failed since the last step.
    SESSION_FAILED = "sessions/failed", "attempts";
    /// Leases that ended without a result since the last step.
    SESSION_EXPIRED = "sessions/expired", "leases";
    /// Mean of a reward that agents reported, over the episodes that have it, since the last step. Its name follows.
    SESSION_REWARD_PREFIX = prefix "sessions/reward/", "";
    /// Mean of a number that a reward function reported since the last step. The name follows.
    FUNCTION_PREFIX = prefix "function/", "";
    /// Fraction of the groups of the batch that are of a domain. Reported, like all metrics of domains, if the data has
    /// several; the domain follows.
    DOMAIN_SHARE_PREFIX = prefix "domain/share/", "fraction";
    /// Mean total reward of the trained episodes of a domain. The domain follows.
    DOMAIN_REWARD_PREFIX = prefix "domain/reward/", "";
    /// Fraction of the verified training episodes of a domain that solve their task. The domain follows.
    DOMAIN_ACCURACY_PREFIX = prefix "domain/accuracy/", "fraction";
    /// Mean number of policy tokens per completion of a domain. The domain follows.
    DOMAIN_MEAN_LENGTH_PREFIX = prefix "domain/mean_length/", "tokens";
    /// Fraction of the completions of a domain that the token limit truncates. The domain follows.
    DOMAIN_CLIPPED_RATIO_PREFIX = prefix "domain/clipped_ratio/", "fraction";
    /// Fraction of the groups of a domain since the last batch that filters replaced. The domain follows.
    DOMAIN_FILTERED_PREFIX = prefix "domain/filtered/", "fraction";
    /// Share of the groups after those already started that a curriculum gives to a domain. The domain follows.
    DOMAIN_QUOTA_PREFIX = prefix "domain/quota/", "fraction";
    /// Success rate of a domain that a curriculum follows. The domain follows.
    DOMAIN_SUCCESS_PREFIX = prefix "domain/success/", "fraction";
    /// Fraction of groups whose rewards are all equal. They contribute no gradient.
    FRAC_REWARD_ZERO_STD = "frac_reward_zero_std", "fraction";
    /// Groups with a single comparable episode. They contribute no gradient.
    GROUPS_OF_ONE = "groups_of_one", "groups";
    /// Training episodes to which no reward applies.
    REWARDS_NOT_APPLICABLE = "rewards_not_applicable", "episodes";
    /// Groups whose greedy baseline episode has no applicable reward.
    BASELINES_MISSING = "baselines_missing", "groups";
    /// Groups from which RAFT++ keeps no episode. They contribute no gradient.
    GROUPS_NONE_KEPT = "groups_none_kept", "groups";
    /// 1 if the rewards of every group are equal, so that GPG has no gradient for the batch.
    BATCH_NO_CONTRAST = "batch_no_contrast", "";
    /// Fraction of environment steps whose state occurs only once among the steps that are compared.
    FRAC_STATES_SEEN_ONCE = "frac_states_seen_once", "fraction";
    /// Groups replaced before training since the last batch. The reason follows.
    FILTERED_PREFIX = prefix "filtered/", "groups";
    /// Episodes of the batch that are not trained. The reason follows.
    MASKED_PREFIX = prefix "masked/", "episodes";
    /// Mean KL divergence (k1 estimator) of the penalty in the reward, before its coefficient.
    REWARD_KL_PENALTY = "reward_kl_penalty", "nats/token";
    /// Coefficient of the KL penalty in the reward.
    REWARD_KL_PENALTY_COEFF = "reward_kl_penalty_coeff", "";
    /// Coefficient of the entropy bonus.
    ENTROPY_COEF = "entropy_coef", "";
    /// Mean of the values from which the advantages are computed.
    VALUE_MEAN = "value/mean", "";
    /// Mean number of policy tokens per completion.
    MEAN_LENGTH = "completions/mean_length", "tokens";
    /// Number of policy tokens of the shortest completion.
    MIN_LENGTH = "completions/min_length", "tokens";
    /// Number of policy tokens of the longest completion.
    MAX_LENGTH = "completions/max_length", "tokens";
    /// Mean number of segments per completion; absent if every completion has one.
    SEGMENTS = "completions/segments", "";
    /// Fraction of completions truncated by the token limit.
    CLIPPED_RATIO = "completions/clipped_ratio", "fraction";
    /// Mean entropy of the policy at its tokens.
    ENTROPY = "entropy", "nats";
    /// Mean KL divergence from the reference policy.
    KL = "kl", "nats/token";
    /// Policy loss of the optimiser step.
    LOSS = "loss", "";
    /// Fraction of tokens clipped at the lower bound of the importance ratio.
    CLIP_RATIO_LOW = "clip_ratio/low", "fraction";
    /// Fraction of tokens clipped at the upper bound of the importance ratio.
    CLIP_RATIO_HIGH = "clip_ratio/high", "fraction";
    /// Fraction of tokens clipped by dual clipping.
    CLIP_RATIO_DUAL = "clip_ratio/dual", "fraction";
    /// Smallest importance ratio.
    RATIO_MIN = "ratio/min", "";
    /// Largest importance ratio.
    RATIO_MAX = "ratio/max", "";
    /// Mean of old minus current log-probability: the movement of the policy within the step.
    APPROX_KL = "approx_kl", "nats/token";
    /// Estimated KL divergence between the sampling and the training engine.
    MISMATCH_KL = "mismatch/kl", "nats/token";
    /// Largest absolute difference between sampling and training log-probability.
    MISMATCH_MAX_ABS = "mismatch/max_abs", "nats";
    /// Value loss before its coefficient.
    VALUE_LOSS = "value/loss", "";
    /// Fraction of tokens whose value loss is clipped.
    VALUE_CLIP_RATIO = "value/clip_ratio", "fraction";
    /// Explained variance of the returns: 1 if the values predict them exactly, below 0 if worse than their mean.
    VALUE_EXPLAINED_VARIANCE = "value/explained_variance", "";
    /// Mean importance weight of the off-policy correction.
    CORRECTION_WEIGHT_MEAN = "correction/weight_mean", "";
    /// Effective sample size of the correction's weights, relative to the number of tokens.
    CORRECTION_ESS = "correction/ess", "fraction";
    /// Fraction of tokens whose weight is set to 0 because it is out of bounds.
    CORRECTION_MASKED_RATIO = "correction/masked_ratio", "fraction";
    /// Fraction of tokens rejected by the correction, individually or with their sequence.
    CORRECTION_REJECTED_RATIO = "correction/rejected_ratio", "fraction";
    /// Fraction of tokens selected by covariance.
    COV_PICKED_RATIO = "cov/picked_ratio", "fraction";
    /// Mean age of the trained policy tokens: trained version minus sampling version.
    STALENESS_MEAN = "off_policy/staleness_mean", "versions";
    /// Age of the oldest trained policy token; at most `max_staleness`, or `reuse.max_age` with reused groups.
    STALENESS_MAX = "off_policy/staleness_max", "versions";
    /// Fraction of the trained policy tokens of a given age in policy versions. The age follows.
    STALENESS_SHARE_PREFIX = prefix "off_policy/age/", "fraction";
    /// Fraction of the trained policy tokens of age 0.
    FRESH_TOKENS = "off_policy/fresh_tokens", "fraction";
    /// Mean number of policy versions that sampled an episode; above 1 if weights changed while episodes were in flight.
    VERSIONS_PER_SAMPLE = "off_policy/versions_per_sample", "versions";
    /// Fraction of the batch's groups that were trained on in an earlier batch, with `schedule.reuse`.
    REUSE_SHARE = "reuse/share", "fraction";
    /// Mean age of the reused groups.
    REUSE_AGE_MEAN = "reuse/age_mean", "versions";
    /// Age of the oldest reused group; at most `max_age`.
    REUSE_AGE_MAX = "reuse/age_max", "versions";
    /// Gradient norm before clipping.
    GRAD_NORM = "grad_norm", "";
    /// Gradient norm of a separate critic before clipping.
    VALUE_GRAD_NORM = "value/grad_norm", "";
    /// Cross-entropy between the process-reward model and the outcomes, before its optimiser step.
    PRM_LOSS = "prm/loss", "nats";
    /// Tokens of all groups completed in the stage so far, including replaced and waiting groups.
    NUM_TOKENS = "num_tokens", "tokens";
    /// Learning rate of the step.
    LEARNING_RATE = "learning_rate", "";
    /// Prompt and completion tokens processed forward and backward in the step, over all models and passes.
    TOKENS_TRAINED = "tokens/trained", "tokens";
    /// Tokens of sequences whose coefficients are all 0: scored, but not back-propagated.
    TOKENS_SKIPPED = "tokens/skipped", "tokens";
    /// Optimiser steps of the batch that were skipped because a score, the loss or the gradient was not finite.
    OPTIMIZER_STEPS_SKIPPED = "optimizer_steps/skipped", "steps";
    /// Prompt tokens computed once per group instead of once per completion. Trained, skipped and shared tokens add up
    /// to all tokens of the step's sequences.
    TOKENS_SHARED = "tokens/shared", "tokens";
    /// Time spent generating.
    TIME_ROLLOUT = "time/rollout", "seconds";
    /// Time spent computing rewards.
    TIME_REWARD = "time/reward", "seconds";
    /// Time spent training.
    TIME_TRAIN = "time/train", "seconds";
    /// Time spent writing checkpoints.
    TIME_CHECKPOINT = "time/checkpoint", "seconds";
    /// Time the trainer waited for a batch.
    TIME_WAIT_FOR_BATCH = "time/wait_for_batch", "seconds";
    /// Time generation waited for a newer policy.
    TIME_WAIT_FOR_POLICY = "time/wait_for_policy", "seconds";
    /// Time spent publishing weights to the rollout engine.
    TIME_PUBLISH = "time/publish", "seconds";
    /// Time spent in the scheduler.
    TIME_SCHEDULER = "time/scheduler", "seconds";
    /// Fraction of the time since the last step in which generation and training worked concurrently.
    OVERLAP = "overlap", "fraction";
    /// Ready groups when the batch was cut, without those of the batch.
    QUEUE_READY = "queue/ready", "groups";
    /// Groups in flight when the batch was cut.
    QUEUE_RUNNING = "queue/running", "groups";
    /// Tokens computed for rollouts since the last step, including evaluation and rejected drafts.
    ROLLOUT_COMPUTED_TOKENS = "rollout/computed_tokens", "tokens";
    /// Tokens of prompts and resumed completions that rollouts took from the key-value cache since the last step, instead of
    /// computing them.
    ROLLOUT_REUSED_TOKENS = "rollout/reused_tokens", "tokens";
    /// Draft tokens verified since the last step, including evaluation. Reported with speculative decoding.
    ROLLOUT_DRAFTED_TOKENS = "rollout/drafted_tokens", "tokens";
    /// Draft tokens accepted since the last step. Reported with speculative decoding.
    ROLLOUT_ACCEPTED_TOKENS = "rollout/accepted_tokens", "tokens";
    /// Generated tokens per second of generation.
    ROLLOUT_TOKENS_PER_SECOND = "tokens_per_second/rollout", "tokens/second";
    /// Trained tokens per second of training.
    TRAIN_TOKENS_PER_SECOND = "tokens_per_second/train", "tokens/second";
    /// Fraction of held-out tasks solved with greedy decoding.
    EVAL_ACCURACY = "eval/accuracy", "fraction";
    /// Fraction of the held-out tasks of a domain that are solved, if the tasks have several. The domain follows.
    EVAL_DOMAIN_ACCURACY_PREFIX = prefix "eval/accuracy/", "fraction";
    /// Held-out pass@1, from sampled completions if there are any, otherwise from greedy ones.
    EVAL_PASS_AT_1 = "eval/pass@1", "fraction";
    /// Held-out pass@k. The number k follows.
    EVAL_PASS_AT = prefix "eval/pass@", "fraction";
    /// Fraction of held-out completions from which an answer was extracted.
    EVAL_PARSED = "eval/parsed", "fraction";
    /// Held-out tasks that are left out because a reward failed.
    EVAL_DROPPED = "eval/dropped", "tasks";
    /// Mean number of policy tokens per held-out completion.
    EVAL_MEAN_LENGTH = "eval/mean_length", "tokens";
    /// A metric of one of `[[eval.sets]]`. The name of the set and that of the metric follow: `eval_set/hard/accuracy`.
    EVAL_SET_PREFIX = prefix "eval_set/", "";
    /// Loss of the method on the held-out rows of a stage that learns from rows.
    VALIDATION_LOSS = "validation/loss", "";
    /// Fraction of held-out pairs or steps that a reward model judges correctly.
    VALIDATION_ACCURACY = "validation/accuracy", "fraction";
    /// `margin` of a reward model on held-out rows.
    VALIDATION_MARGIN = "validation/margin", "";
    /// `min_reward` of a reward model on held-out rows.
    VALIDATION_MIN_REWARD = "validation/min_reward", "";
    /// `mean_reward` of a reward model on held-out rows.
    VALIDATION_MEAN_REWARD = "validation/mean_reward", "";
    /// `max_reward` of a reward model on held-out rows.
    VALIDATION_MAX_REWARD = "validation/max_reward", "";
    /// Expected calibration error of a reward model on held-out rows: mean distance between the predicted probability and
    /// the observed frequency.
    VALIDATION_CALIBRATION_ERROR = "validation/calibration_error", "";
    /// Another metric of the loss on held-out rows. The name of the metric follows: `validation/rewards/accuracies`.
    VALIDATION_PREFIX = prefix "validation/", "";
    /// A metric of a further policy of the run. The name of the policy and that of the metric follow:
    /// `policy/verifier/loss`. Metrics without this prefix are those of the main policy. Of a league: `win_rate`, the share of
    /// episodes that the learner has won against the versions that are kept, and `versions`, their number.
    POLICY_PREFIX = prefix "policy/", "";
}

/// Namespace of the metrics of the evaluation.
pub const EVAL_PREFIX: &str = "eval/";
/// Namespace of the metrics of the learned value.
pub const VALUE_PREFIX: &str = "value/";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_documented() {
        let names: BTreeSet<&str> = ALL.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), ALL.len());
        for entry in ALL {
            assert!(entry.doc.ends_with('.') && !entry.doc.contains("  "), "{entry:?}");
            assert!(!entry.doc.starts_with(' '), "{entry:?}");
            assert!(!entry.name.ends_with('/') || entry.is_prefix, "{entry:?}");
        }
    }

    #[test]
    fn an_exact_name_takes_precedence_over_a_prefix() {
        let name = |metric| describe(metric).map(|entry| entry.name);
        assert_eq!(name("eval/pass@1"), Some(EVAL_PASS_AT_1));
        assert_eq!(name("eval/pass@8"), Some(EVAL_PASS_AT));
        assert_eq!(name("reward/exact"), Some(REWARD_PREFIX));
        assert_eq!(name("reward/"), None);
        assert_eq!(name("rewards"), None);
    }
}

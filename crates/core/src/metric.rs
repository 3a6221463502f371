//! Metric names that users of the field already know. Every reader and writer takes them from here.

/// Mean total reward of the batch.
pub const REWARD: &str = "reward";
/// Standard deviation of the total reward over the batch.
pub const REWARD_STD: &str = "reward_std";
/// Prefix of the mean of one named reward component.
pub const REWARD_PREFIX: &str = "reward/";
/// Prefix of how often a named reward component has failed so far in the stage.
pub const REWARD_FAILURES_PREFIX: &str = "reward_failures/";
/// Share of groups whose rewards are all equal: they carry no gradient.
pub const FRAC_REWARD_ZERO_STD: &str = "frac_reward_zero_std";
/// Groups of which one episode was left to compare: they carry no gradient.
pub const GROUPS_OF_ONE: &str = "groups_of_one";
/// Train episodes without any reward that applies.
pub const REWARDS_NOT_APPLICABLE: &str = "rewards_not_applicable";
/// Groups whose greedy baseline episode has no reward that applies.
pub const BASELINES_MISSING: &str = "baselines_missing";
/// Groups of which no episode is kept.
pub const GROUPS_NONE_KEPT: &str = "groups_none_kept";
/// 1 where no group of the batch has any contrast.
pub const BATCH_NO_CONTRAST: &str = "batch_no_contrast";
/// Share of steps that no other step of the group shares its state with.
pub const FRAC_STATES_SEEN_ONCE: &str = "frac_states_seen_once";
/// Prefix of how many groups were replaced before training, by reason.
pub const FILTERED_PREFIX: &str = "filtered/";
/// Prefix of how many episodes of a batch were not trained on, by reason.
pub const MASKED_PREFIX: &str = "masked/";
/// Mean k1 of the KL penalty in the reward (nats per token).
pub const REWARD_KL_PENALTY: &str = "reward_kl_penalty";
/// Weight of the KL penalty in the reward.
pub const REWARD_KL_PENALTY_COEFF: &str = "reward_kl_penalty_coeff";
/// Weight of the entropy bonus.
pub const ENTROPY_COEF: &str = "entropy_coef";
/// Mean of the values that the advantages came from.
pub const VALUE_MEAN: &str = "value/mean";
/// Mean number of policy tokens of a completion.
pub const MEAN_LENGTH: &str = "completions/mean_length";
/// Shortest completion.
pub const MIN_LENGTH: &str = "completions/min_length";
/// Longest completion.
pub const MAX_LENGTH: &str = "completions/max_length";
/// Share of completions cut off by the token limit.
pub const CLIPPED_RATIO: &str = "completions/clipped_ratio";
/// Mean entropy of the policy over its tokens (nats).
pub const ENTROPY: &str = "entropy";
/// Mean divergence from the reference policy (nats per token).
pub const KL: &str = "kl";
/// Policy loss of the optimiser step.
pub const LOSS: &str = "loss";
/// Share of tokens clipped at the lower bound.
pub const CLIP_RATIO_LOW: &str = "clip_ratio/low";
/// Share of tokens clipped at the upper bound.
pub const CLIP_RATIO_HIGH: &str = "clip_ratio/high";
/// Share of tokens where the dual clip bound.
pub const CLIP_RATIO_DUAL: &str = "clip_ratio/dual";
/// Smallest importance ratio.
pub const RATIO_MIN: &str = "ratio/min";
/// Largest importance ratio.
pub const RATIO_MAX: &str = "ratio/max";
/// Mean of old − current log-probability: how far the step has moved (nats).
pub const APPROX_KL: &str = "approx_kl";
/// Estimated KL between sampler and trainer (nats per token).
pub const MISMATCH_KL: &str = "mismatch/kl";
/// Largest |sampling − training| log-probability difference (nats).
pub const MISMATCH_MAX_ABS: &str = "mismatch/max_abs";
/// Value loss before its weight.
pub const VALUE_LOSS: &str = "value/loss";
/// Share of tokens where the value's clip is active.
pub const VALUE_CLIP_RATIO: &str = "value/clip_ratio";
/// Share of the returns' variance that the values explain: 1 for all of it, below 0 for less than their mean would.
pub const VALUE_EXPLAINED_VARIANCE: &str = "value/explained_variance";
/// Mean importance weight of a correction.
pub const CORRECTION_WEIGHT_MEAN: &str = "correction/weight_mean";
/// Effective sample size of a correction's weights, as a share of the tokens.
pub const CORRECTION_ESS: &str = "correction/ess";
/// Share of tokens whose weight lies outside its bounds and is 0.
pub const CORRECTION_MASKED_RATIO: &str = "correction/masked_ratio";
/// Share of tokens that are rejected.
pub const CORRECTION_REJECTED_RATIO: &str = "correction/rejected_ratio";
/// Share of tokens that are picked by covariance.
pub const COV_PICKED_RATIO: &str = "cov/picked_ratio";
/// Mean age of the trained policy tokens in versions: the version trained from less the one that sampled the token.
pub const STALENESS_MEAN: &str = "off_policy/staleness_mean";
/// Age of the oldest trained policy token in versions; never above `max_staleness`.
pub const STALENESS_MAX: &str = "off_policy/staleness_max";
/// Prefix of the share of the trained policy tokens that are so many versions old; the number follows.
pub const STALENESS_SHARE_PREFIX: &str = "off_policy/age/";
/// Share of the trained policy tokens that the version trained from sampled itself.
pub const FRESH_TOKENS: &str = "off_policy/fresh_tokens";
/// Mean number of versions that sampled one episode; above 1 where weights arrived in the middle of it.
pub const VERSIONS_PER_SAMPLE: &str = "off_policy/versions_per_sample";
/// Norm of the gradient before clipping.
pub const GRAD_NORM: &str = "grad_norm";
/// Beginning of the names that tell of the learned value.
pub const VALUE_PREFIX: &str = "value/";
/// Norm of the gradient of a critic of its own, before clipping.
pub const VALUE_GRAD_NORM: &str = "value/grad_norm";
/// Cross-entropy of the process-reward model with the outcomes, before its step.
pub const PRM_LOSS: &str = "prm/loss";
/// Tokens of the groups that became complete so far in the stage, those of replaced groups and of such that wait to be
/// trained on included.
pub const NUM_TOKENS: &str = "num_tokens";
/// Learning rate of the step.
pub const LEARNING_RATE: &str = "learning_rate";
/// Tokens (prompt and completion) that went through forward and backward in the step, of all models and passes.
pub const TOKENS_TRAINED: &str = "tokens/trained";
/// Tokens of sequences of which every coefficient is 0: they were scored and not back-propagated.
pub const TOKENS_SKIPPED: &str = "tokens/skipped";
/// Prompt tokens that were not computed again for each completion of a group. With the other two, all tokens of the
/// sequences of the step.
pub const TOKENS_SHARED: &str = "tokens/shared";
/// Seconds spent generating.
pub const TIME_ROLLOUT: &str = "time/rollout";
/// Seconds spent in rewards.
pub const TIME_REWARD: &str = "time/reward";
/// Seconds spent training.
pub const TIME_TRAIN: &str = "time/train";
/// Seconds spent writing checkpoints.
pub const TIME_CHECKPOINT: &str = "time/checkpoint";
/// Seconds the trainer waited for a batch.
pub const TIME_WAIT_FOR_BATCH: &str = "time/wait_for_batch";
/// Seconds rollout waited for a new policy.
pub const TIME_WAIT_FOR_POLICY: &str = "time/wait_for_policy";
/// Seconds spent handing new weights over to rollout.
pub const TIME_PUBLISH: &str = "time/publish";
/// Seconds in which the scheduler decided what to do next.
pub const TIME_SCHEDULER: &str = "time/scheduler";
/// Share of the seconds since the step before in which generation and the trainer worked at the same time.
pub const OVERLAP: &str = "overlap";
/// Groups that were finished and waited to be trained on when the batch was cut, its own left out.
pub const QUEUE_READY: &str = "queue/ready";
/// Groups that were being generated when the batch was cut.
pub const QUEUE_RUNNING: &str = "queue/running";
/// Tokens that the engine computed before they were chosen, since the step before, in evaluation too; told where
/// rollouts speculate.
pub const ROLLOUT_DRAFTED_TOKENS: &str = "rollout/drafted_tokens";
/// Those of the [drafted tokens](ROLLOUT_DRAFTED_TOKENS) that were chosen then.
pub const ROLLOUT_ACCEPTED_TOKENS: &str = "rollout/accepted_tokens";
/// Generated tokens per second of rollout.
pub const ROLLOUT_TOKENS_PER_SECOND: &str = "tokens_per_second/rollout";
/// Tokens through forward and backward ([`TOKENS_TRAINED`]) per second of training.
pub const TRAIN_TOKENS_PER_SECOND: &str = "tokens_per_second/train";
/// Share of held-out tasks that greedy decoding solves.
pub const EVAL_ACCURACY: &str = "eval/accuracy";
/// Held-out pass@1: from the sampled completions where there are any, else greedy.
pub const EVAL_PASS_AT_1: &str = "eval/pass@1";
/// Prefix of held-out pass@k; the number follows.
pub const EVAL_PASS_AT: &str = "eval/pass@";
/// Share of held-out completions from which an answer could be read.
pub const EVAL_PARSED: &str = "eval/parsed";
/// Mean completion length in evaluation.
pub const EVAL_MEAN_LENGTH: &str = "eval/mean_length";

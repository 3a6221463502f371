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
/// Mean age of the batch in versions.
pub const STALENESS_MEAN: &str = "off_policy/staleness_mean";
/// Norm of the gradient before clipping.
pub const GRAD_NORM: &str = "grad_norm";
/// Learning rate of the step.
pub const LEARNING_RATE: &str = "learning_rate";
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
/// Generated tokens per second of rollout.
pub const ROLLOUT_TOKENS_PER_SECOND: &str = "tokens_per_second/rollout";
/// Trained tokens (prompt and completion) per second of training.
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

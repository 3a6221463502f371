//! Settings as they are read: what was asked for, and a record of what was read and what that gave.

use crate::{AlgoError, AlgorithmSettings};

/// Gives values and remembers them, so that the record holds every key that is read and no other.
pub(super) struct Reader {
    pub(super) asked: AlgorithmSettings,
    pub(super) record: AlgorithmSettings,
}

/// Reads a key (of a table) or its default, and records the value. With `?`: reads what may be left out.
macro_rules! read {
    ($reader:ident.$key:ident ?) => {{
        $reader.record.$key = $reader.asked.$key;
        $reader.asked.$key
    }};
    ($reader:ident.$table:ident.$key:ident ?) => {{
        let value = $reader.asked.$table.and_then(|table| table.$key);
        if value.is_some() {
            $reader.record.$table.get_or_insert_default().$key = value;
        }
        value
    }};
    ($reader:ident.$key:ident or $default:expr) => {{
        let value = $reader.asked.$key.unwrap_or($default);
        $reader.record.$key = Some(value);
        value
    }};
    ($reader:ident.$table:ident.$key:ident or $default:expr) => {{
        let value = $reader.asked.$table.and_then(|table| table.$key).unwrap_or($default);
        $reader.record.$table.get_or_insert_default().$key = Some(value);
        value
    }};
}
pub(super) use read;

pub(super) fn refuse(key: &'static str, reason: impl Into<String>, hint: impl Into<String>) -> AlgoError {
    AlgoError::Refused { key, reason: reason.into(), hint: hint.into() }
}

/// A number, or why it cannot be that.
pub(super) fn checked(
    key: &'static str,
    value: f64,
    fits: impl Fn(f64) -> bool,
    must: &str,
    hint: &str,
) -> Result<f64, AlgoError> {
    if value.is_finite() && fits(value) {
        return Ok(value);
    }
    Err(refuse(key, format!("{value} is not {must}"), hint))
}

pub(super) fn at_least_one(key: &'static str, value: u32) -> Result<u32, AlgoError> {
    if value == 0 {
        return Err(refuse(key, "0 is too few", "set it to 1 or more"));
    }
    Ok(value)
}

/// Why nothing reads a key that is set. `read` is what is read instead.
pub(super) fn unread_reason(key: &str, read: &AlgorithmSettings) -> &'static str {
    if key.starts_with("critic.") && read.critic.is_none() {
        return "only advantage = \"gae\" has a critic";
    }
    match key {
        "mean_from" | "std_from" => "only advantage = \"normalized\" chooses where its statistics come from",
        "std_epsilon" => "nothing divides by a standard deviation",
        "divide_by_std" => "only advantages \"max_at_g\" and \"gigpo\" leave that open",
        "gamma" => "the advantage does not discount",
        "lambda" => "only advantage = \"gae\" has it",
        "baseline" => "only advantage = \"topr\" has a fixed baseline",
        "step_weight" => "only advantage = \"gigpo\" looks at steps",
        "keep" => "only advantage = \"raft_pp\" keeps some episodes and leaves others",
        "level" => "the loss is of one level",
        "clip_low" | "clip_high" => "the loss has no ratio to clip",
        "dual_clip" => "only losses \"ppo_clip\" and \"clip_cov\" have it",
        "weight_cap" | "weight_floor" => "the loss has no such bound of its weight",
        "tau_positive" | "tau_negative" => "only loss = \"sapo\" has a gate",
        "divergence_limit" => "only losses \"dppo_tv\" and \"dppo_kl\" have a trust region",
        "cov_share" | "cov_low" | "cov_high" | "cov_coef" => "the loss does not pick tokens by that",
        "ratio_to" => "the loss has no ratio, or one to the sampler alone",
        "proximal" => "nothing reads the proximal policy's log-probabilities",
        "loss_aggregation" => {
            "the loss is a mean over sequences, and there is no KL in the loss and no entropy bonus"
        }
        "kl.estimator" | "kl.placement" => "kl.coef is 0",
        "kl.ratio" => "there is no KL in the loss",
        "kl.target" | "kl.horizon" => "only a KL in the reward has a weight that adapts to a kl.target",
        key if key.starts_with("correction.reject") => "correction.reject does not say by what to reject",
        key if key.starts_with("correction.") => "correction.level does not say over what to weigh",
        "filter.max_draws" => "no group is filtered",
        "filter.mask_zero_variance" => "the advantage does not compare the episodes of a group",
        "overlong.buffer" => "overlong.factor is 0",
        key if key.starts_with("entropy_control.") => "entropy_control.target is not set",
        "critic.learning_rate_scale" | "critic.warmup_batches" => {
            "the value head shares the policy's backbone and its optimiser"
        }
        "critic.coef" => "a critic of its own has a loss of its own",
        key if key.starts_with("prm.") => "only advantage = \"prime\" has a process-reward model",
        _ => "it is no part of this method",
    }
}

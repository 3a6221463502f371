//! Reads settings and records each key that was read with its value.

use crate::error::{Refusal, UnreadReason};
use crate::{AlgoError, AlgorithmSettings, Kind, KindSettings, Method};

/// The settings of a recipe, and a record of exactly the keys that were read.
pub(super) struct Reader {
    pub(super) asked: AlgorithmSettings,
    pub(super) record: AlgorithmSettings,
}

/// Reads a key (of a table) or its default, and records the value. With `?`: reads an optional key.
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

pub(super) fn refuse(key: &'static str, reason: Refusal, hint: &'static str) -> AlgoError {
    AlgoError::Refused { key, reason, hint }
}

/// Returns the number if it is finite and in range.
pub(super) fn checked(
    key: &'static str,
    value: f64,
    fits: impl Fn(f64) -> bool,
    must: &'static str,
    hint: &'static str,
) -> Result<f64, AlgoError> {
    if value.is_finite() && fits(value) {
        return Ok(value);
    }
    Err(AlgoError::out_of_range(key, value, must, hint))
}

pub(super) fn at_least_one(key: &'static str, value: u32) -> Result<u32, AlgoError> {
    if value == 0 {
        return Err(refuse(key, Refusal::TooFew, "set it to 1 or more"));
    }
    Ok(value)
}

/// The reason why a key of a loss or advantage has no effect.
fn of_kind<K: Kind>(
    key: &str,
    read: Option<KindSettings<K>>,
    ignored: fn(K) -> UnreadReason,
    unknown: fn(K) -> UnreadReason,
) -> Option<UnreadReason> {
    let kind = read?.kind?;
    let has = kind.keys().iter().any(|known| known.name == key);
    Some(if has { ignored(kind) } else { unknown(kind) })
}

/// The reason why a key has no effect. `read` contains the keys that have one.
pub(super) fn unread_reason(key: &str, method: Method, read: &AlgorithmSettings) -> UnreadReason {
    let of_preference = key.strip_prefix("preference.").and_then(|key| {
        of_kind(key, read.preference, UnreadReason::NotOfPreference, UnreadReason::NotOfPreference)
    });
    let of_distillation = key.strip_prefix("distillation.").and_then(|key| {
        of_kind(key, read.distillation, UnreadReason::NotOfDistillation, UnreadReason::NotOfDistillation)
    });
    if let Some(reason) = of_preference.or(of_distillation) {
        return reason;
    }
    if key == "neftune_noise_alpha" {
        return UnreadReason::Because("only methods that learn from demonstrations have noise on embeddings");
    }
    if method.is_supervised() {
        return UnreadReason::Supervised;
    }
    let is_shared = ["filter.", "overlong."].iter().any(|table| key.starts_with(table));
    if read.preference.is_some() && !is_shared {
        return UnreadReason::Because("its only loss is the preference loss of pairs of samples");
    }
    let found = match key.split_once('.') {
        Some(("loss", key)) => of_kind(key, read.loss, UnreadReason::IgnoredByLoss, UnreadReason::NotOfLoss),
        Some(("advantage", key)) => {
            of_kind(key, read.advantage, UnreadReason::IgnoredByAdvantage, UnreadReason::NotOfAdvantage)
        }
        _ => None,
    };
    found.unwrap_or_else(|| UnreadReason::Because(because(key, read)))
}

fn because(key: &str, read: &AlgorithmSettings) -> &'static str {
    if key.starts_with("critic.") && read.critic.is_none() {
        return "only advantage = \"gae\" and \"joint_gae\" have a critic";
    }
    match key {
        "ratio_to" => "the loss has no ratio, or only one to the sampler",
        "proximal" => "nothing reads the proximal policy's log-probabilities",
        "loss_aggregation" => {
            "the loss is a mean over sequences, and there is no KL in the loss and no entropy bonus"
        }
        "kl.estimator" | "kl.placement" => "kl.coef is 0",
        "kl.ratio" => "there is no KL in the loss",
        "kl.target" | "kl.horizon" => "only a KL in the reward adapts its weight, to a kl.target",
        key if key.starts_with("correction.reject") => "correction.reject is not set",
        key if key.starts_with("correction.") => "correction.level is not set",
        "filter.max_draws" => "no group is filtered",
        "filter.python" | "filter.timeout_seconds" => "filter.function is not set",
        "filter.mask_zero_variance" => "the advantage does not compare the episodes of a group",
        "preference" => "only methods that learn from preferences have such a loss",
        key if key.starts_with("reward_model.") => {
            "only method = \"reward_model\" trains such a reward model"
        }
        key if key.starts_with("preference.") => "only methods that learn from preferences have such a loss",
        "distillation" => "only method \"distill\" learns from the distribution of a teacher",
        key if key.starts_with("distillation.") => {
            "only method \"distill\" learns from the distribution of a teacher"
        }
        "overlong.buffer" => "overlong.factor is 0",
        key if key.starts_with("entropy_control.") => "entropy_control.target is not set",
        "critic.backbone" => "the critic reads the texts of all agents, and a policy those of one",
        "critic.learning_rate_scale" | "critic.warmup_batches" => {
            "the value head shares the policy's backbone and its optimiser"
        }
        "critic.coef" => "a critic with its own backbone has its own loss",
        key if key.starts_with("prm.") => "only advantage = \"prime\" has a process-reward model",
        _ => "the method does not use it",
    }
}

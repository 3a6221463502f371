//! Rejects invalid combinations of parts.

use super::reader::refuse;
use crate::error::Refusal;
use crate::{
    AdvantageKind, AlgoError, Algorithm, CorrectionLevel, LossKind, Proximal, RatioTo, RejectLevel,
    WeightLevel,
};

pub(super) fn check(algorithm: &Algorithm) -> Result<(), AlgoError> {
    group(algorithm)?;
    steps(algorithm)?;
    level(algorithm)?;
    proximal(algorithm)?;
    corrections(algorithm)?;
    kl(algorithm)
}

/// Only losses from recipes are checked.
fn loss_kind(algorithm: &Algorithm) -> LossKind {
    algorithm.settings.loss.and_then(|loss| loss.kind).unwrap_or(LossKind::PpoClip)
}

fn group(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let Some(advantage) = algorithm.advantage else { return Ok(()) };
    let needs = advantage.estimator.needs_group();
    if needs && algorithm.group_size < 2 {
        let reason = Refusal::NothingToCompare {
            group_size: algorithm.group_size,
            advantage: advantage.estimator.kind(),
        };
        let hint = "group_size of at least 2, or advantage = \"reinforce_pp\", which needs no group";
        return Err(refuse("group_size", reason, hint));
    }
    if algorithm.filters.dynamic_sampling && algorithm.group_size < 2 {
        let hint = "group_size of at least 2";
        return Err(refuse("filter.dynamic_sampling", Refusal::EveryGroupFiltered, hint));
    }
    Ok(())
}

/// A preference loss is relative to its reference, whatever the samples' policy.
fn steps(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let (epochs, minibatches) = (algorithm.epochs, algorithm.minibatches);
    let has_ratio = algorithm.preference.is_some() || algorithm.loss.surrogate.has_ratio();
    if has_ratio || (epochs == 1 && minibatches == 1) {
        return Ok(());
    }
    let key = if epochs > 1 { "epochs" } else { "minibatches" };
    let reason = Refusal::StepsWithoutRatio { epochs, minibatches };
    Err(refuse(key, reason, "epochs = 1 and minibatches = 1, or loss = \"ppo_clip\""))
}

fn level(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let Some(advantage) = algorithm.advantage else { return Ok(()) };
    if !algorithm.loss.surrogate.is_per_sequence() || advantage.estimator.is_per_episode() {
        return Ok(());
    }
    let has_level = algorithm.settings.loss.is_some_and(|loss| loss.get("level").is_some());
    let reason =
        Refusal::AdvantagePerToken { loss: loss_kind(algorithm), advantage: advantage.estimator.kind() };
    Err(if has_level {
        refuse("loss.level", reason, "level = \"token\"")
    } else {
        refuse("loss", reason, "loss = \"ppo_clip\" or \"gspo_token\"")
    })
}

/// Checks that the source of the proximal policy fits its use.
fn proximal(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let (loss, proximal) = (&algorithm.loss, algorithm.settings.proximal);
    if proximal == Some(Proximal::LogLinear) {
        if loss.ratio_to == RatioTo::Behavior {
            let hint = "ratio_to = \"old\", or leave proximal out";
            return Err(refuse("proximal", Refusal::InterpolationUnread, hint));
        }
        if !loss.is_stale {
            let hint = "proximal = \"sampler\", or schedule.max_staleness of at least 1";
            return Err(refuse("proximal", Refusal::NothingToInterpolate, hint));
        }
    }
    if proximal == Some(Proximal::Sampler) {
        if loss.correction.is_some() {
            return Err(refuse("proximal", Refusal::WeightsAreOne, "proximal = \"recompute\""));
        }
        if loss.is_stale && loss.ratio_to == RatioTo::Old {
            let hint = "proximal = \"recompute\" or \"log_linear\"; or ratio_to = \"behavior\", which bounds the distance from the sampler";
            return Err(refuse("proximal", Refusal::SamplerIsOlder, hint));
        }
    }
    Ok(())
}

fn corrections(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let (loss, kind) = (&algorithm.loss, loss_kind(algorithm));
    let level = algorithm.settings.correction.and_then(|c| c.level);
    if level == Some(CorrectionLevel::None) && loss.surrogate.reads_behavior() {
        let hint = "leave it out, or loss = \"reinforce\"";
        return Err(refuse("correction.level", Refusal::WeighsAnyway { loss: kind }, hint));
    }
    let rejects_tokens = loss.correction.rejection.is_some_and(|r| r.level == RejectLevel::Token);
    if loss.surrogate.is_per_sequence() && rejects_tokens {
        let hint = "reject_level = \"sequence_mean\"";
        return Err(refuse("correction.reject_level", Refusal::RejectsTokens { loss: kind }, hint));
    }
    let Some(weight) = loss.correction.weight else { return Ok(()) };
    if loss.surrogate.reads_behavior() || loss.ratio_to == RatioTo::Behavior {
        let hint = if loss.surrogate.reads_behavior() {
            "leave the weight out; rejection may stay"
        } else {
            "leave the weight out, or ratio_to = \"old\"; rejection may stay"
        };
        return Err(refuse("correction.level", Refusal::SecondWeight { loss: kind }, hint));
    }
    if loss.surrogate.is_per_sequence() && weight.level == WeightLevel::Token {
        let hint = "level = \"sequence\" or \"geometric\"";
        return Err(refuse("correction.level", Refusal::OneWeight { loss: kind }, hint));
    }
    Ok(())
}

fn kl(algorithm: &Algorithm) -> Result<(), AlgoError> {
    if algorithm.loss.kl.is_some_and(|kl| kl.ratio) && !algorithm.loss.surrogate.reads_old() {
        let reason = Refusal::NoRatio { loss: loss_kind(algorithm) };
        return Err(refuse("kl.ratio", reason, "leave it out, or loss = \"ppo_clip\""));
    }
    let Some(advantage) = algorithm.advantage.filter(|advantage| advantage.kl_coef > 0.0) else {
        return Ok(());
    };
    if advantage.estimator.kernel().takes_kl() {
        return Ok(());
    }
    let kind: AdvantageKind = advantage.estimator.kind();
    Err(refuse("kl.placement", Refusal::NoKlInReward { advantage: kind }, "placement = \"loss\""))
}

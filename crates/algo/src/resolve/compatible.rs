//! Combinations of parts that make no sense, each with the reason.

use super::reader::refuse;
use crate::{AlgoError, Algorithm, CorrectionLevel, Estimator, Proximal, RatioTo, RejectLevel, WeightLevel};

pub(super) fn check(algorithm: &Algorithm) -> Result<(), AlgoError> {
    group(algorithm)?;
    steps(algorithm)?;
    level(algorithm)?;
    proximal(algorithm)?;
    corrections(algorithm)?;
    kl(algorithm)
}

fn advantage_name(algorithm: &Algorithm) -> &'static str {
    algorithm.settings.advantage.map_or("none", crate::AdvantageKind::name)
}

fn loss_name(algorithm: &Algorithm) -> &'static str {
    algorithm.settings.loss.map_or("none", crate::LossKind::name)
}

fn group(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let Some(advantage) = algorithm.advantage else { return Ok(()) };
    let needs = advantage.estimator.needs_group();
    if needs && algorithm.group_size < 2 {
        let reason = format!(
            "{} leaves nobody to compare with: advantage \"{}\" is 0 in a group of one",
            algorithm.group_size,
            advantage_name(algorithm)
        );
        let hint = "group_size of at least 2, or advantage = \"reinforce_pp\", which needs no group";
        return Err(refuse("group_size", reason, hint));
    }
    if algorithm.filters.dynamic_sampling && algorithm.group_size < 2 {
        let reason = "the outcomes of a group of one are always all equal, so every group would be replaced";
        return Err(refuse("filter.dynamic_sampling", reason, "group_size of at least 2"));
    }
    Ok(())
}

fn steps(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let (epochs, minibatches) = (algorithm.epochs, algorithm.minibatches);
    if algorithm.loss.surrogate.has_ratio() || (epochs == 1 && minibatches == 1) {
        return Ok(());
    }
    let key = if epochs > 1 { "epochs" } else { "minibatches" };
    let reason = format!(
        "{epochs} x {minibatches} optimiser steps per batch with a loss without a ratio: after the first step the \
         samples are no longer the policy's, and nothing corrects for it"
    );
    Err(refuse(key, reason, "one step per batch, or loss = \"ppo_clip\""))
}

fn level(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let Some(advantage) = algorithm.advantage else { return Ok(()) };
    if !algorithm.loss.surrogate.is_per_sequence() || advantage.estimator.is_per_episode() {
        return Ok(());
    }
    let key = if algorithm.settings.level.is_some() { "level" } else { "loss" };
    let reason = format!(
        "loss \"{}\" at sequence level needs one advantage per episode, and advantage \"{}\" has one per token",
        loss_name(algorithm),
        advantage_name(algorithm)
    );
    let hint = if key == "level" { "level = \"token\"" } else { "loss = \"ppo_clip\" or \"gspo_token\"" };
    Err(refuse(key, reason, hint))
}

/// Where the proximal policy comes from, against what reads it.
fn proximal(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let (loss, proximal) = (&algorithm.loss, algorithm.settings.proximal);
    if proximal == Some(Proximal::LogLinear) {
        if loss.ratio_to == RatioTo::Behavior {
            let reason =
                "the ratio is taken to the sampler, so nothing reads an interpolated proximal policy";
            return Err(refuse("proximal", reason, "ratio_to = \"old\", or leave proximal out"));
        }
        if !loss.is_stale {
            let reason = "at max_staleness = 0 every sample is the newest policy's, and between it and itself lies nothing";
            return Err(refuse("proximal", reason, "proximal = \"sampler\", or max_staleness of at least 1"));
        }
    }
    if proximal == Some(Proximal::Sampler) {
        if loss.correction.is_some() {
            let reason =
                "with the sampler's own log-probabilities as the proximal policy's, every weight is 1";
            return Err(refuse("proximal", reason, "proximal = \"recompute\""));
        }
        if loss.is_stale && loss.ratio_to == RatioTo::Old {
            let reason = "at max_staleness above 0 the sampler is an older policy than the one that the batch starts from";
            let hint = "proximal = \"recompute\" or \"log_linear\"; or ratio_to = \"behavior\", which bounds the way from the sampler";
            return Err(refuse("proximal", reason, hint));
        }
    }
    Ok(())
}

fn corrections(algorithm: &Algorithm) -> Result<(), AlgoError> {
    let loss = &algorithm.loss;
    let level = algorithm.settings.correction.and_then(|c| c.level);
    if level == Some(CorrectionLevel::None) && loss.surrogate.reads_behavior() {
        let reason = format!(
            "loss \"{}\" weighs by its own ratio to the sampler, which this would not turn off",
            loss_name(algorithm)
        );
        return Err(refuse("correction.level", reason, "leave it out, or loss = \"reinforce\""));
    }
    let rejects_tokens = loss.correction.rejection.is_some_and(|r| r.level == RejectLevel::Token);
    if loss.surrogate.is_per_sequence() && rejects_tokens {
        let reason = format!(
            "loss \"{}\" is one term per sequence: no token of it can go alone",
            loss_name(algorithm)
        );
        return Err(refuse("correction.reject_level", reason, "reject_level = \"sequence_mean\""));
    }
    let Some(weight) = loss.correction.weight else { return Ok(()) };
    if loss.surrogate.reads_behavior() || loss.ratio_to == RatioTo::Behavior {
        let reason = format!(
            "loss \"{}\" already weighs by its ratio to the sampler: a second weight would count the same twice",
            loss_name(algorithm)
        );
        let hint = if loss.surrogate.reads_behavior() {
            "leave the weight out; rejection may stay"
        } else {
            "leave the weight out, or ratio_to = \"old\"; rejection may stay"
        };
        return Err(refuse("correction.level", reason, hint));
    }
    if loss.surrogate.is_per_sequence() && weight.level == WeightLevel::Token {
        let reason =
            format!("loss \"{}\" is one term per sequence, which has one weight", loss_name(algorithm));
        return Err(refuse("correction.level", reason, "level = \"sequence\" or \"geometric\""));
    }
    Ok(())
}

fn kl(algorithm: &Algorithm) -> Result<(), AlgoError> {
    if algorithm.loss.kl.is_some_and(|kl| kl.ratio) && !algorithm.loss.surrogate.reads_old() {
        let reason = format!("loss \"{}\" has no ratio to the proximal policy", loss_name(algorithm));
        return Err(refuse("kl.ratio", reason, "leave it out, or loss = \"ppo_clip\""));
    }
    if let Some(advantage) = algorithm.advantage
        && advantage.kl_coef > 0.0
        && matches!(
            advantage.estimator,
            Estimator::Prime { .. } | Estimator::Gdpo { .. } | Estimator::RaftPp { .. }
        )
    {
        let reason =
            format!("advantage \"{}\" has no place for a KL in the reward", advantage_name(algorithm));
        return Err(refuse("kl.placement", reason, "placement = \"loss\""));
    }
    Ok(())
}

//! The other parts of an algorithm: KL, correction, entropy, filters, shaping.

use super::reader::{Reader, checked, read, refuse};
use crate::error::Refusal;
use crate::loss::StaleWeight;
use crate::settings::function::{PYTHON, TIMEOUT_SECONDS, check_name};
use crate::{
    AlgoError, AlgorithmFunction, AlgorithmSettings, Correction, CorrectionLevel, EntropyControl, Estimator,
    Filters, ImportanceWeight, KlControl, KlEstimator, KlLoss, KlPlacement, Overlong, RejectLevel, Rejection,
    Text, WeightAction, WeightLevel,
};

/// The divergence from the reference, in the reward or in the loss.
#[derive(Debug, Default)]
pub(super) struct Kl {
    /// Weight in the reward, 0 for none.
    pub(super) in_reward: f64,
    pub(super) control: Option<KlControl>,
    pub(super) in_loss: Option<KlLoss>,
}

/// Scale of the noise on embeddings.
pub(super) fn noise(settings: &AlgorithmSettings) -> Result<Option<f64>, AlgoError> {
    let Some(alpha) = settings.neftune_noise_alpha else { return Ok(None) };
    checked("neftune_noise_alpha", alpha, |v| v > 0.0, "above 0", "5, or leave it out for no noise").map(Some)
}

pub(super) fn kl(r: &mut Reader, advantage: &Estimator) -> Result<Kl, AlgoError> {
    let coef = read!(r.kl.coef or 0.0);
    let coef = checked("kl.coef", coef, |v| v >= 0.0, "0 or more", "0 for no KL, which loads no reference")?;
    let asked = r.asked.kl.unwrap_or_default();
    let (placement, estimator) = match (asked.placement, asked.estimator) {
        (Some(placement), Some(estimator)) => (placement, estimator),
        (Some(KlPlacement::Reward), None) | (None, Some(KlEstimator::K1)) => {
            (KlPlacement::Reward, KlEstimator::K1)
        }
        (None, Some(estimator)) => (KlPlacement::Loss, estimator),
        (_, None) => (KlPlacement::Loss, KlEstimator::K3),
    };
    // Some advantages have no place for a KL in the reward.
    let in_reward = advantage.kernel().takes_kl();
    match (placement, estimator) {
        (KlPlacement::Loss, KlEstimator::K1) => {
            let hint = if in_reward {
                "estimator = \"k3\" or \"k2\" in the loss, or placement = \"reward\" with k1"
            } else {
                "estimator = \"k3\" or \"k2\""
            };
            return Err(refuse("kl.estimator", Refusal::K1InLoss, hint));
        }
        (KlPlacement::Reward, KlEstimator::K2 | KlEstimator::K3 | KlEstimator::K3Plus) => {
            let hint = if in_reward {
                "estimator = \"k1\", or placement = \"loss\""
            } else {
                "placement = \"loss\""
            };
            return Err(refuse("kl.estimator", Refusal::NotInReward { estimator }, hint));
        }
        _ => {}
    }
    if coef == 0.0 {
        return Ok(Kl::default());
    }
    read!(r.kl.estimator or estimator);
    read!(r.kl.placement or placement);
    match placement {
        KlPlacement::Reward => Ok(Kl { in_reward: coef, control: kl_control(r)?, in_loss: None }),
        KlPlacement::Loss => {
            let ratio = read!(r.kl.ratio or false);
            Ok(Kl { in_loss: Some(KlLoss { coef, estimator, ratio }), ..Kl::default() })
        }
    }
}

fn kl_control(r: &mut Reader) -> Result<Option<KlControl>, AlgoError> {
    let Some(target) = read!(r.kl.target?) else { return Ok(None) };
    let target = checked("kl.target", target, |v| v > 0.0, "above 0", "0.1 nats per token are usual")?;
    let horizon = read!(r.kl.horizon or 10_000.0);
    let horizon = checked("kl.horizon", horizon, |v| v > 0.0, "above 0", "10000 episodes are usual")?;
    Ok(Some(KlControl { target, horizon }))
}

/// `default` is the weight used if samples may be stale and the recipe sets none; `None` for no weight.
pub(super) fn correction(r: &mut Reader, default: Option<StaleWeight>) -> Result<Correction, AlgoError> {
    let level = if let Some(weight) = default {
        Some(read!(r.correction.level or weight.level.into()))
    } else {
        read!(r.correction.level?)
    };
    let weight = match level.and_then(CorrectionLevel::weight) {
        None => None,
        Some(level) => Some(weight(r, level, default)?),
    };
    let rejection = match read!(r.correction.reject?) {
        None => None,
        Some(estimator) => Some(rejection(r, estimator)?),
    };
    Ok(Correction { weight, rejection })
}

fn weight(
    r: &mut Reader,
    level: WeightLevel,
    default: Option<StaleWeight>,
) -> Result<ImportanceWeight, AlgoError> {
    let action = read!(r.correction.action or default.map_or(WeightAction::Clamp, |weight| weight.action));
    let (low, high) = match (action, default) {
        (WeightAction::Clamp, _) => (0.0, 2.0),
        // Between engines that should agree, a small weight is as suspicious as a large one. In an older sample it only
        // means that the token has become less likely.
        (WeightAction::Mask, None) => (0.5, 5.0),
        (WeightAction::Mask, Some(_)) => (0.0, 5.0),
    };
    let low = read!(r.correction.low or low);
    let low =
        checked("correction.low", low, |v| (0.0..=1.0).contains(&v), "between 0 and 1", "0 for no bound")?;
    let high = read!(r.correction.high or high);
    let high = checked(
        "correction.high",
        high,
        |v| v >= 1.0,
        "1 or more: equal policies have the weight 1",
        "2.0 is usual for a clamp, 5.0 for a mask",
    )?;
    Ok(ImportanceWeight { level, action, low, high })
}

fn rejection(r: &mut Reader, estimator: KlEstimator) -> Result<Rejection, AlgoError> {
    if estimator == KlEstimator::K3Plus {
        return Err(refuse("correction.reject", Refusal::K3PlusRejects, "reject = \"k3\""));
    }
    let level = read!(r.correction.reject_level or RejectLevel::SequenceMean);
    let low = if estimator == KlEstimator::K1 { read!(r.correction.reject_low?) } else { None };
    let low = match low {
        Some(low) => checked(
            "correction.reject_low",
            low,
            |v| v <= 0.0,
            "0 or less",
            "in nats per token, for example -0.1",
        )?,
        None => f64::NEG_INFINITY,
    };
    let Some(high) = read!(r.correction.reject_high?) else {
        let hint = "set correction.reject_high, in nats per token, for example 0.1";
        return Err(refuse("correction.reject", Refusal::NoRejectBound, hint));
    };
    let high = checked(
        "correction.reject_high",
        high,
        |v| v > 0.0,
        "above 0",
        "in nats per token, for example 0.1",
    )?;
    Ok(Rejection { estimator, level, low, high })
}

pub(super) fn entropy_coef(r: &mut Reader) -> Result<f64, AlgoError> {
    let coef = read!(r.entropy_coef or 0.0);
    checked(
        "entropy_coef",
        coef,
        |v| v >= 0.0,
        "0 or more: it weighs a bonus, which is subtracted from the loss",
        "0 for none; 0.001 is usual where there is one",
    )
}

pub(super) fn entropy_control(r: &mut Reader) -> Result<Option<EntropyControl>, AlgoError> {
    let Some(target) = read!(r.entropy_control.target?) else { return Ok(None) };
    let target = checked(
        "entropy_control.target",
        target,
        |v| v > 0.0,
        "above 0",
        "in nats per token, for example 0.5",
    )?;
    let step = read!(r.entropy_control.step or 0.005);
    let step = checked("entropy_control.step", step, |v| v > 0.0, "above 0", "0.005 is usual")?;
    let min = read!(r.entropy_control.min or 0.0);
    let min = checked("entropy_control.min", min, |v| v >= 0.0, "0 or more", "0 is usual")?;
    let max = read!(r.entropy_control.max or 1.0);
    let max = checked("entropy_control.max", max, |v| v > min, "above entropy_control.min", "1 is usual")?;
    Ok(Some(EntropyControl { target, step, min, max }))
}

/// `estimator` is the advantage; `None` for a method that trains on pairs of its samples.
pub(super) fn filters(r: &mut Reader, estimator: Option<&Estimator>) -> Result<Filters, AlgoError> {
    let dynamic_sampling = read!(r.filter.dynamic_sampling or false);
    let compares = estimator.is_some_and(Estimator::needs_group);
    let filters = Filters {
        dynamic_sampling,
        keep: estimator.and_then(|estimator| estimator.kernel().keep()),
        pairs: estimator.is_none(),
        function: filter_function(r)?,
        max_draws: 0,
        mask_truncated: read!(r.filter.mask_truncated or false),
        mask_zero_variance: compares && read!(r.filter.mask_zero_variance or false),
        min_tokens: read!(r.filter.min_tokens?),
        max_tokens: read!(r.filter.max_tokens?),
    };
    if let (Some(min), Some(max)) = (filters.min_tokens, filters.max_tokens)
        && min > max
    {
        return Err(refuse("filter.max_tokens", Refusal::NoEpisodeFits { min, max }, "swap the two"));
    }
    if !filters.replaces_groups() {
        return Ok(filters);
    }
    let max_draws = super::reader::at_least_one("filter.max_draws", read!(r.filter.max_draws or 10))?;
    Ok(Filters { max_draws, ..filters })
}

fn filter_function(r: &mut Reader) -> Result<Option<AlgorithmFunction>, AlgoError> {
    let Some(function) = read!(r.filter.function?) else { return Ok(None) };
    let function = check_name("filter.function", Some(function))?;
    let python = read!(r.filter.python or Text::new(PYTHON));
    let seconds = read!(r.filter.timeout_seconds or TIMEOUT_SECONDS);
    let timeout_seconds = checked("filter.timeout_seconds", seconds, |v| v > 0.0, "above 0", "60 is usual")?;
    Ok(Some(AlgorithmFunction { function, python, timeout_seconds }))
}

pub(super) fn overlong(r: &mut Reader) -> Result<Option<Overlong>, AlgoError> {
    let factor = read!(r.overlong.factor or 0.0);
    let factor =
        checked("overlong.factor", factor, |v| v >= 0.0, "0 or more", "0 for no penalty, 1 is DAPO's")?;
    if factor == 0.0 {
        return Ok(None);
    }
    let buffer = read!(r.overlong.buffer?);
    if buffer == Some(0) {
        return Err(refuse("overlong.buffer", Refusal::TooFew, "leave it out for a fifth of the limit"));
    }
    Ok(Some(Overlong { buffer, factor }))
}

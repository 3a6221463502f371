//! From rewards to advantages: estimator, whitening, and the models that some estimators learn beside the policy.

use super::reader::{Reader, checked, read, refuse};
use crate::{
    AdvantageKind, AlgoError, Backbone, CriticSpec, Estimator, Keep, PrmSpec, StatisticFrom, ValueLoss,
};

/// ε of standard deviations.
const STD_EPSILON: f64 = 1e-4;

fn std_epsilon(r: &mut Reader) -> Result<f64, AlgoError> {
    let value = read!(r.std_epsilon or STD_EPSILON);
    checked("std_epsilon", value, |v| v >= 0.0, "0 or more", "1e-4 is usual")
}

fn gamma(r: &mut Reader, default: f64) -> Result<f64, AlgoError> {
    let value = read!(r.gamma or default);
    checked("gamma", value, |v| (0.0..=1.0).contains(&v), "between 0 and 1", "1 for no discount")
}

fn optional_std(r: &mut Reader, default: bool) -> Result<Option<f64>, AlgoError> {
    if read!(r.divide_by_std or default) { std_epsilon(r).map(Some) } else { Ok(None) }
}

pub(super) fn estimator(r: &mut Reader) -> Result<Estimator, AlgoError> {
    Ok(match read!(r.advantage or AdvantageKind::Group) {
        AdvantageKind::Group => Estimator::group(std_epsilon(r)?),
        AdvantageKind::GroupMean | AdvantageKind::ReinforcePpBaseline => Estimator::group_mean(),
        AdvantageKind::Normalized => {
            let mean_from = read!(r.mean_from or StatisticFrom::Group);
            let std_from = read!(r.std_from or StatisticFrom::Batch);
            let std_epsilon = if std_from == StatisticFrom::None { 0.0 } else { std_epsilon(r)? };
            Estimator::Normalized { mean_from, std_from, std_epsilon }
        }
        AdvantageKind::Rloo => Estimator::Rloo,
        AdvantageKind::ReinforcePp => Estimator::ReinforcePp { gamma: gamma(r, 1.0)? },
        AdvantageKind::Gae => {
            let gamma = gamma(r, 1.0)?;
            let lambda = read!(r.lambda or 0.95);
            let in_range = |v: f64| (0.0..=1.0).contains(&v);
            let lambda = checked("lambda", lambda, in_range, "between 0 and 1", "0.95 is usual")?;
            Estimator::Gae { gamma, lambda }
        }
        AdvantageKind::Remax => Estimator::Remax,
        AdvantageKind::Opo => Estimator::Opo,
        AdvantageKind::Gpg => Estimator::Gpg,
        AdvantageKind::MaxAtG => Estimator::MaxAtG { std_epsilon: optional_std(r, false)? },
        AdvantageKind::Gdpo => Estimator::Gdpo { std_epsilon: std_epsilon(r)? },
        AdvantageKind::RaftPp => Estimator::RaftPp { keep: read!(r.keep or Keep::Positive) },
        AdvantageKind::Topr => {
            let baseline = read!(r.baseline or 0.5);
            let baseline =
                checked("baseline", baseline, |_| true, "a number", "0.5 lies between rewards of 0 and 1")?;
            Estimator::Topr { baseline }
        }
        AdvantageKind::Gigpo => {
            let gamma = gamma(r, 0.95)?;
            let step_weight = read!(r.step_weight or 1.0);
            let step_weight = checked(
                "step_weight",
                step_weight,
                |v| v >= 0.0,
                "0 or more",
                "1 weighs steps like episodes",
            )?;
            Estimator::Gigpo { gamma, step_weight, std_epsilon: optional_std(r, true)? }
        }
        AdvantageKind::Prime => {
            let gamma = gamma(r, 1.0)?;
            let beta = read!(r.prm.beta or 0.05);
            let beta = checked("prm.beta", beta, |v| v > 0.0, "above 0", "0.05 is the paper's")?;
            Estimator::Prime { gamma, beta }
        }
    })
}

pub(super) fn whiten(r: &mut Reader, estimator: Estimator) -> Result<bool, AlgoError> {
    let is_baseline = r.record.advantage == Some(AdvantageKind::ReinforcePpBaseline);
    let by_default = is_baseline
        || matches!(
            estimator,
            Estimator::ReinforcePp { .. } | Estimator::Gae { .. } | Estimator::Gdpo { .. }
        );
    let whiten = read!(r.whiten or by_default);
    if is_baseline && !whiten {
        let reason = "without whitening, advantage \"reinforce_pp_baseline\" is \"group_mean\"";
        return Err(refuse("whiten", reason, "advantage = \"group_mean\" says so"));
    }
    Ok(whiten)
}

fn rate_scale(key: &'static str, value: f64) -> Result<f64, AlgoError> {
    checked(key, value, |v| v > 0.0, "above 0", "it multiplies the policy's learning rate")
}

pub(super) fn critic(r: &mut Reader, estimator: Estimator) -> Result<Option<CriticSpec>, AlgoError> {
    if !matches!(estimator, Estimator::Gae { .. }) {
        return Ok(None);
    }
    let backbone = read!(r.critic.backbone or Backbone::Own);
    let clip = read!(r.critic.clip or 0.2);
    let clip = checked("critic.clip", clip, |v| v >= 0.0, "0 or more", "0 for no bound, 0.2 is usual")?;
    let clip = (clip > 0.0).then_some(clip);
    Ok(Some(match backbone {
        Backbone::Own => {
            let scale = read!(r.critic.learning_rate_scale or 10.0);
            CriticSpec {
                backbone,
                learning_rate_scale: rate_scale("critic.learning_rate_scale", scale)?,
                value: ValueLoss { coef: 1.0, clip },
                warmup_batches: read!(r.critic.warmup_batches or 0),
            }
        }
        Backbone::Shared => {
            let coef = read!(r.critic.coef or 0.1);
            let coef = checked("critic.coef", coef, |v| v > 0.0, "above 0", "0.1 is usual")?;
            CriticSpec {
                backbone,
                learning_rate_scale: 1.0,
                value: ValueLoss { coef, clip },
                warmup_batches: 0,
            }
        }
    }))
}

pub(super) fn prm(r: &mut Reader, estimator: Estimator) -> Result<Option<PrmSpec>, AlgoError> {
    let Estimator::Prime { beta, .. } = estimator else { return Ok(None) };
    let scale = read!(r.prm.learning_rate_scale or 2.0);
    Ok(Some(PrmSpec { beta, learning_rate_scale: rate_scale("prm.learning_rate_scale", scale)? }))
}

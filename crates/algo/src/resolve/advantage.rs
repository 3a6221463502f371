//! Advantages: estimator, whitening, and the models that some estimators train together with the policy.

use super::reader::{Reader, checked, read, refuse};
use crate::advantage::Whitening;
use crate::error::Refusal;
use crate::settings::function::check_name;
use crate::{AdvantageKind, AlgoError, Backbone, CriticSpec, Estimator, PrmSpec, ValueLoss};

pub(super) fn estimator(r: &mut Reader) -> Result<Estimator, AlgoError> {
    let asked = r.asked.advantage.unwrap_or_default();
    let estimator = asked.resolve(asked.kind.unwrap_or(AdvantageKind::Group))?;
    if let Estimator::Python(python) = &estimator {
        check_name("advantage.function", python.function)?;
    }
    r.record.advantage = Some(estimator.settings());
    Ok(estimator)
}

pub(super) fn whiten(r: &mut Reader, estimator: &Estimator) -> Result<bool, AlgoError> {
    let whitening = estimator.kernel().whitening();
    let whiten = read!(r.whiten or whitening != Whitening::Off);
    match whitening {
        Whitening::Always { without } if !whiten => Err(refuse(
            "whiten",
            Refusal::SameWithoutWhitening { advantage: estimator.kind(), without },
            "choose that advantage instead",
        )),
        _ => Ok(whiten),
    }
}

fn rate_scale(key: &'static str, value: f64, hint: &'static str) -> Result<f64, AlgoError> {
    checked(key, value, |v| v > 0.0, "above 0: it multiplies the policy's learning rate", hint)
}

pub(super) fn critic(r: &mut Reader, estimator: &Estimator) -> Result<Option<CriticSpec>, AlgoError> {
    let reads = estimator.kernel().reads();
    if !reads.values && !reads.round_values {
        return Ok(None);
    }
    // A sequence of several agents' texts is none that the policy reads.
    let backbone = if reads.values { read!(r.critic.backbone or Backbone::Own) } else { Backbone::Own };
    let clip = read!(r.critic.clip or 0.2);
    let clip = checked("critic.clip", clip, |v| v >= 0.0, "0 or more", "0 for no bound, 0.2 is usual")?;
    let clip = (clip > 0.0).then_some(clip);
    Ok(Some(match backbone {
        Backbone::Own => {
            let scale = read!(r.critic.learning_rate_scale or 10.0);
            CriticSpec {
                backbone,
                learning_rate_scale: rate_scale("critic.learning_rate_scale", scale, "10 is usual")?,
                value: ValueLoss { coef: 1.0, clip },
                warmup_batches: read!(r.critic.warmup_batches or 0),
                is_joint: reads.round_values,
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
                is_joint: false,
            }
        }
    }))
}

pub(super) fn prm(r: &mut Reader, estimator: &Estimator) -> Result<Option<PrmSpec>, AlgoError> {
    let Some(beta) = estimator.kernel().reads().prm else { return Ok(None) };
    let scale = read!(r.prm.learning_rate_scale or 2.0);
    Ok(Some(PrmSpec {
        beta,
        learning_rate_scale: rate_scale("prm.learning_rate_scale", scale, "2 is usual")?,
    }))
}

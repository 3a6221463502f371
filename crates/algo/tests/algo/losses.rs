//! Losses for the property tests.

use rloom_algo::{
    Aggregation, Cispo, ClipCov, Correction, Dft, DppoKl, DppoTv, Gmpo, Gspo, GspoToken, ImplicitReward,
    ImportanceWeight, KlCov, KlEstimator, KlLoss, Level, LossKind, PolicyLoss, PpoClip, RatioTo, Reinforce,
    RejectLevel, Rejection, Sapo, Sft, Surrogate, Topr, ValueLoss, WeightAction, WeightLevel,
};

pub(crate) const CLIP: PpoClip = PpoClip { clip_low: 0.2, clip_high: 0.28, dual_clip: None };

pub(crate) const CLIP_COV: ClipCov = ClipCov {
    clip_low: CLIP.clip_low,
    clip_high: CLIP.clip_high,
    dual_clip: None,
    cov_share: 0.2,
    cov_low: 0.1,
    cov_high: 1.5,
};

/// Every surrogate, with bounds that random inputs cross; others with their defaults.
pub(crate) fn surrogates() -> Vec<Surrogate> {
    let mut surrogates = vec![
        Surrogate::PpoClip(CLIP),
        Surrogate::PpoClip(PpoClip { dual_clip: Some(1.5), ..CLIP }),
        Surrogate::Reinforce(Reinforce { level: Level::Token }),
        Surrogate::Reinforce(Reinforce { level: Level::Sequence }),
        Surrogate::Gspo(Gspo { clip_low: 0.1, clip_high: 0.15 }),
        Surrogate::GspoToken(GspoToken { clip_low: 0.1, clip_high: 0.15 }),
        Surrogate::Gmpo(Gmpo { clip_low: 0.2, clip_high: 0.3 }),
        Surrogate::Cispo(Cispo { weight_cap: 1.5, weight_floor: 0.0 }),
        Surrogate::Cispo(Cispo { weight_cap: 1.3, weight_floor: 0.7 }),
        Surrogate::Sapo(Sapo { tau_positive: 1.0, tau_negative: 1.05 }),
        Surrogate::Topr(Topr { level: Level::Sequence }),
        Surrogate::Topr(Topr { level: Level::Token }),
        Surrogate::DppoTv(DppoTv { divergence_limit: 0.05, weight_cap: 20.0 }),
        Surrogate::DppoKl(DppoKl { divergence_limit: 0.02, weight_cap: 1.2 }),
        Surrogate::ClipCov(CLIP_COV),
        Surrogate::KlCov(KlCov { cov_share: 0.2, cov_coef: 0.7 }),
        Surrogate::ImplicitReward(ImplicitReward { beta: 0.3 }),
        Surrogate::Sft(Sft),
        Surrogate::Dft(Dft),
    ];
    let others = LossKind::ALL.iter().filter(|kind| !surrogates.iter().any(|s| s.kind() == Some(**kind)));
    // A loss in Python is computed elsewhere.
    let others = others.filter(|kind| **kind != LossKind::Python);
    let others: Vec<Surrogate> = others.map(|kind| kind.defaults()).collect();
    surrogates.extend(others);
    surrogates
}

pub(crate) fn kl(estimator: KlEstimator, ratio: bool) -> KlLoss {
    KlLoss { coef: 0.1, estimator, ratio }
}

/// Every kind of weight, action and rejection.
pub(crate) fn corrections() -> Vec<Correction> {
    let weight = |level, action, low, high| Some(ImportanceWeight { level, action, low, high });
    let reject = |estimator, level, low, high| Some(Rejection { estimator, level, low, high });
    let none = f64::NEG_INFINITY;
    let pair = |weight, rejection| Correction { weight, rejection };
    vec![
        pair(weight(WeightLevel::Token, WeightAction::Clamp, 0.8, 1.3), None),
        pair(weight(WeightLevel::Token, WeightAction::Mask, 0.7, 1.5), None),
        pair(weight(WeightLevel::Sequence, WeightAction::Clamp, 0.5, 2.0), None),
        pair(weight(WeightLevel::Sequence, WeightAction::Mask, 0.4, 3.0), None),
        pair(weight(WeightLevel::Geometric, WeightAction::Clamp, 0.9, 1.2), None),
        pair(weight(WeightLevel::Geometric, WeightAction::Mask, 0.8, 1.3), None),
        pair(None, reject(KlEstimator::K1, RejectLevel::Token, -0.4, 0.4)),
        pair(None, reject(KlEstimator::K2, RejectLevel::SequenceMax, none, 0.2)),
        pair(
            weight(WeightLevel::Geometric, WeightAction::Clamp, 0.0, 1.2),
            reject(KlEstimator::K3, RejectLevel::SequenceMean, none, 0.1),
        ),
        pair(
            weight(WeightLevel::Token, WeightAction::Clamp, 0.0, 1.5),
            reject(KlEstimator::K1, RejectLevel::SequenceMax, none, 0.3),
        ),
    ]
}

pub(crate) fn is_by_token(correction: &Correction) -> bool {
    correction.weight.is_some_and(|w| w.level == WeightLevel::Token)
        || correction.rejection.is_some_and(|r| r.level == RejectLevel::Token)
}

/// A surrogate with each other term of the loss, one at a time and together.
pub(crate) fn variants(surrogate: Surrogate, aggregation: Aggregation) -> Vec<PolicyLoss> {
    let plain = PolicyLoss::new(surrogate, aggregation);
    let value = Some(ValueLoss { coef: 0.5, clip: Some(0.2) });
    let mut losses = vec![
        plain,
        PolicyLoss { entropy_coef: 0.01, kl: Some(kl(KlEstimator::K2, false)), ..plain },
        PolicyLoss { kl: Some(kl(KlEstimator::K3, false)), ..plain },
        PolicyLoss { kl: Some(kl(KlEstimator::K3Plus, false)), ..plain },
        PolicyLoss { value, ..plain },
        PolicyLoss { value: Some(ValueLoss { coef: 0.3, clip: None }), entropy_coef: 0.02, ..plain },
    ];
    if surrogate.reads_old() {
        losses.extend([
            PolicyLoss { ratio_to: RatioTo::Behavior, ..plain },
            PolicyLoss { kl: Some(kl(KlEstimator::K2, true)), ..plain },
            PolicyLoss { kl: Some(kl(KlEstimator::K3, true)), ratio_to: RatioTo::Behavior, ..plain },
            PolicyLoss { kl: Some(kl(KlEstimator::K3Plus, true)), ..plain },
        ]);
    }
    if surrogate.reads_advantage() {
        let fits = |c: &Correction| !(surrogate.is_per_sequence() && is_by_token(c));
        losses.extend(
            corrections().into_iter().filter(fits).map(|correction| PolicyLoss { correction, ..plain }),
        );
        let correction = corrections()[8];
        if surrogate.reads_old() {
            // It compares proximal policy and sampler, for either ratio.
            losses.push(PolicyLoss { correction, ratio_to: RatioTo::Behavior, ..plain });
            losses.push(PolicyLoss {
                correction,
                kl: Some(kl(KlEstimator::K3, true)),
                is_stale: true,
                ..plain
            });
        }
        losses.push(PolicyLoss {
            correction,
            kl: Some(kl(KlEstimator::K3, false)),
            entropy_coef: 0.02,
            value,
            ..plain
        });
    }
    losses
}

/// Every surrogate × aggregation × variant.
pub(crate) fn losses() -> Vec<PolicyLoss> {
    let mut losses = Vec::new();
    for surrogate in surrogates() {
        for aggregation in Aggregation::ALL {
            losses.extend(variants(surrogate, aggregation));
        }
    }
    losses
}

//! Every key of a recipe's `[algorithm]`, to find out which of them a method reads.

use rloom_algo::{
    AdvantageKind, Aggregation, Algorithm, AlgorithmSettings, Backbone, CorrectionLevel, CorrectionSettings,
    CriticSettings, EntropyControlSettings, FilterSettings, Keep, KlEstimator, KlPlacement, KlSettings,
    Level, LossKind, Method, OverlongSettings, PrmSettings, Proximal, RatioTo, RejectLevel, StatisticFrom,
    WeightAction,
};

/// All keys with values that make sense somewhere. Without `..`, so that the compiler asks for a new one.
fn every_key() -> AlgorithmSettings {
    AlgorithmSettings {
        group_size: Some(8),
        advantage: Some(AdvantageKind::Normalized),
        mean_from: Some(StatisticFrom::Batch),
        std_from: Some(StatisticFrom::Batch),
        std_epsilon: Some(1e-3),
        divide_by_std: Some(true),
        gamma: Some(0.9),
        lambda: Some(0.9),
        baseline: Some(0.4),
        step_weight: Some(0.5),
        keep: Some(Keep::Best),
        whiten: Some(true),
        loss: Some(LossKind::PpoClip),
        level: Some(Level::Token),
        clip_low: Some(0.1),
        clip_high: Some(0.1),
        dual_clip: Some(3.0),
        weight_cap: Some(4.0),
        weight_floor: Some(0.1),
        tau_positive: Some(1.1),
        tau_negative: Some(1.2),
        divergence_limit: Some(0.1),
        cov_share: Some(0.01),
        cov_low: Some(0.5),
        cov_high: Some(4.0),
        cov_coef: Some(0.5),
        ratio_to: Some(RatioTo::Behavior),
        proximal: Some(Proximal::Recompute),
        loss_aggregation: Some(Aggregation::TokenMean),
        entropy_coef: Some(0.01),
        epochs: Some(1),
        minibatches: Some(1),
        kl: Some(KlSettings {
            coef: Some(0.1),
            estimator: Some(KlEstimator::K3),
            placement: Some(KlPlacement::Loss),
            ratio: Some(true),
            target: Some(0.1),
            horizon: Some(100.0),
        }),
        correction: Some(CorrectionSettings {
            level: Some(CorrectionLevel::Geometric),
            action: Some(WeightAction::Mask),
            low: Some(0.5),
            high: Some(3.0),
            reject: Some(KlEstimator::K2),
            reject_level: Some(RejectLevel::SequenceMax),
            reject_low: Some(-0.1),
            reject_high: Some(0.1),
        }),
        filter: Some(FilterSettings {
            dynamic_sampling: Some(true),
            max_draws: Some(5),
            mask_truncated: Some(true),
            mask_zero_variance: Some(true),
            min_tokens: Some(1),
            max_tokens: Some(9),
        }),
        overlong: Some(OverlongSettings { buffer: Some(4), factor: Some(0.5) }),
        entropy_control: Some(EntropyControlSettings {
            target: Some(0.5),
            step: Some(0.01),
            min: Some(0.1),
            max: Some(0.2),
        }),
        critic: Some(CriticSettings {
            backbone: Some(Backbone::Shared),
            learning_rate_scale: Some(2.0),
            coef: Some(0.5),
            clip: Some(0.1),
            warmup_batches: Some(1),
        }),
        prm: Some(PrmSettings { beta: Some(0.1), learning_rate_scale: Some(1.0) }),
    }
}

/// Dotted keys with their values, in the order in which the settings have them.
pub(crate) fn flat(settings: &AlgorithmSettings) -> Vec<(&'static str, toml::Value)> {
    let tables = toml::Value::try_from(settings).unwrap();
    let at = |key: &str| key.split('.').try_fold(&tables, |value, part| value.get(part)).unwrap().clone();
    settings.keys().into_iter().map(|key| (key, at(key))).collect()
}

/// Whether a key that `method` leaves out may be set on its own: then a preset without it is a choice.
fn may_be_set(method: Method, key: &str, value: &toml::Value) -> bool {
    // A rejection needs its bound.
    let bound = if key == "correction.reject" { "\ncorrection.reject_high = 0.1" } else { "" };
    let settings = toml::from_str(&format!("{key} = {value}{bound}")).unwrap();
    Algorithm::resolve(method, &settings, 0).is_ok()
}

/// Every key that a method reads: with its value in the preset, or with `None` where it may be left out and is.
pub(crate) fn read_by(method: Method) -> Vec<(&'static str, Option<toml::Value>)> {
    let preset = flat(&Algorithm::preset(method).unwrap().to_settings());
    let preset = |key: &str| preset.iter().find(|(k, _)| *k == key).map(|(_, value)| value.clone());
    flat(&every_key())
        .into_iter()
        .filter_map(|(key, sample)| match preset(key) {
            Some(value) => Some((key, Some(value))),
            None => may_be_set(method, key, &sample).then_some((key, None)),
        })
        .collect()
}

#[test]
fn no_key_of_a_preset_is_missed() {
    for &method in Method::ALL {
        let preset = Algorithm::preset(method).unwrap().to_settings().keys();
        let read: Vec<_> = read_by(method).into_iter().filter(|(_, v)| v.is_some()).map(|(k, _)| k).collect();
        assert_eq!(read, preset, "{method}");
    }
}

//! The keys that apply to a method, with their defaults and documentation.

use crate::settings::layer::Layer;
use crate::{
    Aggregation, Algorithm, AlgorithmSettings, Backbone, CorrectionLevel, CorrectionSettings, CriticSettings,
    EntropyControlSettings, FilterSettings, Kind, KindSettings, KlEstimator, KlPlacement, KlSettings, Method,
    OverlongSettings, PrmSettings, Proximal, RatioTo, RejectLevel, RewardModelSettings, Text, Value,
    WeightAction,
};

/// A key of `[stage.algorithm]` that a method reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyReference {
    /// Dotted, below `[stage.algorithm]`.
    pub key: &'static str,
    /// Value in the method's preset; `None` if unset by default.
    pub default: Option<Value>,
    /// Documentation of the key.
    pub doc: &'static str,
}

impl Method {
    /// All keys with an effect on the method: those of its preset, and those that can be set on their own.
    ///
    /// # Errors
    ///
    /// None for built-in presets, as in [`Algorithm::preset`].
    pub fn keys(self) -> Result<Vec<KeyReference>, crate::AlgoError> {
        let preset = Algorithm::preset(self)?;
        let values = preset.settings.values();
        let default = |key: &str| values.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let mut keys = Vec::new();
        for &(key, doc) in documented() {
            match default(key) {
                Some(value) => keys.push(KeyReference { key, default: Some(value), doc }),
                None if self.may_set(key) => keys.push(KeyReference { key, default: None, doc }),
                None => continue,
            }
            if key == "advantage"
                && let Some(advantage) = preset.advantage
            {
                let ignored = advantage.estimator.kernel().ignored();
                keys.extend(of_kind(preset.settings.advantage, ignored));
            }
            if key == "loss" {
                keys.extend(of_kind(preset.settings.loss, &[]));
            }
            if key == "preference" {
                keys.extend(of_kind(preset.settings.preference, &[]));
            }
            if key == "distillation" {
                keys.extend(of_kind(preset.settings.distillation, &[]));
            }
        }
        Ok(keys)
    }

    /// True if a key that is unset in the preset can be set on its own.
    fn may_set(self, key: &str) -> bool {
        let Some(mut settings) = sample().only("", key) else { return false };
        if key == "correction.reject" {
            // A rejection needs its bound.
            settings.correction.get_or_insert_default().reject_high = Some(0.1);
        }
        Algorithm::resolve(self, &settings, 0).is_ok()
    }
}

/// All keys but those of the tables of kinds, in order.
fn documented() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let tables: [(&str, &'static [(&'static str, &'static str)]); 8] = [
        ("kl", KlSettings::DOCS),
        ("correction", CorrectionSettings::DOCS),
        ("filter", FilterSettings::DOCS),
        ("overlong", OverlongSettings::DOCS),
        ("entropy_control", EntropyControlSettings::DOCS),
        ("critic", CriticSettings::DOCS),
        ("prm", PrmSettings::DOCS),
        ("reward_model", RewardModelSettings::DOCS),
    ];
    AlgorithmSettings::DOCS.iter().flat_map(move |entry| {
        match tables.iter().find(|(table, _)| *table == entry.0) {
            Some((_, docs)) => docs.iter(),
            None => std::slice::from_ref(entry).iter(),
        }
    })
}

/// The keys of the chosen kind.
fn of_kind<K: Kind>(settings: Option<KindSettings<K>>, ignored: &[&str]) -> Vec<KeyReference> {
    let Some((settings, kind)) = settings.and_then(|settings| Some((settings, settings.kind?))) else {
        return Vec::new();
    };
    let read = kind.keys().iter().filter(|key| !ignored.contains(&key.name));
    read.map(|key| KeyReference {
        key: crate::settings::kind::path::<K>(key.name),
        default: settings.get(key.name),
        doc: key.doc,
    })
    .collect()
}

/// A value for every key that a preset may leave unset. Without `..`, so that a new field is a compile error.
fn sample() -> AlgorithmSettings {
    AlgorithmSettings {
        group_size: Some(8),
        advantage: None,
        whiten: Some(true),
        loss: None,
        preference: None,
        distillation: None,
        ratio_to: Some(RatioTo::Behavior),
        proximal: Some(Proximal::Recompute),
        loss_aggregation: Some(Aggregation::TokenMean),
        entropy_coef: Some(0.01),
        epochs: Some(1),
        minibatches: Some(1),
        neftune_noise_alpha: Some(5.0),
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
            function: Some(Text::new("method.py:keep")),
            python: Some(Text::new("python3.12")),
            timeout_seconds: Some(5.0),
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
        prm: Some(PrmSettings { learning_rate_scale: Some(1.0) }),
        reward_model: Some(RewardModelSettings { center_rewards_coefficient: Some(0.01) }),
    }
}

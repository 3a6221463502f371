//! Resolves a preset and its overrides into an algorithm.

mod advantage;
mod compatible;
mod extras;
mod pairs;
mod reader;
mod sampler;

use reader::{Reader, at_least_one, checked, read, unread_reason};

use crate::{
    Aggregation, AlgoError, Algorithm, AlgorithmSettings, Correction, CriticSpec, Dft, DistillationKind,
    Filters, KlEstimator, KlPlacement, LossKind, Method, PolicyLoss, PreferenceKind, Proximal, RatioTo,
    RewardModelSpec, Sampler, Sft, Surrogate,
    error::{Refusal, Unread},
    settings::function::check_name,
    settings::layer::Layer,
};

impl Algorithm {
    /// The preset of a method, for samples of the newest policy only.
    ///
    /// # Errors
    ///
    /// Infallible for built-in presets (covered by a test).
    pub fn preset(method: Method) -> Result<Self, AlgoError> {
        Self::resolve(method, &AlgorithmSettings::default(), 0)
    }

    /// The preset of `method` with `settings` over it, for the samples of `sampler`: a [`Sampler`], or the staleness
    /// bound of an exact one.
    ///
    /// If samples may be stale or the sampler is not exact, every loss corrects for that unless `correction.level =
    /// "none"`: by an importance weight, which is then the default of `[correction]`, or by a ratio to the sampler. The
    /// size of the bound does not matter beyond that. Supervised methods sample nothing and ignore the sampler.
    ///
    /// # Errors
    ///
    /// [`AlgoError::NotRead`] with all keys that have no effect, and [`AlgoError::Refused`] for invalid values and
    /// combinations; both contain their keys ([`AlgoError::keys`]).
    pub fn resolve(
        method: Method,
        settings: &AlgorithmSettings,
        sampler: impl Into<Sampler>,
    ) -> Result<Self, AlgoError> {
        let is_off_policy = sampler.into().is_off_policy();
        let algorithm = match method.settings() {
            None => supervised(method, settings)?,
            Some(preset) if method.trains_reward_model() => reward_model(method, &preset, settings)?,
            Some(preset) if preset.distillation.is_some() => distillation(method, &preset, settings)?,
            Some(preset) if method.is_supervised() => preference(method, &preset, settings)?,
            Some(preset) if preset.preference.is_some() => pairs::sampled(method, &settings.over(preset))?,
            Some(preset) => {
                build(method, &settings.over(without_other_parts(&preset, settings)), is_off_policy)?
            }
        };
        let read = algorithm.settings.keys();
        let unread: Vec<Unread> = settings
            .keys()
            .into_iter()
            .filter(|key| !read.contains(key))
            .map(|key| Unread { key, reason: unread_reason(key, method, &algorithm.settings) })
            .collect();
        if !unread.is_empty() {
            return Err(AlgoError::NotRead { method, keys: unread });
        }
        compatible::check(&algorithm)?;
        Ok(algorithm)
    }
}

/// The preset without the settings that `settings` replace: the models of another advantage, and the KL's estimator or
/// placement if the recipe sets the other one.
fn without_other_parts(preset: &AlgorithmSettings, settings: &AlgorithmSettings) -> AlgorithmSettings {
    let mut kept = *preset;
    let kind = |settings: &AlgorithmSettings| settings.advantage.and_then(|advantage| advantage.kind);
    if kind(settings).is_some() && kind(preset) != kind(settings) {
        (kept.critic, kept.prm) = (None, None);
    }
    if let (Some(asked), Some(kl)) = (settings.kl, kept.kl.as_mut()) {
        // k1 belongs in the reward and the others in the loss, so that each determines the other.
        let in_reward = |estimator| estimator == KlEstimator::K1;
        if let (Some(estimator), None) = (asked.estimator, asked.placement) {
            let fits = kl.placement.is_none_or(|p| (p == KlPlacement::Reward) == in_reward(estimator));
            kl.placement = kl.placement.filter(|_| fits);
        }
        if let (Some(placement), None) = (asked.placement, asked.estimator) {
            let fits = kl.estimator.is_none_or(|e| (placement == KlPlacement::Reward) == in_reward(e));
            kl.estimator = kl.estimator.filter(|_| fits);
        }
    }
    kept
}

/// A method that learns from demonstrations: one optimiser step per batch.
fn supervised(method: Method, settings: &AlgorithmSettings) -> Result<Algorithm, AlgoError> {
    let aggregation = settings.loss_aggregation.unwrap_or(Aggregation::TokenMean);
    let neftune_noise_alpha = extras::noise(settings)?;
    Ok(Algorithm {
        neftune_noise_alpha,
        settings: AlgorithmSettings {
            loss_aggregation: Some(aggregation),
            neftune_noise_alpha,
            ..AlgorithmSettings::default()
        },
        ..given(method, aggregation)
    })
}

/// A method that learns from given completions, without settings.
fn given(method: Method, aggregation: Aggregation) -> Algorithm {
    let surrogate = if method == Method::Dft { Surrogate::Dft(Dft) } else { Surrogate::Sft(Sft) };
    Algorithm {
        method,
        group_size: 1,
        advantage: None,
        loss: PolicyLoss::new(surrogate, aggregation),
        preference: None,
        reward_model: None,
        distillation: None,
        proximal: Proximal::Sampler,
        kl_control: None,
        entropy_control: None,
        filters: Filters::default(),
        overlong: None,
        critic: None,
        prm: None,
        epochs: 1,
        minibatches: 1,
        neftune_noise_alpha: None,
        settings: AlgorithmSettings::default(),
    }
}

/// A method that learns from preferences: one optimiser step per batch.
fn preference(
    method: Method,
    preset: &AlgorithmSettings,
    settings: &AlgorithmSettings,
) -> Result<Algorithm, AlgoError> {
    let own = preset.preference.unwrap_or_default();
    let kind = own.kind.unwrap_or(PreferenceKind::Dpo);
    let asked = settings.preference.unwrap_or_default();
    if let Some(other) = asked.kind.filter(|&other| other != kind) {
        let hint = "leave `kind` out, and choose the loss by the stage's `method`";
        return Err(reader::refuse("preference", Refusal::OtherPreference { kind: other }, hint));
    }
    let preference = asked.over(own).resolve(kind)?;
    Ok(Algorithm {
        preference: Some(preference),
        settings: AlgorithmSettings {
            preference: Some(preference.settings()),
            ..AlgorithmSettings::default()
        },
        ..given(method, Aggregation::TokenMean)
    })
}

/// A method that trains a reward model: one optimiser step per batch.
fn reward_model(
    method: Method,
    preset: &AlgorithmSettings,
    settings: &AlgorithmSettings,
) -> Result<Algorithm, AlgoError> {
    let mut reader = Reader { asked: settings.over(*preset), record: AlgorithmSettings::default() };
    let r = &mut reader;
    let spec = if method == Method::Prm {
        RewardModelSpec::Process
    } else {
        let key = "reward_model.center_rewards_coefficient";
        let center = read!(r.reward_model.center_rewards_coefficient or 0.0);
        RewardModelSpec::Sequence {
            center: checked(key, center, |c| c >= 0.0, "0 or more", "0 for none, 0.01 is usual")?,
        }
    };
    Ok(Algorithm {
        reward_model: Some(spec),
        settings: reader.record,
        ..given(method, Aggregation::TokenMean)
    })
}

/// A method that learns from a teacher: one optimiser step per batch.
fn distillation(
    method: Method,
    preset: &AlgorithmSettings,
    settings: &AlgorithmSettings,
) -> Result<Algorithm, AlgoError> {
    let asked = settings.distillation.unwrap_or_default().over(preset.distillation.unwrap_or_default());
    let distillation = asked.resolve(asked.kind.unwrap_or(DistillationKind::ForwardKl))?;
    let aggregation = settings.loss_aggregation.unwrap_or(Aggregation::TokenMean);
    Ok(Algorithm {
        distillation: Some(distillation),
        settings: AlgorithmSettings {
            distillation: Some(distillation.settings()),
            loss_aggregation: Some(aggregation),
            ..AlgorithmSettings::default()
        },
        ..given(method, aggregation)
    })
}

/// Resolves the settings part by part.
fn build(method: Method, asked: &AlgorithmSettings, is_stale: bool) -> Result<Algorithm, AlgoError> {
    let mut reader = Reader { asked: *asked, record: AlgorithmSettings::default() };
    let r = &mut reader;
    let group_size = at_least_one("group_size", read!(r.group_size or 8))?;
    let estimator = advantage::estimator(r)?;
    let whiten = advantage::whiten(r, &estimator)?;
    let surrogate = loss(r)?;
    let (ratio_to, correction, proximal) = against_the_sampler(r, &surrogate, is_stale)?;
    let kl = extras::kl(r, &estimator)?;
    let entropy_coef = extras::entropy_coef(r)?;
    let entropy_control = extras::entropy_control(r)?;
    let per_token = !surrogate.is_per_sequence()
        || kl.in_loss.is_some()
        || entropy_coef != 0.0
        || entropy_control.is_some();
    let aggregation = if per_token {
        read!(r.loss_aggregation or Aggregation::TokenMean)
    } else {
        Aggregation::SequenceSum
    };
    let critic = advantage::critic(r, &estimator)?;
    let prm = advantage::prm(r, &estimator)?;
    let algorithm = Algorithm {
        method,
        group_size,
        advantage: Some(crate::AdvantageSpec { estimator, kl_coef: kl.in_reward, whiten }),
        loss: PolicyLoss {
            ratio_to,
            correction,
            is_stale,
            kl: kl.in_loss,
            entropy_coef,
            value: critic.filter(CriticSpec::is_shared).map(|c| c.value),
            ..PolicyLoss::new(surrogate, aggregation)
        },
        preference: None,
        reward_model: None,
        distillation: None,
        proximal,
        kl_control: kl.control,
        entropy_control,
        filters: extras::filters(r, Some(&estimator))?,
        overlong: extras::overlong(r)?,
        critic,
        prm,
        epochs: at_least_one("epochs", read!(r.epochs or 1))?,
        minibatches: at_least_one("minibatches", read!(r.minibatches or 1))?,
        neftune_noise_alpha: None,
        settings: reader.record,
    };
    Ok(algorithm)
}

/// The policy loss with its settings.
fn loss(r: &mut Reader) -> Result<Surrogate, AlgoError> {
    let asked = r.asked.loss.unwrap_or_default();
    let surrogate = asked.resolve(asked.kind.unwrap_or(LossKind::PpoClip))?;
    if let Surrogate::Python(python) = &surrogate {
        check_name("loss.function", python.function)?;
    }
    r.record.loss = surrogate.settings();
    Ok(surrogate)
}

/// The denominator of the ratio, the correction for the sampler, and the source of the proximal policy.
fn against_the_sampler(
    r: &mut Reader,
    surrogate: &Surrogate,
    is_stale: bool,
) -> Result<(RatioTo, Correction, Proximal), AlgoError> {
    let says_weight = r.asked.correction.is_some_and(|c| c.level.is_some());
    let ratio_to = if is_stale && !says_weight { surrogate.kernel().stale_ratio_to() } else { RatioTo::Old };
    let ratio_to = if surrogate.reads_old() { read!(r.ratio_to or ratio_to) } else { RatioTo::Old };
    let to_sampler = surrogate.reads_old() && ratio_to == RatioTo::Behavior;
    let default = if is_stale && !to_sampler { surrogate.kernel().stale_weight() } else { None };
    let correction = extras::correction(r, default)?;
    // Without a ratio there is one optimiser step per batch, so the scores themselves are the proximal policy's.
    let reads_proximal = surrogate.reads_old() || (correction.is_some() && surrogate.has_ratio());
    let is_sampler = ratio_to == RatioTo::Behavior || !is_stale;
    let proximal = if reads_proximal {
        let by_default =
            if is_sampler && !correction.is_some() { Proximal::Sampler } else { Proximal::Recompute };
        read!(r.proximal or by_default)
    } else {
        Proximal::Sampler
    };
    Ok((ratio_to, correction, proximal))
}

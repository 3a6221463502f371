//! Preset and overrides become an algorithm, or an error that says why not.

mod advantage;
mod compatible;
mod extras;
mod reader;
mod surrogate;

use reader::{Reader, at_least_one, read, unread_reason};

use crate::{
    Aggregation, AlgoError, Algorithm, AlgorithmSettings, CriticSpec, Filters, KlEstimator, KlPlacement,
    Method, PolicyLoss, Proximal, RatioTo, Sft, Surrogate, error::Unread, preset::preset,
    settings::layer::Layer,
};

impl Algorithm {
    /// A method as its preset has it.
    ///
    /// # Errors
    ///
    /// None for the presets there are; a test resolves every one.
    pub fn preset(method: Method) -> Result<Self, AlgoError> {
        Self::resolve(method, &AlgorithmSettings::default())
    }

    /// The preset of `method` with `settings` over it.
    ///
    /// # Errors
    ///
    /// [`AlgoError::NotRead`] with every key that is set and not read, and [`AlgoError::Refused`] for values and
    /// combinations that make no sense; both name their keys ([`AlgoError::keys`]).
    pub fn resolve(method: Method, settings: &AlgorithmSettings) -> Result<Self, AlgoError> {
        let algorithm = match preset(method) {
            None => supervised(method, settings),
            Some(preset) => build(method, &settings.over(without_other_parts(&preset, settings)))?,
        };
        let read = algorithm.settings.keys();
        let unread: Vec<Unread> = settings
            .keys()
            .into_iter()
            .filter(|key| !read.contains(key))
            .map(|key| Unread {
                key,
                reason: if method.is_supervised() {
                    "it learns from demonstrations: nothing is sampled, compared or clipped"
                } else {
                    unread_reason(key, &algorithm.settings)
                },
            })
            .collect();
        if !unread.is_empty() {
            return Err(AlgoError::NotRead { method, keys: unread });
        }
        compatible::check(&algorithm)?;
        Ok(algorithm)
    }
}

/// A preset without the knobs of parts that `settings` replace by others: those have their own defaults.
fn without_other_parts(preset: &AlgorithmSettings, settings: &AlgorithmSettings) -> AlgorithmSettings {
    let mut kept = *preset;
    if settings.loss.is_some_and(|loss| preset.loss != Some(loss)) {
        (kept.clip_low, kept.clip_high, kept.level) = (None, None, None);
    }
    if settings.advantage.is_some_and(|advantage| preset.advantage != Some(advantage)) {
        (kept.critic, kept.prm) = (None, None);
    }
    if let (Some(asked), Some(kl)) = (settings.kl, kept.kl.as_mut()) {
        // k1 belongs in the reward and the others in the loss: who says one says the other.
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

fn supervised(method: Method, settings: &AlgorithmSettings) -> Algorithm {
    let aggregation = settings.loss_aggregation.unwrap_or(Aggregation::TokenMean);
    Algorithm {
        method,
        group_size: 1,
        advantage: None,
        loss: PolicyLoss::new(Surrogate::Sft(Sft), aggregation),
        proximal: Proximal::Sampler,
        kl_control: None,
        entropy_control: None,
        filters: Filters::default(),
        overlong: None,
        critic: None,
        prm: None,
        epochs: 1,
        minibatches: 1,
        settings: AlgorithmSettings { loss_aggregation: Some(aggregation), ..AlgorithmSettings::default() },
    }
}

/// Reads what was asked for, part by part.
fn build(method: Method, asked: &AlgorithmSettings) -> Result<Algorithm, AlgoError> {
    let mut reader = Reader { asked: *asked, record: AlgorithmSettings::default() };
    let r = &mut reader;
    let group_size = at_least_one("group_size", read!(r.group_size or 8))?;
    let estimator = advantage::estimator(r)?;
    let whiten = advantage::whiten(r, estimator)?;
    let surrogate = surrogate::surrogate(r)?;
    let correction = extras::correction(r)?;
    let ratio_to = if surrogate.reads_old() { read!(r.ratio_to or RatioTo::Old) } else { RatioTo::Old };
    let kl = extras::kl(r)?;
    let corrects = correction.weight.is_some() || correction.rejection.is_some();
    let proximal = if surrogate.reads_old() || corrects {
        read!(r.proximal or if corrects { Proximal::Recompute } else { Proximal::Sampler })
    } else {
        Proximal::Sampler
    };
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
    let critic = advantage::critic(r, estimator)?;
    let prm = advantage::prm(r, estimator)?;
    let algorithm = Algorithm {
        method,
        group_size,
        advantage: Some(crate::AdvantageSpec { estimator, kl_coef: kl.in_reward, whiten }),
        loss: PolicyLoss {
            ratio_to,
            correction,
            kl: kl.in_loss,
            entropy_coef,
            value: critic.filter(CriticSpec::is_shared).map(|c| c.value),
            ..PolicyLoss::new(surrogate, aggregation)
        },
        proximal,
        kl_control: kl.control,
        entropy_control,
        filters: extras::filters(r, estimator)?,
        overlong: extras::overlong(r)?,
        critic,
        prm,
        epochs: at_least_one("epochs", read!(r.epochs or 1))?,
        minibatches: at_least_one("minibatches", read!(r.minibatches or 1))?,
        settings: reader.record,
    };
    Ok(algorithm)
}

//! Preset and overrides become an algorithm, or an error that says why not.

use crate::{
    AdvantageKind, AdvantageSpec, Aggregation, AlgoError, Algorithm, AlgorithmSettings, Estimator,
    KlEstimator, KlLoss, KlPlacement, KlSettings, Level, LossKind, Method, PolicyLoss, PpoClip, Reinforce,
    Sft, Surrogate,
    error::Unread,
    preset::{GAMMA, Preset, STD_EPSILON, preset},
};

fn refuse(key: &'static str, reason: impl Into<String>, hint: impl Into<String>) -> AlgoError {
    AlgoError::Refused { key, reason: reason.into(), hint: hint.into() }
}

/// Collects keys that are set although nothing reads them.
#[derive(Default)]
struct UnreadKeys(Vec<Unread>);

impl UnreadKeys {
    fn note(&mut self, key: &'static str, set: bool, reason: &'static str) {
        if set {
            self.0.push(Unread { key, reason });
        }
    }

    fn refuse(self, method: Method) -> Result<(), AlgoError> {
        if self.0.is_empty() { Ok(()) } else { Err(AlgoError::NotRead { method, keys: self.0 }) }
    }
}

fn at_least_one(key: &'static str, value: u32) -> Result<u32, AlgoError> {
    if value == 0 {
        return Err(refuse(key, "0 is too few", "set it to 1 or more"));
    }
    Ok(value)
}

impl Algorithm {
    pub(crate) fn of_preset(method: Method) -> Self {
        let none = AlgorithmSettings::default();
        match preset(method) {
            None => supervised(method, &none),
            Some(p) => Self {
                method,
                group_size: p.group_size,
                advantage: Some(AdvantageSpec {
                    estimator: estimator(p.advantage, &none),
                    kl_coef: if p.kl_placement == KlPlacement::Reward { p.kl_coef } else { 0.0 },
                    whiten: whitens(p.advantage),
                }),
                loss: PolicyLoss {
                    surrogate: match p.loss {
                        LossKind::PpoClip => Surrogate::PpoClip(PpoClip {
                            clip_low: p.clip,
                            clip_high: p.clip,
                            dual_clip: None,
                        }),
                        LossKind::Reinforce => Surrogate::Reinforce(Reinforce { level: p.level }),
                    },
                    aggregation: p.aggregation,
                    kl: (p.kl_placement == KlPlacement::Loss && p.kl_coef > 0.0)
                        .then_some(KlLoss { coef: p.kl_coef, estimator: p.kl_estimator }),
                    entropy_coef: 0.0,
                },
                epochs: 1,
                minibatches: 1,
            },
        }
    }

    /// The preset of `method` with `settings` over it.
    ///
    /// # Errors
    ///
    /// [`AlgoError::NotRead`] with every key that is set and not read, and [`AlgoError::Refused`] for values and
    /// combinations that make no sense; both name their keys ([`AlgoError::keys`]).
    pub fn resolve(method: Method, settings: &AlgorithmSettings) -> Result<Self, AlgoError> {
        let Some(preset) = preset(method) else {
            unread_when_supervised(settings).refuse(method)?;
            return Ok(supervised(method, settings));
        };
        let advantage = settings.advantage.unwrap_or(preset.advantage);
        let loss = settings.loss.unwrap_or(preset.loss);
        unread(settings, advantage, loss).refuse(method)?;

        let group_size = at_least_one("group_size", settings.group_size.unwrap_or(preset.group_size))?;
        let surrogate = surrogate(settings, &preset, loss)?;
        let (kl_coef, kl_loss) = kl(settings.kl.unwrap_or_default(), &preset)?;
        let algorithm = Self {
            method,
            group_size,
            advantage: Some(AdvantageSpec {
                estimator: estimator(advantage, settings),
                kl_coef,
                whiten: settings.whiten.unwrap_or(whitens(advantage)),
            }),
            loss: PolicyLoss {
                surrogate,
                aggregation: settings.loss_aggregation.unwrap_or(preset.aggregation),
                kl: kl_loss,
                entropy_coef: entropy_coef(settings)?,
            },
            epochs: at_least_one("epochs", settings.epochs.unwrap_or(1))?,
            minibatches: at_least_one("minibatches", settings.minibatches.unwrap_or(1))?,
        };
        check_advantage(&algorithm, advantage, settings)?;
        check_steps(&algorithm)?;
        check_aggregation(&algorithm, settings)?;
        Ok(algorithm)
    }
}

fn supervised(method: Method, settings: &AlgorithmSettings) -> Algorithm {
    Algorithm {
        method,
        group_size: 1,
        advantage: None,
        loss: PolicyLoss {
            surrogate: Surrogate::Sft(Sft),
            aggregation: settings.loss_aggregation.unwrap_or(Aggregation::TokenMean),
            kl: None,
            entropy_coef: 0.0,
        },
        epochs: 1,
        minibatches: 1,
    }
}

fn unread_when_supervised(s: &AlgorithmSettings) -> UnreadKeys {
    const REASON: &str = "it learns from demonstrations: nothing is sampled, compared or clipped";
    let mut unread = UnreadKeys::default();
    for (key, set) in [
        ("group_size", s.group_size.is_some()),
        ("advantage", s.advantage.is_some()),
        ("std_epsilon", s.std_epsilon.is_some()),
        ("gamma", s.gamma.is_some()),
        ("whiten", s.whiten.is_some()),
        ("loss", s.loss.is_some()),
        ("level", s.level.is_some()),
        ("clip_low", s.clip_low.is_some()),
        ("clip_high", s.clip_high.is_some()),
        ("dual_clip", s.dual_clip.is_some()),
        ("entropy_coef", s.entropy_coef.is_some()),
        ("epochs", s.epochs.is_some()),
        ("minibatches", s.minibatches.is_some()),
        ("kl", s.kl.is_some()),
    ] {
        unread.note(key, set, REASON);
    }
    unread
}

fn unread(s: &AlgorithmSettings, advantage: AdvantageKind, loss: LossKind) -> UnreadKeys {
    let mut unread = UnreadKeys::default();
    if advantage != AdvantageKind::Group {
        let reason = "only advantage = \"group\" divides by the group's standard deviation";
        unread.note("std_epsilon", s.std_epsilon.is_some(), reason);
    }
    if advantage != AdvantageKind::ReinforcePp {
        let reason = "only advantage = \"reinforce_pp\" discounts";
        unread.note("gamma", s.gamma.is_some(), reason);
    }
    match loss {
        LossKind::PpoClip => {
            unread.note("level", s.level.is_some(), "loss = \"ppo_clip\" has a ratio for each token");
        }
        LossKind::Reinforce => {
            let reason = "loss = \"reinforce\" has no ratio to clip";
            unread.note("clip_low", s.clip_low.is_some(), reason);
            unread.note("clip_high", s.clip_high.is_some(), reason);
            unread.note("dual_clip", s.dual_clip.is_some(), reason);
        }
    }
    unread
}

fn estimator(kind: AdvantageKind, settings: &AlgorithmSettings) -> Estimator {
    match kind {
        AdvantageKind::Group => Estimator::Group { std_epsilon: settings.std_epsilon.unwrap_or(STD_EPSILON) },
        AdvantageKind::GroupMean | AdvantageKind::ReinforcePpBaseline => Estimator::GroupMean,
        AdvantageKind::Rloo => Estimator::Rloo,
        AdvantageKind::ReinforcePp => Estimator::ReinforcePp { gamma: settings.gamma.unwrap_or(GAMMA) },
    }
}

fn whitens(kind: AdvantageKind) -> bool {
    matches!(kind, AdvantageKind::ReinforcePp | AdvantageKind::ReinforcePpBaseline)
}

fn surrogate(s: &AlgorithmSettings, preset: &Preset, loss: LossKind) -> Result<Surrogate, AlgoError> {
    if loss == LossKind::Reinforce {
        return Ok(Surrogate::Reinforce(Reinforce { level: s.level.unwrap_or(preset.level) }));
    }
    let clip_low = s.clip_low.unwrap_or(preset.clip);
    if !(clip_low > 0.0 && clip_low < 1.0) {
        let reason = format!("{clip_low} is not between 0 and 1: the ratio's lower bound is 1 - clip_low");
        return Err(refuse("clip_low", reason, "0.2 is usual"));
    }
    let clip_high = s.clip_high.unwrap_or(preset.clip);
    if !(clip_high > 0.0 && clip_high.is_finite()) {
        let reason = format!("{clip_high} is not above 0: the ratio's upper bound is 1 + clip_high");
        return Err(refuse("clip_high", reason, "0.2 is usual, 0.28 for clip-higher"));
    }
    if let Some(c) = s.dual_clip.filter(|&c| !(c > 1.0 && c.is_finite())) {
        let reason = format!(
            "{c} is not above 1: it bounds the ratio of tokens with a negative advantage, and that starts at 1"
        );
        return Err(refuse("dual_clip", reason, "3.0 is usual; leave it out for no dual clip"));
    }
    Ok(Surrogate::PpoClip(PpoClip { clip_low, clip_high, dual_clip: s.dual_clip }))
}

fn entropy_coef(s: &AlgorithmSettings) -> Result<f64, AlgoError> {
    let coef = s.entropy_coef.unwrap_or(0.0);
    if !(coef >= 0.0 && coef.is_finite()) {
        let reason = format!("{coef} is not 0 or more: it weighs a bonus, which is subtracted from the loss");
        return Err(refuse("entropy_coef", reason, "0 for none; 0.001 is usual where there is one"));
    }
    Ok(coef)
}

/// KL in the reward (its weight, 0 for none) and in the loss. What is not said follows from what is.
fn kl(s: KlSettings, preset: &Preset) -> Result<(f64, Option<KlLoss>), AlgoError> {
    let coef = s.coef.unwrap_or(preset.kl_coef);
    if !(coef >= 0.0 && coef.is_finite()) {
        return Err(refuse(
            "kl.coef",
            format!("{coef} is not 0 or more"),
            "0 for no KL, which loads no reference",
        ));
    }
    let placement = match (s.placement, s.estimator) {
        (Some(placement), _) => placement,
        (None, Some(KlEstimator::K1)) => KlPlacement::Reward,
        (None, Some(KlEstimator::K2 | KlEstimator::K3)) => KlPlacement::Loss,
        (None, None) => preset.kl_placement,
    };
    let estimator = match (s.estimator, placement) {
        (Some(estimator), _) => estimator,
        (None, KlPlacement::Reward) => KlEstimator::K1,
        (None, KlPlacement::Loss) if preset.kl_placement == KlPlacement::Loss => preset.kl_estimator,
        (None, KlPlacement::Loss) => KlEstimator::K3,
    };
    match (placement, estimator) {
        (KlPlacement::Loss, KlEstimator::K1) => Err(refuse(
            "kl.estimator",
            "k1 as a loss has a gradient that is zero in expectation: it adds noise and no pull to the reference",
            "estimator = \"k3\" or \"k2\" in the loss, or placement = \"reward\" with k1",
        )),
        (KlPlacement::Reward, KlEstimator::K2 | KlEstimator::K3) => Err(refuse(
            "kl.estimator",
            format!(
                "{} in the reward does not give the gradient of the KL: there it is k1",
                estimator.name()
            ),
            format!("estimator = \"k1\", or placement = \"loss\" with {}", estimator.name()),
        )),
        _ if s.coef.is_none() && coef == 0.0 && s != KlSettings::default() => Err(refuse(
            if s.estimator.is_some() { "kl.estimator" } else { "kl.placement" },
            "the method's kl.coef is 0, so nothing reads it",
            "set kl.coef as well",
        )),
        (KlPlacement::Reward, KlEstimator::K1) => Ok((coef, None)),
        (KlPlacement::Loss, _) => Ok((0.0, (coef > 0.0).then_some(KlLoss { coef, estimator }))),
    }
}

fn check_advantage(
    algorithm: &Algorithm,
    kind: AdvantageKind,
    settings: &AlgorithmSettings,
) -> Result<(), AlgoError> {
    let Some(advantage) = algorithm.advantage else { return Ok(()) };
    let estimator = advantage.estimator;
    if estimator.needs_group() && algorithm.group_size < 2 {
        let reason = format!(
            "{} leaves nobody to compare with: advantage \"{}\" is 0 in a group of one",
            algorithm.group_size,
            kind.name()
        );
        let hint = "group_size of at least 2, or advantage = \"reinforce_pp\", which needs no group";
        return Err(refuse("group_size", reason, hint));
    }
    if let Estimator::Group { std_epsilon } = estimator
        && !(std_epsilon >= 0.0 && std_epsilon.is_finite())
    {
        return Err(refuse("std_epsilon", format!("{std_epsilon} is not 0 or more"), "1e-4 is usual"));
    }
    if let Estimator::ReinforcePp { gamma } = estimator
        && !(0.0..=1.0).contains(&gamma)
    {
        return Err(refuse("gamma", format!("{gamma} is not between 0 and 1"), "1 for no discount"));
    }
    if kind == AdvantageKind::ReinforcePpBaseline && settings.whiten == Some(false) {
        let reason = "without whitening, advantage \"reinforce_pp_baseline\" is \"group_mean\"";
        return Err(refuse("whiten", reason, "advantage = \"group_mean\" says so"));
    }
    if algorithm.level() == Level::Sequence && !estimator.is_per_episode() {
        let reason = format!(
            "a loss at sequence level needs one advantage per episode, and advantage \"{}\" has one per token",
            kind.name()
        );
        return Err(refuse("level", reason, "level = \"token\""));
    }
    Ok(())
}

fn check_steps(algorithm: &Algorithm) -> Result<(), AlgoError> {
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

/// A surrogate of sequence scope is divided by the number of sequences, whatever the aggregation.
fn check_aggregation(algorithm: &Algorithm, settings: &AlgorithmSettings) -> Result<(), AlgoError> {
    let mut unread = UnreadKeys::default();
    if algorithm.to_settings().loss_aggregation.is_none() {
        unread.note(
            "loss_aggregation",
            settings.loss_aggregation.is_some(),
            "a loss at sequence level is a mean over sequences, and there is no KL in the loss and no entropy bonus",
        );
    }
    unread.refuse(algorithm.method)
}

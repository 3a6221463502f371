//! Settings without effect on samples of the policy that is trained.

use crate::settings::keys::Value;
use crate::settings::kind::path;
use crate::settings::layer::Layer;
use crate::{Algorithm, AlgorithmSettings, LossKind};

/// The bound on a learned value's change from the start of the batch.
const VALUE_CLIP: &str = "critic.clip";

impl Algorithm {
    /// Optimiser steps per batch.
    pub fn steps_per_batch(&self) -> u64 {
        u64::from(self.epochs) * u64::from(self.minibatches)
    }

    /// Bounds of ratios and values, below `[stage.algorithm]`, that differ from the method's defaults and cannot act if
    /// the policy that a batch is trained on has sampled it, with log-probabilities equal to the trainer's: in the first
    /// optimiser step every ratio is 1 and every value is that of the start of the batch. Empty with further steps.
    pub fn idle_on_policy(&self) -> Vec<&'static str> {
        if self.steps_per_batch() > 1 {
            return Vec::new();
        }
        let of_loss = self.loss.surrogate.kernel().idle_on_policy().iter().map(|key| path::<LossKind>(key));
        let idle: Vec<&str> = of_loss.chain([VALUE_CLIP]).collect();
        let defaults = values(&self.defaults());
        let changed = values(&self.to_settings()).into_iter().filter(|set| !defaults.contains(set));
        changed.map(|(key, _)| key).filter(|key| idle.contains(key)).collect()
    }

    /// Settings of the method, with the defaults of the loss that is used.
    fn defaults(&self) -> AlgorithmSettings {
        let preset = Self::preset(self.method).map(|preset| preset.to_settings()).unwrap_or_default();
        let kind = self.loss.surrogate.kind();
        if preset.loss.and_then(|loss| loss.kind) == kind {
            return preset;
        }
        AlgorithmSettings { loss: kind.and_then(|kind| kind.defaults().settings()), ..preset }
    }
}

fn values(settings: &AlgorithmSettings) -> Vec<(&'static str, Value)> {
    let mut values = Vec::new();
    settings.collect("", &mut values);
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::kernel::{Row, TokenTerm};
    use crate::settings::kind::Kind;
    use crate::{LossSettings, Method, Surrogate};

    fn idle(method: Method, settings: &str) -> Vec<&'static str> {
        let settings = serde_json::from_str(settings).unwrap();
        Algorithm::resolve(method, &settings, 0).unwrap().idle_on_policy()
    }

    #[test]
    fn bounds_that_are_set_and_cannot_act_are_named() {
        let clips = r#"{"loss":{"clip_high":0.28,"dual_clip":3}}"#;
        assert_eq!(idle(Method::Grpo, clips), ["loss.clip_high", "loss.dual_clip"]);
        assert!(idle(Method::Grpo, "{}").is_empty(), "defaults");
        assert!(idle(Method::Grpo, r#"{"loss":{"clip_high":0.2}}"#).is_empty(), "the default as well");
        assert!(idle(Method::Grpo, r#"{"loss":{"clip_high":0.28},"minibatches":2}"#).is_empty());
        assert!(idle(Method::Grpo, r#"{"loss":{"clip_high":0.28},"epochs":2}"#).is_empty());
        assert!(idle(Method::Grpo, r#"{"loss":"cispo"}"#).is_empty(), "defaults of another loss");
        let cispo = r#"{"loss":{"kind":"cispo","weight_cap":4,"weight_floor":0.5}}"#;
        assert_eq!(idle(Method::Grpo, cispo), ["loss.weight_cap", "loss.weight_floor"]);
        let acts = r#"{"loss":{"kind":"cispo","weight_cap":0.5}}"#;
        assert!(idle(Method::Grpo, acts).is_empty(), "a cap below 1 acts on every token");
        assert_eq!(idle(Method::Ppo, r#"{"critic":{"clip":0.5},"epochs":1,"minibatches":1}"#), [VALUE_CLIP]);
    }

    /// Coefficients of tokens whose ratio is 1.
    fn on_policy(surrogate: &Surrogate) -> Vec<f64> {
        let lp = [-0.1, -2.0, -0.7, -5.0, -1e-3, -0.4];
        let mut coefficients = Vec::new();
        for a in [-1.5, -1e-3, 1e-3, 2.5] {
            let advantage = [a; 6];
            let row = Row {
                lp: &lp,
                old: &lp,
                proximal: &lp,
                behavior: &lp,
                reference: &lp,
                advantage: &advantage,
                picked: &[],
                outcome: 0.0,
                given: &[],
            };
            let mut terms = [TokenTerm::default(); 6];
            surrogate.kernel().row(&row, &mut terms);
            coefficients.extend(terms.iter().map(|term| term.d_logprob));
        }
        coefficients
    }

    #[test]
    fn idle_keys_of_every_loss_change_no_coefficient_while_the_ratio_is_1() {
        let mut found = 0;
        for name in LossKind::NAMES {
            let kind = LossKind::named(name).unwrap();
            let defaults = kind.defaults();
            for key in defaults.kernel().idle_on_policy() {
                for value in [0.01, 0.5, 1.0, 1.5, 7.0] {
                    let changed = LossSettings::from(kind).with(key, value).resolve(kind);
                    // Out of range, or a value with which the key is not idle.
                    let Ok(changed) = changed else { continue };
                    if changed.kernel().idle_on_policy().contains(key) {
                        assert_eq!(on_policy(&changed), on_policy(&defaults), "{name}: {key} = {value}");
                        found += 1;
                    }
                }
            }
        }
        assert!(found > 50, "{found}");
    }
}
